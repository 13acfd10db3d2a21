//! Any part of Brig dies at any point of a session's life: what is left is swept, the ledger tells the truth, and the next
//! session works.
//!
//! The points are those of `brig_jailer::faults`, in programs that `tests/fault-programs` builds beside the others. Runs on
//! the machine itself only. Each point is
//! armed once for a one-shot run and once for an execution in a kept session, while an execution of another kept
//! session runs, which must live on, and be told once, unless the jailer itself dies.
#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use brig_jailer::faults::{Point, REACHED};
use brig_proto::v1::execution_event::Event;
use brig_proto::v1::{ExecutionSpec, ExecutionsSignalRequest, OnDisconnect, OutputStream, SessionsCreateRequest};
use brig_tests::client::only;
use brig_tests::host::Places;
use brig_tests::processes::{Process, descendants, groups, mounts, of_sessions};
use brig_tests::services::Setup;
use brig_tests::spec::{input, long, sh, small};
use brig_tests::{Live, Service, Services, eventually, lanes, slow};

/// How long anything may take to be gone.
const SOON: Duration = Duration::from_secs(5);
/// Pairs of services that are tried at one time.
const LANES: usize = 3;

/// How work is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Work {
    OneShot,
    Kept,
}

/// Which program dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Victim {
    Daemon,
    Jailer,
    /// A program of the jail: the services live on.
    Inside,
}

/// What brings the victim to its point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trigger {
    /// The life of the session.
    Life,
    /// brigd is killed under a running execution.
    DaemonLeaves,
    /// The same, and the next one comes.
    DaemonReturns,
}

fn victim(point: Point) -> Victim {
    match point.name().split('-').next().unwrap() {
        "brigd" => Victim::Daemon,
        "jailer" => Victim::Jailer,
        "init" | "files" => Victim::Inside,
        other => panic!("{other}"),
    }
}

fn trigger(point: Point) -> Trigger {
    match point {
        Point::JailerClientGone => Trigger::DaemonLeaves,
        Point::JailerClientBack => Trigger::DaemonReturns,
        _ => Trigger::Life,
    }
}

/// What the ledger may say of the execution afterwards: its status, `none` if it was never accepted.
fn truths(point: Point, work: Work) -> &'static [&'static str] {
    use Point as P;
    let kept = work == Work::Kept;
    match point {
        // Without a session there is no execution in it.
        P::DaemonMakeSent
        | P::JailerBeforeClone
        | P::JailerCloned
        | P::JailerMapped
        | P::JailerPlanSent
        | P::InitStarted
        | P::InitBeforeMounts
        | P::InitBeforePivot
        | P::InitAfterPivot
        | P::InitBeforeReady
        | P::JailerReady
        | P::DaemonMade
            if kept =>
        {
            &["none"]
        }
        // Nothing ran, and whoever is there says so.
        P::JailerBeforeClone
        | P::JailerCloned
        | P::JailerMapped
        | P::JailerPlanSent
        | P::InitStarted
        | P::InitBeforeMounts
        | P::InitBeforePivot
        | P::InitAfterPivot
        | P::InitBeforeReady
        | P::JailerReady
        | P::JailerTaken
        | P::FilesStarted
        | P::FilesPut => &["failed"],
        // Whoever could know is gone.
        P::DaemonAccepted | P::DaemonMakeSent | P::DaemonMade | P::DaemonInputsPut => &["lost"],
        // It was ordered, and nobody can tell what came of it.
        P::JailerBeforeLeaf
        | P::JailerSpawnOrdered
        | P::InitBeforeClone
        | P::InitCloned
        | P::InitBeforeSpawned
        | P::JailerSpawned
        | P::JailerClientGone
        | P::JailerClientBack
        | P::InitReaped
        | P::JailerExited
        | P::JailerBeforeEnded => &["lost"],
        // Nobody had written down what it was to be given, so that nobody can go on with it.
        P::DaemonSpawnSent | P::DaemonSpawned => &["lost"],
        // What runs in a kept session is adopted.
        P::DaemonOutput | P::DaemonEnded | P::DaemonCollecting | P::DaemonCollected if kept => &["success"],
        P::DaemonOutput | P::DaemonEnded | P::DaemonCollecting | P::DaemonCollected => &["lost"],
        // It was told that it has a session, and nothing else.
        P::DaemonTaken => &["lost"],
        // Beside an execution that may have ended.
        P::JailerHatched
        | P::DaemonZygote
        | P::JailerForkOrdered
        | P::JailerForked
        | P::DaemonWaiting
        | P::DaemonHolder => &["success", "lost"],
        // It had ended; what could not be collected is told by a notice.
        P::FilesCollect
        | P::FilesGet
        | P::DaemonRecorded
        | P::DaemonBeforeClose
        | P::JailerBeforeRemoval
        | P::JailerHalfRemoved => &["success"],
    }
}

