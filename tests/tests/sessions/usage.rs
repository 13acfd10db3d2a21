//! What a session uses, and what is left of its limits.

use std::time::Duration;

use brig_proto::v1::{Limits, SessionsCreateRequest};
use brig_tests::spec::{code, command};
use brig_tests::{DEADLINE, daemon, eventually};

use super::{Kept, named};

const MIB: u64 = 1 << 20;

#[test]
fn usage_is_shown_while_the_session_lives() {
    let daemon = daemon!();
    let kept = Kept { daemon: &daemon };
    let created = kept.create(named("mine"));
    assert!(created.usage.is_none());
    let source = "import os, time\nopen('f', 'wb').write(bytes(20 << 20))\nx = b'x' * (60 << 20)\n\
                  os.fork() or time.sleep(60)\nprint('up', flush=True)\ntime.sleep(60)";
    let mut running = kept.begin("mine", "running", code(source));
    running.live.until_written("up");
    let usage = kept.shown("mine").usage.unwrap();
    assert!(usage.memory_bytes >= 80 * MIB, "{usage:?}");
    assert!(usage.processes >= 2, "{usage:?}");
    assert!((20 * MIB..30 * MIB).contains(&usage.disk_bytes), "{usage:?}");
    assert!(usage.inodes >= 1, "{usage:?}");
    assert!(Duration::try_from(usage.cpu_time.unwrap()).unwrap() > Duration::ZERO);
    assert_eq!((usage.executions, usage.contexts), (1, 0));
    let shown = daemon.brig(&["session", "show", "mine"]).expect(0);
    assert!(shown.text().contains(" processes, "), "{}", shown.text());
    daemon.cancel("running");
    running.live.finish();
    kept.pause("mine");
    // The session is let go of behind the end that was told.
    eventually("nothing runs", *DEADLINE, || match kept.shown("mine").usage.unwrap() {
        usage if (usage.processes, usage.executions) == (0, 0) => Ok(()),
        usage => Err(usage),
    });
    let usage = kept.shown("mine").usage.unwrap();
    assert!(usage.disk_bytes >= 20 * MIB, "{usage:?}");
    assert!(kept.close("mine").usage.is_none());
    assert!(kept.shown("mine").usage.is_none());
}

#[test]
fn each_result_says_what_is_left() {
    let daemon = daemon!();
    let kept = Kept { daemon: &daemon };
    let limits = Limits {
        memory_bytes: Some(256 * MIB),
        disk_bytes: Some(64 * MIB),
        pids: Some(20),
        ..Limits::default()
    };
    kept.create(SessionsCreateRequest {
        limits: Some(limits),
        ..named("mine")
    });
    let script = "head -c 10M /dev/zero > f";
    let mut behind = kept.begin("mine", "behind", command(&["sh", "-c", "sleep 60 & echo up; wait"]));
    behind.live.until_written("up");
    let outcome = kept
        .execute("mine", "first", command(&["sh", "-c", script]))
        .expect_success();
    let session = outcome.result.session.clone().unwrap();
    assert!(session.kept && session.has_state && session.expire_time.is_some());
    let left = session.left.unwrap();
    // What `behind` has: a shell and its child.
    assert_eq!(left.processes, 18);
    assert!((50 * MIB..=54 * MIB).contains(&left.disk_bytes), "{left:?}");
    assert!((200 * MIB..=310 * MIB).contains(&left.memory_bytes), "{left:?}");
    assert!(left.inodes.is_some_and(|inodes| inodes > 0), "{left:?}");
    let document = outcome.document();
    assert_eq!(document["session"]["left"]["processes"], 18);
    let alone = daemon.run(brig_tests::spec::sh("true"));
    assert_eq!(alone.result.session.unwrap().left, None);
}
