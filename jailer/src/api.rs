//! What `brigd` may ask of `brig-jailer`, and what it is told.
//!
//! The privilege boundary of Brig is this file. `brigd` names policies (by hash) and templates (by id) and gives
//! quantities; it sends no path, no mount, no filter. The jailer reads policies and templates itself and checks every
//! quantity against them and against its ceilings. Messages travel by [`crate::wire`]; each direction is one enum.
//!
//! A session's life: `Make` is answered by `Made` (with the descriptor of its file helper) or `Refused`; each `Spawn`
//! by `Spawned` (with the pipe ends and the files for what is kept) or `Refused`, later by one `Ended`; `Close` by
//! `Closed`, which says that pid 1 is reaped and the cgroup empty. `Closed` also comes unasked when a jail died by itself.
//!
//! A session that is `held` outlives the connection for a while: the jailer keeps its pipe ends, the files of its
//! output, and the memos that `brigd` gave along; what ended is kept until `brigd` says that it is recorded (`Forget`).
//! The next connection is told all of it after `Hello`: for each session `Held`, `HeldExecution` for each of its
//! executions, and `Closed` if it is over; then `AllHeld`.
//!
//! A session can be made before anybody wants it (`Make` with `waiting`, then, or later, a `Spawn`); `Take` makes it an ordinary one.
#![forbid(unsafe_code)]

use serde::{Deserialize, Serialize};

use crate::ids::Id;
use crate::step::StepError;

/// The version of these messages; the two ends must agree on it.
pub const VERSION: u32 = 7;

/// The largest memo of an execution, in bytes.
pub const MEMO_MAX: usize = 32 * 1024;
/// The largest memo of a session, in bytes: it has the environment and the policy's rules.
pub const SESSION_MEMO_MAX: usize = 256 * 1024;
/// The most executions of a held session that run or whose end was not forgotten; further ones are refused.
pub const UNFORGOTTEN_MAX: usize = 1024;

/// From `brigd` to the jailer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Request {
    /// First message of a connection.
    Hello { version: u32 },
    /// Makes a jail.
    Make(Make),
    /// Starts a program in a jail.
    Spawn(Spawn),
    /// Makes a session that waits an ordinary one, whose age begins now, if the program that waits in it lives, or if none was
    /// started in it where none is named. `Taken` follows, else `Closed`. It can be done once.
    Take { session: Id, execution: Option<Id> },
    /// Sends a signal to the main process of an execution, or to its process group.
    Signal {
        session: Id,
        execution: Id,
        signal: i32,
        group: bool,
    },
    /// Begins a new part of an execution that goes on; the time limit is set anew. Where the program waits for work from
    /// then on, `Lapped` says what was used in the last one.
    Lap {
        session: Id,
        execution: Id,
        /// Wall time of the new part, in milliseconds; absent where the program waits for work.
        timeout_ms: Option<u64>,
    },
    /// Stops all programs of a session and their clocks, or lets them go on; `Paused` follows. Its file helper works on,
    /// and its age grows. No program is started meanwhile. Asking twice is harmless.
    Pause { session: Id, paused: bool },
    /// Kills all processes of an execution; `Ended` follows.
    Kill { session: Id, execution: Id },
    /// Closes the jailer's copy of a descriptor to a program of a held session, so that the program sees its end once
    /// `brigd` has closed its own.
    CloseInput { session: Id, execution: Id, input: Input },
    /// Ends a jail, whatever it does; `Closed` follows. Asking twice is harmless.
    Close { session: Id },
    /// Ends the file helper of a jail and starts another one; `Files` follows.
    Files { session: Id },
    /// Replaces what `brigd` wants to know about a held session, or about one of its executions, when it comes back.
    Memo {
        session: Id,
        execution: Option<Id>,
        memo: Vec<u8>,
    },
    /// The end of an execution of a held session, or of the session itself, is recorded: nothing more is kept about it.
    Forget { session: Id, execution: Option<Id> },
    /// `brigd` is about to end on purpose: held sessions wait longer for the next one.
    Handover,
    /// Reads policies, syscall groups and ceilings again, all or nothing; `Reloaded` follows. Sessions keep theirs.
    Reload,
    /// Asks what this host can enforce.
    Host,
    /// Asks for a sign of life; `Pong` follows.
    Ping,
    /// Asks what a session uses; `Usage` follows.
    Usage { session: Id },
}