/// One death.
struct Trial {
    point: Point,
    work: Work,
}

impl fmt::Debug for Trial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.point.name(), self.work)
    }
}

/// A pair of services, and a kept session in it whose execution writes a line now and then.
struct Stage {
    services: Services,
    bystander: String,
    /// The last event of its execution that was seen, and what it had written.
    seen: u64,
    written: Vec<u8>,
}

/// What the services had, and the host.
struct Counts {
    /// Descriptors of each.
    services: [(usize, Process); 2],
    mounts: Vec<String>,
}

impl Counts {
    /// The services that have more now. One that was started again has no past to be compared with.
    fn grown(&self) -> Vec<(usize, &(usize, Process))> {
        let now = self.services.iter().map(|before| (before.1.descriptors(), before));
        now.filter(|(now, before)| before.1.lives() && *now > before.0)
            .collect()
    }
}

/// Points that only sessions come to which are made ahead: while one is made, and while it is taken.
const OF_WAITING: [Point; 8] = [
    Point::JailerHatched,
    Point::DaemonZygote,
    Point::JailerForkOrdered,
    Point::JailerForked,
    Point::DaemonWaiting,
    Point::DaemonHolder,
    Point::JailerTaken,
    Point::DaemonTaken,
];

static NUMBER: AtomicUsize = AtomicUsize::new(0);

/// A name that no other session of this host has.
fn name(kind: &str) -> String {
    format!(
        "{kind}{}x{}",
        std::process::id(),
        NUMBER.fetch_add(1, Ordering::Relaxed)
    )
}

fn spec(execution: &str, script: &str) -> ExecutionSpec {
    ExecutionSpec {
        execution_id: execution.to_owned(),
        template: String::new(),
        on_disconnect: OnDisconnect::Continue.into(),
        limits: long(),
        ..sh(script)
    }
}

impl Stage {
    fn start() -> Option<Self> {
        let programs = Places::find().programs.with_file_name("faults");
        let services = Services::start(Setup {
            programs,
            // Who dies where it is made ahead is another test.
            pool: Some("sessions = 0".to_owned()),
            ..Setup::default()
        })?;
        let mut stage = Self {
            services,
            bystander: String::new(),
            seen: 0,
            written: Vec::new(),
        };
        stage.settle();
        // What is opened once is open from here on.
        stage.assert_next_works(Work::OneShot);
        Some(stage)
    }

    /// Makes the bystander.
    fn settle(&mut self) {
        self.bystander = name("by");
        (self.seen, self.written) = (0, Vec::new());
        self.create(&self.bystander).unwrap();
        // It writes when it is asked to and else is quiet: what it does must not be taken for what the victim does.
        let script = "i=0; trap 'i=$((i + 1)); echo $i' USR1; sleep 1000 & echo $i; while :; do wait; done";
        let live = self
            .services
            .execute(&self.bystander, spec(&self.bystander, script))
            .unwrap();
        self.follow(live);
    }

    /// Reads what the bystander writes next.
    fn follow(&mut self, mut live: Live) {
        live.until(|event| matches!(event, Event::Output(_)));
        self.written.extend(live.written(OutputStream::Stdout));
        self.seen = live.seen().last().unwrap().sequence;
        let text = String::from_utf8_lossy(&self.written).into_owned();
        let numbers: String = (0..text.lines().count()).map(|number| format!("{number}\n")).collect();
        assert_eq!(text, numbers);
    }

