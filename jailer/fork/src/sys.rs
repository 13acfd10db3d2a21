//! System calls of x86-64 Linux, without a C library: the one of the image is the interpreter's.
#![allow(
    unsafe_code,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss,
    reason = "raw system calls: numbers are what registers hold"
)]

use core::arch::{asm, global_asm};

pub(crate) const EINTR: i32 = 4;
pub(crate) const EPROTO: i32 = 71;
pub(crate) const EINVAL: i32 = 22;
pub(crate) const EPERM: i32 = 1;

const CLONE_VM: usize = 0x100;
const CLONE_VFORK: usize = 0x4000;
const CLONE_CHILD_CLEARTID: u64 = 0x20_0000;
const CLONE_CHILD_SETTID: u64 = 0x100_0000;
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;
const SIGCHLD: usize = 17;
const PROT_READ: usize = 1;
const PROT_WRITE: usize = 2;
const MAP_PRIVATE: usize = 2;
const MAP_ANONYMOUS: usize = 0x20;
const MAP_NORESERVE: usize = 0x4000;

const WRITE: usize = 1;
const CLOSE: usize = 3;
const MMAP: usize = 9;
const MPROTECT: usize = 10;
const MUNMAP: usize = 11;
const SENDMSG: usize = 46;
const RECVMSG: usize = 47;
const EXIT: usize = 60;
const WAIT4: usize = 61;
const FCNTL: usize = 72;
const FCHDIR: usize = 81;
const SETSID: usize = 112;
const SETRESUID: usize = 117;
const SETRESGID: usize = 119;
const CAPGET: usize = 125;
const CAPSET: usize = 126;
const PRCTL: usize = 157;
const DUP3: usize = 292;
const SETNS: usize = 308;
const SECCOMP: usize = 317;
const CLONE3: usize = 435;
const CLOSE_RANGE: usize = 436;
const OPENAT2: usize = 437;
const LANDLOCK_RESTRICT_SELF: usize = 446;

pub(crate) type Result<T> = core::result::Result<T, i32>;

/// Where a stack was when a process was spawned on another one.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Place(usize);

impl Place {
    pub(crate) const fn new() -> Self {
        Self(0)
    }
}

// long brig_fork_spawn(flags, stack, function, argument, place): clone(2) whose child runs function(argument) on another
// stack and exits with its result. It returns a second time, with 0, where brig_fork_resume(place) is called in a copy of
// this memory: everything above on this stack is as it was.
global_asm!(
    ".hidden brig_fork_spawn",
    ".globl brig_fork_spawn",
    "brig_fork_spawn:",
    "push rbx",
    "push rbp",
    "push r12",
    "push r13",
    "push r14",
    "push r15",
    "mov [r8], rsp",
    "sub rsi, 16",
    "mov [rsi], rcx",
    "mov [rsi + 8], rdx",
    "mov eax, 56", // clone
    "xor edx, edx",
    "xor r10d, r10d",
    "xor r8d, r8d",
    "syscall",
    "test rax, rax",
    "jz 2f",
    "3:",
    "pop r15",
    "pop r14",
    "pop r13",
    "pop r12",
    "pop rbp",
    "pop rbx",
    "ret",
    "2:",
    "xor ebp, ebp",
    "pop rdi",
    "pop rax",
    "call rax",
    "mov edi, eax",
    "mov eax, 60", // exit
    "syscall",
    "ud2",
    ".hidden brig_fork_resume",
    ".globl brig_fork_resume",
    "brig_fork_resume:",
    "mov rsp, [rdi]",
    "xor eax, eax",
    "jmp 3b",
);

unsafe extern "C" {
    fn brig_fork_spawn(
        flags: usize,
        stack: *mut u8,
        function: extern "C" fn(*mut u8) -> i32,
        argument: *mut u8,
        place: *mut Place,
    ) -> isize;
    fn brig_fork_resume(place: *const Place) -> !;
}

unsafe fn call(number: usize, arguments: [usize; 6]) -> Result<usize> {
    let [a, b, c, d, e, f] = arguments;
    let result: isize;
    // SAFETY: the caller knows what the call does; the kernel changes no register but these.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number => result,
            in("rdi") a,
            in("rsi") b,
            in("rdx") c,
            in("r10") d,
            in("r8") e,
            in("r9") f,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    if result < 0 {
        Err(-result as i32)
    } else {
        Ok(result as usize)
    }
}

macro_rules! call {
    ($number:expr $(, $argument:expr)*) => {{
        let given = [$($argument),*];
        let mut arguments = [0_usize; 6];
        arguments[..given.len()].copy_from_slice(&given);
        // SAFETY: each function here hands over descriptors by number and memory that lives across the call.
        unsafe { call($number, arguments) }
    }};
}

/// Ends the process, which has one thread.
pub(crate) fn exit(status: i32) -> ! {
    loop {
        let _never = call!(EXIT, status as usize);
    }
}

