//! Limits hold, are told truly, and the daemon itself stays small.
#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

use std::time::{Duration, Instant};

use brig_proto::v1::{CauseKind, ExecutionSpec, ExecutionStatus as Status, Limits, NoticeKind};
use brig_tests::spec::{code, input, sh, small, timeout};
use brig_tests::{daemon, processes, slow};

fn limited(limits: Limits, spec: ExecutionSpec) -> ExecutionSpec {
    ExecutionSpec {
        limits: Some(limits),
        ..spec
    }
}

#[test]
fn memory_of_all_kinds_is_bounded() {
    let daemon = daemon!();
    let limits = Limits {
        memory_bytes: Some(64 << 20),
        disk_bytes: Some(4 << 20),
        ..Limits::default()
    };
    for source in [
        "import mmap\nm = mmap.mmap(-1, 400 << 20)\nm.write(b'x' * (400 << 20))",
        "import os, mmap\nfd = os.memfd_create('m')\nos.ftruncate(fd, 400 << 20)\nm = mmap.mmap(fd, 400 << 20)\n\
         for i in range(0, 400 << 20, 4096): m[i] = 1",
        "import os\nfd = os.memfd_create('m')\nfor i in range(400): os.write(fd, b'x' * (1 << 20))",
    ] {
        let outcome = daemon.run(limited(limits, small(source)));
        assert_eq!(
            outcome.end(),
            (Status::OutOfMemory, Some(CauseKind::Memory)),
            "{source}"
        );
        let used = outcome.result.usage.unwrap().memory_peak_bytes.unwrap();
        assert!(used <= 68 << 20, "{used}");
    }
}

#[test]
fn memory_within_the_limit_can_be_used() {
    let daemon = daemon!();
    let limits = Limits {
        memory_bytes: Some(256 << 20),
        ..Limits::default()
    };
    let outcome = daemon.run(limited(limits, small("x = b'x' * (200 << 20)\nprint(len(x))")));
    assert_eq!(outcome.expect_success().stdout(), "209715200\n");
}

#[test]
fn a_fork_bomb_is_contained_and_others_run_on() {
    let daemon = daemon!();
    let limits = Limits {
        timeout: timeout(4000 * u64::from(slow())).unwrap().timeout,
        pids: Some(40),
        ..Limits::default()
    };
    // The shell that must live on forks once, before there is anything that could keep it from that.
    let mut bomb = daemon.begin(limited(
        limits,
        sh("echo up; bomb() { bomb | bomb & }; bomb & while :; do :; done"),
    ));
    bomb.until_written("up\n");
    let other = daemon.run(sh("echo fine"));
    assert_eq!(other.expect_success().stdout(), "fine\n");
    let outcome = bomb.finish();
    assert_eq!(outcome.end(), (Status::Timeout, Some(CauseKind::WallTime)));
    let hit = [CauseKind::WallTime as i32, CauseKind::Processes as i32];
    assert_eq!(outcome.result.limits_hit, hit);
    if let Some(peak) = outcome.result.usage.unwrap().processes_peak {
        assert!(peak <= 41, "{peak}");
    }
}

#[test]
fn code_that_fails_for_want_of_processes_is_told_so() {
    let daemon = daemon!();
    let limits = Limits {
        pids: Some(12),
        ..Limits::default()
    };
    let threads = "import threading, time\nfor i in range(50): threading.Thread(target=time.sleep, args=(30,), daemon=True).start()";
    let outcome = daemon.run(limited(limits, small(threads)));
    assert_eq!(outcome.end(), (Status::Error, Some(CauseKind::Processes)));
    assert_eq!(outcome.result.cause.as_ref().unwrap().limit, Some(12));
    assert_eq!(outcome.result.limits_hit, [CauseKind::Processes as i32]);
    assert!(outcome.result.hint.unwrap().contains("12 processes"));
}

