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

pub mod artifacts;
pub mod attack;
pub mod bucket;
pub mod client;
pub mod command;
pub mod daemon;
pub mod document;
pub mod host;
pub mod http;
pub mod policies;
pub mod processes;
pub mod proxy;
pub mod pty;
pub mod random;
pub mod run;
pub mod services;
pub mod spec;
pub mod way;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{LazyLock, Mutex};
use std::time::{Duration, Instant};

pub use client::Client;
pub use command::Brig;
pub use daemon::Daemon;
pub use run::{Cut, Live, Outcome, Refused};
pub use services::{Service, Services};

/// How many times slower than usual this machine is: deadlines of tests are that much longer.
pub fn slow() -> u32 {
    std::env::var("BRIG_TEST_SLOW").map_or(1, |text| text.parse().unwrap())
}

/// Whether long tables are to be tried in part: where the whole of them takes minutes, and runs at other times.
pub fn in_part() -> bool {
    std::env::var_os("BRIG_TEST_PART").is_some_and(|text| text == "1")
}

/// How long anything may take that should take milliseconds; the machine may be busy.
pub static DEADLINE: LazyLock<Duration> = LazyLock::new(|| Duration::from_secs(30) * slow());

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
pub fn eventually<T: std::fmt::Debug>(what: &str, within: Duration, mut look: impl FnMut() -> Result<(), T>) {
    let deadline = Instant::now() + within;
    loop {
        match look() {
            Ok(()) => return,
            Err(found) if Instant::now() >= deadline => panic!("{what}, not within {within:?}: {found:?}"),
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    }
}

/// Does something with each item, several at one time; fails with those that failed once all were tried.
pub fn lanes<T: Sync + std::fmt::Debug>(width: usize, items: &[T], work: impl Fn(&T) + Sync) {
    let next = AtomicUsize::new(0);
    let failed = Mutex::new(Vec::new());
    let lane = || {
        while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
            if catch_unwind(AssertUnwindSafe(|| work(item))).is_err() {
                failed.lock().unwrap().push(format!("{item:?}"));
            }
        }
    };
    std::thread::scope(|scope| {
        (0..width).for_each(|_| drop(scope.spawn(lane)));
    });
    let failed = failed.into_inner().unwrap();
    assert!(
        failed.is_empty(),
        "{} of {} failed: {failed:#?}",
        failed.len(),
        items.len()
    );
}
