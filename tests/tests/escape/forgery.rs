//! A program that speaks on the pipes of its kernel: the daemon takes it for claims, and tells the truth.

use std::time::{Duration, Instant};

use brig_proto::v1::{ExecutionSpec, ExecutionStatus as Status};
use brig_tests::spec::{small, timeout};
use brig_tests::{Daemon, Outcome, daemon, processes, slow};

/// Runs code that writes frames of its own to the pipe to the daemon, whose descriptor is `FD`. The one of the request
/// is `REQUEST`. The kernel has moved them from 4 and 3 to 201 and 200.
fn forged(daemon: &Daemon, body: &str) -> Outcome {
    let head = "
import os, json, struct, sys
print('really')
REQUEST, FD = 200, 201
def frame(value):
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    return struct.pack('<I', len(body)) + body
";
    daemon.run(ExecutionSpec {
        limits: timeout(20_000 * u64::from(slow())),
        ..small(&format!("{head}{body}"))
    })
}

#[test]
fn garbage_changes_nothing() {
    let daemon = daemon!();
    let outcome = forged(&daemon, "os.write(FD, os.urandom(100000))\nsys.exit(7)");
    assert_eq!((outcome.status(), outcome.result.exit_code), (Status::Error, Some(7)));
    assert_eq!(outcome.stdout(), "really\n");
}

#[test]
fn a_frame_that_never_ends_holds_nobody_up() {
    let daemon = daemon!();
    let start = Instant::now();
    let outcome = forged(&daemon, "os.write(FD, struct.pack('<I', 1 << 20) + b'x')\nsys.exit(0)");
    assert_eq!(outcome.status(), Status::Success);
    assert!(start.elapsed() < Duration::from_secs(5) * slow());
}

#[test]
fn a_huge_frame_and_a_flood_of_frames_are_cut_off() {
    let daemon = daemon!();
    let brigd = processes::process(daemon.pid());
    let huge = forged(
        &daemon,
        "
os.set_blocking(FD, False)
try:
    os.write(FD, struct.pack('<I', 0xffffffff))
    for i in range(1000): os.write(FD, b'x' * 65536)
except OSError: pass
",
    );
    assert_eq!(huge.status(), Status::Success, "{}", huge.stderr());
    let flood = forged(
        &daemon,
        "
body = frame({'ev': 'result', 'main': True, 'display_id': None, 'data': {'text/plain': 'x' * 400000}})
try:
    for i in range(500): os.write(FD, body)
except OSError: pass
",
    );
    assert_eq!(flood.status(), Status::Success, "{}", flood.stderr());
    let peak = brigd.memory("VmHWM");
    assert!(peak < 80 << 20, "{peak}");
}

#[test]
fn a_forged_end_ends_nothing() {
    let daemon = daemon!();
    let outcome = forged(
        &daemon,
        "
os.write(FD, frame({'ev': 'done'}))
import time
time.sleep(0.3)
print('still here')
sys.exit(5)
",
    );
    assert_eq!((outcome.status(), outcome.result.exit_code), (Status::Error, Some(5)));
    assert_eq!(outcome.stdout(), "really\nstill here\n");
}

#[test]
fn a_forged_error_does_not_change_a_success() {
    let daemon = daemon!();
    let outcome = forged(
        &daemon,
        "os.write(FD, frame({'ev': 'error', 'name': 'Forged', 'message': 'm', 'line': 1, 'traceback': 't'}))",
    );
    assert_eq!((outcome.status(), outcome.result.error), (Status::Success, None));
}

#[test]
fn forged_results_are_no_more_than_claims() {
    let daemon = daemon!();
    let outcome = forged(
        &daemon,
        "
os.write(FD, frame({'ev': 'finished', 'status': 'success', 'exit_code': 0}))
os.write(FD, frame({'ev': 'result', 'main': True, 'data': {'text/plain': 'x', 'image/png': '!not base64!'}}))
os.write(FD, frame(b'[' * 100000))
sys.exit(1)
",
    );
    assert_eq!((outcome.status(), outcome.result.exit_code), (Status::Error, Some(1)));
    let data: Vec<&str> = outcome
        .result
        .results
        .iter()
        .flat_map(|result| &result.data)
        .map(|datum| datum.r#type.as_str())
        .collect();
    assert_eq!(data, ["text/plain"]);
}

#[test]
fn no_descriptor_can_be_passed_to_the_daemon() {
    let daemon = daemon!();
    let outcome = forged(
        &daemon,
        "
import ctypes, errno, stat
libc = ctypes.CDLL(None, use_errno=True)
class Part(ctypes.Structure): _fields_ = [('base', ctypes.c_char_p), ('length', ctypes.c_size_t)]
class Control(ctypes.Structure):
    _fields_ = [('length', ctypes.c_size_t), ('level', ctypes.c_int), ('type', ctypes.c_int), ('fd', ctypes.c_int)]
class Message(ctypes.Structure):
    _fields_ = [('name', ctypes.c_void_p), ('name_length', ctypes.c_uint32), ('parts', ctypes.POINTER(Part)),
                ('count', ctypes.c_size_t), ('control', ctypes.POINTER(Control)), ('control_length', ctypes.c_size_t),
                ('flags', ctypes.c_int)]
part, control = Part(b'x', 1), Control(20, 1, 1, 1)
message = Message(None, 0, ctypes.pointer(part), 1, ctypes.pointer(control), ctypes.sizeof(Control), 0)
def send(fd):
    sent = libc.sendmsg(fd, ctypes.byref(message), 0)
    return sent if sent >= 0 else errno.errorcode[ctypes.get_errno()]
import socket
pair = socket.socketpair()
print(send(pair[0].fileno()))
print([send(fd) for fd in (REQUEST, FD)], stat.S_ISFIFO(os.fstat(FD).st_mode))
kinds = {fd: os.readlink(f'/proc/self/fd/{fd}').split(':')[0] for fd in (0, 1, 2, REQUEST, FD)}
print('socket' in kinds.values())
",
    );
    assert_eq!(
        outcome.stdout(),
        "really\n1\n['ENOTSOCK', 'ENOTSOCK'] True\nFalse\n",
        "{}",
        outcome.stderr()
    );
}

#[test]
fn a_program_that_plays_with_the_pipe_of_its_request_holds_nobody_up() {
    let daemon = daemon!();
    let start = Instant::now();
    let outcome = forged(
        &daemon,
        "
again = os.open(f'/proc/self/fd/{REQUEST}', os.O_WRONLY | os.O_NONBLOCK)
try:
    while True: os.write(again, b'x' * 65536)
except OSError: pass
try: os.write(REQUEST, b'x')
except OSError as error: print(error.errno)
",
    );
    assert_eq!(outcome.status(), Status::Success, "{}", outcome.stderr());
    assert_eq!(outcome.stdout(), "really\n9\n");
    assert!(start.elapsed() < Duration::from_secs(5) * slow());
}

#[test]
fn a_program_that_closes_all_its_descriptors_ends_as_it_ends() {
    let daemon = daemon!();
    let outcome = daemon.run(small(
        "print('said')\nimport os, sys\nsys.stdout.flush()\nos.closerange(0, 1024)\nos._exit(9)",
    ));
    assert_eq!((outcome.status(), outcome.result.exit_code), (Status::Error, Some(9)));
    assert_eq!(outcome.stdout(), "said\n");
}