/// Runs a function in a process that shares this memory, and waits until it is gone. The second return, with `None`, is
/// that of [`resume`] in a copy.
pub(crate) fn run_sharing(
    stack: *mut u8,
    function: extern "C" fn(*mut u8) -> i32,
    argument: *mut u8,
    place: *mut Place,
) -> Result<Option<()>> {
    // SAFETY: the stack is the caller's to give and large enough; the caller is suspended until the process is gone.
    let pid = unsafe { brig_fork_spawn(CLONE_VM | CLONE_VFORK | SIGCHLD, stack, function, argument, place) };
    match pid {
        0 => Ok(None),
        error if error < 0 => Err(-error as i32),
        pid => loop {
            match call!(WAIT4, pid as usize, 0, 0, 0) {
                Err(EINTR) => {}
                Err(error) => return Err(error),
                Ok(_) => return Ok(Some(())),
            }
        },
    }
}

/// Goes on in a copy of the memory where [`run_sharing`] was called.
pub(crate) fn resume(place: *const Place) -> ! {
    // SAFETY: the place was filled by the call whose frames are still on that stack in this copy.
    unsafe { brig_fork_resume(place) }
}

/// Reserves addresses, without memory.
pub(crate) fn reserve(size: usize) -> Result<usize> {
    call!(
        MMAP,
        0,
        size,
        0,
        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
        usize::MAX
    )
}

/// Gives memory to addresses that were reserved.
pub(crate) fn make_writable(place: usize, size: usize) -> Result<()> {
    call!(MPROTECT, place, size, PROT_READ | PROT_WRITE).map(|_| ())
}

/// Maps memory, wherever there is room.
pub(crate) fn map(size: usize) -> Result<usize> {
    let flags = MAP_PRIVATE | MAP_ANONYMOUS;
    call!(MMAP, 0, size, PROT_READ | PROT_WRITE, flags, usize::MAX)
}

/// Gives memory back.
pub(crate) fn unmap(place: usize, size: usize) {
    let _nothing_can_be_done = call!(MUNMAP, place, size);
}

/// Forks into a cgroup; 0 is the child. Its thread id is written where the C library keeps it.
pub(crate) fn fork_into(cgroup: i32, tid: usize) -> Result<usize> {
    let arguments: [u64; 11] = [
        CLONE_INTO_CGROUP | CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID,
        0,
        tid as u64,
        0,
        SIGCHLD as u64,
        0,
        0,
        0,
        0,
        0,
        cgroup as u64,
    ];
    call!(CLONE3, arguments.as_ptr() as usize, size_of_val(&arguments))
}

/// Where the C library keeps the id of this thread.
///
/// Kernel: built with `CONFIG_CHECKPOINT_RESTORE`. Source: PR_GET_TID_ADDRESS(2const).
pub(crate) fn tid_address() -> Result<usize> {
    let mut address = 0_usize;
    call!(PRCTL, 40, &raw mut address as usize, 0, 0, 0)?;
    Ok(address)
}

pub(crate) fn write(fd: i32, bytes: &[u8]) -> Result<usize> {
    call!(WRITE, fd as usize, bytes.as_ptr() as usize, bytes.len())
}

pub(crate) fn close(fd: i32) {
    let _closed_or_never_open = call!(CLOSE, fd as usize);
}

pub(crate) fn close_from(first: i32) -> Result<()> {
    call!(CLOSE_RANGE, first as usize, u32::MAX as usize, 0).map(drop)
}

/// A copy of a descriptor at a number from `least` on, which closes at exec.
pub(crate) fn duplicate_above(fd: i32, least: i32) -> Result<i32> {
    call!(FCNTL, fd as usize, 1030, least as usize).map(|fd| fd as i32) // F_DUPFD_CLOEXEC
}

pub(crate) fn place(fd: i32, number: i32) -> Result<()> {
    call!(DUP3, fd as usize, number as usize, 0).map(drop)
}

pub(crate) fn setns(fd: i32, kind: usize) -> Result<()> {
    call!(SETNS, fd as usize, kind).map(drop)
}

pub(crate) fn setsid() -> Result<()> {
    call!(SETSID).map(drop)
}

/// The real, effective and saved uid and gid of the calling thread, which is the only one.
pub(crate) fn become_user(id: u32) -> Result<()> {
    let id = id as usize;
    call!(SETRESGID, id, id, id)?;
    call!(SETRESUID, id, id, id).map(drop)
}

/// Empties the bounding set and all others; what is left is looked at.
pub(crate) fn drop_capabilities() -> Result<()> {
    for capability in 0..64_usize {
        // The first number that is none ends the list.
        match call!(PRCTL, 24, capability, 0, 0, 0) {
            Err(EINVAL) if capability > 0 => break,
            other => other?,
        };
    }
    // prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL)
    call!(PRCTL, 47, 4, 0, 0, 0).map(drop)
}

