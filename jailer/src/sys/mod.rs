//! The system calls that rustix and nix lack, each behind a safe function. The only unsafe code of the crate.
//!
//! Everything here is for single-threaded programs: brig-jailer, brig-init and brig-files start no thread.
#![allow(
    unsafe_code,
    reason = "raw system calls: clone3, close_range, execveat, seccomp, dup2, quotactl_fd, ioctls"
)]

#[cfg(feature = "host")]
pub mod quota;

use std::ffi::CString;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use crate::step::SysError;

/// Which side of a clone this is.
#[derive(Debug)]
pub enum Cloned {
    Child,
    Parent { pid: i32, pidfd: OwnedFd },
}

/// The C library's constant is too narrow for it.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

fn last_errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

fn checked(result: libc::c_long, call: impl FnOnce() -> String) -> Result<libc::c_long, SysError> {
    if result < 0 {
        Err(SysError::new(call(), last_errno()))
    } else {
        Ok(result)
    }
}

/// Makes a process as fork does, in new namespaces and in a cgroup from its first moment.
///
/// With `CLONE_PARENT` it is a sibling of this one. Kernel: 5.7 (`CLONE_INTO_CGROUP`). Source: clone(2).
pub fn clone3(namespaces: i32, cgroup: Option<BorrowedFd<'_>>) -> Result<Cloned, SysError> {
    let mut pidfd: RawFd = -1;
    let into = if cgroup.is_some() { CLONE_INTO_CGROUP } else { 0 };
    let flags = u64::from(namespaces.cast_unsigned()) | u64::from(libc::CLONE_PIDFD.cast_unsigned());
    let arguments = libc::clone_args {
        flags: flags | into,
        pidfd: std::ptr::from_mut(&mut pidfd) as u64,
        child_tid: 0,
        parent_tid: 0,
        // That of a sibling is this one's.
        exit_signal: if namespaces & libc::CLONE_PARENT == 0 {
            u64::from(libc::SIGCHLD.cast_unsigned())
        } else {
            0
        },
        stack: 0,
        stack_size: 0,
        tls: 0,
        set_tid: 0,
        set_tid_size: 0,
        cgroup: cgroup.map_or(0, |fd| u64::from(fd.as_raw_fd().cast_unsigned())),
    };
    // SAFETY: without CLONE_VM the child gets a copy of everything, and there is no second thread whose locks it could
    // inherit; `arguments` and `pidfd` live across the call.
    let pid = unsafe { libc::syscall(libc::SYS_clone3, &raw const arguments, size_of::<libc::clone_args>()) };
    let pid = checked(pid, || format!("clone3({namespaces:#x}, cgroup={})", cgroup.is_some()))?;
    if pid == 0 {
        return Ok(Cloned::Child);
    }
    // SAFETY: the kernel has just stored a new descriptor there that nobody else knows.
    let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
    Ok(Cloned::Parent {
        pid: i32::try_from(pid).unwrap_or(i32::MAX),
        pidfd,
    })
}

/// Leaves namespaces for new ones.
///
/// Source: unshare(2).
pub fn unshare(flags: rustix::thread::UnshareFlags) -> Result<(), SysError> {
    // SAFETY: the process has one thread, so that no other one loses what this one leaves.
    let result = unsafe { rustix::thread::unshare_unsafe(flags) };
    result.map_err(|error| SysError::new(format!("unshare({flags:?})"), error.raw_os_error()))
}

/// Closes every descriptor from `first` on.
///
/// Kernel: 5.9. Source: close_range(2).
pub fn close_from(first: RawFd) -> Result<(), SysError> {
    // SAFETY: called as the last thing before exec or exit; no owner of a descriptor at or above `first` is used again.
    let result = unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, 0) };
    checked(result, || format!("close_range({first}, ~0)")).map(drop)
}

/// Closes the descriptors from `first` to `last`.
///
/// Kernel: 5.9. Source: close_range(2).
pub fn close_range(first: RawFd, last: RawFd) -> Result<(), SysError> {
    // SAFETY: called in a child between its clone and its exec, whose owners of these numbers are never used again.
    let result = unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
    checked(result, || format!("close_range({first}, {last})")).map(drop)
}

