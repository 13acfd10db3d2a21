//! A program that speaks on the socket of its kernel: the daemon takes it for claims, and tells the truth.

use std::time::{Duration, Instant};

use brig_proto::v1::ExecutionStatus as Status;
use brig_tests::spec::small;
use brig_tests::{Daemon, Outcome, daemon, processes};

/// Runs code that writes frames of its own to the socket, whose descriptor is `FD`.
fn forged(daemon: &Daemon, body: &str) -> Outcome {
    let head = "
import os, json, struct, sys
print('really')
FD = max(int(fd) for fd in os.listdir('/proc/self/fd') if int(fd) >= 200)
def frame(value):
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    return struct.pack('<I', len(body)) + body
";
    daemon.run(small(&format!("{head}{body}")))
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
    assert!(start.elapsed() < Duration::from_secs(5));
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
fn a_program_that_closes_all_its_descriptors_ends_as_it_ends() {
    let daemon = daemon!();
    let outcome = daemon.run(small(
        "print('said')\nimport os, sys\nsys.stdout.flush()\nos.closerange(0, 1024)\nos._exit(9)",
    ));
    assert_eq!((outcome.status(), outcome.result.exit_code), (Status::Error, Some(9)));
    assert_eq!(outcome.stdout(), "said\n");
}
