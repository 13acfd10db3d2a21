//! Brig as it runs on a host: both daemons, asked over gRPC, with everything on.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use brig_proto::v1::execution_event::Event;
use brig_proto::v1::{ExecutionSpec, HostLoad, OutputStream, SessionsCreateRequest, StartKind};
use brig_tests::host::Places;
use brig_tests::policies::Policies;
use brig_tests::processes::Process;
use brig_tests::services::{Service, Setup};
use brig_tests::spec::code;
use brig_tests::{Live, Outcome, Services};

use crate::groups::Groups;
use crate::times::Times;
use crate::works::{PRINT, Work};

/// The policy of sessions that hold large files.
pub(crate) const LARGE: &str = "bench";
/// How long it may take to make a session ahead.
const AHEAD: Duration = Duration::from_secs(60);
/// How long a session that waits takes at most to run the template's line, and to wait before it does.
const WARM: Duration = Duration::from_millis(150);
/// How long a jail may take to be gone.
const GONE: Duration = Duration::from_secs(10);

/// How much there may be at one time.
#[derive(Debug, Clone)]
pub(crate) struct Scale {
    /// Sessions.
    pub(crate) sessions: usize,
    /// Of these, sessions that wait for a request.
    pub(crate) waiting: usize,
    /// Executions.
    pub(crate) running: usize,
    /// The images of templates.
    pub(crate) images: PathBuf,
    /// The template of what is run; the policy's if empty.
    pub(crate) template: &'static str,
}

impl Default for Scale {
    fn default() -> Self {
        Self {
            sessions: 64,
            waiting: 1,
            // As brigd has it.
            running: 16,
            images: Places::find().images,
            template: "",
        }
    }
}

/// Both daemons, in a directory of their own.
#[derive(Debug)]
pub(crate) struct Ours {
    services: Services,
    _policies: Policies,
    groups: Groups,
    /// How sessions start that are made when they are asked for.
    on_demand: StartKind,
    template: &'static str,
}

impl Ours {
    /// Starts them.
    pub(crate) fn start(scale: Scale) -> anyhow::Result<Self> {
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
        let Scale { sessions, running, .. } = scale;
        fs::write(&ceilings, format!("sessions = {sessions}\n"))?;
        let setup = Setup {
            policies: policies.path().to_owned(),
            ceilings,
            limits: format!("sessions = {sessions}\nrunning = {running}\n"),
            pool: Some(format!("sessions = {}", scale.waiting)),
            images: scale.images,
            ..Setup::default()
        };
        let services = Services::start(setup).context("this host can't run jails")?;
        let first = keep(&services, "data", "");
        let groups = Groups::of(&first)?;
        services.close(&first);
        let is_pooled = scale.waiting > 0;
        let ours = Self {
            services,
            _policies: policies,
            groups,
            on_demand: if is_pooled { StartKind::Forked } else { StartKind::Cold },
            template: scale.template,
        };
        if is_pooled {
            // The first of its kind has no zygote, and those that follow have.
            ours.run(ours.spec(PRINT), StartKind::Cold, PRINT.expected)?;
            ours.rest()?;
        }
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

    /// Where its sessions are seen from outside.
    pub(crate) fn groups(&self) -> &Groups {
        &self.groups
    }

    /// The template of what is run, as reports call it; none if it is the policy's.
    pub(crate) fn template(&self) -> &'static str {
        self.template
    }

    fn spec(&self, work: Work) -> ExecutionSpec {
        ExecutionSpec {
            template: self.template.to_owned(),
            ..code(work.source)
        }
    }

    /// Runs Python code in an interpreter that is made for it: none with a name of its own is made ahead. Where there is a
    /// pool its session was, without a program.
    pub(crate) fn fresh(&self, work: Work) -> anyhow::Result<Times> {
        let spec = ExecutionSpec {
            execution_id: new_id(),
            ..self.spec(work)
        };
        let times = self.run(spec, self.on_demand, work.expected)?;
        self.rest()?;
        Ok(times)
    }

    /// The same in a session that is made for it: for one with a name of its own none is made ahead.
    pub(crate) fn made(&self, work: Work) -> anyhow::Result<Times> {
        let spec = ExecutionSpec {
            session_id: new_id(),
            ..self.spec(work)
        };
        let times = self.run(spec, self.on_demand, work.expected)?;
        self.rest()?;
        Ok(times)
    }

    /// Runs Python code in a session that has waited for it.
    pub(crate) fn waited(&self, work: Work) -> anyhow::Result<Times> {
        let times = self.run(self.spec(work), StartKind::Pool, work.expected)?;
        self.rest()?;
        Ok(times)
    }

    /// Waits until the next ones wait and have run the template's line, so that their making disturbs nobody's turn.
    fn rest(&self) -> anyhow::Result<()> {
        if self.on_demand == StartKind::Forked {
            self.await_waiting(1)?;
            self.await_holders(1)?;
            std::thread::sleep(WARM);
        }
        Ok(())
    }

    /// Asks for what is to wait: sessions are made ahead of what was asked for. As often at one time as shall wait.
    pub(crate) fn ask_ahead(&self, work: Work, count: usize) -> anyhow::Result<()> {
        // Those that wait already are used up first.
        let begun: Vec<Live> = (0..2 * count).map(|_| self.services.begin(self.spec(work))).collect();
        for live in begun {
            follow(live, Instant::now(), work.expected)?;
        }
        self.await_waiting(count)
    }

    /// Waits until at least so many sessions wait.
    pub(crate) fn await_waiting(&self, count: usize) -> anyhow::Result<()> {
        self.await_load("sessions that wait", count, |load| load.waiting)
    }

    /// Waits until at least so many sessions without a program wait.
    pub(crate) fn await_holders(&self, count: usize) -> anyhow::Result<()> {
        self.await_load("holders", count, |load| load.holders)
    }

    fn await_load(&self, what: &str, count: usize, number: impl Fn(&HostLoad) -> u64) -> anyhow::Result<()> {
        let start = Instant::now();
        loop {
            let found = self.services.host().load.as_ref().map_or(0, &number);
            if usize::try_from(found)? >= count {
                return Ok(());
            }
            let longest = AHEAD * u32::try_from(count.max(1))?;
            ensure!(start.elapsed() < longest, "{what}: {found}, not {count}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Sessions without a program that were made ahead.
    pub(crate) fn holders(&self) -> usize {
        let load = self.services.host().load.unwrap_or_default();
        usize::try_from(load.holders).unwrap_or(usize::MAX)
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
        while self.groups.has(&session) {
            ensure!(start.elapsed() < GONE, "the session {session} is not gone");
            std::thread::sleep(Duration::from_micros(100));
        }
        times.torn_down = start.elapsed();
        Ok(times)
    }

    /// Makes a session that is kept.
    pub(crate) fn keep(&self, policy: &str) -> String {
        keep(&self.services, policy, "")
    }

    /// Makes a session that is kept, of the small template.
    pub(crate) fn keep_small(&self) -> String {
        keep(&self.services, "data", "base")
    }
}

fn keep(services: &Services, policy: &str, template: &str) -> String {
    let request = SessionsCreateRequest {
        session_id: new_id(),
        policy: policy.to_owned(),
        template: template.to_owned(),
        ..SessionsCreateRequest::default()
    };
    services.create(request).session_id
}

/// One that no other session of this program has, whichever daemon it belongs to.
fn new_id() -> String {
    static SESSIONS: AtomicUsize = AtomicUsize::new(0);
    let number = SESSIONS.fetch_add(1, Ordering::Relaxed);
    format!("bench{}x{number}", std::process::id())
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
