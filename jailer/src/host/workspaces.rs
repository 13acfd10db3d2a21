//! Workspaces on disk: a folder of the host for each session whose policy asks for it, with a quota that the file system
//! holds.
//!
//! ```text
//! PLACE/              made by root, on ext4 or xfs mounted with prjquota
//!     brig-NN/        one per running jailer
//!         BLOCK/      the working directory of a session; the number is that of its uid 0, and of its project
//! ```
//!
//! Blocks of uids are unique on the host, and so are projects. A folder whose session is over is removed by a child of
//! the jailer, which never waits; until it is gone its block is not given to another session, so that neither its files
//! nor what they are counted on can become another's. What a killed jailer has left is removed likewise by the next one.
//!
//! Kernel: 5.14 (`quotactl_fd`), with CONFIG_QUOTA and CONFIG_QFMT_V2 for ext4, CONFIG_XFS_QUOTA for xfs.

mod place;
mod remove;

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::epoll::EventFlags;
use rustix::fs::{AtFlags, Dir, Mode, OFlags, fchmod, mkdirat, openat, unlinkat};
use rustix::io::Errno;
use rustix::process::{WaitId, WaitIdOptions, waitid};

use self::place::{NoRoom, UNLIMITED, make, room_for};
pub(super) use self::place::{Unfit, look, open};
use super::events::{Events, Source, Timer, Token};
use super::serve::Jailer;
use super::uids::{Block, Region};
use super::world::World;
use crate::api::{Quantities, Refusal};
use crate::plan::GUEST_UID;
use crate::policy::{Policy, Workspace};
use crate::step::SysError;
use crate::sys::quota;
use crate::sys::{self, Cloned};

/// How soon a folder that could not be removed is tried again.
const REMOVE_AGAIN: Duration = Duration::from_secs(5);

const FOLDER: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// All workspaces of this jailer.
#[derive(Debug)]
pub(super) struct Workspaces {
    /// Held open: its path may be hidden.
    place: Result<OwnedFd, Unfit>,
    /// The jailer's own folder.
    name: String,
    own: Option<OwnedFd>,
    waiting: VecDeque<Removal>,
    running: Option<Running>,
    failed: Vec<Removal>,
}

/// A folder that is to go, and the block that is free after that.
#[derive(Debug)]
struct Removal {
    name: String,
    block: Option<Block>,
    /// Whether that was told already.
    failed: bool,
}

#[derive(Debug)]
struct Running {
    removal: Removal,
    pidfd: OwnedFd,
    token: Token,
}

impl Workspaces {
    /// Takes over what an earlier jailer with this region has left; its blocks are not handed out before it is gone.
    pub(super) fn new(place: Result<OwnedFd, Unfit>, region: &mut Region) -> Self {
        let mut all = Self {
            place,
            name: Region::name_of(region.number()),
            own: None,
            waiting: VecDeque::new(),
            running: None,
            failed: Vec::new(),
        };
        let Ok(place) = &all.place else { return all };
        let own = match openat(place, &all.name, FOLDER, Mode::empty()) {
            Ok(own) => own,
            Err(error) => {
                if error != Errno::NOENT {
                    tracing::error!(folder = all.name, %error, "workspaces of an earlier jailer can't be looked for");
                }
                return all;
            }
        };
        for name in names(own.as_fd()) {
            let block = name.parse().ok().and_then(|root| region.reserve(root));
            tracing::warn!(workspace = name, "left by a jailer that was killed");
            all.waiting.push_back(Removal {
                name,
                block,
                failed: false,
            });
        }
        all.own = Some(own);
        all
    }

    /// Whether nothing is left that could be removed soon.
    pub(super) fn cleared(&self) -> bool {
        self.running.is_none() && self.waiting.is_empty()
    }

    /// Takes the jailer's own folder away, if nothing is in it.
    pub(super) fn close(&self) {
        if let Ok(place) = &self.place {
            let _not_empty_or_not_there = unlinkat(place, &self.name, AtFlags::REMOVEDIR);
        }
    }

    /// The jailer's own folder, made and mounted where jails find it.
    fn own(&mut self, world: &mut World) -> Result<OwnedFd, SysError> {
        let failed = |call: &str, error: Errno| SysError::new(format!("{call}({})", self.name), error.raw_os_error());
        let place = self.place.as_ref().map_err(|_| failed("openat", Errno::NOENT))?;
        if self.own.is_none() {
            match mkdirat(place, &self.name, Mode::empty()) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(failed("mkdirat", error)),
            }
            let own = openat(place, &self.name, FOLDER, Mode::empty()).map_err(|error| failed("openat", error))?;
            self.own = Some(own);
        }
        let own = self.own.as_ref().ok_or_else(|| failed("openat", Errno::NOENT))?;
        // Its root is walked through by pid 1 of a jail, whose uid 0 is not the host's; all above is root's alone.
        fchmod(own, Mode::from_raw_mode(0o711)).map_err(|error| failed("fchmod", error))?;
        world.workspaces(place.as_fd(), &self.name)?;
        own.try_clone()
            .map_err(|error| SysError::new("fcntl(F_DUPFD)", error.raw_os_error().unwrap_or(libc::EIO)))
    }

    /// Begins to remove the next folder, unless another one is being removed.
    fn go_on(&mut self, events: &mut Events) {
        let (None, Some(own)) = (&self.running, &self.own) else {
            return;
        };
        let Some(removal) = self.waiting.pop_front() else {
            return;
        };
        match start(own.as_fd(), &removal, events) {
            Ok((pidfd, token)) => {
                self.running = Some(Running { removal, pidfd, token });
            }
            Err(error) => self.not_removed(removal, &error, events),
        }
    }

    fn not_removed(&mut self, removal: Removal, error: &SysError, events: &mut Events) {
        let (name, again) = (&removal.name, removal.failed);
        if again {
            tracing::debug!(workspace = name, %error, "still not removed");
        } else {
            tracing::error!(workspace = name, %error, "could not be removed; its uids are not used until it is");
        }
        self.failed.push(Removal {
            failed: true,
            ..removal
        });
        events.after(REMOVE_AGAIN, Timer::Workspaces);
    }
}

