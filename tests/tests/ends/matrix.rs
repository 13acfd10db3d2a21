//! What a row of the table is, and how it is tried in each way.

use std::fmt;

use brig_proto::v1::{
    CauseKind, ExecutionSpec, ExecutionStatus as Status, Limits, OnDisconnect, OutputStream, SessionsCreateRequest,
};
use brig_tests::policies::Policies;
use brig_tests::spec::{self, small, with_limits};
use brig_tests::{Daemon, Live, Outcome, lanes};

use crate::rows;

/// What every program of the table writes before it ends, to each stream.
const OUT: &str = "out of it\n";
const ERR: &str = "err of it\n";

/// How work is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    RunCode,
    RunCommand,
    ExecuteCode,
    ExecuteCommand,
}

impl Way {
    pub(crate) const ALL: [Way; 4] = [Way::RunCode, Way::RunCommand, Way::ExecuteCode, Way::ExecuteCommand];

    pub(crate) fn is_code(self) -> bool {
        matches!(self, Way::RunCode | Way::ExecuteCode)
    }

    pub(crate) fn is_kept(self) -> bool {
        matches!(self, Way::ExecuteCode | Way::ExecuteCommand)
    }
}

/// How a program that has written comes to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Provoke {
    /// It does so itself, or a limit does.
    Nothing,
    Cancel,
    Interrupt,
    /// The caller goes away.
    Leave,
    CloseSession,
}

/// How the main process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    Code(i32),
    Signal(i32),
}

/// What must be told.
#[derive(Debug, Clone)]
pub(crate) struct End {
    pub(crate) status: Status,
    pub(crate) cause: Option<CauseKind>,
    pub(crate) exit: Exit,
    pub(crate) hit: Vec<CauseKind>,
}

/// A cause, how it is provoked, and what must be told.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    pub(crate) name: &'static str,
    /// Python and shell programs; none where the cause does not exist for that kind of work.
    pub(crate) code: Option<&'static str>,
    pub(crate) command: Option<&'static str>,
    pub(crate) policy: &'static str,
    /// Limits of the session, and those of the execution.
    pub(crate) session: Limits,
    pub(crate) limits: Limits,
    /// Settings of a kept session.
    pub(crate) create: SessionsCreateRequest,
    /// Whether it exists for work in kept sessions alone.
    pub(crate) kept_only: bool,
    pub(crate) provoke: Provoke,
    pub(crate) end: End,
}

impl Row {
    fn fits(&self, way: Way) -> bool {
        let work = if way.is_code() { self.code } else { self.command };
        work.is_some() && (way.is_kept() || !self.kept_only)
    }

    fn work(&self, way: Way) -> ExecutionSpec {
        let (name, source) = (self.id(way), if way.is_code() { self.code } else { self.command });
        let spec = if way.is_code() {
            let start = format!("import os, signal, sys, time\nsys.stdout.write({OUT:?})\nsys.stderr.write({ERR:?})\n");
            small(&(start + source.unwrap()))
        } else {
            spec::sh(&format!(
                "echo '{}'; echo '{}' >&2; {}",
                OUT.trim(),
                ERR.trim(),
                source.unwrap()
            ))
        };
        let spec = with_limits(self.limits, spec);
        let on_disconnect = OnDisconnect::Cancel.into();
        if way.is_kept() {
            ExecutionSpec {
                execution_id: name,
                template: String::new(),
                on_disconnect,
                ..spec
            }
        } else {
            let policy = self.policy.to_owned();
            with_limits(
                self.session,
                ExecutionSpec {
                    execution_id: name,
                    policy,
                    on_disconnect,
                    ..spec
                },
            )
        }
    }

    /// A name that no other trial has.
    fn id(&self, way: Way) -> String {
        format!("{}{}", self.name.replace('_', ""), way as usize)
    }

