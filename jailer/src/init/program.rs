//! Starts programs: the child of pid 1 that seals itself and becomes the guest's code.
//!
//! The parent makes pipes, clones into the program's own cgroup, and waits for nothing: a pipe that closes
//! at exec tells it, in its own time, whether the program started or which step failed.

use std::ffi::CString;
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use caps::CapSet;
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{DumpableBehavior, Resource, Rlimit as Limit, setrlimit, setsid};
use rustix::pty::OpenptFlags;
use rustix::thread::{Gid, Uid, set_thread_res_gid, set_thread_res_uid};

use super::jail::{Jail, ruleset};
use crate::faults::{self, Point};
use crate::plan::{Access, FILES_UID, GUEST_UID, Guest, PathRule, Program, Rlimit, ZYGOTE_UID};
use crate::step::{At, Step, StepError, SysError};
use crate::sys::{self, Cloned};

/// A child that has not reached its exec yet.
#[derive(Debug)]
pub(super) struct Started {
    pub(super) pid: i32,
    /// Closes at exec; carries the failed step otherwise.
    pub(super) report: OwnedFd,
    /// Whether the report is that of a fork, which comes in any case.
    pub(super) is_forked: bool,
    /// The caller's ends: stdin, stdout, stderr, the kernel's two pipes, as far as asked for.
    pub(super) far_ends: Vec<OwnedFd>,
}

impl Started {
    /// Reads why a child did not start; nothing means that it did.
    pub(super) fn failure(&self) -> Option<StepError> {
        if self.is_forked {
            super::lend::read_report(self.report.as_fd())
        } else {
            read_report(self.report.as_fd())
        }
    }
}

/// The child's ends.
pub(super) struct Near {
    pub(super) stdin: OwnedFd,
    pub(super) stdout: OwnedFd,
    pub(super) stderr: OwnedFd,
    is_terminal: bool,
    /// Where the kernel reads its request, and where it writes its frames. Pipes, because a guest can pass descriptors
    /// through a socket, and their last close, which may take as long as the guest wants, would be the caller's.
    pub(super) kernel: Option<(OwnedFd, OwnedFd)>,
    /// A zygote's socket.
    control: Option<OwnedFd>,
}

/// Neither root nor out of its jail, but not sealed yet.
struct Unprivileged(());

/// Nothing can be gained any more.
struct Sealed(());

pub(super) fn failed(call: impl Into<String>, error: Errno) -> SysError {
    SysError::new(call, error.raw_os_error())
}

/// Starts a guest program in its leaf.
pub(super) fn start(jail: &Jail, program: &Program, leaf: &[OwnedFd]) -> Result<Started, StepError> {
    let (mut near, mut far_ends) = streams(program).at(Step::Streams)?;
    let leaf = match (&program.zygote, leaf.split_last()) {
        (Some(_), Some((socket, leaf))) => {
            near.control = Some(lift(socket).at(Step::Streams)?);
            let namespaces = ["user", "pid"].map(super::lend::open_namespace);
            far_ends.extend(namespaces.into_iter().collect::<Result<Vec<_>, _>>().at(Step::Fork)?);
            leaf
        }
        _ => leaf,
    };
    let (report, report_in) = pipe_with(PipeFlags::CLOEXEC)
        .map_err(|e| failed("pipe2()", e))
        .at(Step::Streams)?;
    let report_in = lift(&report_in).at(Step::Streams)?;
    match sys::clone3(0, leaf.first().map(AsFd::as_fd)).at(Step::JoinLeaf)? {
        Cloned::Parent { pid, .. } => {
            faults::point(Point::InitCloned);
            Ok(Started {
                pid,
                report,
                is_forked: false,
                far_ends,
            })
        }
        Cloned::Child => {
            let Err(error) = become_program(jail, program, leaf, near, &report_in);
            tell(&report_in, &error)
        }
    }
}

