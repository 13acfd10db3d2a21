//! How runs end, and what the ends are called.

use std::time::{Duration, Instant};

use brig_proto::v1::execution_spec::Work;
use brig_proto::v1::{
    CauseKind, Command, ExecutionSpec, ExecutionState, ExecutionStatus as Status, ExpectedOutput, Limits, OnDisconnect,
    OutputStream,
};
use brig_tests::spec::{command, sh, small, timeout};
use brig_tests::{daemon, slow};
use tonic::Code;

use crate::error;

#[test]
fn exit_codes_are_told_exactly() {
    let daemon = daemon!();
    for exit in [1, 2, 42, 125, 126, 127, 128, 137, 255] {
        let outcome = daemon.run(sh(&format!("exit {exit}")));
        assert_eq!(outcome.end(), (Status::Error, None), "{exit}");
        assert_eq!((outcome.result.exit_code, outcome.result.signal), (Some(exit), None));
    }
}

#[test]
fn an_exception_is_told_with_its_line_and_a_traceback_of_the_users_code_alone() {
    let daemon = daemon!();
    let outcome = daemon.run(small("def f():\n    return {}['missing']\n\nf()\n"));
    assert_eq!(outcome.end(), (Status::Error, None));
    assert_eq!(error(&outcome), ("KeyError", "'missing'", Some(2)));
    assert_eq!(outcome.result.exit_code, Some(1));
    let traceback = &outcome.result.error.as_ref().unwrap().traceback;
    assert!(
        traceback.contains("main.py") && traceback.contains("KeyError: 'missing'"),
        "{traceback}"
    );
    assert!(!traceback.contains("brig"), "{traceback}");
    assert_eq!(*traceback, outcome.stderr());
}

#[test]
fn a_syntax_error_names_its_line() {
    let daemon = daemon!();
    let outcome = daemon.run(small("x = 1\ny = = 2\n"));
    assert_eq!(
        error(&outcome),
        ("SyntaxError", "invalid syntax (main.py, line 2)", Some(2))
    );
}

#[test]
fn sys_exit_is_told_by_its_code() {
    let daemon = daemon!();
    let clean = daemon.run(small("import sys; sys.exit(0)"));
    assert_eq!(
        (clean.status(), clean.result.exit_code, clean.result.error.is_none()),
        (Status::Success, Some(0), true)
    );
    let failed = daemon.run(small("import sys; sys.exit(3)"));
    assert_eq!((failed.status(), failed.result.exit_code), (Status::Error, Some(3)));
    assert_eq!(error(&failed).0, "SystemExit");
    let said = daemon.run(small("import sys; sys.exit('no data')"));
    assert_eq!(
        (said.status(), said.result.exit_code, said.stderr()),
        (Status::Error, Some(1), "no data\n".to_owned())
    );
}

#[test]
fn a_timeout_keeps_what_was_written_and_names_limit_and_use() {
    let daemon = daemon!();
    let start = Instant::now();
    let limit = 3000 * u64::from(slow());
    let outcome = daemon.run(ExecutionSpec {
        limits: timeout(limit),
        ..small("print('partial')\nimport time\ntime.sleep(60)")
    });
    let elapsed = start.elapsed();
    assert!(elapsed < Duration::from_secs(10) * slow(), "{elapsed:?}");
    assert_eq!(outcome.end(), (Status::Timeout, Some(CauseKind::WallTime)));
    assert_eq!(outcome.stdout(), "partial\n");
    let cause = outcome.result.cause.unwrap();
    assert_eq!(cause.limit, Some(limit));
    let most = limit + 1000 * u64::from(slow());
    assert!((limit..most).contains(&cause.used.unwrap()), "{:?}", cause.used);
    assert_eq!(outcome.result.limits_hit, [CauseKind::WallTime as i32]);
    let span = cause.message.strip_prefix("the code ran longer than ").unwrap();
    assert!(outcome.result.hint.unwrap().contains(span), "{span}");
    assert_eq!((outcome.result.exit_code, outcome.result.signal), (None, Some(9)));
}

