//! What a service manager gives a daemon and wants of it: sockets, readiness and a watchdog, the journal.
//!
//! Both daemons use it; without a service manager each part does nothing.
#![forbid(unsafe_code)]

pub mod activation;
mod journal;
pub mod log;
pub mod notify;