#[test]
fn a_full_disk_is_no_space_left_and_not_out_of_memory() {
    let daemon = daemon!();
    let limits = Limits {
        disk_bytes: Some(8 << 20),
        ..Limits::default()
    };
    let outcome = daemon.run(limited(
        limits,
        small("with open('f', 'wb') as f:\n    while True: f.write(b'x' * 65536)"),
    ));
    assert_eq!(outcome.end(), (Status::Error, Some(CauseKind::Disk)));
    let error = outcome.result.error.as_ref().unwrap();
    assert_eq!(
        (error.name.as_str(), error.message.as_str()),
        ("OSError", "[Errno 28] No space left on device")
    );
    assert_eq!(outcome.result.cause.as_ref().unwrap().limit, Some(8 << 20));
    assert_eq!(outcome.result.limits_hit, [CauseKind::Disk as i32]);
    assert!(outcome.result.hint.unwrap().contains("8 MiB"));
}

#[test]
fn inodes_run_out_as_no_space_left() {
    let daemon = daemon!();
    let limits = Limits {
        inodes: Some(500),
        ..Limits::default()
    };
    let text = daemon.stdout(limited(
        limits,
        small("n = 0\ntry:\n    while True:\n        open(f'/tmp/{n}', 'w').close(); n += 1\nexcept OSError as e: print(e.errno, n)"),
    ));
    let words: Vec<u64> = text.split_whitespace().map(|word| word.parse().unwrap()).collect();
    assert!(words[0] == 28 && (450..500).contains(&words[1]), "{text}");
}

#[test]
fn a_sparse_file_costs_what_it_holds_and_is_not_collected_beyond_the_limit() {
    let daemon = daemon!();
    let outcome = daemon.run(sh("truncate -s 1T sparse.csv && echo made"));
    assert_eq!(outcome.stdout(), "made\n");
    assert_eq!(outcome.paths(), Vec::<&str>::new());
    assert!(outcome.notices(NoticeKind::ArtifactSkipped)[0].contains("sparse.csv"));
    assert_eq!(outcome.result.usage.unwrap().disk_bytes, 0);
}

#[test]
fn open_files_are_bounded() {
    let daemon = daemon!();
    let limits = Limits {
        open_files: Some(64),
        ..Limits::default()
    };
    let text = daemon.stdout(limited(
        limits,
        small(
            "fs = []\ntry:\n    while True: fs.append(open('/dev/null'))\nexcept OSError as e: print(e.errno, len(fs))",
        ),
    ));
    let words: Vec<u64> = text.split_whitespace().map(|word| word.parse().unwrap()).collect();
    assert!(words[0] == 24 && (55..64).contains(&words[1]), "{text}");
}

#[test]
fn a_cpu_quota_is_kept() {
    let daemon = daemon!();
    let limits = Limits {
        cpus: Some(0.5),
        timeout: timeout(20_000).unwrap().timeout,
        ..Limits::default()
    };
    // The start of the interpreter is none of it: where that is slow, it would be most of the time.
    let busy = "import time\nbegun = time.process_time()\nend = time.monotonic() + 2\n\
                while time.monotonic() < end: pass\nprint(time.process_time() - begun)";
    let outcome = daemon.run(limited(limits, small(busy))).expect_success();
    let used: f64 = outcome.stdout().trim().parse().unwrap();
    // On a busy machine it may get less, never more: half of two seconds, and one period of slack.
    assert!(used > 0.1 && used < 1.25, "{used}");
}

#[test]
fn libraries_are_told_how_many_threads_to_use() {
    let daemon = daemon!();
    let limits = Limits {
        cpus: Some(1.5),
        ..Limits::default()
    };
    let source = "import os\nprint(os.environ['OMP_NUM_THREADS'], os.environ['OPENBLAS_NUM_THREADS'])";
    assert_eq!(daemon.stdout(limited(limits, small(source))), "2 2\n");
}