/// Makes every descriptor from `first` on close at exec.
///
/// Kernel: 5.11. Source: close_range(2).
pub fn cloexec_from(first: RawFd) -> Result<(), SysError> {
    // SAFETY: changes a flag of descriptors, closes none.
    let result = unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    checked(result, || format!("close_range({first}, ~0, CLOEXEC)")).map(drop)
}

/// Puts a copy of a descriptor at a fixed number; it stays open at exec.
pub fn place(fd: BorrowedFd<'_>, number: RawFd) -> Result<(), SysError> {
    // SAFETY: the callers place at numbers below those of every descriptor they still own.
    let result = unsafe { libc::dup2(fd.as_raw_fd(), number) };
    checked(result.into(), || format!("dup2({}, {number})", fd.as_raw_fd())).map(drop)
}

/// Takes over a descriptor that the program was started with.
pub fn inherited(number: RawFd) -> Result<OwnedFd, SysError> {
    // SAFETY: only asks whether the number is open.
    let open = unsafe { libc::fcntl(number, libc::F_GETFD) };
    checked(open.into(), || format!("fcntl({number}, F_GETFD)"))?;
    // SAFETY: called once per number at the start of the program, before anything else could own it.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Replaces the program by the one behind a descriptor.
///
/// Source: execveat(2), `AT_EMPTY_PATH`.
pub fn execute_descriptor(program: BorrowedFd<'_>, argv: &[CString], environment: &[CString]) -> SysError {
    execveat(
        program.as_raw_fd(),
        c"",
        argv,
        environment,
        libc::AT_EMPTY_PATH,
        "execveat(memfd)".to_owned(),
    )
}

/// Replaces the program by the one at a path.
pub fn execute_path(path: &CString, argv: &[CString], environment: &[CString]) -> SysError {
    let call = format!("execve({:?})", path.to_string_lossy());
    execveat(libc::AT_FDCWD, path, argv, environment, 0, call)
}

fn execveat(
    directory: RawFd,
    path: &std::ffi::CStr,
    argv: &[CString],
    environment: &[CString],
    flags: i32,
    call: String,
) -> SysError {
    let pointers = |strings: &[CString]| -> Vec<*const libc::c_char> {
        strings
            .iter()
            .map(|s| s.as_ptr())
            .chain(std::iter::once(std::ptr::null()))
            .collect()
    };
    let (argv, environment) = (pointers(argv), pointers(environment));
    // SAFETY: both arrays end with a null pointer and their strings outlive the call.
    unsafe {
        libc::syscall(
            libc::SYS_execveat,
            directory,
            path.as_ptr(),
            argv.as_ptr(),
            environment.as_ptr(),
            flags,
        )
    };
    SysError::new(call, last_errno())
}

/// Installs a filter, given as the bytes of its `struct sock_filter` array, on this process and its children.
///
/// `no_new_privs` must be on, or `CAP_SYS_ADMIN` held. Source: seccomp(2).
pub fn seccomp(program: &[u8]) -> Result<(), SysError> {
    let (chunks, rest) = program.as_chunks::<8>();
    let Ok(len) = u16::try_from(chunks.len()) else {
        return Err(SysError::new("seccomp(filter too long)", libc::EINVAL));
    };
    if !rest.is_empty() || chunks.is_empty() {
        return Err(SysError::new("seccomp(filter cut short)", libc::EINVAL));
    }
    let mut instructions: Vec<libc::sock_filter> = chunks
        .iter()
        .map(|b| libc::sock_filter {
            code: u16::from_ne_bytes([b[0], b[1]]),
            jt: b[2],
            jf: b[3],
            k: u32::from_ne_bytes([b[4], b[5], b[6], b[7]]),
        })
        .collect();
    let filter = libc::sock_fprog {
        len,
        filter: instructions.as_mut_ptr(),
    };
    // SAFETY: `filter` points to `len` instructions that live across the call; the kernel copies and checks them.
    let result = unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const filter) };
    checked(result, || format!("seccomp(SET_MODE_FILTER, {len} instructions)")).map(drop)
}