/// Each line is one step of docs/jail.md, same order, same names.
fn become_program(
    jail: &Jail,
    program: &Program,
    leaf: &[OwnedFd],
    near: Near,
    report: &OwnedFd,
) -> Result<std::convert::Infallible, StepError> {
    sys::default_signals();
    join(leaf).at(Step::JoinLeaf)?;
    setsid().map_err(|e| failed("setsid()", e)).at(Step::Setsid)?;
    place_streams(&near, report.as_raw_fd()).at(Step::Streams)?;
    if near.is_terminal {
        control_terminal().at(Step::Streams)?;
    }
    // What it owned has other numbers now, or is closed.
    std::mem::forget(near);
    set_rlimits(&jail.guest.rlimits).at(Step::Rlimits)?;
    be_first_to_go().at(Step::Rlimits)?;
    let all = [PathRule {
        path: "/".to_owned(),
        access: Access::Write,
    }];
    let (user, rules, filter) = match &program.zygote {
        Some(zygote) => (ZYGOTE_UID, all.as_slice(), &zygote.filter),
        None => (GUEST_UID, jail.guest.paths.as_slice(), &jail.guest.filter),
    };
    let child = Unprivileged::become_user(user).at(Step::DropPrivileges)?;
    child.change_directory(&program.directory).at(Step::Directory)?;
    child.set_no_new_privs().at(Step::NoNewPrivs)?;
    child.restrict_files(rules).at(Step::Landlock)?;
    let child = child.filter_syscalls(filter).at(Step::Seccomp)?;
    Err(child.exec(&jail.guest, program)).at(Step::Exec)
}

/// Starts the file helper, which seals itself; its filter is that of pid 1. The result is the caller's socket.
pub(super) fn start_files_helper(files_program: &OwnedFd, leaf: &[OwnedFd]) -> Result<OwnedFd, StepError> {
    let (far, near) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
        .map_err(|e| failed("socketpair(AF_UNIX)", e))
        .at(Step::FilesHelper)?;
    let (report, report_in) = pipe_with(PipeFlags::CLOEXEC)
        .map_err(|e| failed("pipe2()", e))
        .at(Step::FilesHelper)?;
    let arguments = faults::arguments(c"brig-files");
    match sys::clone3(0, leaf.first().map(AsFd::as_fd)).at(Step::FilesHelper)? {
        Cloned::Parent { .. } => {
            drop(report_in);
            // The child runs only our own code until its exec, so that this can't take long.
            match read_report(report.as_fd()) {
                Some(error) => Err(error),
                None => Ok(far),
            }
        }
        Cloned::Child => {
            let error = become_files_helper(files_program, leaf, &near, &arguments);
            tell(
                &report_in,
                &StepError {
                    step: Step::FilesHelper,
                    source: error,
                },
            )
        }
    }
}

fn become_files_helper(files_program: &OwnedFd, leaf: &[OwnedFd], near: &OwnedFd, arguments: &[CString]) -> SysError {
    sys::default_signals();
    let prepare = || -> Result<OwnedFd, SysError> {
        join(leaf)?;
        // Above every fixed number, because the socket takes the place of one.
        let program = rustix::io::fcntl_dupfd_cloexec(files_program, 16).map_err(|e| failed("fcntl(F_DUPFD)", e))?;
        let null = dev_null()?;
        for number in faults::SILENCED {
            sys::place(null.as_fd(), number)?;
        }
        sys::place(near.as_fd(), 3)?;
        sys::cloexec_from(4)?;
        let uid = Uid::from_raw(FILES_UID);
        let gid = Gid::from_raw(FILES_UID);
        set_thread_res_gid(gid, gid, gid).map_err(|e| failed("setresgid(999)", e))?;
        rustix::thread::set_keep_capabilities(true).map_err(|e| failed("prctl(PR_SET_KEEPCAPS)", e))?;
        set_thread_res_uid(uid, uid, uid).map_err(|e| failed("setresuid(999)", e))?;
        for cap in [caps::Capability::CAP_SETUID, caps::Capability::CAP_SETGID] {
            caps::raise(None, CapSet::Ambient, cap)
                .map_err(|e| SysError::new(format!("prctl(PR_CAP_AMBIENT_RAISE, {cap}): {e}"), libc::EPERM))?;
        }
        Ok(program)
    };
    match prepare() {
        Ok(program) => sys::execute_descriptor(program.as_fd(), arguments, &[]),
        Err(error) => error,
    }
}

