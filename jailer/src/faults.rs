//! Points in the life of a session at which a process can be made to end without a word, to show that what is left is
//! cleaned up and told truly. They do something in programs for tests only, which are built with the feature `faults`.
//!
//! A point is armed by its name in the file that `BRIG_KILL_AT` names, which brigd and brig-jailer read at each point.
//! brig-init and brig-files have no environment and get the name as an argument: the jailer hands on what is armed when
//! it starts a brig-init, and that hands it on to its first brig-files. Whoever reaches the point says so on stderr.
#![forbid(unsafe_code)]

macro_rules! points {
    ($($(#[$doc:meta])* $variant:ident => $name:literal),+ $(,)?) => {
        /// One point, named after the program that ends there.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Point { $($(#[$doc])* $variant),+ }

        impl Point {
            /// All points, in the order of a session's life.
            pub const ALL: &[Point] = &[$(Point::$variant),+];

            /// The name by which it is armed.
            pub fn name(self) -> &'static str {
                match self { $(Point::$variant => $name),+ }
            }
        }
    };
}

points! {
    // The start of a session.
    /// The accept row is committed, the jail not ordered.
    DaemonAccepted => "brigd-accepted",
    /// The jail is ordered.
    DaemonMakeSent => "brigd-make-sent",
    /// Groups exist, no process.
    JailerBeforeClone => "jailer-before-clone",
    /// pid 1 exists without its uids.
    JailerCloned => "jailer-cloned",
    /// pid 1 has its uids and waits to be told.
    JailerMapped => "jailer-mapped",
    /// pid 1 has its plan.
    JailerPlanSent => "jailer-plan-sent",
    /// brig-init runs and has no plan.
    InitStarted => "init-started",
    /// Nothing is mounted.
    InitBeforeMounts => "init-before-mounts",
    /// All is mounted.
    InitBeforePivot => "init-before-pivot",
    /// The old root is gone.
    InitAfterPivot => "init-after-pivot",
    /// The file helper has not sealed itself.
    FilesStarted => "files-started",
    /// The jail is whole, and nobody knows.
    InitBeforeReady => "init-before-ready",
    /// The jailer knows that the jail is up, and has not told.
    JailerReady => "jailer-ready",
    /// brigd knows that the jail is up.
    DaemonMade => "brigd-made",
    // A zygote, and a program that it forks into a session.
    /// A zygote runs, and sessions can be made below it, which nobody knows.
    JailerHatched => "jailer-hatched",
    /// It has said that it can fork, and nobody asks it to.
    DaemonZygote => "brigd-zygote",
    /// It is ordered to fork.
    JailerForkOrdered => "jailer-fork-ordered",
    /// It has forked, and pid 1 of the session does not know.
    JailerForked => "jailer-forked",
    // A session that is made ahead.
    /// It waits, and nobody wants it.
    DaemonWaiting => "brigd-waiting",
    /// One without a program waits, and nobody wants it.
    DaemonHolder => "brigd-holder",
    /// It is somebody's, and nobody knows.
    JailerTaken => "jailer-taken",
    /// It is somebody's, and its program has not been told what to run.
    DaemonTaken => "brigd-taken",
    // The start of a program.
    /// An input is half there.
    FilesPut => "files-put",
    /// The inputs are there.
    DaemonInputsPut => "brigd-inputs-put",
    /// The program is ordered of the jailer.
    DaemonSpawnSent => "brigd-spawn-sent",
    /// The program has no group.
    JailerBeforeLeaf => "jailer-before-leaf",
    /// The program is ordered of brig-init.
    JailerSpawnOrdered => "jailer-spawn-ordered",
    /// The program's pipes and process do not exist.
    InitBeforeClone => "init-before-clone",
    /// The program's process exists.
    InitCloned => "init-cloned",
    /// The program runs, and nobody knows.
    InitBeforeSpawned => "init-before-spawned",
    /// The jailer knows that the program runs, and has not told.
    JailerSpawned => "jailer-spawned",
    /// brigd knows that the program runs, and has not told.
    DaemonSpawned => "brigd-spawned",
    // A running program.
    /// The program has written something.
    DaemonOutput => "brigd-output",
    /// brigd is gone, the jailer has not closed anything.
    JailerClientGone => "jailer-client-gone",
    /// The next brigd has said hello and was not told what is held.
    JailerClientBack => "jailer-client-back",
    // The end of a program.
    /// The program is reaped, and nobody knows.
    InitReaped => "init-reaped",
    /// The jailer knows that the program ended, and has not killed what it left behind.
    JailerExited => "jailer-exited",
    /// Nothing is left of the program, and brigd does not know.
    JailerBeforeEnded => "jailer-before-ended",
    /// brigd knows that the program ended.
    DaemonEnded => "brigd-ended",
    /// The file helper was asked what the program left.
    FilesCollect => "files-collect",
    /// The file helper was asked for the bytes of a file.
    FilesGet => "files-get",
    /// One of the program's files is stored.
    DaemonCollecting => "brigd-collecting",
    /// All of them are stored, the end is not recorded.
    DaemonCollected => "brigd-collected",
    /// The end is recorded and not told.
    DaemonRecorded => "brigd-recorded",
    // The end of a session.
    /// The end is told, the jail lives.
    DaemonBeforeClose => "brigd-before-close",
    /// The jail is dead, its groups exist.
    JailerBeforeRemoval => "jailer-before-removal",
    /// Some of its groups exist.
    JailerHalfRemoved => "jailer-half-removed",
}

/// What is written to stderr before the name of a point that was reached.
pub const REACHED: &str = "ended at fault point ";

/// The standard descriptors of a jail's own programs that are connected to nothing: all three, but for tests.
pub(crate) const SILENCED: std::ops::Range<i32> = if cfg!(feature = "faults") { 0..2 } else { 0..3 };

/// Ends this process if the point is armed.
#[cfg(not(feature = "faults"))]
#[inline]
pub fn point(_: Point) {}

/// The arguments of a program that runs in a jail.
#[cfg(not(feature = "faults"))]
pub(crate) fn arguments(program: &std::ffi::CStr) -> Vec<std::ffi::CString> {
    vec![program.to_owned()]
}

#[cfg(feature = "faults")]
pub(crate) use armed::arguments;
#[cfg(feature = "faults")]
pub use armed::point;

#[cfg(feature = "faults")]
mod armed {
    use std::ffi::{CStr, CString};
    use std::io::Write;
    use std::sync::atomic::{AtomicBool, Ordering};

    use rustix::process::{Signal, getpid, kill_process};

    use super::{Point, REACHED};

    /// Ends this process if the point is armed.
    pub fn point(point: Point) {
        if armed().as_deref() != Some(point.name()) {
            return;
        }
        // In one write, so that what another process writes does not come between.
        let line = format!("{REACHED}{}\n", point.name());
        let _nobody_reads = std::io::stderr().write_all(line.as_bytes());
        let _immune = kill_process(getpid(), Signal::KILL);
        // pid 1 of a namespace is immune to its own signals; what its end does to the jail is the same.
        crate::sys::exit_now(128 + libc::SIGKILL);
    }

    /// The arguments of a program that runs in a jail: the first one that is started by a process is told what is armed.
    ///
    /// The jailer asks in the child, whose parent has told nobody: each of its jails is told.
    pub(crate) fn arguments(program: &CStr) -> Vec<CString> {
        static TOLD: AtomicBool = AtomicBool::new(false);
        let point = armed().filter(|_| !TOLD.swap(true, Ordering::Relaxed));
        let point = point.and_then(|name| CString::new(name).ok());
        std::iter::once(program.to_owned()).chain(point).collect()
    }

    fn armed() -> Option<String> {
        match std::env::var_os("BRIG_KILL_AT") {
            Some(file) => std::fs::read_to_string(file).ok().filter(|name| !name.is_empty()),
            None => std::env::args().nth(1),
        }
    }
}
