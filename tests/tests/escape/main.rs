//! Attacks from inside a jail, one a test.
//!
//! System calls that our own filter must answer are also tried on the host, without a jail, so that a kernel that was
//! built without them can't make a test pass.
#![cfg(test)]
#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

mod files;
mod forgery;
mod neighbours;
mod sockets;
mod syscalls;