/// Makes the two ends of each stream.
///
/// The pipes belong to the guest's user, so that it can open /dev/stdout: the file system id decides about that.
pub(super) fn streams(program: &Program) -> Result<(Near, Vec<OwnedFd>), SysError> {
    let owner = nix::unistd::Uid::from_raw(GUEST_UID);
    let previous = nix::unistd::setfsuid(owner);
    // The call does not tell whether it worked; a second one tells what holds.
    let now = nix::unistd::setfsuid(owner);
    let made = if now == owner {
        pipes(program)
    } else {
        Err(SysError::new("setfsuid(1000)", libc::EPERM))
    };
    nix::unistd::setfsuid(previous);
    stay_bound()?;
    made
}

/// A change of the file system id takes two settings of the process with it, which are made again here.
///
/// Source: prctl(2), `PR_SET_PDEATHSIG`, `PR_SET_DUMPABLE`.
fn stay_bound() -> Result<(), SysError> {
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .map_err(|e| failed("prctl(PR_SET_DUMPABLE, 0)", e))?;
    super::die_with_the_jailer()
}

/// A terminal of the session's own; its other end is the caller's.
fn terminal(columns: u16, rows: u16) -> Result<(Near, Vec<OwnedFd>), SysError> {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let ours = rustix::pty::openpt(flags).map_err(|e| failed("open(\"/dev/ptmx\")", e))?;
    rustix::pty::unlockpt(&ours).map_err(|e| failed("ioctl(TIOCSPTLCK)", e))?;
    let size = rustix::termios::Winsize {
        ws_row: rows,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    rustix::termios::tcsetwinsize(&ours, size).map_err(|e| failed("ioctl(TIOCSWINSZ)", e))?;
    let theirs = rustix::pty::ioctl_tiocgptpeer(&ours, flags).map_err(|e| failed("ioctl(TIOCGPTPEER)", e))?;
    let near = Near {
        stdin: lift(&theirs)?,
        stdout: lift(&theirs)?,
        stderr: lift(&theirs)?,
        is_terminal: true,
        kernel: None,
        control: None,
    };
    Ok((near, vec![ours]))
}

/// Makes the terminal on stdin that of the new process session.
fn control_terminal() -> Result<(), SysError> {
    rustix::process::ioctl_tiocsctty(rustix::stdio::stdin()).map_err(|e| failed("ioctl(TIOCSCTTY)", e))
}

fn pipes(program: &Program) -> Result<(Near, Vec<OwnedFd>), SysError> {
    if let Some((columns, rows)) = program.terminal {
        return terminal(columns, rows);
    }
    let pipe = || pipe_with(PipeFlags::CLOEXEC).map_err(|e| failed("pipe2()", e));
    let mut far = Vec::new();
    let stdin = if program.stdin {
        let (read, write) = pipe()?;
        far.push(write);
        lift(&read)?
    } else {
        lift(&dev_null()?)?
    };
    let (read, stdout) = pipe()?;
    far.push(read);
    let stdout = lift(&stdout)?;
    let stderr = if program.merge_stderr {
        lift(&stdout)?
    } else {
        let (read, write) = pipe()?;
        far.push(read);
        lift(&write)?
    };
    let kernel = if program.kernel {
        let (requests, ours) = pipe()?;
        far.push(ours);
        let (ours, frames) = pipe()?;
        far.push(ours);
        Some((lift(&requests)?, lift(&frames)?))
    } else {
        None
    };
    Ok((
        Near {
            stdin,
            stdout,
            stderr,
            is_terminal: false,
            kernel,
            control: None,
        },
        far,
    ))
}

fn dev_null() -> Result<OwnedFd, SysError> {
    rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .map_err(|e| failed("open(\"/dev/null\")", e))
}

/// Version 1 groups take a process that writes its own 0 to their `tasks` cheaply; the first descriptor is the version
/// 2 group, in which the child was born.
fn join(leaf: &[OwnedFd]) -> Result<(), SysError> {
    for tasks in leaf.iter().skip(1) {
        rustix::io::write(tasks, b"0").map_err(|e| failed("write(tasks, 0)", e))?;
    }
    Ok(())
}

/// Puts the streams in place and closes everything but them and the report, at once and not only at exec: what is open
/// could be reached by a path through /proc/self/fd until then.
fn place_streams(near: &Near, report: RawFd) -> Result<(), SysError> {
    sys::place(near.stdin.as_fd(), 0)?;
    sys::place(near.stdout.as_fd(), 1)?;
    sys::place(near.stderr.as_fd(), 2)?;
    let mut first_closed = 3;
    if let Some((requests, frames)) = &near.kernel {
        sys::place(requests.as_fd(), 3)?;
        sys::place(frames.as_fd(), 4)?;
        first_closed = 5;
    }
    if let Some(control) = &near.control {
        sys::place(control.as_fd(), 5)?;
        first_closed = 6;
    }
    sys::close_range(first_closed, report - 1)?;
    sys::close_from(report + 1)
}

/// Moves a descriptor above the numbers at which streams are placed.
fn lift(fd: &OwnedFd) -> Result<OwnedFd, SysError> {
    rustix::io::fcntl_dupfd_cloexec(fd, 16).map_err(|e| failed("fcntl(F_DUPFD_CLOEXEC, 16)", e))
}

/// When all of the session together is out of memory, the kernel shall end a program of the guest and not the file
/// helper, and when the host is, a guest and not its daemons.
///
/// A program can go back to the value that pid 1 has; it then competes with the file helper by size. There is room
/// above for programs that mark some of their own processes. Source: proc_pid_oom_score_adj(5).
fn be_first_to_go() -> Result<(), SysError> {
    let path = "/proc/self/oom_score_adj";
    std::fs::write(path, "800").map_err(|error| super::from_io(&format!("write({path:?}, 800)"), &error))
}

fn set_rlimits(limits: &[(Rlimit, u64)]) -> Result<(), SysError> {
    for (which, value) in limits {
        let resource = match which {
            Rlimit::Core => Resource::Core,
            Rlimit::Memlock => Resource::Memlock,
            Rlimit::Msgqueue => Resource::Msgqueue,
            Rlimit::Nofile => Resource::Nofile,
            Rlimit::Sigpending => Resource::Sigpending,
            Rlimit::Stack => Resource::Stack,
        };
        let limit = Limit {
            current: Some(*value),
            maximum: Some(*value),
        };
        setrlimit(resource, limit).map_err(|e| failed(format!("setrlimit({which:?}, {value})"), e))?;
    }
    Ok(())
}

impl Unprivileged {
    /// Becomes an ordinary user; what is left of capabilities is looked at, not assumed.
    fn become_user(id: u32) -> Result<Unprivileged, SysError> {
        let (uid, gid) = (Uid::from_raw(id), Gid::from_raw(id));
        set_thread_res_gid(gid, gid, gid).map_err(|e| failed(format!("setresgid({id})"), e))?;
        set_thread_res_uid(uid, uid, uid).map_err(|e| failed(format!("setresuid({id})"), e))?;
        let none = rustix::thread::CapabilitySets {
            effective: rustix::thread::CapabilitySet::empty(),
            permitted: rustix::thread::CapabilitySet::empty(),
            inheritable: rustix::thread::CapabilitySet::empty(),
        };
        rustix::thread::set_capabilities(None, none).map_err(|e| failed("capset(none)", e))?;
        let left = rustix::thread::capabilities(None).map_err(|e| failed("capget()", e))?;
        if left != none {
            return Err(SysError::new("capget(): capabilities are left", libc::EPERM));
        }
        Ok(Self(()))
    }

    /// Links of /proc lead out of the jail's own tree, and are not followed.
    fn change_directory(&self, path: &[u8]) -> Result<(), SysError> {
        let shown = String::from_utf8_lossy(path);
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_MAGICLINKS)
            .map_err(|e| failed(format!("openat2({shown:?}, RESOLVE_NO_MAGICLINKS)"), e))?;
        rustix::process::fchdir(&directory).map_err(|e| failed(format!("fchdir({shown:?})"), e))
    }

    fn set_no_new_privs(&self) -> Result<(), SysError> {
        rustix::thread::set_no_new_privs(true).map_err(|e| failed("prctl(PR_SET_NO_NEW_PRIVS)", e))
    }

    fn restrict_files(&self, rules: &[PathRule]) -> Result<(), SysError> {
        let refused = |error: String| SysError::new(format!("landlock: {error}"), libc::EOPNOTSUPP);
        let status = ruleset(rules)?.restrict_self().map_err(|e| refused(e.to_string()))?;
        match status.ruleset {
            landlock::RulesetStatus::NotEnforced => Err(refused("nothing is enforced".to_owned())),
            _ => Ok(()),
        }
    }

    fn filter_syscalls(self, filter: &[Vec<u8>]) -> Result<Sealed, SysError> {
        filter.iter().try_for_each(|program| sys::seccomp(program))?;
        Ok(Sealed(()))
    }
}

