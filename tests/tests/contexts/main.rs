//! Contexts with real jails: what an interpreter keeps, how its executions follow one another, and how it ends.
#![allow(clippy::unwrap_used, reason = "a test that can't go on should stop")]

mod ends;
mod forged;
mod load;
mod pause;
mod restart;
mod shown;
mod state;

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use brig_proto::v1::{Context, ContextsCreateRequest, ExecutionSpec, Limits, SessionsCreateRequest, StartKind};
use brig_tests::spec::{code, command, span};
use brig_tests::way::{WAY, Way};
use brig_tests::{Client, Live, Outcome, eventually, slow};

/// The session and the context of most tests.
const MINE: &str = "mine";

/// A context of a daemon, in a session of its own.
struct Kept<'d> {
    daemon: &'d Client,
}

impl<'d> Kept<'d> {
    /// Makes a session, and a context in it, under one name.
    fn new(daemon: &'d Client) -> Self {
        Self::of(daemon, "base", "python")
    }

    fn of(daemon: &'d Client, template: &str, language: &str) -> Self {
        if *WAY != Way::Cold {
            await_zygote(daemon, template);
        }
        daemon.create(SessionsCreateRequest {
            session_id: MINE.to_owned(),
            template: template.to_owned(),
            // That of interpreters too.
            limits: Some(Limits {
                start_timeout: Some(span(Duration::from_secs(10) * slow())),
                ..Limits::default()
            }),
            ..SessionsCreateRequest::default()
        });
        let kept = Self { daemon };
        kept.context(MINE, language);
        kept
    }

    fn context(&self, id: &str, language: &str) -> Context {
        let request = ContextsCreateRequest {
            session_id: MINE.to_owned(),
            context_id: id.to_owned(),
            language: language.to_owned(),
            ..ContextsCreateRequest::default()
        };
        self.daemon.context(request).unwrap()
    }

    fn begin(&self, context: &str, spec: ExecutionSpec) -> Live {
        self.daemon.execute_in(MINE, context, spec).unwrap()
    }

    /// Begins something under a name.
    fn begin_as(&self, id: &str, source: &str) -> Live {
        let spec = ExecutionSpec {
            execution_id: id.to_owned(),
            ..code(source)
        };
        self.begin(MINE, spec)
    }

    fn run(&self, source: &str) -> Outcome {
        self.begin(MINE, code(source)).finish()
    }

    /// What code writes that must succeed.
    fn stdout(&self, source: &str) -> String {
        self.run(source).expect_success().stdout()
    }

    /// Runs a command beside the contexts of the session.
    fn shell(&self, script: &str) {
        let live = self.daemon.execute(MINE, command(&["sh", "-c", script])).unwrap();
        live.finish().expect_success();
    }

    fn shown(&self) -> Context {
        let all = self.daemon.list_contexts(MINE);
        all.into_iter().find(|context| context.context_id == MINE).unwrap()
    }
}

/// Whether an execution left its state behind, and in which context.
fn has_state(outcome: &Outcome) -> bool {
    let session = outcome.result.session.as_ref().unwrap();
    assert!(session.context_id.is_some() && session.kept);
    session.has_state
}

/// Makes sessions with contexts until the interpreter of one is forked, and closes them.
fn await_zygote(daemon: &Client, template: &str) {
    let count = AtomicU32::new(0);
    eventually("an interpreter is forked", Duration::from_secs(60) * slow(), || {
        let name = format!("before{}", count.fetch_add(1, Ordering::Relaxed));
        daemon.create(SessionsCreateRequest {
            session_id: name.clone(),
            template: template.to_owned(),
            ..SessionsCreateRequest::default()
        });
        let request = ContextsCreateRequest {
            session_id: name.clone(),
            context_id: name.clone(),
            ..ContextsCreateRequest::default()
        };
        daemon.context(request).unwrap();
        let outcome = daemon.execute_in(&name, &name, code("1")).unwrap().finish();
        let start = outcome.result.session.as_ref().unwrap().start();
        daemon.close(&name);
        match start {
            StartKind::Forked => Ok(()),
            start => Err(start),
        }
    });
}