pub(crate) fn give_up_capabilities() -> Result<()> {
    let header: [u32; 2] = [0x2008_0522, 0]; // _LINUX_CAPABILITY_VERSION_3
    let none = [0_u32; 6];
    call!(CAPSET, header.as_ptr() as usize, none.as_ptr() as usize)?;
    let mut left = [u32::MAX; 6];
    call!(CAPGET, header.as_ptr() as usize, left.as_mut_ptr() as usize)?;
    if left == none { Ok(()) } else { Err(EPERM) }
}

/// Links of /proc are not followed.
pub(crate) fn change_directory(path: &[u8]) -> Result<()> {
    let how: [u64; 3] = [0x29_0000, 0, 0x02]; // O_PATH|O_DIRECTORY|O_CLOEXEC, RESOLVE_NO_MAGICLINKS
    let here = -100_isize as usize; // AT_FDCWD
    let directory = call!(
        OPENAT2,
        here,
        path.as_ptr() as usize,
        how.as_ptr() as usize,
        size_of_val(&how)
    )?;
    let changed = call!(FCHDIR, directory).map(drop);
    close(directory as i32);
    changed
}

pub(crate) fn set_no_new_privs() -> Result<()> {
    call!(PRCTL, 38, 1, 0, 0, 0).map(drop)
}

pub(crate) fn restrict_files(rules: i32) -> Result<()> {
    call!(LANDLOCK_RESTRICT_SELF, rules as usize, 0).map(drop)
}

/// Installs one program of a filter: an array of `struct sock_filter`.
pub(crate) fn filter(program: &[u8]) -> Result<()> {
    #[repr(C)]
    struct Program {
        length: u16,
        instructions: *const u8,
    }
    let length = u16::try_from(program.len() / 8).map_err(|_| EINVAL)?;
    if length == 0 || !program.len().is_multiple_of(8) {
        return Err(EINVAL);
    }
    let program = Program {
        length,
        instructions: program.as_ptr(),
    };
    call!(SECCOMP, 1, 0, &raw const program as usize).map(drop)
}

pub(crate) fn set_dumpable() -> Result<()> {
    call!(PRCTL, 4, 1, 0, 0, 0).map(drop)
}

#[repr(C)]
struct Vector {
    base: *mut u8,
    length: usize,
}

#[repr(C)]
struct Message {
    name: *mut u8,
    name_length: u32,
    vectors: *mut Vector,
    count: usize,
    control: *mut u8,
    control_length: usize,
    flags: i32,
}

/// The most descriptors of one packet.
pub(crate) const FDS_MAX: usize = 32;
/// Control data of a packet: a head of 16 bytes, then the descriptors.
const CONTROL: usize = 16 + 4 * FDS_MAX;

/// Receives a packet with its descriptors; 0 bytes are its end.
pub(crate) fn receive(socket: i32, bytes: &mut [u8], fds: &mut [i32; FDS_MAX]) -> Result<(usize, usize)> {
    #[repr(C, align(8))]
    struct Control([u8; CONTROL]);
    let mut control = Control([0; CONTROL]);
    let mut vector = Vector {
        base: bytes.as_mut_ptr(),
        length: bytes.len(),
    };
    let mut message = Message {
        name: core::ptr::null_mut(),
        name_length: 0,
        vectors: &raw mut vector,
        count: 1,
        control: control.0.as_mut_ptr(),
        control_length: CONTROL,
        flags: 0,
    };
    let length = loop {
        match call!(RECVMSG, socket as usize, &raw mut message as usize, 0x4000_0000) {
            Err(EINTR) => {}
            other => break other?,
        }
    };
    let mut count = 0;
    if message.control_length >= 16 {
        let word =
            |at: usize| u32::from_ne_bytes([control.0[at], control.0[at + 1], control.0[at + 2], control.0[at + 3]]);
        // SOL_SOCKET, SCM_RIGHTS
        if (word(8), word(12)) == (1, 1) {
            count = ((word(0) as usize).saturating_sub(16) / 4).min(FDS_MAX);
            for (index, fd) in fds.iter_mut().take(count).enumerate() {
                *fd = word(16 + 4 * index) as i32;
            }
        }
    }
    // MSG_TRUNC or MSG_CTRUNC: the jailer sends no such packet.
    if message.flags & 0x28 != 0 {
        Err(EPROTO)
    } else {
        Ok((length, count))
    }
}

pub(crate) fn send(socket: i32, bytes: &[u8]) -> Result<()> {
    let mut vector = Vector {
        base: bytes.as_ptr().cast_mut(),
        length: bytes.len(),
    };
    let message = Message {
        name: core::ptr::null_mut(),
        name_length: 0,
        vectors: &raw mut vector,
        count: 1,
        control: core::ptr::null_mut(),
        control_length: 0,
        flags: 0,
    };
    call!(SENDMSG, socket as usize, &raw const message as usize, 0x4000).map(drop) // MSG_NOSIGNAL
}