impl Sealed {
    /// Only returns when the program can't be started.
    fn exec(self, guest: &Guest, program: &Program) -> SysError {
        let strings = |items: &mut dyn Iterator<Item = Vec<u8>>| -> Result<Vec<CString>, SysError> {
            items
                .map(|item| CString::new(item).map_err(|_| SysError::new("execve(NUL)", libc::EINVAL)))
                .collect()
        };
        // A variable of the caller's replaces the template's: programs take the first of two.
        let replaced = |name: &Vec<u8>| program.environment.iter().any(|(other, _)| other == name);
        let own = guest.environment.iter().filter(|(name, _)| !replaced(name));
        let environment = own.chain(&program.environment);
        let mut variables = environment.map(|(name, value)| [name, b"=".as_slice(), value].concat());
        let (argv, environment) = match (strings(&mut program.argv.iter().cloned()), strings(&mut variables)) {
            (Ok(argv), Ok(environment)) => (argv, environment),
            (Err(error), _) | (_, Err(error)) => return error,
        };
        let Some(name) = argv.first() else {
            return SysError::new("execve()", libc::EINVAL);
        };
        let mut last = SysError::new(format!("execve({name:?})"), libc::ENOENT);
        for candidate in candidates(name, guest) {
            let error = sys::execute_path(&candidate, &argv, &environment);
            if error.errno != libc::ENOENT && error.errno != libc::ENOTDIR {
                return error;
            }
            last = SysError::new(format!("execve({name:?})"), error.errno);
        }
        last
    }
}