#[test]
fn output_that_was_not_flushed_is_not_lost_in_a_timeout() {
    let daemon = daemon!();
    let outcome = daemon.run(ExecutionSpec {
        limits: timeout(3000 * u64::from(slow())),
        ..small("import sys\nsys.stdout.write('whole line\\n')\nwhile True: pass")
    });
    assert_eq!(
        (outcome.status(), outcome.stdout()),
        (Status::Timeout, "whole line\n".to_owned())
    );
}

#[test]
fn out_of_memory_is_told_as_such() {
    let daemon = daemon!();
    let outcome = daemon.run(ExecutionSpec {
        limits: Some(Limits {
            memory_bytes: Some(64 << 20),
            disk_bytes: Some(1 << 20),
            ..Limits::default()
        }),
        ..small("print('before')\nx = bytearray(300 << 20)\nprint('after')")
    });
    assert_eq!(outcome.end(), (Status::OutOfMemory, Some(CauseKind::Memory)));
    assert_eq!(outcome.stdout(), "before\n");
    assert_eq!(outcome.result.cause.as_ref().unwrap().limit, Some(64 << 20));
    assert_eq!(outcome.result.limits_hit, [CauseKind::Memory as i32]);
    assert!(outcome.result.hint.unwrap().contains("memory"));
}

#[test]
fn a_child_that_runs_out_of_memory_is_told_and_its_parent_lives_on() {
    let daemon = daemon!();
    let outcome = daemon.run(ExecutionSpec {
        limits: Some(Limits {
            memory_bytes: Some(64 << 20),
            disk_bytes: Some(1 << 20),
            ..Limits::default()
        }),
        ..small(
            "import os\npid = os.fork()\nif not pid:\n    \
             x = bytearray(300 << 20)\n    os._exit(0)\n\
             print(os.WTERMSIG(os.waitpid(pid, 0)[1]))",
        )
    });
    let hit = [CauseKind::Memory as i32];
    assert_eq!(outcome.result.limits_hit, hit, "{:?}", outcome.result);
    assert_eq!(
        (outcome.status(), outcome.stdout()),
        (Status::Success, "9\n".to_owned())
    );
}

#[test]
fn a_signal_of_ones_own_is_killed_and_no_limit() {
    let daemon = daemon!();
    for signal in [6, 9, 11, 15] {
        let outcome = daemon.run(sh(&format!("kill -{signal} $$; sleep 5")));
        assert_eq!(outcome.end(), (Status::Killed, Some(CauseKind::Signal)), "{signal}");
        assert_eq!((outcome.result.exit_code, outcome.result.signal), (None, Some(signal)));
        assert!(outcome.result.limits_hit.is_empty());
    }
}

#[test]
fn a_system_call_of_another_architecture_is_killed_and_named() {
    let daemon = daemon!();
    // int 0x80 with getpid of i386: mov eax, 20; int 0x80; ret.
    let outcome = daemon.run(small(
        "import ctypes, mmap\npage = mmap.mmap(-1, 4096, prot=7)\npage.write(b'\\xb8\\x14\\0\\0\\0\\xcd\\x80\\xc3')\n\
         print('before')\nctypes.CFUNCTYPE(ctypes.c_long)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()\nprint('after')",
    ));
    assert_eq!(outcome.end(), (Status::Killed, Some(CauseKind::SyscallDenied)));
    assert_eq!(
        (outcome.stdout(), outcome.result.signal),
        ("before\n".to_owned(), Some(31))
    );
    assert!(outcome.result.hint.is_some());
}