    fn begin(&self, daemon: &Daemon, way: Way, session: &str) -> Live {
        if way.is_kept() {
            daemon.create(SessionsCreateRequest {
                session_id: session.to_owned(),
                policy: self.policy.to_owned(),
                template: "base".to_owned(),
                limits: Some(self.session),
                ..self.create.clone()
            });
            daemon.execute(session, self.work(way)).unwrap()
        } else {
            daemon.begin(self.work(way))
        }
    }

    /// Runs it in one way and compares.
    fn try_out(&self, daemon: &Daemon, way: Way) {
        let (execution, session) = (self.id(way), format!("s{}", self.id(way)));
        let mut live = self.begin(daemon, way, &session);
        if self.provoke != Provoke::Nothing {
            live.until_written(OUT);
            live.until_written_to(OutputStream::Stderr, ERR);
        }
        match self.provoke {
            Provoke::Nothing => {}
            Provoke::Cancel => drop(daemon.cancel(&execution)),
            Provoke::Interrupt => {
                live.until_written("ready\n");
                daemon.interrupt(&execution);
            }
            Provoke::Leave => live = leave(daemon, live, &execution),
            Provoke::CloseSession => drop(daemon.close(&session)),
        }
        let outcome = live.finish();
        self.compare(way, &outcome);
        // Whoever asks later is told the same.
        assert_eq!(daemon.execution(&execution).result.as_ref(), Some(&outcome.result));
        assert_eq!(daemon.attach(&execution, 0).unwrap().finish().result, outcome.result);
    }

    fn compare(&self, way: Way, outcome: &Outcome) {
        let (result, end) = (&outcome.result, &self.end);
        let told = format!("{} by {way:?}: {result:?}", self.name);
        assert_eq!(outcome.end(), (end.status, end.cause), "{told}");
        let exit = match (result.exit_code, result.signal) {
            (Some(code), None) => Exit::Code(code),
            (None, Some(signal)) => Exit::Signal(signal),
            other => panic!("{other:?}: {told}"),
        };
        assert_eq!(exit, end.exit, "{told}");
        let hit: Vec<i32> = end.hit.iter().map(|kind| *kind as i32).collect();
        assert_eq!(result.limits_hit, hit, "{told}");
        assert!(outcome.stdout().starts_with(OUT), "{told}");
        assert!(outcome.stderr().starts_with(ERR), "{told}");
        assert!(!outcome.stdout().contains("after"), "it went on: {told}");
        assert!(way.is_kept() || !result.session.as_ref().unwrap().kept, "{told}");
    }
}

/// Lets the caller of an execution go, and follows it as another.
fn leave(daemon: &Daemon, live: Live, execution: &str) -> Live {
    drop(live);
    daemon.attach(execution, 0).unwrap()
}

#[test]
fn every_end_is_told_apart_in_every_way_of_running() {
    let Some(policies) = Policies::with(&rows::POLICIES) else {
        return;
    };
    let daemon = Daemon::start_with(policies.path()).unwrap();
    let rows = rows::all();
    let mut trials: Vec<Trial<'_>> = rows
        .iter()
        .flat_map(|row| Way::ALL.into_iter().map(move |way| Trial { row, way }))
        .filter(|trial| trial.row.fits(trial.way))
        .collect();
    if brig_tests::in_part() {
        trials = one_of_each(trials);
    }
    lanes(8, &trials, |trial| trial.row.try_out(&daemon, trial.way));
    println!("{} causes, {} ends", rows.len(), trials.len());
}

/// Of each row one trial, in each way about as many.
fn one_of_each(trials: Vec<Trial<'_>>) -> Vec<Trial<'_>> {
    let mut turn = 0;
    let rows = trials.chunk_by(|one, other| std::ptr::eq(one.row, other.row));
    let chosen = rows.map(|row| {
        turn += 1;
        let Trial { row, way } = row[turn % row.len()];
        Trial { row, way }
    });
    chosen.collect()
}

/// A row in one way.
struct Trial<'r> {
    row: &'r Row,
    way: Way,
}

impl fmt::Debug for Trial<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} by {:?}", self.row.name, self.way)
    }
}