/// A session to be made. All quantities are final: defaults and clamping are done by `brigd`, the jailer only refuses.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Make {
    /// New name of the session.
    pub session: Id,
    /// Name of the policy.
    pub policy: String,
    /// Hash of the policy as `brigd` read it: another one is refused, so that both always mean the same file.
    pub policy_hash: String,
    /// Id of the template image, `name@hash`.
    pub template: String,
    /// How much the session may use.
    pub quantities: Quantities,
    /// Whether the session outlives the connection for a while.
    pub held: bool,
    /// Whether it waits until somebody takes it. Its programs have the processor time that no other session wants then;
    /// it is refused where memory is short, and closed where a session that somebody wants needs its place.
    pub waiting: bool,
    /// Whose zygote may fork programs into it.
    pub dock: Dock,
    /// What `brigd` wants to know about a held session when it comes back; opaque, at most
    /// [`SESSION_MEMO_MAX`] bytes.
    pub memo: Vec<u8>,
}

/// Sessions that a zygote can fork programs into, and the one that it lives in: their user namespaces have one owner.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Dock {
    /// No zygote can reach it.
    None,
    /// It is there for a zygote alone, which is to be started in it.
    Own,
    /// The zygote of another session can.
    Of(Id),
}

/// How a program is started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Start {
    /// By pid 1 of its session.
    Exec,
    /// As the zygote of its session, which is there for nothing else ([`Dock::Own`]).
    Zygote,
    /// By the zygote of its session's dock, which forks.
    Fork,
}

/// How much a session may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Quantities {
    /// Memory of the guest's processes, in bytes, beside what lies in its tmpfs.
    pub memory_bytes: u64,
    /// CPU time per wall time, in thousandths of a CPU.
    pub cpu_millis: u64,
    /// Processes and threads.
    pub pids: u64,
    /// Size of the tmpfs that holds the working directory, /tmp and /dev/shm, in bytes; of the working directory where
    /// the policy puts that on disk.
    pub disk_bytes: u64,
    /// Files and directories in it.
    pub inodes: u64,
    /// Open files per process.
    pub open_files: u64,
    /// The session is closed after this time whatever happens, in milliseconds.
    pub max_age_ms: u64,
}

impl Quantities {
    /// Threads of libraries for numbers: as many as there are CPUs to run them.
    pub fn threads(&self) -> u64 {
        self.cpu_millis.div_ceil(1000).max(1)
    }

    /// Whether what a zygote under these forks can be under others: all that a process has by itself is the zygote's.
    pub fn can_fork_under(&self, others: &Self) -> bool {
        self.threads() == others.threads() && self.open_files == others.open_files
    }
}

/// A program to be started.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Spawn {
    pub session: Id,
    /// New name of the execution, unique within the session.
    pub execution: Id,
    pub work: Work,
    /// Zygotes and what they fork are [`Work::Kernel`] or [`Work::Context`], without stdin, terminal and variables of
    /// their own.
    pub start: Start,
    /// Variables beside those of the template; the names must be allowed by the policy.
    pub environment: Vec<(Vec<u8>, Vec<u8>)>,
    /// Whether the caller will write to stdin; otherwise it is closed (at end of file from the start).
    pub stdin: bool,
    /// Whether stderr goes to the same pipe as stdout.
    pub merge_stderr: bool,
    /// A terminal in place of pipes for stdin, stdout and stderr.
    pub terminal: Option<Terminal>,
    /// Wall time after which the jailer kills the execution, in milliseconds.
    pub timeout_ms: u64,
    /// CPU time of all its processes together after which the jailer kills it, in milliseconds.
    pub cpu_time_ms: Option<u64>,
    /// As in [`Make`], of at most [`MEMO_MAX`] bytes.
    pub memo: Vec<u8>,
}

/// A way into a program that ends when nobody holds it open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Input {
    Stdin,
    /// The request pipe of a kernel.
    Request,
}

/// Size of a terminal, in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terminal {
    pub columns: u16,
    pub rows: u16,
}

/// What is started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Work {
    /// The template's interpreter with the driver that takes code by descriptor (see rootfs/kernel/README.md).
    Kernel,
    /// The same driver, for many executions one after another; its wall time is bounded by [`Request::Lap`].
    Context,
    /// Any program of the jail. The first element is looked up in the template's PATH if it has no slash.
    Command {
        argv: Vec<Vec<u8>>,
        directory: Option<Vec<u8>>,
    },
}

