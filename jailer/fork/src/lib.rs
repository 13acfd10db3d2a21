//! Forks an interpreter that has imported its packages (a zygote) into sessions.
//!
//! A zygote is a process with the uid that owns the user namespaces of its sessions, and nothing else: no capability, a
//! filter, Landlock, one thread. For each order of the jailer it joins the namespaces of a session that waits, forks once
//! into the session's own group, and the child seals itself as every program of a session is sealed. The child is the one
//! copy of the address space that is made: the two processes on the way into the pid namespace share the zygote's memory
//! and use nothing of it but stacks of their own.
//!
//! ```text
//! zygote --CLONE_VM|CLONE_VFORK--> joins six namespaces --CLONE_VM|CLONE_VFORK--> in the pid namespace --clone3--> child
//! ```
//!
//! The one in the middle ends at once, so that the child's parent is pid 1 of the session.
//!
//! The code runs inside Python (`brig_kernel.zygote` loads it): it has no C library, no memory of its own and does not
//! panic on purpose. Python's objects lie where it says (`arenas`). The layout of orders and answers ([`order`]) is shared
//! with the jailer, which is linked with that alone.
//!
//! Kernel: 5.14. Source: clone(2), setns(2), user_namespaces(7), pid_namespaces(7).
#![no_std]

pub mod order;

#[cfg(all(feature = "library", target_arch = "x86_64"))]
pub mod arenas;
#[cfg(all(feature = "library", target_arch = "x86_64"))]
mod child;
#[cfg(all(feature = "library", target_arch = "x86_64"))]
pub mod serve;
#[cfg(all(feature = "library", target_arch = "x86_64"))]
mod sys;

/// A panic would be a fault of this code. The zygote ends, and sessions are made without it.
#[cfg(feature = "library")]
#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    #[cfg(target_arch = "x86_64")]
    sys::exit(101);
    #[cfg(not(target_arch = "x86_64"))]
    loop {}
}
