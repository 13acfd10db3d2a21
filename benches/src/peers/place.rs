//! Where peers run: a thread with a mount namespace of its own, so that nothing of what they mount is left on the host.

use std::fs;
use std::path::Path;
use std::sync::mpsc;

use anyhow::Context;
use nix::mount::{MsFlags, mount, umount};
use nix::sched::{CloneFlags, unshare};

type Job = Box<dyn FnOnce() + Send>;

/// crun 1.8 takes a hybrid host for one of version 2; without this it finds version 1 alone.
const UNIFIED: &str = "/sys/fs/cgroup/unified";
const FIREJAIL: &str = "/etc/firejail/firejail.config";

/// The thread. It ends with its last job once this is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    jobs: mpsc::SyncSender<Job>,
}

impl Place {
    /// Makes it; `scratch` gets a configuration for firejail.
    pub(crate) fn enter(scratch: &Path) -> anyhow::Result<Self> {
        let (jobs, inbox) = mpsc::sync_channel::<Job>(0);
        let place = Self { jobs };
        std::thread::Builder::new().name("peers".to_owned()).spawn(move || {
            inbox.into_iter().for_each(|job| job());
        })?;
        let scratch = scratch.to_owned();
        place.run(move || prepare(&scratch))??;
        Ok(place)
    }

    /// Does something there.
    pub(crate) fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> anyhow::Result<T> {
        let (sender, answer) = mpsc::sync_channel(1);
        let job = move || {
            // Nobody listens only where the bench has failed.
            let _ = sender.send(work());
        };
        // A thread that has ended takes no job, and gives no answer.
        let _ = self.jobs.send(Box::new(job));
        answer.recv().context("the thread of the peers has ended")
    }
}

fn prepare(scratch: &Path) -> anyhow::Result<()> {
    unshare(CloneFlags::CLONE_NEWNS).context("a mount namespace of its own")?;
    let none = None::<&str>;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).context("making mounts private")?;
    if Path::new(UNIFIED).join("cgroup.controllers").exists() {
        umount(UNIFIED).context(UNIFIED)?;
    }
    if let Ok(text) = fs::read_to_string(FIREJAIL) {
        let ours = scratch.join("firejail.config");
        fs::write(&ours, text + "\nchroot yes\n")?;
        mount(Some(&ours), FIREJAIL, none, MsFlags::MS_BIND, none).context(FIREJAIL)?;
    }
    Ok(())
}
