//! The control groups of sessions, as whoever runs Brig sees them on the host.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use brig_tests::processes::groups;

/// The groups that those of a daemon's sessions are made in, one in each hierarchy.
#[derive(Debug)]
pub(crate) struct Groups(Vec<PathBuf>);

impl Groups {
    /// Finds them by a session that lives.
    pub(crate) fn of(session: &str) -> anyhow::Result<Self> {
        let found = groups(&[session.to_owned()]);
        ensure!(!found.is_empty(), "the session {session} has no control group");
        let parents = found.iter().filter_map(|group| {
            let parent = group.parent()?;
            let place = if keeper(parent).is_some() {
                parent.parent()?
            } else {
                parent
            };
            Some(place.to_owned())
        });
        Ok(Self(parents.collect()))
    }

    /// Whether anything is left of a session.
    pub(crate) fn has(&self, session: &str) -> bool {
        self.of_session(session).next().is_some()
    }

    /// The groups of a session, one in each hierarchy: beside others, or in the dock of a zygote.
    fn of_session<'g>(&'g self, session: &'g str) -> impl Iterator<Item = PathBuf> + 'g {
        self.0.iter().filter_map(move |parent| {
            let docks = folders(parent).filter(|folder| keeper(folder).is_some());
            let mut places = std::iter::once(parent.clone()).chain(docks);
            places.find_map(|place| Some(place.join(session)).filter(|group| group.exists()))
        })
    }

    /// The sessions of which anything is left, but for those of zygotes.
    pub(crate) fn sessions(&self) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        for folder in self.0.iter().flat_map(|parent| folders(parent)) {
            match keeper(&folder) {
                Some(keeper) => found.extend(
                    folders(&folder)
                        .map(|inner| name(&inner))
                        .filter(|name| *name != keeper),
                ),
                None => drop(found.insert(name(&folder))),
            }
        }
        found
    }

    /// The processes of a session.
    pub(crate) fn processes(&self, session: &str) -> anyhow::Result<BTreeSet<u32>> {
        let mut found = BTreeSet::new();
        for group in self.of_session(session) {
            collect(&group, &mut found)?;
        }
        Ok(found)
    }

    /// The processes of sessions, and what the control group of each is charged with, in bytes.
    pub(crate) fn memory_of<'s>(
        &self,
        sessions: impl IntoIterator<Item = &'s String>,
    ) -> anyhow::Result<BTreeMap<String, (BTreeSet<u32>, u64)>> {
        let mut found = BTreeMap::new();
        for session in sessions {
            let files = ["memory.current", "memory.usage_in_bytes"];
            let places = self
                .of_session(session)
                .flat_map(|group| files.map(|file| group.join(file)));
            let charged = places.filter_map(|file| fs::read_to_string(file).ok()).next();
            let charged = charged.with_context(|| format!("no memory is counted for {session}"))?;
            let charged = charged.trim().parse()?;
            found.insert(session.clone(), (self.processes(session)?, charged));
        }
        Ok(found)
    }
}

fn folders(group: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(group).into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.path())
}

fn name(folder: &Path) -> String {
    folder.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// The session of the zygote whose dock this is.
fn keeper(folder: &Path) -> Option<String> {
    name(folder).strip_prefix("dock-").map(str::to_owned)
}

fn collect(group: &Path, into: &mut BTreeSet<u32>) -> anyhow::Result<()> {
    let Ok(entries) = fs::read_dir(group) else {
        return Ok(());
    };
    let text = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    into.extend(text.lines().filter_map(|line| line.parse::<u32>().ok()));
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            collect(&entry.path(), into)?;
        }
    }
    Ok(())
}