#[test]
fn cancelling_ends_a_run_and_keeps_what_it_wrote() {
    let daemon = daemon!();
    let mut live = daemon.begin(ExecutionSpec {
        execution_id: "stopme".to_owned(),
        ..sh("trap '' TERM INT; echo first; sleep 60")
    });
    live.until_written("first\n");
    assert_eq!(daemon.cancel("stopme"), ExecutionState::Running);
    let outcome = live.finish();
    assert_eq!(outcome.end(), (Status::Cancelled, Some(CauseKind::Cancel)));
    assert_eq!(outcome.stdout(), "first\n");
    assert_eq!(daemon.cancel("stopme"), ExecutionState::Finished);
}

#[test]
fn a_caller_that_goes_away_ends_its_run() {
    let daemon = daemon!();
    let mut live = daemon.begin(ExecutionSpec {
        execution_id: "left".to_owned(),
        ..sh("echo up; sleep 60")
    });
    live.until_written("up\n");
    drop(live);
    let outcome = daemon.attach("left", 0).unwrap().finish();
    assert_eq!(outcome.end(), (Status::Cancelled, Some(CauseKind::ClientGone)));
    assert_eq!(outcome.stdout(), "up\n");
}

#[test]
fn a_run_that_may_go_on_without_its_caller_can_be_attached_to() {
    let daemon = daemon!();
    let mut live = daemon.begin(ExecutionSpec {
        execution_id: "kept".to_owned(),
        on_disconnect: OnDisconnect::Continue.into(),
        ..sh("echo a; sleep 0.5; echo b")
    });
    live.until_written("a\n");
    drop(live);
    let outcome = daemon.attach("kept", 0).unwrap().finish();
    assert_eq!(
        (outcome.status(), outcome.stdout()),
        (Status::Success, "a\nb\n".to_owned())
    );
    assert_eq!(outcome.streamed(OutputStream::Stdout), b"a\nb\n");
}

#[test]
fn a_program_or_directory_that_is_not_there_is_refused_by_field() {
    let daemon = daemon!();
    let program = daemon.refused(ExecutionSpec {
        execution_id: "nosuch".to_owned(),
        ..command(&["no-such-program"])
    });
    assert_eq!(
        (program.code, &program.fields[..]),
        (Code::InvalidArgument, &["command.argv[0]".to_owned()][..])
    );
    assert!(program.message.contains("no-such-program"), "{program:?}");
    let result = daemon.execution("nosuch").result.unwrap();
    assert_eq!((result.status(), result.exit_code), (Status::Failed, None));
    let work = Command {
        argv: vec!["true".to_owned()],
        directory: "no/such/folder".to_owned(),
        ..Command::default()
    };
    let directory = daemon.refused(ExecutionSpec {
        work: Some(Work::Command(work)),
        ..ExecutionSpec::default()
    });
    assert_eq!(
        (directory.code, &directory.fields[..]),
        (Code::InvalidArgument, &["command.directory".to_owned()][..])
    );
}

#[test]
fn expected_outputs_that_are_not_as_asked_for_are_listed() {
    let daemon = daemon!();
    let expect = |path: &str, media_type: &str, max_bytes| ExpectedOutput {
        path: path.to_owned(),
        r#type: media_type.to_owned(),
        max_bytes,
    };
    let outcome = daemon.run(ExecutionSpec {
        expected_outputs: vec![
            expect("there.csv", "", None),
            expect("typed.csv", "text/csv", None),
            expect("lies.csv", "image/png", None),
            expect("large.txt", "", Some(10)),
            expect("sub/deep.txt", "", None),
            expect("not/there", "", None),
            expect("link.txt", "", None),
        ],
        ..sh(
            "printf 'a,b\\n1,2\\n' | tee there.csv typed.csv >lies.csv; seq 100 >large.txt; mkdir sub; echo x >sub/deep.txt; \
             ln -s there.csv link.txt",
        )
    });
    assert_eq!(outcome.status(), Status::Success);
    assert_eq!(
        outcome.result.missing_outputs,
        ["lies.csv", "large.txt", "not/there", "link.txt"]
    );
}
