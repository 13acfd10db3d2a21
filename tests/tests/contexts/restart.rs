//! brigd goes and comes back: a context that waits for work keeps its state, and one that loses it says so.

use std::time::Duration;

use brig_proto::v1::rich_datum::Content;
use brig_proto::v1::{
    Context, ContextState, ContextsCreateRequest, ExecutionSpec, ExecutionStatus, NoticeKind, OnDisconnect,
    OutputStream,
};
use brig_tests::processes::{assert_gone, descendants};
use brig_tests::services::Setup;
use brig_tests::spec::{code, command};
use brig_tests::{Client, Live, Service, Services, eventually, slow};

use super::{Kept, MINE, has_state};

const SOON: Duration = Duration::from_secs(5);

/// Ends brigd in one of the ways in which it ends, and starts the next one.
fn restart(services: &mut Services, planned: bool) {
    if planned {
        services.stop();
    } else {
        services.kill(Service::Daemon);
    }
    services.launch(Service::Daemon);
}

fn again(client: &Client) -> Kept<'_> {
    Kept { daemon: client }
}

/// As it is shown, without what a restart may change.
fn lasting(context: &Context) -> Context {
    Context {
        state: ContextState::Idle.into(),
        ..context.clone()
    }
}

/// Has a file removed some time from now, by a program that goes on whatever brigd does.
fn remove_later(client: &Client, path: &str) {
    let spec = ExecutionSpec {
        on_disconnect: OnDisconnect::Continue.into(),
        ..command(&["sh", "-c", &format!("echo up; sleep 2; rm {path}")])
    };
    client.execute(MINE, spec).unwrap().until_written("up");
}

fn cut(live: Live) {
    live.end().expect_err("it goes on");
}

#[test]
fn contexts_that_wait_for_work_keep_their_state_over_restarts() {
    let Some(mut services) = Services::start(Setup::default()) else {
        return;
    };
    let kept = Kept::new(&services);
    kept.context("shell", "bash");
    let request = ContextsCreateRequest {
        request_id: "once".to_owned(),
        session_id: MINE.to_owned(),
        context_id: "elsewhere".to_owned(),
        directory: "/tmp".to_owned(),
        environment: [("TZ".to_owned(), "Asia/Tokyo".to_owned())].into(),
        labels: [("colour".to_owned(), "green".to_owned())].into(),
        ..ContextsCreateRequest::default()
    };
    services.context(request.clone()).unwrap();
    kept.stdout("n = 0\nimport os\npid = os.getpid()");
    kept.begin("shell", code("n=0; cd /tmp")).finish().expect_success();
    for (round, planned) in (1..).zip([false, true, false, true]) {
        let before: Vec<_> = services.list_contexts(MINE).iter().map(lasting).collect();
        restart(&mut services, planned);
        let kept = again(&services);
        assert_eq!(services.list_contexts(MINE), before);
        let outcome = kept.run("n += 1\nprint(n, pid == os.getpid())").expect_success();
        assert_eq!(outcome.stdout(), format!("{round} True\n"));
        assert!(has_state(&outcome));
        assert_eq!(outcome.notices(NoticeKind::ContextReplaced), Vec::<&str>::new());
        let outcome = kept.begin("shell", code("n=$((n + 1)); echo $n $PWD")).finish();
        assert_eq!(outcome.expect_success().stdout(), format!("{round} /tmp\n"));
        let shown = kept.shown();
        assert_eq!((shown.generation, shown.execution_count), (1, round + 1));
    }
    // The same request finds what it made; another one does not get the name.
    let known = services.context(request.clone()).unwrap();
    assert_eq!((known.context_id.as_str(), known.generation), ("elsewhere", 1));
    let other = ContextsCreateRequest {
        request_id: String::new(),
        ..request
    };
    assert_eq!(services.context(other).unwrap_err().reason, "ID_TAKEN");
    let print = code("import os; print(os.getcwd(), os.environ['TZ'])");
    let outcome = again(&services).begin("elsewhere", print).finish().expect_success();
    assert_eq!(outcome.stdout(), "/tmp Asia/Tokyo\n");
    assert_eq!(services.reset(MINE, MINE).unwrap().generation, 2);
    services.close_context(MINE, "shell");
    restart(&mut services, false);
    let names: Vec<_> = services
        .list_contexts(MINE)
        .into_iter()
        .map(|one| one.context_id)
        .collect();
    assert_eq!(names, ["elsewhere", MINE]);
    let kept = again(&services);
    assert_eq!(kept.stdout("print('n' in globals())"), "False\n");
    assert_eq!(kept.shown().generation, 2);
}

