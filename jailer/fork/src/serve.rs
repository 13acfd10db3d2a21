//! Takes orders until the jailer closes the socket, or until this is a child.
#![allow(
    unsafe_code,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    reason = "memory that two processes share while one of them waits"
)]

use core::ptr::{addr_of_mut, null};

use crate::arenas;
use crate::child::Child;
use crate::order::{Answer, DESCRIPTORS, FILTER_MAX, HEAD, NAMESPACES, Order, PROGRAMS_MAX, STREAMS};
use crate::sys::{self, FDS_MAX, Place};

/// Numbers below are those of a child's streams, rules and report.
const LEAST: i32 = 16;
const STACK: usize = 32 << 10;

#[repr(align(16))]
struct Stack {
    _bytes: [u8; STACK],
}

#[repr(align(8))]
struct Packet([u8; HEAD + FILTER_MAX]);

// One thread, one order at a time.
static mut OUTER: Stack = Stack { _bytes: [0; STACK] };
static mut INNER: Stack = Stack { _bytes: [0; STACK] };
static mut PACKET: Packet = Packet([0; HEAD + FILTER_MAX]);

/// One fork, as the processes on the way see it.
struct Fork {
    child: Child,
    namespaces: [i32; NAMESPACES.len()],
    leaf: i32,
    tid: usize,
    /// Where the interpreter goes on.
    interpreter: Place,
    inner: Place,
    /// The child's pid in its session, or a negative errno.
    pid: i32,
}

/// What Python does around a fork: `PyOS_BeforeFork`, `PyOS_AfterFork_Parent`, `PyOS_AfterFork_Child`.
type Hook = extern "C" fn();

/// Whether this process can be a zygote: 0, or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn brig_fork_check() -> i32 {
    match sys::tid_address() {
        Ok(_) => 0,
        Err(errno) => -errno,
    }
}

/// Serves on a socket. Returns 1 in each child, sealed and with its streams at 0 to 4; 0 when the socket is closed, and a
/// negative errno when it can't be read.
#[unsafe(no_mangle)]
pub extern "C" fn brig_fork_serve(socket: i32, before: Hook, after_parent: Hook, after_child: Hook) -> i32 {
    let tid = match sys::tid_address() {
        Ok(address) => address,
        Err(errno) => return -errno,
    };
    arenas::close();
    loop {
        let mut fds = [-1; FDS_MAX];
        let packet = addr_of_mut!(PACKET);
        // SAFETY: nobody else has a reference to it, as there is one thread and this function is not entered twice.
        let Packet(packet) = unsafe { &mut *packet };
        let (length, count) = match sys::receive(socket, packet, &mut fds) {
            Ok((0, _)) => return 0,
            Ok(received) => received,
            Err(errno) => return -errno,
        };
        let order = Order::from_bytes(&packet[..length]);
        let number = order.map_or(0, |order| order.number);
        let pid = match order.and_then(|order| read(&order, &packet[..length], &mut fds, count, tid)) {
            Some(mut fork) => {
                before();
                let forked = sys::run_sharing(
                    top(addr_of_mut!(OUTER)),
                    join,
                    (&raw mut fork).cast(),
                    &raw mut fork.interpreter,
                );
                if let Ok(None) = forked {
                    after_child();
                    return 1;
                }
                after_parent();
                forked.map_or_else(|errno| -errno, |_| fork.pid)
            }
            None => -sys::EPROTO,
        };
        fds[..count].iter().for_each(|fd| sys::close(*fd));
        if let Err(errno) = sys::send(socket, &Answer { number, pid }.to_bytes()) {
            return -errno;
        }
    }
}

fn top(stack: *mut Stack) -> *mut u8 {
    stack.cast::<u8>().wrapping_add(STACK)
}

/// Reads an order. Descriptors with low numbers are moved.
fn read(order: &Order, packet: &[u8], fds: &mut [i32; FDS_MAX], count: usize, tid: usize) -> Option<Fork> {
    let tasks = order.tasks as usize;
    if count != DESCRIPTORS + tasks {
        return None;
    }
    for fd in &mut fds[..count] {
        if *fd < LEAST {
            let moved = sys::duplicate_above(*fd, LEAST).ok()?;
            sys::close(*fd);
            *fd = moved;
        }
    }
    let mut programs = [(null(), 0); PROGRAMS_MAX];
    let mut at = HEAD;
    for (place, size) in programs.iter_mut().zip(order.programs) {
        let program = packet.get(at..at.checked_add(size as usize)?)?;
        *place = (program.as_ptr(), program.len());
        at += program.len();
    }
    let (namespaces, rest) = fds[..count].split_at(NAMESPACES.len());
    let (leaf, rest) = rest.split_first()?;
    let (tasks_files, rest) = rest.split_at(tasks);
    let (streams, rest) = rest.split_at(STREAMS);
    let mut all_tasks = [-1; 3];
    all_tasks[..tasks].copy_from_slice(tasks_files);
    Some(Fork {
        child: Child {
            cgroup_namespace: namespaces[6],
            tasks: all_tasks,
            tasks_count: tasks,
            streams: streams.try_into().ok()?,
            rules: rest[0],
            report: rest[1],
            directory: order.directory,
            programs,
        },
        namespaces: namespaces.try_into().ok()?,
        leaf: *leaf,
        tid,
        interpreter: Place::new(),
        inner: Place::new(),
        pid: -sys::EPROTO,
    })
}

/// The first process on the way: it joins the namespaces, that of its children too.
extern "C" fn join(fork: *mut u8) -> i32 {
    // SAFETY: the zygote, whose variable it is, waits until this process is gone.
    let fork = unsafe { &mut *fork.cast::<Fork>() };
    for (fd, kind) in fork.namespaces.iter().zip(NAMESPACES).take(6) {
        if let Err(errno) = sys::setns(*fd, kind) {
            fork.pid = -errno;
            return 1;
        }
    }
    let (argument, place) = ((&raw mut *fork).cast(), &raw mut fork.inner);
    if let Err(errno) = sys::run_sharing(top(addr_of_mut!(INNER)), inside, argument, place) {
        fork.pid = -errno;
    }
    0
}

/// The second one, born in the session's pid namespace: its child is the session's first orphan.
extern "C" fn inside(fork: *mut u8) -> i32 {
    // SAFETY: the first process waits until this one is gone.
    let fork = unsafe { &mut *fork.cast::<Fork>() };
    match sys::fork_into(fork.leaf, fork.tid) {
        Ok(0) => {
            fork.child.seal();
            sys::resume(&raw const fork.interpreter)
        }
        Ok(pid) => fork.pid = pid as i32,
        Err(errno) => fork.pid = -errno,
    }
    0
}
