//! brigd through a real socket, with a stand-in for the jailer.
#![allow(clippy::unwrap_used, reason = "a test that can't go on should stop")]

mod restart;
mod run;
mod sessions;
mod support;
