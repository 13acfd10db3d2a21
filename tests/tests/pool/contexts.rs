//! Contexts whose interpreters a zygote has forked: they are as those that were started.

use brig_proto::v1::{ContextsCreateRequest, SessionsCreateRequest, StartKind};
use brig_tests::processes::assert_gone;
use brig_tests::spec::{code, command};
use brig_tests::{Outcome, Service, Services, eventually, slow};
use serde_json::Value;

use super::ends::{SOON, failed_zygotes, interpreters, jailed, kill};
use super::{pool, start};

/// Makes a session of the template `data` with a context, both of that name.
fn open(services: &Services, name: &str) {
    services.create(SessionsCreateRequest {
        session_id: name.to_owned(),
        ..SessionsCreateRequest::default()
    });
    context(services, name, name, &[]);
}

fn context(services: &Services, session: &str, name: &str, variables: &[(&str, &str)]) {
    let pairs = variables
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
    let request = ContextsCreateRequest {
        session_id: session.to_owned(),
        context_id: name.to_owned(),
        environment: pairs.collect(),
        ..ContextsCreateRequest::default()
    };
    services.context(request).unwrap();
}

fn run(services: &Services, session: &str, context: &str, source: &str) -> Outcome {
    let live = services.execute_in(session, context, code(source)).unwrap();
    live.finish().expect_success()
}

/// Opens a context that is started, after which there is a zygote for others.
fn prime(services: &Services) {
    open(services, "first");
    assert_eq!(start(&run(services, "first", "first", "1")), StartKind::Cold);
    await_zygote(services, 1);
}

fn await_zygote(services: &Services, count: usize) {
    eventually("there is a zygote", 4 * SOON * slow(), || {
        let ready = services.log(Service::Daemon).matches("zygote ready").count();
        if ready == count { Ok(()) } else { Err(ready) }
    });
}

#[test]
fn a_context_of_a_later_session_is_forked_with_its_packages() {
    let Some(services) = pool(1) else { return };
    prime(&services);
    for name in ["second", "third"] {
        open(&services, name);
        let outcome = run(
            &services,
            name,
            name,
            "import sys; print('pandas' in sys.modules); x = 7",
        );
        assert_eq!(
            (start(&outcome), outcome.stdout().as_str()),
            (StartKind::Forked, "True\n")
        );
        assert_eq!(outcome.result.session.as_ref().unwrap().start(), StartKind::Forked);
        assert_eq!(run(&services, name, name, "print(x)").stdout(), "7\n");
        assert_eq!(services.session(name).start(), StartKind::Forked);
    }
    // Each has its own names, files and processes.
    services
        .execute("second", command(&["touch", "mine"]))
        .unwrap()
        .finish()
        .expect_success();
    let source = "import os; y = 1; print(sorted(os.listdir()), 'x' in vars(), os.getpid() in (1, 2))";
    assert_eq!(run(&services, "third", "third", source).stdout(), "[] True False\n");
    // Another one in the same session, a new interpreter of the same, and one that asks for what a zygote can't know.
    context(&services, "second", "more", &[]);
    assert_eq!(
        start(&run(&services, "second", "more", "print('x' in vars())")),
        StartKind::Forked
    );
    services.reset("second", "second").unwrap();
    let outcome = run(&services, "second", "second", "print('x' in vars())");
    assert_eq!(
        (start(&outcome), outcome.stdout().as_str()),
        (StartKind::Forked, "False\n")
    );
    context(&services, "second", "own", &[("TZ", "Asia/Tokyo")]);
    let outcome = run(&services, "second", "own", "import os; print(os.environ['TZ'])");
    assert_eq!(
        (start(&outcome), outcome.stdout().as_str()),
        (StartKind::Cold, "Asia/Tokyo\n")
    );
    assert_eq!(failed_zygotes(&services), 0);
}