#[test]
fn a_timeout_ends_everything_within_a_second() {
    let daemon = daemon!();
    let limit = Duration::from_secs(4) * slow();
    // Detached ones, stopped ones, deaf ones, and holders of the pipes.
    let script = "(setsid sh -c 'trap \"\" TERM HUP INT; sleep 100' &) ; (nohup sleep 100 &) ; sleep 100 & kill -STOP $!; \
                  sh -c 'kill -STOP $$' & echo up; trap '' TERM; sleep 100";
    let mut live = daemon.begin(ExecutionSpec {
        limits: timeout(u64::try_from(limit.as_millis()).unwrap()),
        ..sh(script)
    });
    live.until_written("up\n");
    let begun = Instant::now();
    // The shell and the two that it has in the background, and all that sleeps; the one that is stopped may not have come
    // to its name.
    processes::await_named(daemon.pid(), "sleep", 3, limit);
    processes::await_named(daemon.pid(), "sh", 3, limit);
    let family = processes::descendants(daemon.pid());
    let guests: Vec<_> = family
        .into_iter()
        .filter(|process| process.name == "sleep" || process.name == "sh")
        .collect();
    assert!(guests.len() >= 6, "{guests:?}");
    let outcome = live.finish();
    assert_eq!(outcome.status(), Status::Timeout);
    assert!(begun.elapsed() < limit + Duration::from_secs(5) * slow());
    let took = Duration::try_from(outcome.result.duration.unwrap()).unwrap();
    assert!(
        took >= limit && took < limit + Duration::from_secs(1) * slow(),
        "{took:?}"
    );
    assert!(guests.iter().all(|guest| !guest.lives()), "{guests:?}");
}

#[test]
fn what_a_successful_program_leaves_behind_ends_with_it() {
    let daemon = daemon!();
    let start = Instant::now();
    let outcome = daemon.run(sh("(setsid sleep 100 &) ; sleep 100 & echo done"));
    assert_eq!(
        (outcome.status(), outcome.stdout()),
        (Status::Success, "done\n".to_owned())
    );
    assert!(start.elapsed() < Duration::from_secs(5) * slow());
    processes::assert_gone(
        &processes::descendants(daemon.pid())
            .into_iter()
            .filter(|process| process.name == "sleep")
            .collect::<Vec<_>>(),
        Duration::from_secs(2) * slow(),
    );
}

#[test]
fn the_clock_starts_with_the_code() {
    let daemon = daemon!();
    // Start-up takes its own time: a timeout that is shorter than it still lets the code begin.
    let outcome = daemon.run(ExecutionSpec {
        limits: timeout(2000 * u64::from(slow())),
        ..sh("echo begun; sleep 20")
    });
    assert_eq!(
        (outcome.status(), outcome.stdout()),
        (Status::Timeout, "begun\n".to_owned())
    );
}

#[test]
fn inputs_that_do_not_fit_are_refused_before_anything_runs() {
    let daemon = daemon!();
    let limits = Limits {
        disk_bytes: Some(1 << 20),
        ..Limits::default()
    };
    let data = vec![b'x'; 400 << 10];
    let spec = ExecutionSpec {
        inputs: (0..3).map(|number| input(&format!("f{number}"), &data)).collect(),
        ..limited(limits, sh("true"))
    };
    let refused = daemon.refused(spec);
    assert_eq!(
        (refused.reason.as_str(), refused.fields[0].as_str()),
        ("TOO_LARGE", "inputs")
    );
}

#[test]
fn code_beyond_a_mebibyte_is_refused() {
    let daemon = daemon!();
    let most = format!("#{}\nprint('ran')", "x".repeat((1 << 20) - 14));
    assert_eq!(most.len(), 1 << 20);
    assert_eq!(daemon.stdout(code(&most)), "ran\n");
    let refused = daemon.refused(code(&format!("{most}\n")));
    assert_eq!(
        (refused.reason.as_str(), refused.fields[0].as_str()),
        ("TOO_LARGE", "code.source")
    );
}
