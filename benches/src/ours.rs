//! Brig as it runs on a host: both daemons, asked over gRPC, with everything on.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use brig_proto::v1::execution_event::Event;
use brig_proto::v1::{ExecutionSpec, OutputStream, SessionsCreateRequest, StartKind};
use brig_tests::policies::Policies;
use brig_tests::processes::{Process, groups};
use brig_tests::services::{Service, Setup};
use brig_tests::spec::code;
use brig_tests::{Live, Outcome, Services};

use crate::times::Times;

/// The policy of sessions that hold large files.
pub(crate) const LARGE: &str = "bench";
/// How long it may take to make a session ahead.
const AHEAD: Duration = Duration::from_secs(60);
/// How long a jail may take to be gone.
const GONE: Duration = Duration::from_secs(10);

/// Both daemons, in a directory of their own.
#[derive(Debug)]
pub(crate) struct Ours {
    services: Services,
    _policies: Policies,
    /// The control groups that those of sessions are made in.
    parents: Vec<PathBuf>,
    sessions: AtomicUsize,
}

impl Ours {
    /// Starts them; `sessions` may be kept at one time.
    pub(crate) fn start(sessions: usize) -> anyhow::Result<Self> {
        let changes = [
            // A file of 1 GB, twice.
            (
                "disk = { default = \"512M\", max = \"2G\" }",
                "disk = { default = \"3G\", max = \"3G\" }",
            ),
            ("upload_bytes = \"1G\"", "upload_bytes = \"3G\""),
            ("download = \"artifacts\"", "download = \"any\""),
        ];
        let policies = Policies::with(&[])
            .context("this host can't run jails")?
            .and(LARGE, &changes);
        let ceilings = policies.path().join("ceilings.toml");
        fs::write(
            &ceilings,
            format!(
                "sessions = {sessions}
"
            ),
        )?;
        let setup = Setup {
            policies: policies.path().to_owned(),
            ceilings,
            limits: format!("sessions = {sessions}\n"),
            pool: 1,
            ..Setup::default()
        };
        let services = Services::start(setup).context("this host can't run jails")?;
        let mut ours = Self {
            services,
            _policies: policies,
            parents: Vec::new(),
            sessions: AtomicUsize::new(0),
        };
        ours.parents = ours.find_parents()?;
        Ok(ours)
    }

    /// Where the ledger lies.
    pub(crate) fn directory(&self) -> &Path {
        self.services.directory()
    }

    /// The daemons, to be asked.
    pub(crate) fn services(&self) -> &Services {
        &self.services
    }

    /// One of the daemons as a process.
    pub(crate) fn process(&self, service: Service) -> Process {
        self.services.process(service)
    }

    /// Runs Python code in a session that is made for it: one with a name of its own is never made ahead.
    pub(crate) fn fresh(&self, source: &str, expected: &str) -> anyhow::Result<Times> {
        let spec = ExecutionSpec {
            session_id: self.new_id(),
            ..code(source)
        };
        self.run(spec, StartKind::Cold, expected)
    }

    /// Runs Python code in a session that has waited for it. The next one waits before this returns, so that its making
    /// disturbs nobody's turn.
    pub(crate) fn waited(&self, source: &str, expected: &str) -> anyhow::Result<Times> {
        self.await_waiting()?;
        let times = self.run(code(source), StartKind::Pool, expected)?;
        self.await_waiting()?;
        Ok(times)
    }

    /// Asks for what `waited` is to find: sessions are made ahead of what was asked for.
    pub(crate) fn ask_ahead(&self, source: &str, expected: &str) -> anyhow::Result<()> {
        follow(self.services.begin(code(source)), Instant::now(), expected)?;
        self.await_waiting()
    }

    fn await_waiting(&self) -> anyhow::Result<()> {
        let start = Instant::now();
        while self.services.host().load.is_none_or(|load| load.waiting == 0) {
            ensure!(start.elapsed() < AHEAD, "no session waits");
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    fn run(&self, spec: ExecutionSpec, kind: StartKind, expected: &str) -> anyhow::Result<Times> {
        let start = Instant::now();
        let (mut times, outcome) = follow_whole(self.services.begin(spec), start, expected)?;
        let session = outcome.result.session.clone().unwrap_or_default();
        ensure!(
            session.start() == kind,
            "the session was started as {:?}",
            session.start()
        );
        let session = session.session_id;
        while self.parents.iter().any(|parent| parent.join(&session).exists()) {
            ensure!(start.elapsed() < GONE, "the session {session} is not gone");
            std::thread::sleep(Duration::from_micros(100));
        }
        times.torn_down = start.elapsed();
        Ok(times)
    }

    /// Makes a session that is kept.
    pub(crate) fn keep(&self, policy: &str) -> String {
        let request = SessionsCreateRequest {
            session_id: self.new_id(),
            policy: policy.to_owned(),
            ..SessionsCreateRequest::default()
        };
        self.services.create(request).session_id
    }

    /// The processes of sessions, and what each session's control group is charged with, in bytes.
    pub(crate) fn memory_of(&self, sessions: &[String]) -> anyhow::Result<BTreeMap<String, (Vec<u32>, u64)>> {
        let mut found = BTreeMap::new();
        for session in sessions {
            let (mut processes, mut charged) = (Vec::new(), None);
            for group in self.parents.iter().map(|parent| parent.join(session)) {
                collect_processes(&group, &mut processes)?;
                for file in ["memory.current", "memory.usage_in_bytes"] {
                    if let Ok(text) = fs::read_to_string(group.join(file)) {
                        charged = Some(text.trim().parse()?);
                    }
                }
            }
            processes.sort_unstable();
            processes.dedup();
            let charged = charged.with_context(|| format!("no memory is counted for {session}"))?;
            found.insert(session.clone(), (processes, charged));
        }
        Ok(found)
    }

    fn new_id(&self) -> String {
        let number = self.sessions.fetch_add(1, Ordering::Relaxed);
        format!("bench{}x{number}", std::process::id())
    }

    fn find_parents(&self) -> anyhow::Result<Vec<PathBuf>> {
        let session = self.keep("data");
        let found = groups(std::slice::from_ref(&session));
        self.services.close(&session);
        ensure!(!found.is_empty(), "the session {session} has no control group");
        Ok(found
            .iter()
            .filter_map(|group| Some(group.parent()?.to_owned()))
            .collect())
    }
}

/// Follows an execution that must succeed with this output.
pub(crate) fn follow(live: Live, start: Instant, expected: &str) -> anyhow::Result<Times> {
    follow_whole(live, start, expected).map(|(times, _)| times)
}

fn follow_whole(mut live: Live, start: Instant, expected: &str) -> anyhow::Result<(Times, Outcome)> {
    live.until(|event| matches!(event, Event::Output(_)));
    let first_output = start.elapsed();
    live.until(|event| matches!(event, Event::Finished(_)));
    let finished = start.elapsed();
    let outcome = live.finish().expect_success();
    let written = outcome.streamed(OutputStream::Stdout);
    ensure!(
        written == expected.as_bytes(),
        "stdout is {:?}",
        String::from_utf8_lossy(&written)
    );
    let times = Times {
        first_output,
        finished,
        torn_down: finished,
    };
    Ok((times, outcome))
}

fn collect_processes(group: &Path, into: &mut Vec<u32>) -> anyhow::Result<()> {
    let Ok(entries) = fs::read_dir(group) else {
        return Ok(());
    };
    let text = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    into.extend(text.lines().filter_map(|line| line.parse::<u32>().ok()));
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            collect_processes(&entry.path(), into)?;
        }
    }
    Ok(())
}