    fn create(&self, session: &str) -> Result<(), brig_tests::Refused> {
        let request = SessionsCreateRequest {
            session_id: session.to_owned(),
            template: "base".to_owned(),
            ..SessionsCreateRequest::default()
        };
        self.services.try_create(request).map(drop)
    }

    /// Starts the work in which somebody dies; what was refused has no stream.
    fn begin(&self, work: Work, session: &str, script: &str) -> Option<Live> {
        let spec = ExecutionSpec {
            // More than one chunk, so that there is a middle.
            inputs: vec![input("in.txt", &[b'x'; 300 << 10])],
            ..spec(session, script)
        };
        match work {
            Work::OneShot => {
                let spec = ExecutionSpec {
                    session_id: session.to_owned(),
                    template: "base".to_owned(),
                    ..spec
                };
                self.services.send(vec![only(spec)]).ok()
            }
            Work::Kept => {
                self.create(session).ok()?;
                self.services.execute(session, spec).ok()
            }
        }
    }

    fn try_out(&mut self, trial: &Trial) {
        let session = name("victim");
        // The teardown of what ran before must not be taken for that of the victim.
        self.await_quiet();
        let before = self.counts();
        std::fs::write(self.services.armed(), trial.point.name()).unwrap();
        let told = self.provoke(trial, &session);
        self.assert_reached(trial.point);
        std::fs::remove_file(self.services.armed()).unwrap();
        self.relaunch();
        let recorded = self.recorded(&session);
        assert!(
            truths(trial.point, trial.work).contains(&recorded.as_str()),
            "the ledger says {recorded}"
        );
        if let Some(told) = told {
            assert_eq!(told, recorded, "what was told");
        }
        if trial.work == Work::Kept && victim(trial.point) != Victim::Jailer {
            self.close(&session);
        }
        self.look_after_bystander(victim(trial.point));
        self.assert_swept(&session, &before);
        self.assert_next_works(trial.work);
    }

    /// Lets the victim die; what the caller was told of the end, if it was told one.
    fn provoke(&mut self, trial: &Trial, session: &str) -> Option<String> {
        let long = trigger(trial.point) != Trigger::Life;
        let script = format!(
            "cat in.txt >/dev/null; (setsid sleep 100 &); echo up; echo 1 >out.csv; {} echo end",
            if long { "sleep 100;" } else { "" }
        );
        let mut live = self.begin(trial.work, session, &script);
        if long {
            live.as_mut().unwrap().until_written("up\n");
            self.services.kill(Service::Daemon);
        }
        if trigger(trial.point) == Trigger::DaemonReturns {
            self.services.launch_in_vain(Service::Daemon);
        }
        let told = live.and_then(|live| live.end().ok()).map(|outcome| {
            let status = outcome.status().as_str_name();
            status.trim_start_matches("EXECUTION_STATUS_").to_lowercase()
        });
        if trial.work == Work::Kept && victim(trial.point) != Victim::Inside {
            self.provoke_by_closing(trial.point, session);
        }
        told
    }

    /// Closes a kept session, which is not there if it was never made.
    fn close(&self, session: &str) {
        let request = brig_proto::v1::SessionsCloseRequest {
            session_id: session.to_owned(),
            ..brig_proto::v1::SessionsCloseRequest::default()
        };
        if let Err(refused) = self.services.ask(self.services.sessions().close(request)) {
            assert_eq!(refused.code, tonic::Code::NotFound, "{refused:?}");
        }
    }

    /// A kept session ends when it is told to, which is late in the list of points.
    fn provoke_by_closing(&mut self, point: Point, session: &str) {
        let late = [
            Point::DaemonBeforeClose,
            Point::JailerBeforeRemoval,
            Point::JailerHalfRemoved,
        ];
        if late.contains(&point) {
            let request = brig_proto::v1::SessionsCloseRequest {
                session_id: session.to_owned(),
                ..brig_proto::v1::SessionsCloseRequest::default()
            };
            // It may die before it answers.
            let _told_or_not = self.services.ask(self.services.sessions().close(request));
        }
    }