#[test]
fn what_comes_between_executions_while_nobody_is_there_comes_with_the_next_one() {
    let Some(mut services) = Services::start(Setup::default()) else {
        return;
    };
    let kept = Kept::new(&services);
    let source = "import os, threading, time\ndef late():\n    while os.path.exists('stay'): time.sleep(0.01)\n    \
                  print('x' * 300_000, flush=True)\n    display('shown')\n    open('written', 'w').close()\n\
                  open('stay', 'w').close()\nthreading.Thread(target=late).start()\nprint('early')";
    assert_eq!(kept.stdout(source), "early\n");
    remove_later(&services, "stay");
    services.kill(Service::Daemon);
    // Most of it does not fit into the pipe.
    std::thread::sleep(Duration::from_secs(1));
    services.launch(Service::Daemon);
    eventually("all is written", SOON * slow(), || {
        let look = services.execute(MINE, command(&["test", "-e", "written"])).unwrap();
        let outcome = look.finish();
        if outcome.status() == ExecutionStatus::Success {
            Ok(())
        } else {
            Err(outcome.status())
        }
    });
    restart(&mut services, true);
    restart(&mut services, false);
    let next = again(&services).run("print('next')").expect_success();
    let stdout = String::from_utf8(next.streamed(OutputStream::Stdout)).unwrap();
    // As much as is kept between two executions.
    assert_eq!(stdout, format!("{}next\n", "x".repeat(256 * 1024)));
    let told = next.result.output.as_ref().unwrap().stdout.unwrap();
    assert_eq!(
        (told.written_bytes, told.dropped_bytes),
        (300_006, 300_001 - 256 * 1024)
    );
    let [shown] = next.result.results.as_slice() else {
        panic!("{:?}", next.result.results)
    };
    assert_eq!(shown.data[0].content, Some(Content::Text("'shown'".to_owned())));
    assert_eq!(next.notices(NoticeKind::EarlierOutput).len(), 1);
    let third = again(&services).run("print('third')").expect_success();
    assert_eq!((third.stdout().as_str(), third.result.results.len()), ("third\n", 0));
    assert_eq!(third.notices(NoticeKind::EarlierOutput), Vec::<&str>::new());
}

#[test]
fn a_context_that_runs_code_when_brigd_goes_comes_back_clean_and_says_so() {
    let Some(mut services) = Services::start(Setup::default()) else {
        return;
    };
    for (generation, planned) in (2..).zip([false, true]) {
        let kept = if generation == 2 {
            Kept::new(&services)
        } else {
            again(&services)
        };
        let [running, waiting] = ["running", "waiting"].map(|kind| format!("{kind}{generation}"));
        let mut live = kept.begin_as(
            &running,
            "x = 1\nimport time\nprint('going', flush=True)\ntime.sleep(600)",
        );
        live.until_written("going");
        let queued = kept.begin_as(&waiting, "x = 2");
        restart(&mut services, planned);
        cut(live);
        cut(queued);
        let kept = again(&services);
        let next = kept.run("print('x' in globals())").expect_success();
        assert_eq!(next.stdout(), "False\n");
        let [notice] = next.notices(NoticeKind::ContextReplaced)[..] else {
            panic!("{:?}", next.order())
        };
        assert!(notice.contains("brigd was restarted"), "{notice}");
        let shown = kept.shown();
        assert_eq!((shown.generation, shown.execution_count), (generation, 1));
        // It is told once.
        let third = kept.run("1").expect_success();
        assert_eq!(third.notices(NoticeKind::ContextReplaced), Vec::<&str>::new());
        for lost in [running, waiting] {
            assert_eq!(services.recorded(&lost).as_deref(), Some("lost"));
        }
    }
}

#[test]
fn an_interpreter_that_dies_while_nobody_is_there_is_told_with_its_cause() {
    let Some(mut services) = Services::start(Setup::default()) else {
        return;
    };
    let kept = Kept::new(&services);
    let source = "import os, threading, time\ndef end():\n    while os.path.exists('stay'): time.sleep(0.01)\n    \
                  os._exit(7)\nopen('stay', 'w').close()\nthreading.Thread(target=end).start()\nx = 1";
    kept.stdout(source);
    let mut interpreters = descendants(services.process(Service::Jailer).pid);
    interpreters.retain(|process| process.name.starts_with("python"));
    assert!(!interpreters.is_empty());
    remove_later(&services, "stay");
    services.kill(Service::Daemon);
    assert_gone(&interpreters, SOON * slow());
    services.launch(Service::Daemon);
    eventually("another one is there", SOON * slow(), || {
        let shown = again(&services).shown();
        if shown.generation == 2 {
            Ok(())
        } else {
            Err(shown.generation)
        }
    });
    let next = again(&services).run("print('x' in globals())").expect_success();
    assert_eq!(next.stdout(), "False\n");
    let [notice] = next.notices(NoticeKind::ContextReplaced)[..] else {
        panic!("{:?}", next.order())
    };
    assert!(notice.contains("exit code 7"), "{notice}");
}

#[test]
fn kills_at_any_moment_never_lose_state_without_a_word() {
    let Some(mut services) = Services::start(Setup::default()) else {
        return;
    };
    let kept = Kept::new(&services);
    kept.stdout("n = 0");
    let (mut told, mut generation) = (0, 1);
    // The same moments each time: x -> 1103515245 x + 12345 modulo 2^31.
    let mut random: u64 = 1;
    for _ in 0..12 {
        random = (random * 1_103_515_245 + 12_345) % (1 << 31);
        let kept = again(&services);
        let source = format!("import time\nn += 1\nprint(n)\ntime.sleep(0.0{})", random >> 20 & 7);
        let live = kept.begin(MINE, code(&source));
        std::thread::sleep(Duration::from_millis(random >> 16 & 127));
        restart(&mut services, false);
        if let Ok(outcome) = live.end() {
            told = outcome.expect_success().stdout().trim().parse().unwrap();
        }
        let kept = again(&services);
        let next = kept
            .run("try: print(n)\nexcept NameError: n = 0; print('none')")
            .expect_success();
        assert_eq!(next.status(), ExecutionStatus::Success);
        let replaced = !next.notices(NoticeKind::ContextReplaced).is_empty();
        let now = kept.shown().generation;
        assert_eq!(replaced, now > generation, "{now} after {generation}");
        match next.stdout().trim() {
            "none" => assert!(replaced),
            // The last one may have come to its end and not have been told.
            count => assert!(!replaced && [told, told + 1].contains(&count.parse::<u64>().unwrap())),
        }
        (told, generation) = (kept.stdout("print(n)").trim().parse().unwrap(), now);
    }
}
