//! brigd goes and comes back, killed or told to: kept sessions and what runs in them live on, and a client that attaches
//! again is told everything once. Only the jailer's own death ends everything.
#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

use std::time::{Duration, Instant};

use brig_proto::v1::execution_event::Event;
use brig_proto::v1::{
    CauseKind, ExecutionEvent, ExecutionSpec, ExecutionStatus as Status, OnDisconnect, OutputStream,
    SessionCloseReason, SessionState, SessionsCreateRequest,
};
use brig_tests::processes::{assert_no_groups, of_sessions};
use brig_tests::services::Setup;
use brig_tests::spec::{long, sh, small, span, timeout};
use brig_tests::{Live, Service, Services, eventually, slow};

/// How long anything may take that takes moments.
const SOON: Duration = Duration::from_secs(5);
/// Writes its own number a hundred times a second.
const COUNTER: &str = "i=0; while :; do echo $i; i=$((i + 1)); sleep 0.01; done";

fn name(kind: &str) -> String {
    format!("{kind}{}", std::process::id())
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

fn keep(services: &Services, session: &str, settings: SessionsCreateRequest) {
    services.create(SessionsCreateRequest {
        session_id: session.to_owned(),
        template: "base".to_owned(),
        ..settings
    });
}

/// Starts a program in a new kept session; both have the same name.
fn execute(services: &Services, name: &str, script: &str) -> Live {
    keep(services, name, SessionsCreateRequest::default());
    services.execute(name, spec(name, script)).unwrap()
}

/// A client that reads an execution over many connections.
struct Reader {
    execution: String,
    /// The last sequence that it was told.
    known: u64,
    text: Vec<u8>,
}

impl Reader {
    fn new(execution: &str) -> Self {
        Self {
            execution: execution.to_owned(),
            known: 0,
            text: Vec::new(),
        }
    }

    fn attach(&self, services: &Services) -> Live {
        services.attach(&self.execution, self.known).unwrap()
    }

    /// Takes what came: every event follows the last one, every byte too.
    fn take(&mut self, events: &[ExecutionEvent]) {
        for event in events.iter().filter(|event| event.sequence > 0) {
            assert_eq!(event.sequence, self.known + 1, "{event:?}");
            self.known = event.sequence;
            if let Some(Event::Output(output)) = &event.event {
                assert_eq!(output.offset, self.text.len() as u64);
                self.text.extend_from_slice(&output.data);
            }
        }
    }

    /// Reads until the daemon is gone.
    fn take_until_cut(&mut self, live: Live) {
        let cut = live.end().expect_err("it goes on");
        self.take(&cut.events);
    }

    /// Reads a little more.
    fn take_some(&mut self, mut live: Live) {
        live.until(|event| matches!(event, Event::Output(_)));
        self.take(live.seen());
    }

    /// How many numbers it has read: all from 0 on, each once.
    fn numbers(&self) -> usize {
        let text = String::from_utf8(self.text.clone()).unwrap();
        let lines = text.lines().count();
        let expected: String = (0..lines).map(|number| format!("{number}\n")).collect();
        // The last line may be on its way.
        assert!(expected.starts_with(&text), "{text}");
        lines
    }
}

/// Ends brigd in one of the ways in which it ends, and starts the next one.
fn restart(services: &mut Services, planned: bool) {
    if planned {
        services.stop();
    } else {
        services.kill(Service::Daemon);
    }
    services.launch(Service::Daemon);
}

#[test]
fn over_several_restarts_a_client_that_attaches_again_sees_each_line_once() {
    let Some(mut services) = Services::start(Setup::default()) else {
        return;
    };
    let names = ["a", "b", "c"].map(|kind| name(&format!("lines{kind}")));
    let mut readers = names.clone().map(|name| Reader::new(&name));
    for (name, reader) in names.iter().zip(&mut readers) {
        reader.take_some(execute(&services, name, COUNTER));
    }
    for planned in [false, true, false, true, true, false] {
        let mut lives: Vec<Live> = readers.iter().map(|reader| reader.attach(&services)).collect();
        for live in &mut lives {
            live.until(|event| matches!(event, Event::Output(_)));
        }
        restart(&mut services, planned);
        for (reader, live) in readers.iter_mut().zip(lives) {
            reader.take_until_cut(live);
            reader.numbers();
        }
    }
    for reader in &mut readers {
        let live = reader.attach(&services);
        services.cancel(&reader.execution);
        let outcome = live.finish();
        reader.take(&outcome.events);
        assert_eq!(outcome.end(), (Status::Cancelled, Some(CauseKind::Cancel)));
        // At least one in each life of brigd.
        assert!(reader.numbers() > 6, "{}", reader.numbers());
        assert_eq!(outcome.result.stdout, reader.text.as_slice());
    }
}

#[test]
fn twenty_kills_at_any_moment_lose_nothing() {
    let Some(mut services) = Services::start(Setup::default()) else {
        return;
    };
    let counter = name("kills");
    let mut reader = Reader::new(&counter);
    reader.take_some(execute(&services, &counter, COUNTER));
    // The same moments each time: x -> 1103515245 x + 12345 modulo 2^31.
    let mut random: u64 = 1;
    for number in 0..20 {
        random = (random * 1_103_515_245 + 12_345) % (1 << 31);
        let live = reader.attach(&services);
        // Something starts and ends around the kill, too.
        let short = format!("{counter}n{number}");
        let begun = services.execute(&counter, spec(&short, "echo short; exit 5"));
        std::thread::sleep(Duration::from_millis(random >> 16 & 63));
        restart(&mut services, false);
        reader.take_until_cut(live);
        drop(begun);
        eventually("the end is recorded", SOON * slow(), || {
            match services.recorded(&short).as_deref() {
                // Its start may not have been known to anybody; then it was not let go on.
                Some("error" | "lost") => Ok(()),
                other => Err(other.map(str::to_owned)),
            }
        });
    }
    reader.take_some(reader.attach(&services));
    assert!(reader.numbers() > 20, "{}", reader.numbers());
    let outcome = services
        .execute(&counter, spec(&name("after"), "echo fine"))
        .unwrap()
        .finish();
    assert_eq!(outcome.expect_success().stdout(), "fine\n");
}

#[test]
fn code_is_adopted_with_what_it_shows() {
    let Some(mut services) = Services::start(Setup::default()) else {
        return;
    };
    let session = name("code");
    keep(&services, &session, SessionsCreateRequest::default());
    let source =
        "import os, time\nprint('up')\nwhile not os.path.exists('/tmp/go'): time.sleep(0.01)\nprint('down')\n6 * 7";
    let code = ExecutionSpec {
        template: String::new(),
        ..spec(&session, "")
    };
    let mut live = services
        .execute(
            &session,
            ExecutionSpec {
                work: small(source).work,
                ..code
            },
        )
        .unwrap();
    live.until_written("up\n");
    drop(live);
    restart(&mut services, false);
    services
        .execute(&session, spec(&name("go"), "touch /tmp/go"))
        .unwrap()
        .finish()
        .expect_success();
    let outcome = services.attach(&session, 0).unwrap().finish().expect_success();
    assert_eq!(outcome.stdout(), "up\ndown\n");
    assert_eq!(outcome.order(), ["accepted", "started", "output", "result", "finished"]);
}

#[test]
fn what_ended_while_brigd_was_away_is_told_to_whoever_asks() {
    let Some(mut services) = Services::start(Setup::default()) else {
        return;
    };
    let away = name("away");
    let mut live = execute(&services, &away, "echo up; sleep 0.5; echo down; exit 3");
    live.until_written("up\n");
    services.kill(Service::Daemon);
    eventually("the program has ended", SOON * slow(), || {
        let all = of_sessions(std::slice::from_ref(&away));
        if all.iter().any(|process| process.name == "sh") {
            Err(all)
        } else {
            Ok(())
        }
    });
    services.launch(Service::Daemon);
    for _ in 0..2 {
        let outcome = services.attach(&away, 0).unwrap().finish();
        assert_eq!(
            (outcome.end(), outcome.result.exit_code),
            ((Status::Error, None), Some(3))
        );
        assert_eq!(outcome.stdout(), "up\ndown\n");
        assert_eq!(services.recorded(&away).as_deref(), Some("error"));
        // It stays told after another restart: as it is in the ledger, or as it was.
        restart(&mut services, true);
    }
}

#[test]
fn deadlines_hold_while_nobody_is_there_to_keep_them() {
    let Some(mut services) = Services::start(Setup::default()) else {
        return;
    };
    let (limit, age) = (
        Duration::from_millis(1500) * slow(),
        Duration::from_millis(2500) * slow(),
    );
    let (timed, aged) = (name("timed"), name("aged"));
    keep(&services, &timed, SessionsCreateRequest::default());
    let millis = u64::try_from(limit.as_millis()).unwrap();
    let begun = Instant::now();
    let mut lives = vec![
        services
            .execute(
                &timed,
                ExecutionSpec {
                    limits: timeout(millis),
                    ..spec(&timed, "echo up; sleep 60")
                },
            )
            .unwrap(),
    ];
    let max_age = Some(span(age));
    keep(
        &services,
        &aged,
        SessionsCreateRequest {
            max_age,
            ..SessionsCreateRequest::default()
        },
    );
    lives.push(services.execute(&aged, spec(&aged, "echo up; sleep 60")).unwrap());
    lives.iter_mut().for_each(|live| live.until_written("up\n"));
    drop(lives);
    services.kill(Service::Daemon);
    assert_no_groups(std::slice::from_ref(&aged), age + SOON * slow());
    assert!(begun.elapsed() >= age, "{:?}", begun.elapsed());
    services.launch(Service::Daemon);
    let outcome = services.attach(&timed, 0).unwrap().finish();
    assert_eq!(outcome.end(), (Status::Timeout, Some(CauseKind::WallTime)));
    let took = Duration::try_from(outcome.result.duration.unwrap()).unwrap();
    assert!(
        took >= limit && took < limit + Duration::from_secs(2) * slow(),
        "{took:?}"
    );
    let outcome = services.attach(&aged, 0).unwrap().finish();
    assert_eq!(outcome.end(), (Status::Timeout, Some(CauseKind::SessionAge)));
    assert_eq!(outcome.stdout(), "up\n");
    assert_eq!(services.session(&aged).close_reason(), SessionCloseReason::Expired);
    assert_eq!(services.session(&timed).state(), SessionState::Running);
}

#[test]
fn sessions_that_no_brigd_comes_back_for_are_gone_and_lost() {
    let Some(mut services) = Services::start(Setup {
        grace: "500ms",
        ..Setup::default()
    }) else {
        return;
    };
    let left = name("left");
    let mut live = execute(&services, &left, COUNTER);
    live.until_written("1\n");
    services.kill(Service::Daemon);
    assert_no_groups(std::slice::from_ref(&left), SOON * slow());
    services.launch(Service::Daemon);
    assert_eq!(services.recorded(&left).as_deref(), Some("lost"));
    assert_eq!(services.host().load.unwrap().sessions, 0);
}

#[test]
fn on_a_planned_stop_one_shot_runs_may_end_and_are_lost_when_they_do_not() {
    let Some(mut services) = Services::start(Setup {
        drain: "2s",
        ..Setup::default()
    }) else {
        return;
    };
    let (short, long) = (name("short"), name("long"));
    let begin = |execution: &str, script: &str| {
        let mut live = services.begin(ExecutionSpec {
            template: "base".to_owned(),
            ..spec(execution, script)
        });
        live.until_written("up\n");
        live
    };
    let lives = [
        begin(&short, "echo up; sleep 0.5; echo down"),
        begin(&long, "echo up; sleep 60"),
    ];
    services.signal(Service::Daemon, rustix::process::Signal::TERM);
    let [short_one, long_one] = lives.map(Live::finish);
    assert_eq!(
        (short_one.status(), short_one.stdout()),
        (Status::Success, "up\ndown\n".to_owned())
    );
    assert_eq!(long_one.end(), (Status::Lost, Some(CauseKind::Internal)));
    assert_eq!(long_one.stdout(), "up\n");
    let status = services.await_end(Service::Daemon);
    assert!(status.success(), "{status}");
    services.launch(Service::Daemon);
    assert_eq!(services.recorded(&short).as_deref(), Some("success"));
    assert_eq!(services.recorded(&long).as_deref(), Some("lost"));
}

#[test]
fn the_death_of_the_jailer_loses_everything_and_says_so() {
    let Some(mut services) = Services::start(Setup::default()) else {
        return;
    };
    let (kept, once) = (name("kept"), name("once"));
    let mut lives = [
        execute(&services, &kept, "echo up; sleep 60"),
        services.begin(ExecutionSpec {
            template: "base".to_owned(),
            ..spec(&once, "echo up; sleep 60")
        }),
    ];
    lives.iter_mut().for_each(|live| live.until_written("up\n"));
    services.kill(Service::Jailer);
    for live in lives {
        let outcome = live.finish();
        assert_eq!(outcome.end(), (Status::Lost, Some(CauseKind::Internal)));
        assert_eq!(outcome.streamed(OutputStream::Stdout), b"up\n");
    }
    services.await_end(Service::Daemon);
    services.launch(Service::Jailer);
    services.launch(Service::Daemon);
    for execution in [&kept, &once] {
        assert_eq!(services.recorded(execution).as_deref(), Some("lost"));
    }
    assert!(of_sessions(&[kept, once]).is_empty());
    let outcome = services.run(sh("echo fine"));
    assert_eq!(outcome.expect_success().stdout(), "fine\n");
}
