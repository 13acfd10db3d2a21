//! Attacks by system call, tried inside a jail and, to test the test, as nobody on the host.

use std::process::{Command, Stdio};

use crate::spec::small;
use crate::{Daemon, spec};

/// What attack programs begin with: `call(number, ...)` gives `ok` or the name of the errno.
pub const PRELUDE: &str = r#"
import ctypes, errno, os
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    ctypes.set_errno(0)
    words = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result = libc.syscall(ctypes.c_long(number), *words)
    return 'ok' if result != -1 else errno.errorcode[ctypes.get_errno()]
def tried(action):
    try: return repr(action())
    except OSError as error: return errno.errorcode[error.errno]
"#;

/// Runs an attack in a jail and gives what it printed, one word a line.
pub fn inside(daemon: &Daemon, attack: &str) -> Vec<String> {
    words(&daemon.stdout(small(&format!("{PRELUDE}{attack}"))))
}

/// The same in the policy `strict`.
pub fn inside_strict(daemon: &Daemon, attack: &str) -> Vec<String> {
    let strict = spec::code(&format!("{PRELUDE}{attack}"));
    words(&daemon.stdout(brig_proto::v1::ExecutionSpec {
        policy: "strict".to_owned(),
        ..strict
    }))
}

/// Runs an attack outside of any jail, as a user without rights.
pub fn outside(attack: &str) -> Vec<String> {
    let mut command = Command::new("setpriv");
    command.args([
        "--reuid=65534",
        "--regid=65534",
        "--clear-groups",
        "/usr/bin/python3",
        "-I",
        "-c",
    ]);
    command
        .arg(format!("{PRELUDE}{attack}"))
        .stdin(Stdio::null())
        .current_dir("/");
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    words(&String::from_utf8(output.stdout).unwrap())
}

/// An attack that must meet our own filter: ENOSYS inside, and something else where there is no jail.
pub fn assert_filtered(daemon: &Daemon, attack: &str) {
    let (inside, outside) = (inside(daemon, attack), outside(attack));
    assert!(
        !inside.is_empty() && inside.iter().all(|word| word == "ENOSYS"),
        "inside: {inside:?}"
    );
    assert_eq!(inside.len(), outside.len());
    assert!(outside.iter().all(|word| word != "ENOSYS"), "outside: {outside:?}");
}

fn words(text: &str) -> Vec<String> {
    text.lines().map(str::to_owned).collect()
}