    fn assert_reached(&mut self, point: Point) {
        let service = match victim(point) {
            Victim::Daemon => Service::Daemon,
            Victim::Jailer | Victim::Inside => Service::Jailer,
        };
        if victim(point) != Victim::Inside && !self.services.is_down(service) {
            let status = self.services.await_end(service);
            assert!(Services::was_killed(status), "{status}: {}", self.services.log(service));
        }
        let line = format!("{REACHED}{}\n", point.name());
        eventually("the point was reached", SOON * slow(), || {
            let log = self.services.log(service);
            if log.contains(&line) { Ok(()) } else { Err(log) }
        });
    }

    /// Starts again what died, as a service manager does.
    fn relaunch(&mut self) {
        if self.services.is_down(Service::Jailer) {
            // brigd ends by itself when its jailer is gone.
            if !self.services.is_down(Service::Daemon) {
                self.services.await_end(Service::Daemon);
            }
            self.services.launch(Service::Jailer);
        }
        if self.services.is_down(Service::Daemon) {
            self.services.launch(Service::Daemon);
        }
    }

    /// What the ledger says of an execution once it says something final.
    fn recorded(&self, execution: &str) -> String {
        let found = Mutex::new("none".to_owned());
        eventually("the end is recorded", SOON * slow(), || {
            match self.services.recorded(execution) {
                None => Ok(()),
                Some(status) if status.is_empty() => Err("no end"),
                Some(status) => {
                    *found.lock().unwrap() = status;
                    Ok(())
                }
            }
        });
        found.into_inner().unwrap()
    }

    /// It must have lived on, and written on, whoever died but the jailer.
    fn look_after_bystander(&mut self, victim: Victim) {
        if victim == Victim::Jailer {
            assert_eq!(self.recorded(&self.bystander), "lost");
            return self.settle();
        }
        let live = self.services.attach(&self.bystander, self.seen).unwrap();
        let ask = ExecutionsSignalRequest {
            execution_id: self.bystander.clone(),
            signal: 10,
            ..ExecutionsSignalRequest::default()
        };
        self.services.ask(self.services.client().signal(ask)).unwrap();
        self.follow(live);
    }

    fn counts(&self) -> Counts {
        let services = [Service::Jailer, Service::Daemon].map(|service| self.services.process(service));
        Counts {
            services: services.map(|process| (process.descriptors(), process)),
            mounts: mounts(),
        }
    }

    fn assert_swept(&self, session: &str, before: &Counts) {
        let names = [session.to_owned()];
        eventually("nothing of the session is left", SOON * slow(), || {
            let (processes, groups) = (of_sessions(&names), groups(&names));
            let spooled = std::fs::read_dir(self.services.directory().join("state/spool"))
                .unwrap()
                .count();
            let sessions = self.services.host().load.unwrap().sessions;
            let grown = before.grown();
            let swept = processes.is_empty() && groups.is_empty() && spooled == 0 && sessions == 1;
            if swept && grown.is_empty() && mounts() == before.mounts {
                Ok(())
            } else {
                Err(format!(
                    "{processes:?} {groups:?} {spooled} {sessions} {grown:?} {:?}",
                    mounts()
                ))
            }
        });
    }

    /// Waits until the bystander is alone.
    fn await_quiet(&self) {
        eventually("the bystander is alone", SOON * slow(), || {
            let sessions = self.services.host().load.unwrap().sessions;
            if sessions == 1 { Ok(()) } else { Err(sessions) }
        });
    }

    fn assert_next_works(&self, work: Work) {
        let session = name("next");
        let outcome = self.begin(work, &session, "wc -c <in.txt").unwrap().finish();
        assert_eq!(outcome.expect_success().stdout(), "307200\n");
        if work == Work::Kept {
            self.services.close(&session);
        }
    }
}