/// Where a program may lie: as given, or, without a slash, in each folder of the template's PATH.
fn candidates(name: &CString, guest: &Guest) -> Vec<CString> {
    if name.as_bytes().contains(&b'/') {
        return vec![name.clone()];
    }
    let path = guest
        .environment
        .iter()
        .find(|(key, _)| key == b"PATH")
        .map_or(&b"/usr/bin"[..], |(_, value)| value);
    path.split(|byte| *byte == b':')
        .filter_map(|folder| CString::new([folder, b"/", name.as_bytes()].concat()).ok())
        .collect()
}

/// Reads what a child reported; nothing means that it reached its exec.
pub(super) fn read_report(report: BorrowedFd<'_>) -> Option<StepError> {
    let mut bytes = [0; 4096];
    match rustix::io::retry_on_intr(|| rustix::io::read(report, &mut bytes)) {
        Ok(0) | Err(_) => None,
        Ok(length) => postcard::from_bytes(&bytes[..length]).ok(),
    }
}

/// Tells the parent and ends.
fn tell(report: &OwnedFd, error: &StepError) -> ! {
    if let (Ok(bytes), Ok(copy)) = (postcard::to_stdvec(error), report.try_clone()) {
        drop(std::fs::File::from(copy).write_all(&bytes));
    }
    sys::exit_now(126)
}