/// Looks around; what is named after the session is named the same in all.
fn look(services: &Services, name: &str) -> Value {
    let outcome = run(services, name, name, super::probe::PROBE);
    let text = outcome.stdout().replace(name, "SESSION");
    let mut seen: Value = serde_json::from_str(&text).unwrap();
    super::probe::leave_out_numbers(&mut seen);
    // The interpreter's own group, and where its objects lie.
    let cut = |value: &mut Value, at: &str| {
        let text = value.as_str().unwrap();
        *value = text.split(at).next().unwrap().into();
    };
    let groups = seen["state"]["group"].as_array_mut().unwrap();
    groups.iter_mut().for_each(|group| cut(group, "/guest/"));
    let signals = seen["state"]["signals"].as_object_mut().unwrap();
    signals.values_mut().for_each(|handler| cut(handler, " at 0x"));
    seen
}

#[test]
fn code_of_a_context_finds_the_same_jail_however_its_interpreter_came_to_be() {
    let Some(services) = pool(1) else { return };
    prime(&services);
    open(&services, "second");
    let (cold, forked) = (look(&services, "first"), look(&services, "second"));
    super::probe::assert_same(&cold, &forked);
    assert_eq!(forked["status"]["Seccomp"][0], "2");
}

#[test]
fn a_context_has_random_numbers_of_its_own_and_can_be_interrupted() {
    let Some(services) = pool(1) else { return };
    prime(&services);
    let source = "import random, uuid, numpy; print(random.random(), uuid.uuid4(), numpy.random.random())";
    let [one, two] = ["second", "third"].map(|name| {
        open(&services, name);
        run(&services, name, name, source).stdout()
    });
    assert!(
        one.split(' ').zip(two.split(' ')).all(|(one, two)| one != two),
        "{one}{two}"
    );
    let endless = brig_proto::v1::ExecutionSpec {
        execution_id: "endless".to_owned(),
        ..code("kept = 1\nprint('up', flush=True)\nwhile True: pass")
    };
    let mut live = services.execute_in("second", "second", endless).unwrap();
    live.until_written("up");
    services.interrupt("endless");
    let outcome = live.finish();
    assert_eq!(
        outcome.result.error.as_ref().unwrap().name,
        "KeyboardInterrupt",
        "{:?}",
        outcome.result
    );
    assert_eq!(run(&services, "second", "second", "print(kept)").stdout(), "1\n");
}

#[test]
fn without_its_zygote_a_session_goes_on_and_its_next_interpreter_is_started() {
    let Some(services) = pool(1) else { return };
    prime(&services);
    open(&services, "second");
    assert_eq!(start(&run(&services, "second", "second", "x = 7")), StartKind::Forked);
    // The first one's, the zygote, and the second one's.
    let before = interpreters(&services);
    assert_eq!(before.len(), 3, "{before:?}");
    kill(&before[1]);
    assert_eq!(run(&services, "second", "second", "print(x)").stdout(), "7\n");
    context(&services, "second", "more", &[]);
    assert_eq!(start(&run(&services, "second", "more", "1")), StartKind::Cold);
    // And there is another one for whoever comes later.
    await_zygote(&services, 2);
    open(&services, "third");
    assert_eq!(start(&run(&services, "third", "third", "1")), StartKind::Forked);
}

#[test]
fn a_forked_context_outlives_brigd_and_leaves_nothing() {
    let Some(mut services) = pool(1) else { return };
    prime(&services);
    open(&services, "second");
    run(&services, "second", "second", "x = 7");
    for is_planned in [true, false] {
        if is_planned {
            services.stop();
            // Nobody waits for the session of a zygote below which one is kept.
            let log = services.log(Service::Daemon);
            assert!(!log.contains("not confirmed closed"), "{log}");
        } else {
            services.kill(Service::Daemon);
        }
        services.launch(Service::Daemon);
        let outcome = run(&services, "second", "second", "print(x)");
        assert_eq!((start(&outcome), outcome.stdout().as_str()), (StartKind::Forked, "7\n"));
    }
    let all = jailed(&services);
    services.close("second");
    services.close("first");
    assert_gone(&all, SOON * slow());
}