#[test]
fn whoever_dies_wherever_it_is_told_truly_and_nothing_is_left() {
    let works = [Work::OneShot, Work::Kept];
    let trials: Vec<Trial> = Point::ALL
        .iter()
        .filter(|point| !OF_WAITING.contains(point))
        .flat_map(|point| works.map(|work| Trial { point: *point, work }))
        .filter(is_wanted)
        .collect();
    let Some(stage) = Stage::start() else { return };
    // A stage on which something failed is not used again.
    let stages = Mutex::new(vec![stage]);
    lanes(LANES, &trials, |trial| {
        let taken = stages.lock().unwrap().pop();
        let mut stage = taken.unwrap_or_else(|| Stage::start().unwrap());
        stage.try_out(trial);
        stages.lock().unwrap().push(stage);
    });
    println!("{} points, {} deaths", Point::ALL.len(), trials.len());
}

/// `BRIG_TEST_POINT` names one point to be tried alone.
fn is_wanted(trial: &Trial) -> bool {
    std::env::var("BRIG_TEST_POINT").map_or(true, |name| name == trial.point.name())
}

/// The death of somebody around a session that was made ahead.
fn die_around_waiting(point: Point) {
    let setup = Setup {
        programs: Places::find().programs.with_file_name("faults"),
        pool: Some("sessions = 1".to_owned()),
        ..Setup::default()
    };
    let Some(mut services) = Services::start(setup) else {
        return;
    };
    let arm = |services: &Services| std::fs::write(services.armed(), point.name()).unwrap();
    let mut execution = None;
    if !matches!(point, Point::JailerTaken | Point::DaemonTaken) {
        arm(&services);
        // What asks for one to be made runs beside that, and may be over before somebody dies.
        begin_and_end(&services);
    } else {
        let first = prime(&services);
        eventually("a session waits", SOON * slow(), || {
            match services.host().load.unwrap().waiting {
                1 => Ok(()),
                other => Err(other),
            }
        });
        arm(&services);
        begin_and_end(&services);
        // brigd may be gone before its answer is; what it accepted it has said.
        let log = services.log(Service::Daemon);
        let last = log
            .rsplit_once("execution{id=")
            .and_then(|(_, last)| last.split_once(' '));
        execution = last.map(|(id, _)| id.to_owned()).filter(|id| *id != first);
    }
    let victim = if victim(point) == Victim::Jailer {
        Service::Jailer
    } else {
        Service::Daemon
    };
    let status = services.await_end(victim);
    assert!(Services::was_killed(status), "{status}: {}", services.log(victim));
    assert!(services.log(victim).contains(&format!("{REACHED}{}\n", point.name())));
    std::fs::remove_file(services.armed()).unwrap();
    if victim == Service::Jailer {
        services.await_end(Service::Daemon);
        services.launch(Service::Jailer);
    }
    eventually("nothing of any session is left", SOON * slow(), || {
        match descendants(services.process(Service::Jailer).pid) {
            left if left.is_empty() => Ok(()),
            left => Err(left),
        }
    });
    services.launch(Service::Daemon);
    assert_eq!(services.host().load.unwrap().sessions, 0);
    if let Some(execution) = execution {
        let recorded = services.recorded(&execution).unwrap();
        assert!(truths(point, Work::OneShot).contains(&recorded.as_str()), "{recorded}");
    }
    prime(&services);
    services.stop();
}

/// Runs code while somebody dies, which may be before it is answered.
fn begin_and_end(services: &Services) {
    if let Ok(live) = services.send(vec![only(small("print(1)"))]) {
        drop(live.end());
    }
}

/// Runs code that makes a session wait for the next, and gives its id.
fn prime(services: &Services) -> String {
    let outcome = services.run(small("print(1)")).expect_success();
    assert_eq!(outcome.stdout(), "1\n");
    outcome.result.execution_id
}

#[test]
fn whoever_dies_around_a_session_that_was_made_ahead_leaves_nothing_of_it() {
    OF_WAITING.into_iter().for_each(die_around_waiting);
}