impl Jailer {
    /// Makes the workspace of a session, if its policy wants one on disk; tells whether it does. If it can't be made as
    /// the policy promises it, it is not.
    pub(super) fn furnish(&mut self, policy: &Policy, block: Block, wanted: &Quantities) -> Result<bool, Refusal> {
        if policy.limits.workspace == Workspace::Tmpfs {
            return Ok(false);
        }
        let refused =
            |why: String| Refusal::HostCannot(format!("policy {} has limits.workspace = \"disk\": {why}", policy.name));
        let place = self.workspaces.place.as_ref().map_err(|why| refused(why.to_string()))?;
        look(place.as_fd()).map_err(|why| refused(why.to_string()))?;
        let limits = room_for(place.as_fd(), wanted).map_err(|why| match why {
            NoRoom::Ever(why) => refused(why),
            NoRoom::Now(why) => Refusal::Busy(why),
        })?;
        let own = self
            .workspaces
            .own(&mut self.world)
            .map_err(|error| refused(error.to_string()))?;
        make(own.as_fd(), block, limits)
            .map(|()| true)
            .map_err(|error| refused(error.to_string()))
    }

    /// The disk that such a policy's sessions write to, beside what they read from.
    pub(super) fn workspace_place(&self) -> Result<BorrowedFd<'_>, String> {
        self.workspaces
            .place
            .as_ref()
            .map(AsFd::as_fd)
            .map_err(ToString::to_string)
    }

    /// Gives a block back: at once, or when the workspace is gone.
    pub(super) fn vacate(&mut self, block: Block, on_disk: bool) {
        if !on_disk {
            return self.region.release(block);
        }
        self.workspaces.waiting.push_back(Removal {
            name: block.root().to_string(),
            block: Some(block),
            failed: false,
        });
        self.remove_workspaces();
    }

    pub(super) fn remove_workspaces(&mut self) {
        self.workspaces.go_on(&mut self.events);
    }

    pub(super) fn try_workspaces_again(&mut self) {
        let failed = std::mem::take(&mut self.workspaces.failed);
        self.workspaces.waiting.extend(failed);
        self.remove_workspaces();
    }

    /// The remover has ended.
    pub(super) fn workspace_removed(&mut self) {
        let Some(running) = &self.workspaces.running else {
            return;
        };
        let waited = waitid(
            WaitId::PidFd(running.pidfd.as_fd()),
            WaitIdOptions::EXITED | WaitIdOptions::NOHANG,
        );
        let failed = match waited {
            Ok(None) => return,
            Ok(Some(status)) => match (status.exit_status(), status.terminating_signal()) {
                (Some(0), _) => None,
                (Some(errno), _) => Some(SysError::new("remove", errno)),
                (None, signal) => Some(SysError::new(format!("remove: signal {signal:?}"), libc::EINTR)),
            },
            Err(error) => Some(SysError::new("waitid(remover)", error.raw_os_error())),
        };
        let Some(Running { removal, pidfd, token }) = self.workspaces.running.take() else {
            return;
        };
        self.events.forget(pidfd.as_fd(), token);
        match (failed, removal.block) {
            (Some(error), _) => self.workspaces.not_removed(removal, &error, &mut self.events),
            (None, Some(block)) => self.region.release(block),
            (None, None) => {}
        }
        self.remove_workspaces();
    }
}

/// Starts a process that removes a folder.
fn start(own: BorrowedFd<'_>, removal: &Removal, events: &mut Events) -> Result<(OwnedFd, Token), SysError> {
    let owner = removal.block.map_or(0, |block| block.root() + GUEST_UID);
    if let Some(block) = removal.block {
        // Moving things about must not fail for the quota.
        let _fails_again_below = quota::limit_project(own, block.root(), UNLIMITED);
    }
    match sys::clone3(0, None)? {
        Cloned::Child => remove::remove_and_exit(own, &removal.name, owner),
        Cloned::Parent { pidfd, .. } => {
            let token = events.watch(pidfd.as_fd(), Source::Remover, EventFlags::IN)?;
            Ok((pidfd, token))
        }
    }
}

fn names(folder: BorrowedFd<'_>) -> Vec<String> {
    let entries = Dir::read_from(folder).into_iter().flatten().flatten();
    entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| name != "." && name != "..")
        .collect()
}
