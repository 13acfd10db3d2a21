//! The table.

use std::time::Duration;

use brig_proto::v1::{CauseKind, ExecutionStatus as Status, Limits, SessionsCreateRequest};
use brig_tests::policies::Change;
use brig_tests::spec::span;

use crate::matrix::{End, Exit, Provoke, Row};

/// Policies of the table: what no caller can ask for.
pub(crate) const POLICIES: [(&str, Change); 1] =
    [("ending", ("on_output_limit = \"drop\"", "on_output_limit = \"end\""))];

/// What is interrupted says before that it is ready.
const INTERRUPTED: &str = "print('ready')\ntime.sleep(60)\nprint('after')";
const SIGINT_IGNORED: &str =
    "signal.signal(signal.SIGINT, signal.SIG_IGN)\nprint('ready')\ntime.sleep(60)\nprint('after')";
const CAUGHT: &str = "try:\n    print('ready')\n    time.sleep(60)\nexcept KeyboardInterrupt: print('caught')";
const CHILD_OOM: &str =
    "pid = os.fork()\nif not pid:\n    x = bytearray(300 << 20)\n    os._exit(0)\nos.waitpid(pid, 0)\n";
const CHILD_OOM_FAILS: &str =
    "pid = os.fork()\nif not pid:\n    x = bytearray(300 << 20)\n    os._exit(0)\nsys.exit(os.waitpid(pid, 0)[1])";
/// int 0x80 with getpid of i386: mov eax, 20; int 0x80; ret.
const FOREIGN_CALL: &str = "import ctypes, mmap\npage = mmap.mmap(-1, 4096, prot=7)\n\
                            page.write(b'\\xb8\\x14\\0\\0\\0\\xcd\\x80\\xc3')\n\
                            ctypes.CFUNCTYPE(ctypes.c_long)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()\nprint('after')";
const MANY_THREADS: &str =
    "import threading\nfor i in range(50): threading.Thread(target=time.sleep, args=(30,), daemon=True).start()";
const FULL: &str = "with open('f', 'wb') as f:\n    while True: f.write(b'x' * 65536)";
const FULL_OF_FILES: &str = "n = 0\nwhile True:\n    open(f'f{n}', 'w').close(); n += 1";

/// All rows, for hosts of every speed.
pub(crate) fn all() -> Vec<Row> {
    [ended_by_themselves(), limited(), asked_for()].concat()
}

fn row(name: &'static str, work: [&'static str; 2], end: End) -> Row {
    let some = |text: &'static str| (!text.is_empty()).then_some(text);
    Row {
        name,
        code: some(work[0]),
        command: some(work[1]),
        policy: "data",
        session: Limits::default(),
        limits: Limits::default(),
        create: SessionsCreateRequest::default(),
        kept_only: false,
        provoke: Provoke::Nothing,
        end,
    }
}

fn end(status: Status, cause: Option<CauseKind>, exit: Exit) -> End {
    let hit = Vec::new();
    End {
        status,
        cause,
        exit,
        hit,
    }
}

/// Ended by the limit of this cause.
fn limit(status: Status, cause: CauseKind, exit: Exit) -> End {
    End {
        hit: vec![cause],
        ..end(status, Some(cause), exit)
    }
}

const NO_WORK: &str = "";
const KILLED: Exit = Exit::Signal(9);

fn ended_by_themselves() -> Vec<Row> {
    let error = |code| end(Status::Error, None, Exit::Code(code));
    let signal = |number| end(Status::Killed, Some(CauseKind::Signal), Exit::Signal(number));
    vec![
        row("success", ["pass", "true"], end(Status::Success, None, Exit::Code(0))),
        row(
            "exit0",
            ["sys.exit(0)", "exit 0"],
            end(Status::Success, None, Exit::Code(0)),
        ),
        row("exit1", ["sys.exit(1)", "exit 1"], error(1)),
        row("exit3", ["sys.exit(3)", "exit 3"], error(3)),
        row("exit255", ["os._exit(255)", "exit 255"], error(255)),
        row("exception", ["{}['missing']", NO_WORK], error(1)),
        row(
            "own_sigkill",
            ["os.kill(os.getpid(), 9)\nprint('after')", "kill -9 $$; echo after"],
            signal(9),
        ),
        row(
            "own_sigterm",
            ["os.kill(os.getpid(), 15)\nprint('after')", "kill $$; echo after"],
            signal(15),
        ),
        row("abort", ["os.abort()", "kill -ABRT $$; echo after"], signal(6)),
        row(
            "segfault",
            [
                "import ctypes\nctypes.string_at(0)\nprint('after')",
                "kill -SEGV $$; echo after",
            ],
            signal(11),
        ),
        row(
            "forbidden_call",
            [FOREIGN_CALL, NO_WORK],
            end(Status::Killed, Some(CauseKind::SyscallDenied), Exit::Signal(31)),
        ),
    ]
}

