//! Makes jails, and keeps the promises about them.
//!
//! The library holds what the three programs of this crate share with each other and with `brigd`: the plan of a jail
//! and the steps that apply it, the limits, the policies and syscall filters, and the messages between the processes.
//! `brig-jailer` is the privileged program, `brig-init` the first process of each jail, `brig-files` its file helper.

pub mod api;
pub mod faults;
pub mod files;
pub mod ids;
pub mod init;
pub mod plan;
pub mod step;
pub mod sys;
pub mod units;
pub mod wire;

#[cfg(feature = "host")]
pub mod cgroup;
#[cfg(feature = "host")]
pub mod host;
#[cfg(feature = "host")]
pub mod policy;
#[cfg(feature = "host")]
pub mod seccomp;
#[cfg(feature = "host")]
pub mod service;
#[cfg(feature = "host")]
pub mod template;
