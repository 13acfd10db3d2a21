//! What the host has, and how the daemons stand.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use brig_tests::processes::{Process, descendants, groups, mounts, named, namespaces, process};
use brig_tests::{Daemon, eventually, slow, way};

use crate::{name, next};

/// Everything that sessions take from a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Counts {
    descriptors: [usize; 2],
    processes: usize,
    groups: usize,
    mounts: usize,
    networks: usize,
    sessions: u64,
    files: BTreeSet<String>,
}

/// The daemon, and how it stands.
pub(crate) struct Host<'d> {
    daemon: &'d Daemon,
    brigd: Process,
    jailer: Process,
}

impl<'d> Host<'d> {
    pub(crate) fn new(daemon: &'d Daemon) -> Self {
        let (brigd, jailer) = (process(daemon.pid()), named(daemon.pid(), "brig-jailer"));
        Self { daemon, brigd, jailer }
    }

    fn count(&self) -> Counts {
        let all: Vec<String> = (0..next()).map(name).collect();
        Counts {
            descriptors: [self.brigd.descriptors(), self.jailer.descriptors()],
            processes: descendants(self.daemon.pid()).len(),
            groups: groups(&all).len(),
            mounts: mounts().len(),
            networks: networks_of(self.daemon),
            sessions: self.daemon.host().load.unwrap().sessions,
            files: files(self.daemon.directory()),
        }
    }

    /// Waits until nothing of a session is left, and nothing changes any more: teardown goes on behind the answers.
    pub(crate) fn settled(&self) -> Counts {
        let last = Mutex::new(self.count());
        eventually("no session is left", Duration::from_secs(10) * slow(), || {
            std::thread::sleep(Duration::from_millis(100));
            let counts = self.count();
            let nothing = counts.processes == way::processes_at_rest() && counts.groups == 0 && counts.sessions == 0;
            let before = std::mem::replace(&mut *last.lock().unwrap(), counts.clone());
            if nothing && before == counts {
                Ok(())
            } else {
                Err(counts)
            }
        });
        last.into_inner().unwrap()
    }

    /// Memory of brigd and of the jailer, in bytes.
    pub(crate) fn memory(&self) -> [i64; 2] {
        [&self.brigd, &self.jailer].map(|process| i64::try_from(process.memory("VmRSS")).unwrap())
    }
}

/// Network namespaces of the daemon's processes; those of other users of this host don't count.
fn networks_of(daemon: &Daemon) -> usize {
    let own: BTreeSet<_> = descendants(daemon.pid())
        .iter()
        .filter_map(|process| std::fs::read_link(format!("/proc/{}/ns/net", process.pid)).ok())
        .collect();
    own.intersection(&namespaces("net")).count()
}

fn files(directory: &Path) -> BTreeSet<String> {
    let names = |folder: &Path| -> Vec<String> {
        let entries = std::fs::read_dir(folder).unwrap();
        entries
            .map(|entry| entry.unwrap().path().display().to_string())
            .collect()
    };
    names(directory)
        .into_iter()
        .chain(names(&directory.join("spool")))
        .collect()
}