fn limited() -> Vec<Row> {
    let small = Limits {
        memory_bytes: Some(64 << 20),
        disk_bytes: Some(1 << 20),
        ..Limits::default()
    };
    let millis = |millis| Some(span(Duration::from_millis(millis) * brig_tests::slow()));
    let success = end(Status::Success, None, Exit::Code(0));
    let hit = |hit, end| End { hit: vec![hit], ..end };
    let error = |code| end(Status::Error, None, Exit::Code(code));
    vec![
        Row {
            session: small,
            ..row(
                "memory",
                ["x = bytearray(300 << 20)\nprint('after')", "exec tail /dev/zero"],
                limit(Status::OutOfMemory, CauseKind::Memory, KILLED),
            )
        },
        Row {
            session: small,
            ..row(
                "memory_of_a_child",
                [CHILD_OOM, "tail /dev/zero; true"],
                hit(CauseKind::Memory, success.clone()),
            )
        },
        Row {
            session: small,
            ..row(
                "memory_of_a_child_and_failed",
                [CHILD_OOM_FAILS, "tail /dev/zero || exit 9"],
                hit(CauseKind::Memory, error(9)),
            )
        },
        Row {
            limits: Limits {
                timeout: millis(4000),
                ..Limits::default()
            },
            ..row(
                "wall_time",
                ["time.sleep(60)\nprint('after')", "sleep 60; echo after"],
                limit(Status::Timeout, CauseKind::WallTime, KILLED),
            )
        },
        Row {
            limits: Limits {
                cpu_time: millis(600),
                timeout: millis(10_000),
                ..Limits::default()
            },
            ..row(
                "cpu_time",
                ["while True: pass", "while :; do :; done & while :; do :; done"],
                limit(Status::Timeout, CauseKind::CpuTime, KILLED),
            )
        },
        Row {
            limits: Limits {
                idle_time: millis(4000),
                timeout: millis(10_000),
                ..Limits::default()
            },
            ..row(
                "idle_time",
                ["time.sleep(60)\nprint('after')", "sleep 60; echo after"],
                limit(Status::Timeout, CauseKind::IdleTime, KILLED),
            )
        },
        Row {
            limits: Limits {
                idle_time: millis(2000),
                timeout: millis(10_000),
                ..Limits::default()
            },
            ..row(
                "writing_is_not_idle",
                [
                    "for i in range(12): time.sleep(0.2); print(i)",
                    "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do sleep 0.2; echo $i; done",
                ],
                success.clone(),
            )
        },
        Row {
            session: Limits {
                pids: Some(12),
                ..Limits::default()
            },
            ..row(
                "processes",
                [MANY_THREADS, NO_WORK],
                limit(Status::Error, CauseKind::Processes, Exit::Code(1)),
            )
        },
        Row {
            session: Limits {
                pids: Some(12),
                ..Limits::default()
            },
            ..row(
                "processes_of_a_shell",
                [NO_WORK, "while sleep 9 & do :; done"],
                hit(CauseKind::Processes, error(2)),
            )
        },
        Row {
            session: Limits {
                disk_bytes: Some(4 << 20),
                ..Limits::default()
            },
            ..row(
                "disk",
                [FULL, "head -c 9000000 /dev/zero >f || exit 1"],
                limit(Status::Error, CauseKind::Disk, Exit::Code(1)),
            )
        },
        Row {
            session: Limits {
                inodes: Some(300),
                ..Limits::default()
            },
            ..row(
                "files",
                [
                    FULL_OF_FILES,
                    "i=0; while true >f$i; do i=$((i + 1)); done 2>/dev/null; exit 1",
                ],
                limit(Status::Error, CauseKind::Disk, Exit::Code(1)),
            )
        },
        Row {
            limits: Limits {
                output_bytes: Some(1000),
                ..Limits::default()
            },
            ..row(
                "output",
                ["print('x' * 5000)", "head -c 5000 /dev/zero"],
                hit(CauseKind::Output, success),
            )
        },
        Row {
            policy: "ending",
            limits: Limits {
                output_bytes: Some(1000),
                ..Limits::default()
            },
            ..row(
                "output_ends_it",
                ["while True: print('x' * 100)", "exec yes"],
                limit(Status::OutputLimit, CauseKind::Output, KILLED),
            )
        },
    ]
}

fn asked_for() -> Vec<Row> {
    let cancelled = |cause| end(Status::Cancelled, Some(cause), KILLED);
    let long = [
        "time.sleep(60)\nprint('after')",
        "trap '' INT TERM HUP; sleep 60; echo after",
    ];
    let interrupted = |exit| end(Status::Error, Some(CauseKind::Interrupt), exit);
    let soon = Some(span(Duration::from_secs(5) * brig_tests::slow()));
    vec![
        Row {
            provoke: Provoke::Cancel,
            ..row("cancel", long, cancelled(CauseKind::Cancel))
        },
        Row {
            provoke: Provoke::Leave,
            ..row("client_gone", long, cancelled(CauseKind::ClientGone))
        },
        Row {
            provoke: Provoke::CloseSession,
            kept_only: true,
            ..row("session_closed", long, cancelled(CauseKind::SessionClosed))
        },
        Row {
            create: SessionsCreateRequest {
                max_age: soon,
                ..SessionsCreateRequest::default()
            },
            kept_only: true,
            ..row(
                "session_max_age",
                long,
                limit(Status::Timeout, CauseKind::SessionAge, KILLED),
            )
        },
        Row {
            create: SessionsCreateRequest {
                expire_after: soon,
                ..SessionsCreateRequest::default()
            },
            kept_only: true,
            ..row(
                "session_expired",
                long,
                limit(Status::Timeout, CauseKind::SessionAge, KILLED),
            )
        },
        Row {
            provoke: Provoke::Interrupt,
            ..row("interrupt", [INTERRUPTED, NO_WORK], interrupted(Exit::Code(130)))
        },
        Row {
            provoke: Provoke::Interrupt,
            ..row(
                "interrupt_caught",
                [CAUGHT, NO_WORK],
                end(Status::Success, None, Exit::Code(0)),
            )
        },
        Row {
            provoke: Provoke::Interrupt,
            ..row("interrupt_ignored", [SIGINT_IGNORED, NO_WORK], interrupted(KILLED))
        },
    ]
}
