//! What the kernel counts per user, it counts per session: one that uses all it can get takes nothing from the next.
#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

use brig_proto::v1::ExecutionSpec;
use brig_tests::daemon;
use brig_tests::spec::{small, timeout};

/// Takes all of each counter that a guest can reach, and says how much that was.
///
/// - Pages of pipes (`pipe-user-pages-soft`): above it a new pipe is smaller.
/// - Pending signals (`RLIMIT_SIGPENDING`), and timers, which have one each.
/// - Descriptors in flight in Unix sockets (`RLIMIT_NOFILE`).
/// - Pseudo terminals.
const TAKE_ALL: &str = r#"
import array, ctypes, errno, fcntl, os, signal, socket, sys

held, taken = [], {}

def until_refused(name, take):
    for count in range(100_000):
        try:
            held.append(take())
        except OSError as error:
            taken[name] = [count, errno.errorcode[error.errno]]
            return

def pipe_size():
    read, write = os.pipe()
    held.extend([read, write])
    return fcntl.fcntl(read, fcntl.F_GETPIPE_SZ)

def checked(result):
    if result != 0:
        raise OSError(ctypes.get_errno(), "")

libc = ctypes.CDLL(None, use_errno=True)
taken["first pipe"] = pipe_size()

ready_out, ready_in = os.pipe()
stay_out, stay_in = os.pipe()
for _ in range(4):
    if os.fork() == 0:
        os.close(stay_in)
        for _ in range(400):
            os.pipe()
        os.write(ready_in, b"x")
        os.read(stay_out, 1)
        os._exit(0)
for _ in range(4):
    os.read(ready_out, 1)
taken["later pipe"] = pipe_size()

signal.pthread_sigmask(signal.SIG_BLOCK, [40])
until_refused("signals", lambda: checked(libc.sigqueue(os.getpid(), 40, None)))

a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
a.setblocking(False)
pair = [a, b]
def send_descriptors():
    try:
        pair[0].sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0] * 50))])
    except BlockingIOError:
        held.extend(pair)
        pair[:] = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        pair[0].setblocking(False)
until_refused("in flight", send_descriptors)

until_refused("terminals", lambda: os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY))
print(sorted(taken.items()))
sys.stdout.flush()
"#;

#[test]
fn what_one_session_uses_up_the_next_one_has() {
    let daemon = daemon!();
    let alone = daemon.stdout(small(TAKE_ALL));
    for (counter, refusal) in [
        ("signals", "EAGAIN"),
        ("in flight", "ETOOMANYREFS"),
        ("terminals", "ENOSPC"),
    ] {
        assert!(alone.contains(counter) && alone.contains(refusal), "{alone}");
    }
    assert!(alone.contains("('first pipe', 65536)"), "{alone}");
    assert!(!alone.contains("('later pipe', 65536)"), "{alone}");

    let mut holder = daemon.begin(ExecutionSpec {
        limits: timeout(200_000),
        ..small(&format!(
            "{TAKE_ALL}\nprint('full')\nsys.stdout.flush()\nsignal.pause()"
        ))
    });
    holder.until_written("full\n");
    assert_eq!(daemon.stdout(small(TAKE_ALL)), alone);
}

#[test]
fn counters_of_calls_that_no_guest_has_can_not_be_reached() {
    let daemon = daemon!();
    // Keys, message queues, watches of files, namespaces, BPF and rings are counted per user too.
    let calls = [
        libc::SYS_add_key,
        libc::SYS_keyctl,
        libc::SYS_request_key,
        libc::SYS_mq_open,
        libc::SYS_inotify_init1,
        libc::SYS_fanotify_init,
        libc::SYS_unshare,
        libc::SYS_clone3,
        libc::SYS_bpf,
        libc::SYS_perf_event_open,
        libc::SYS_io_uring_setup,
        libc::SYS_memfd_secret,
        libc::SYS_userfaultfd,
    ];
    let source = format!(
        "import ctypes, errno\nlibc = ctypes.CDLL(None, use_errno=True)\nfor number in {calls:?}:\n    \
         libc.syscall(number, 0, 0, 0, 0, 0)\n    print(errno.errorcode[ctypes.get_errno()])"
    );
    assert_eq!(daemon.stdout(small(&source)), "ENOSYS\n".repeat(calls.len()));
}
