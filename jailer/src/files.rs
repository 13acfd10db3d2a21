//! The file helper of a session: `brig-files` inside the jail, and the messages that `brigd` exchanges with it.
//!
//! The program runs in the session's namespaces as uid 999 with fsuid 1000: what it writes is charged to the session
//! and belongs to the guest's user, yet the guest can neither signal nor trace it. It holds the working directory
//! and `/tmp` open and resolves every name below those descriptors, without following any link; a file is looked at only if it is a
//! regular one with a single name on the session's own file system. Bytes leave as copies on one stream socket; no
//! descriptor of a guest's file ever does. Requests of one conversation are served one at a
//! time, in order; there may be several conversations, each with a socket and a thread of its own.
//!
//! [`wire`] is all that a client needs. What it is told about contents are claims: the helper reads hostile bytes.
#![forbid(unsafe_code)]

mod frame;
pub mod wire;

#[cfg(feature = "files")]
mod changes;
#[cfg(feature = "files")]
mod connection;
#[cfg(feature = "files")]
mod inspect;
#[cfg(feature = "files")]
mod list;
#[cfg(feature = "files")]
mod remove;
#[cfg(feature = "files")]
pub mod root;
#[cfg(feature = "files")]
pub mod seal;
#[cfg(feature = "files")]
pub mod server;
#[cfg(feature = "files")]
mod transfer;
#[cfg(feature = "files")]
mod tree;
#[cfg(feature = "files")]
mod walk;
#[cfg(feature = "files")]
mod watch;

#[cfg(feature = "files")]
#[cfg(test)]
mod tests;
