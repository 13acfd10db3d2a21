//! Memory for Python's arenas, side by side: in large pages it has few entries that a fork must copy and an end take away.
//!
//! Python asks for a megabyte now and then, and what it gets lies between the libraries that were loaded meanwhile: no
//! part of that is a large page. What comes from here while a zygote is made lies in one region of the address space,
//! whose place the kernel chose. Where that is full, and in what is forked, Python gets memory from anywhere, as ever.
#![allow(unsafe_code, reason = "functions that Python calls")]

use core::ffi::c_void;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicUsize, Ordering};

use crate::sys;

/// How much is reserved for a while; what nobody uses of it costs nothing.
const REGION: usize = 1 << 30;
/// A large page of x86-64.
const LARGE: usize = 2 << 20;
/// The smallest arena. Python asks for stacks of frames here too, which come and go.
const ARENA: usize = 256 << 10;

/// What comes next of the region, and its end.
static NEXT: AtomicUsize = AtomicUsize::new(0);
static END: AtomicUsize = AtomicUsize::new(0);

/// What `PyObject_SetArenaAllocator` takes.
#[derive(Debug)]
#[repr(C)]
pub struct Allocator {
    context: *mut c_void,
    take: extern "C" fn(*mut c_void, usize) -> *mut c_void,
    give: extern "C" fn(*mut c_void, *mut c_void, usize),
}

/// Reserves the region and leads Python's arenas there: 0, or a negative errno, and nothing has changed.
#[unsafe(no_mangle)]
pub extern "C" fn brig_fork_arenas(set: extern "C" fn(*mut Allocator)) -> i32 {
    let start = match sys::reserve(REGION + LARGE) {
        Ok(start) => start.next_multiple_of(LARGE),
        Err(errno) => return -errno,
    };
    NEXT.store(start, Ordering::Relaxed);
    END.store(start + REGION, Ordering::Relaxed);
    let mut allocator = Allocator {
        context: null_mut(),
        take,
        give,
    };
    // It is copied.
    set(&raw mut allocator);
    0
}

/// Gives back what is left of the region: what is forked has as much of an address space as any program.
pub(crate) fn close() {
    let (next, end) = (NEXT.load(Ordering::Relaxed), END.load(Ordering::Relaxed));
    END.store(next, Ordering::Relaxed);
    if next < end {
        sys::unmap(next, end - next);
    }
}

extern "C" fn take(_context: *mut c_void, size: usize) -> *mut c_void {
    let end = END.load(Ordering::Relaxed);
    let behind = |place: usize| place.checked_add(size).filter(|next| size >= ARENA && *next <= end);
    let place = match NEXT.fetch_update(Ordering::Relaxed, Ordering::Relaxed, behind) {
        Ok(place) if sys::make_writable(place, size).is_ok() => Ok(place),
        _ => sys::map(size),
    };
    place.map_or(null_mut(), |place| place as *mut c_void)
}

extern "C" fn give(_context: *mut c_void, place: *mut c_void, size: usize) {
    sys::unmap(place as usize, size);
}