/// Brings the loopback interface of the network namespace up.
///
/// Source: netdevice(7), `SIOCSIFFLAGS`.
pub fn loopback_up(socket: BorrowedFd<'_>) -> Result<(), SysError> {
    // SAFETY: all zeroes is a valid `ifreq`.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"lo") {
        *to = from.cast_signed();
    }
    request.ifr_ifru.ifru_flags = 0x1 | 0x40; // IFF_UP | IFF_RUNNING
    // SAFETY: the request is complete and lives across the call.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request) };
    checked(result.into(), || "ioctl(SIOCSIFFLAGS, \"lo\")".to_owned()).map(drop)
}

/// Refuses descriptors on a Unix socket: who sends some gets `EPERM`. False where the kernel can't.
///
/// Kernel: 6.16. Source: `SO_PASSRIGHTS` in include/uapi/asm-generic/socket.h.
pub fn refuse_descriptors(socket: BorrowedFd<'_>) -> bool {
    const SO_PASSRIGHTS: i32 = 83;
    let off: libc::c_int = 0;
    let length = libc::socklen_t::try_from(size_of_val(&off)).unwrap_or_default();
    let value = (&raw const off).cast();
    // SAFETY: `value` points to `length` bytes that live across the call.
    let result = unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, SO_PASSRIGHTS, value, length) };
    result == 0
}

/// Asks for the Landlock version of the kernel.
///
/// Errors: `ENOSYS` where it is not built in, `EOPNOTSUPP` where it was not enabled at boot. Source:
/// landlock_create_ruleset(2), `LANDLOCK_CREATE_RULESET_VERSION`.
pub fn landlock_abi() -> Result<u32, SysError> {
    let no_attributes: *const libc::c_void = std::ptr::null();
    // SAFETY: with the version flag the call reads no memory and makes no descriptor.
    let version = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, no_attributes, 0_usize, 1_u32) };
    let version = checked(version, || "landlock_create_ruleset(VERSION)".to_owned())?;
    Ok(u32::try_from(version).unwrap_or(0))
}

/// Asks whether filters can be installed that answer with an error or kill.
///
/// Kernel: 4.14. Source: seccomp(2), `SECCOMP_GET_ACTION_AVAIL`.
pub fn seccomp_available() -> Result<(), SysError> {
    for action in [libc::SECCOMP_RET_ERRNO, libc::SECCOMP_RET_KILL_PROCESS] {
        // SAFETY: the call reads one number, which lives across it.
        let result = unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_GET_ACTION_AVAIL, 0, &raw const action) };
        checked(result, || format!("seccomp(GET_ACTION_AVAIL, {action:#x})"))?;
    }
    Ok(())
}

/// Whether the kernel has a system call, as far as a call without sense can tell.
///
/// Only for calls that refuse an argument of -1 followed by zeroes before they do anything.
pub fn call_exists(number: libc::c_long) -> bool {
    // SAFETY: the callers' calls find no descriptor and no memory there, and do nothing.
    let result = unsafe { libc::syscall(number, -1, 0_usize, 0_usize, 0_usize, 0_usize, 0_usize) };
    result >= 0 || last_errno() != libc::ENOSYS
}

/// Gives every signal its default action and unblocks all.
///
/// A Rust program ignores SIGPIPE, and ignored signals stay ignored at exec; guests expect the default.
pub fn default_signals() {
    for signal in 1..=64 {
        // SAFETY: no handler of ours is installed that could be needed again: the process is about to exec. SIGKILL,
        // SIGSTOP and the two of the C library are refused, harmlessly.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
    let none = nix::sys::signal::SigSet::empty();
    let _unchanged_on_error = none.thread_set_mask();
}

/// Ends the process at once, without running anything.
pub fn exit_now(status: i32) -> ! {
    // SAFETY: ends the process; nothing of ours needs to run at its end.
    unsafe { libc::_exit(status) }
}
