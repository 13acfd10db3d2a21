//! Memory for Python's arenas, side by side: in large pages it has few entries that a fork must copy and an end take away.
//!
//! Python asks for a megabyte now and then, and what it gets lies between the libraries that were loaded meanwhile: no
//! part of that is a large page. What comes from here lies in one region of the address space, whose place the kernel
//! chose; where that is full, Python gets memory from anywhere.

#![allow(unsafe_code, reason = "functions that Python calls")]

use core::ffi::c_void;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicUsize, Ordering};

use crate::sys;

/// How much is reserved; what nobody uses of it costs nothing.
const REGION: usize = 1 << 30;
/// A large page of x86-64.
const LARGE: usize = 2 << 20;

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

extern "C" fn take(_context: *mut c_void, size: usize) -> *mut c_void {
    let place = NEXT.fetch_add(size, Ordering::Relaxed);
    let is_inside = place
        .checked_add(size)
        .is_some_and(|end| end <= END.load(Ordering::Relaxed));
    if is_inside && sys::make_writable(place, size).is_ok() {
        return place as *mut c_void;
    }
    sys::map(size).map_or(null_mut(), |place| place as *mut c_void)
}

extern "C" fn give(_context: *mut c_void, place: *mut c_void, size: usize) {
    sys::unmap(place as usize, size);
}
