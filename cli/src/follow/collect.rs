//! Takes the artifacts of a call as they come and saves their bytes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use brig_proto::v1::{Artifact, ArtifactChunk};

use super::save::{OutDirectory, PartialFile, SaveError};

/// Where each saved artifact lies, or why it does not, by artifact id.
pub(crate) type Saved = BTreeMap<String, Result<PathBuf, String>>;

/// The artifacts of one call.
#[derive(Debug)]
pub(crate) struct Collector {
    out: OutDirectory,
    /// What was announced, and its file as far as bytes have come.
    announced: BTreeMap<String, (Artifact, Option<PartialFile>)>,
    saved: Saved,
}

impl Collector {
    /// Saves below this directory.
    pub(crate) fn open(directory: &Path) -> Result<Self, SaveError> {
        Ok(Self {
            out: OutDirectory::open(directory)?,
            announced: BTreeMap::new(),
            saved: Saved::new(),
        })
    }

    /// Takes note of an artifact whose bytes may follow.
    pub(crate) fn announce(&mut self, artifact: &Artifact) {
        self.announced
            .insert(artifact.artifact_id.clone(), (artifact.clone(), None));
    }

    /// Takes bytes; gives the artifact's id and where it lies when it is complete.
    ///
    /// What can't be saved is remembered, its partial file is removed and the rest of its bytes is ignored.
    pub(crate) fn take(&mut self, chunk: &ArtifactChunk) -> Option<&Result<PathBuf, String>> {
        let (artifact, partial) = self.announced.remove(&chunk.artifact_id)?;
        match add(&self.out, &artifact, partial, chunk) {
            Ok(Step::More(file)) => {
                self.announced.insert(chunk.artifact_id.clone(), (artifact, Some(file)));
                return None;
            }
            Ok(Step::Done(path)) => self.saved.insert(chunk.artifact_id.clone(), Ok(path)),
            Err(error) => self.saved.insert(chunk.artifact_id.clone(), Err(error.to_string())),
        };
        self.saved.get(&chunk.artifact_id)
    }

    /// Ends: files whose last bytes have not come are removed.
    pub(crate) fn finish(self) -> Saved {
        let mut saved = self.saved;
        let incomplete = self.announced.into_iter().filter(|(_, (_, partial))| partial.is_some());
        saved.extend(incomplete.map(|(id, _)| (id, Err("its bytes did not come to an end".to_owned()))));
        saved
    }
}

enum Step {
    More(PartialFile),
    Done(PathBuf),
}

fn add(
    out: &OutDirectory,
    artifact: &Artifact,
    partial: Option<PartialFile>,
    chunk: &ArtifactChunk,
) -> Result<Step, SaveError> {
    let path = if artifact.raw_path.is_empty() {
        artifact.path.as_bytes()
    } else {
        &artifact.raw_path[..]
    };
    let mut file = match partial {
        Some(file) => file,
        None => out.begin(path)?,
    };
    file.write(&chunk.data)?;
    if chunk.last {
        file.finish(artifact.size_bytes, &artifact.sha256).map(Step::Done)
    } else {
        Ok(Step::More(file))
    }
}