/// From the jailer to `brigd`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Event {
    Hello {
        version: u32,
        jailer_version: String,
    },
    /// The jail is up. Descriptors: the stream socket of its file helper.
    Made {
        session: Id,
        enforced: Enforced,
    },
    /// A session that waited is an ordinary one.
    Taken {
        session: Id,
    },
    /// The program runs. Descriptors: those of [`Streams`].
    Spawned {
        session: Id,
        execution: Id,
        pid: u32,
        streams: Streams,
    },
    /// A session that outlived the last connection.
    Held(Box<Held>),
    /// One of its executions, running or ended. Descriptors: those of [`Streams`], without those that were closed.
    HeldExecution(Box<HeldExecution>),
    /// All that was held is told.
    AllHeld,
    /// A new file helper runs. Descriptors: its stream socket.
    Files {
        session: Id,
    },
    /// What was read again is in force; or the first error, and then everything is as it was.
    Reloaded {
        error: Option<String>,
    },
    /// A `Make` or `Spawn` that did not happen. Nothing of it is left behind.
    Refused {
        session: Id,
        execution: Option<Id>,
        refusal: Refusal,
    },
    /// The program ended and no process of the execution is left.
    Ended {
        session: Id,
        execution: Id,
        end: End,
    },
    /// The last part of an execution is over.
    Lapped {
        session: Id,
        execution: Id,
        lap: Lap,
    },
    Paused {
        session: Id,
        paused: bool,
    },
    /// Nothing of the session is left: pid 1 reaped, cgroup empty and removed. A workspace on disk is removed after that.
    Closed {
        session: Id,
        reason: CloseReason,
    },
    Host(Box<HostReport>),
    Pong,
    /// What a session uses now; absent where there is no such session, or its groups can't be read.
    Usage {
        session: Id,
        usage: Option<SessionUsage>,
    },
}

/// Which descriptors come with `Spawned` and `HeldExecution`, in this order, as far as present.
///
/// First the terminal, or the far ends of pipes: stdin, stdout, stderr, the kernel's request pipe, its frame pipe. Then
/// empty memory files in which `brigd` keeps what it gives and what it read, so that it is there for the next `brigd`:
/// one for stdin (it can be sealed), one for stdout, one for stderr, one for the kernel's frames, and one for the journal
/// of the execution. Then, for a terminal, two pipes, of each first the end for reading: what comes out of the terminal
/// and what goes in passes them, since only a pipe gives and takes exactly once. The jailer never reads any of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Streams {
    /// What is read from it is kept in the file of stdout.
    pub terminal: bool,
    pub stdin: bool,
    /// The file of stdin, or of what is typed into the terminal. It stays when stdin is closed.
    pub input: bool,
    pub stdout: bool,
    pub stderr: bool,
    /// The request pipe of a kernel.
    pub request: bool,
    /// The frame pipe of a kernel.
    pub frames: bool,
}

/// A session that outlived a connection.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Held {
    pub session: Id,
    pub memo: Vec<u8>,
    pub policy: String,
    pub policy_hash: String,
    pub template: String,
    pub quantities: Quantities,
    pub enforced: Enforced,
    /// Time since it was made, in milliseconds.
    pub age_ms: u64,
    pub paused: bool,
}

/// An execution of a held session.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HeldExecution {
    pub session: Id,
    pub execution: Id,
    pub memo: Vec<u8>,
    pub pid: u32,
    pub streams: Streams,
    /// Time since the program was started, up to its end, in milliseconds; without that in which its session was paused.
    pub age_ms: u64,
    /// Wall time that it still has, in milliseconds; absent where there is no limit.
    pub left_ms: Option<u64>,
    /// How it ended, if it did.
    pub end: Option<End>,
}

/// Why something was not done.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, thiserror::Error)]
pub enum Refusal {
    /// The request names something that isn't there or is not allowed: `brigd` asked wrong.
    #[error("{field}: {message}")]
    Invalid { field: String, message: String },
    /// Too much is going on; try later.
    #[error("{0}")]
    Busy(String),
    /// This host can't enforce what the policy promises.
    #[error("{0}")]
    HostCannot(String),
    /// A step of making the jail or of starting the program failed.
    #[error(transparent)]
    Step(#[from] StepError),
    /// The session is paused: a program can be started when it is not any more.
    #[error("the session is paused")]
    Paused,
}

/// How an execution ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    pub exit: Exit,
    /// What ended it, when it was not the program itself; the first cause wins.
    pub cause: Option<Cause>,
    pub usage: Usage,
    /// Processes killed for memory.
    pub oom_kills: u64,
    /// Forks refused because the limit of processes was reached.
    pub pids_refused: u64,
}

