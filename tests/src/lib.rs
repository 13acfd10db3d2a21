//! What the black-box tests share: a real brigd with real jails and real images, asked over gRPC and by `brig`.
//!
//! Each test has a [`Daemon`] of its own in a directory of its own; dropping it stops it, also when the test fails.
//! Every wait has a deadline. [`Outcome`] checks on each run what holds for all: the order of events, their sequence,
//! the offsets of output.
//!
//! What the host can do is found out by looking. A capability that is missing skips the test with a line on stderr,
//! and fails it where `BRIG_TEST_HAS` (in CI: `root,cgroups,landlock` by default) says that it is there.
#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a test that can't go on fails, and says why"
)]

pub mod attack;
pub mod command;
pub mod daemon;
pub mod document;
pub mod host;
pub mod processes;
pub mod run;
pub mod spec;

use std::time::{Duration, Instant};

pub use command::Brig;
pub use daemon::Daemon;
pub use run::{Live, Outcome, Refused};

/// How long anything may take that should take milliseconds; the machine may be busy.
pub const DEADLINE: Duration = Duration::from_secs(30);

/// Starts a daemon, or leaves the test where this host can't run one.
#[macro_export]
macro_rules! daemon {
    () => {
        match $crate::Daemon::start() {
            Some(daemon) => daemon,
            None => return,
        }
    };
}

/// Waits until something holds, and fails with the last answer if it never does.
pub fn eventually<T: std::fmt::Debug>(what: &str, within: Duration, look: impl Fn() -> Result<(), T>) {
    let deadline = Instant::now() + within;
    loop {
        match look() {
            Ok(()) => return,
            Err(found) if Instant::now() >= deadline => panic!("{what}, not within {within:?}: {found:?}"),
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    }
}
