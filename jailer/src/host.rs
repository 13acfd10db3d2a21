//! brig-jailer: the privileged program. Makes jails, kills them, forgets nothing, never waits.
//!
//! One thread, one epoll set, no network, no protobuf. It obeys one client at a time (`brigd`), whose messages name
//! things and give quantities (see [`crate::api`]); policies, templates and filters it reads itself from files that
//! only root can write. Whatever comes out of a jail is a message of brig-init, which parses nothing of the guest's.
//!
//! When the client is gone, its sessions are closed, those that are held after a time of grace. When the jailer dies, every jail dies with it (brig-init has
//! `PR_SET_PDEATHSIG` and reads the end of its control socket), and the next start sweeps what is left.

mod birth;
mod blueprint;
mod client;
mod clock;
mod disks;
mod docks;
mod doctor;
mod events;
mod executions;
#[cfg(feature = "faults")]
mod faults;
mod held;
mod pause;
mod serve;
mod session;
mod supervise;
mod uids;
mod usage;
mod workspaces;
mod world;

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;

pub use doctor::{CAPABILITIES, NEEDS, Need, SYSTEM_CALLS, Without, report};
pub use serve::{check, serve};
pub use uids::{BLOCK, UID_BASE};

/// Where things lie, all of it root-owned.
#[derive(Debug, Clone)]
pub struct Places {
    /// Folders of policies, later ones override earlier ones.
    pub policies: Vec<PathBuf>,
    /// The image store.
    pub images: PathBuf,
    /// The kernel layer.
    pub kernel: PathBuf,
    /// The folder of brig-init and brig-files.
    pub programs: PathBuf,
    /// Ceilings, if the file is there.
    pub ceilings: PathBuf,
    /// Where workspaces on disk are made, if the folder is there.
    pub workspaces: PathBuf,
}

/// Who may talk to the jailer.
#[derive(Debug)]
pub enum Entrance {
    /// One client on a connected socket; the program ends with it.
    Connected(OwnedFd),
    /// A listening socket; a peer must have this uid.
    Listening { socket: OwnedFd, uid: u32, grace: Grace },
}

/// How long held sessions wait for the next client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grace {
    /// After the last one went away without a word.
    pub crash: Duration,
    /// After it said that it ends on purpose.
    pub handover: Duration,
}