/// What a part of an execution used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lap {
    pub usage: Usage,
    /// Processes killed for memory.
    pub oom_kills: u64,
    /// Forks refused because the limit of processes was reached.
    pub pids_refused: u64,
}

/// How the main process of an execution ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Exit {
    Code(i32),
    Signal(i32),
    /// The jail died before its pid 1 could tell.
    Unknown,
}

/// Who ended an execution.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Cause {
    /// The jailer's deadline.
    WallTime,
    /// The limit of CPU time.
    CpuTime,
    /// The age limit of the session.
    SessionAge,
    /// The memory limit.
    Memory,
    /// `Kill` or `Close` of `brigd`, which knows the reason.
    Asked,
    /// The jail died.
    Internal,
}

/// Why a session was closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum CloseReason {
    Asked,
    SessionAge,
    /// No `brigd` came back in time.
    Abandoned,
    /// pid 1 ended or was killed.
    Died,
}

/// What an execution used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// CPU time of all its processes, in microseconds.
    pub cpu_us: u64,
    /// Highest memory use at one time, in bytes, files in the tmpfs included.
    pub memory_peak_bytes: u64,
    /// Highest number of processes and threads at one time; 0 where the kernel does not count it.
    pub processes_peak: u64,
}

/// What a session uses at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionUsage {
    /// CPU time of all programs that it has had, and of its file helpers, in microseconds.
    pub cpu_us: u64,
    /// Memory of its programs and its file helper, in bytes, files in the tmpfs included; without caches of files on disk.
    pub memory_bytes: u64,
    /// Processes and threads of its programs, those included that have ended a moment ago.
    pub processes: u64,
}

/// What is enforced on a session, as found out by looking, not as planned.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Enforced {
    /// Names of the namespaces that are the session's own.
    pub namespaces: Vec<String>,
    /// `v2`, or `v1` where limits sit on version 1 controllers.
    pub cgroup: String,
    pub memory: bool,
    pub cpu: bool,
    pub pids: bool,
    /// Whether memory can't be pushed to swap.
    pub swap: bool,
    /// Whether reads and writes of disks are limited, which few policies ask for.
    pub io: bool,
    /// Where the working directory lies: `tmpfs`, or `disk`, with a quota.
    pub workspace: String,
    pub landlock_abi: u32,
    /// `name@hash` of the syscall filter.
    pub seccomp: String,
    /// `none`.
    pub capabilities: String,
    pub no_new_privs: bool,
}

/// What this host can enforce, for `brig doctor` and `Host.Get`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostReport {
    pub checks: Vec<Check>,
    /// Jails that exist now, without those that wait.
    pub sessions: u64,
}

/// One thing looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    /// Short name: `kernel`, `cgroup memory`, `landlock`, ...
    pub what: String,
    pub found: String,
    pub needed: String,
    pub verdict: Verdict,
    /// What to do about it; empty if nothing.
    pub mend: String,
}

/// What a check means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verdict {
    Ok,
    /// Sessions run, with something less than the best.
    Degraded,
    /// No session can be made.
    Missing,
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO_CPUS: Quantities = Quantities {
        memory_bytes: 1 << 30,
        cpu_millis: 1500,
        pids: 64,
        disk_bytes: 1 << 20,
        inodes: 1000,
        open_files: 1024,
        max_age_ms: 60_000,
    };

    #[test]
    fn a_part_of_a_cpu_gives_a_whole_thread() {
        let threads = |cpu_millis| Quantities { cpu_millis, ..TWO_CPUS }.threads();
        assert_eq!([1, 1000, 1500, 2000].map(threads), [1, 1, 2, 2]);
    }

    #[test]
    fn a_fork_can_be_under_other_limits_of_its_session_but_not_of_a_process() {
        for (others, expected) in [
            (
                Quantities {
                    memory_bytes: 1,
                    pids: 1,
                    disk_bytes: 1,
                    inodes: 1,
                    max_age_ms: 1,
                    ..TWO_CPUS
                },
                true,
            ),
            (
                Quantities {
                    cpu_millis: 2000,
                    ..TWO_CPUS
                },
                true,
            ),
            (
                Quantities {
                    cpu_millis: 1000,
                    ..TWO_CPUS
                },
                false,
            ),
            (
                Quantities {
                    open_files: 1023,
                    ..TWO_CPUS
                },
                false,
            ),
        ] {
            assert_eq!(TWO_CPUS.can_fork_under(&others), expected, "{others:?}");
        }
    }
}
