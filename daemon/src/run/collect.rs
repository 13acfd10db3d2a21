//! What an execution left in its working directory, after all of its processes are gone: listed, copied, judged.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use brig_jailer::api::SessionUsage;
use brig_jailer::faults::{Point, point};
use brig_jailer::files::wire::{Change, Collect, Detail, Found, Inspect, Inspected, Limit, Skip, Space, Time, Walk};
use brig_jailer::ids::Id;
use brig_jailer::policy::{Class, Download, Handling};
use brig_proto::v1::{
    Artifact, ArtifactChange, ArtifactClass, ArtifactDetails, ArtifactHandling, NoticeKind, ReviewState, SessionLeft,
};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};
use tracing::error;

use crate::artifacts::{Guess, Judgement, Review, Spool, Stored};
use crate::files::{Files, FilesError, Listing};
use crate::names;
use crate::review::{ArtifactStore, ArtifactsError, Collected, Left, NOT_KEPT};
use crate::run::admit::{Conditions, Expected, new_id};
use crate::run::execution::Execution;
use crate::run::finish::Full;
use crate::run::gate::{self, Way};
use crate::run::inputs::hex;
use crate::run::log::Log;
use crate::run::scan::Scans;
use crate::run::start::Workspace;

/// How long a walk over the working directory may take.
const WALK_MS: u32 = 3_000;
/// How long the helper may look into one file, and into all of them.
const INSPECT_MS: u32 = 2_000;
const INSPECT_ALL: Duration = Duration::from_secs(20);
/// What a look may read beyond the file once: readers go back to what they have seen.
const INSPECT_AGAIN: u64 = 4 * 1024 * 1024;
/// How long the whole collection may take.
const COLLECT: Duration = Duration::from_secs(60);

/// Files are written by pages: where less than one is left, nothing fits any more. Blocks of a disk can be smaller.
const PAGE: u64 = 4096;

/// What was collected.
#[derive(Debug, Default)]
pub struct Collection {
    pub artifacts: Vec<Artifact>,
    pub missing: Vec<String>,
    /// How full the session's file system was, as far as the helper told.
    pub space: Space,
    /// What the session used then, if it is kept and the jailer told.
    pub counted: Option<SessionUsage>,
}

impl Collection {
    /// Bytes that the files take up, inputs and those outside of the working directory included.
    pub fn disk_bytes(&self, job: &Conditions) -> u64 {
        self.space.used_bytes.min(job.limits.disk_bytes)
    }

    /// What is left of the limits of a session that stays.
    pub fn left(&self, job: &Conditions) -> Option<SessionLeft> {
        let (counted, space, limits) = (self.counted?, self.space, &job.limits);
        let memory = limits.memory_bytes + job.policy.limits.workspace.tmpfs_bytes(limits.disk_bytes);
        // Not told where nothing was collected.
        (space.total_bytes > 0).then(|| SessionLeft {
            memory_bytes: memory.saturating_sub(counted.memory_bytes),
            disk_bytes: space.total_bytes.saturating_sub(space.used_bytes),
            inodes: (space.total_inodes > 0).then(|| space.total_inodes.saturating_sub(space.used_inodes)),
            processes: limits.pids.saturating_sub(counted.processes),
        })
    }

    /// Whether the file system was full, and of what.
    pub fn full(&self) -> Option<Full> {
        let space = self.space;
        if space.total_bytes > 0 && space.total_bytes.saturating_sub(space.used_bytes) < PAGE {
            Some(Full::Bytes)
        } else if space.total_inodes > 0 && space.used_inodes >= space.total_inodes {
            Some(Full::Inodes)
        } else {
            None
        }
    }
}

/// How far a walk over a session's files goes: as deep as artifacts may lie, and over all files that there can be.
pub fn walk(job: &Conditions) -> Walk {
    Walk {
        max_entries: u32::try_from(job.limits.inodes)
            .unwrap_or(u32::MAX)
            .min(brig_jailer::files::wire::ENTRIES_MAX),
        // A file in a directory of depth 8 has 9 parts.
        max_depth: u32::try_from(job.artifacts.depth + 1)
            .unwrap_or(u32::MAX)
            .min(brig_jailer::files::wire::DEPTH_MAX),
        time_ms: WALK_MS,
    }
}

/// Collects; whatever fails is told by a notice, and what was expected and is not there is in the list of the missing.
///
/// Of two executions at one time in one session each collects what the other changed too.
pub async fn collect(
    workspace: &mut Workspace,
    since: Option<Time>,
    job: &Conditions,
    execution: &Execution,
    keep: Keep<'_>,
) -> Collection {
    let (log, artifacts) = (&execution.log, keep.artifacts);
    let mut collection = Collection::default();
    let mut taken = Vec::new();
    let told = log.artifacts();
    let told_ids = told
        .iter()
        .filter_map(|told| Id::parse(&told.artifact_id).ok())
        .collect();
    let collecting = async {
        match workspace.helper().await {
            Ok(mut helper) => {
                let mut collector = Collector {
                    files: &mut helper,
                    since,
                    job,
                    keep,
                    log,
                    left: job.limits.disk_bytes,
                    looks: INSPECT_ALL,
                    told,
                    taken: &mut taken,
                    collection: &mut collection,
                };
                collector.run().await;
            }
            Err(error) => log.notice(
                NoticeKind::ArtifactSkipped,
                format!("files could not be listed: {error}"),
            ),
        }
    };
    if tokio::time::timeout(COLLECT, collecting).await.is_err() {
        log.notice(
            NoticeKind::ArtifactSkipped,
            "collecting took too long; not all files were looked at",
        );
    }
    let left = Left::by(execution, &job.policy);
    let artifacts = enter(artifacts, left, taken, told_ids, log).await;
    collection.artifacts.extend(artifacts);
    collection.artifacts.sort_by(|a, b| path_of(a).cmp(path_of(b)));
    collection.missing = missing(&job.expected, &collection.artifacts);
    collection
}

/// Where collected files go, and what looks at them on their way.
#[derive(Debug)]
pub struct Keep<'k> {
    /// On their way.
    pub spool: &'k Spool,
    /// To stay.
    pub artifacts: &'k ArtifactStore,
    /// None where the policy names no scanner.
    pub scans: Option<Scans>,
}

/// A file that was taken.
struct Taken {
    collected: Collected,
    /// Its way into the quarantine. Files are synced while others are taken, and together, which disks are better at.
    holding: Option<JoinHandle<Result<(), ArtifactsError>>>,
    /// Its bytes, if the caller wants them.
    bytes: Option<Arc<Stored>>,
}

impl Taken {
    /// Waits until it is in the quarantine, or is not; gives it with its bytes.
    async fn held(mut self, deadline: Instant) -> (Collected, Option<Arc<Stored>>) {
        if let Some(holding) = self.holding {
            self.collected.not_held = match timeout_at(deadline, holding).await {
                Ok(Ok(held)) => held.err().map(|error| error.to_string()),
                Ok(Err(error)) => Some(error.to_string()),
                Err(_late) => Some("the disk took too long".to_owned()),
            };
        }
        (self.collected, self.bytes)
    }
}

/// Enters what was taken, and tells of it: what is told is known, whatever happens.
async fn enter(artifacts: &ArtifactStore, left: Left, taken: Vec<Taken>, told: Vec<Id>, log: &Log) -> Vec<Artifact> {
    if taken.is_empty() {
        return Vec::new();
    }
    let deadline = Instant::now() + COLLECT;
    let (mut collected, mut bytes) = (Vec::new(), Vec::new());
    for taken in taken {
        let (one, its_bytes) = taken.held(deadline).await;
        collected.push(one);
        bytes.push(its_bytes);
    }
    let unknown: Vec<Artifact> = collected.iter().map(|collected| collected.shown.clone()).collect();
    let (shown, comments): (Vec<Artifact>, Vec<String>) = match artifacts.enter(left, collected, told).await {
        Ok(records) => records
            .into_iter()
            .map(|record| (record.shown_now(), record.comment))
            .unzip(),
        Err(error) => {
            error!(%error, "artifacts not entered");
            let why = "brigd could not record it".to_owned();
            unknown
                .into_iter()
                .map(|artifact| (not_kept(artifact), why.clone()))
                .unzip()
        }
    };
    for ((artifact, bytes), comment) in shown.iter().zip(bytes).zip(comments) {
        if artifact.flags.iter().any(|flag| flag == NOT_KEPT) {
            let path = shown_path(path_of(artifact));
            log.notice(NoticeKind::ArtifactSkipped, format!("{path}: is not kept: {comment}"));
        }
        // Of what an earlier brigd had entered, somebody may have rejected it since.
        let leaves = matches!(artifact.review(), ReviewState::NotNeeded | ReviewState::Approved);
        log.artifact(artifact.clone(), bytes.filter(|_| leaves));
        point(Point::DaemonCollecting);
    }
    shown
}

/// An artifact that nobody will find: nobody can approve it either.
fn not_kept(mut artifact: Artifact) -> Artifact {
    artifact.flags.push(NOT_KEPT.to_owned());
    if artifact.review() == ReviewState::Pending {
        artifact.review = ReviewState::Rejected.into();
    }
    artifact
}

struct Collector<'c> {
    files: &'c mut Files,
    since: Option<Time>,
    job: &'c Conditions,
    keep: Keep<'c>,
    log: &'c Log,
    /// What the files still to come may have together. All that the session can hold is enough for whatever was
    /// written; only holes, which cost the session nothing, come to more.
    left: u64,
    /// What is left of the time for looks into files.
    looks: Duration,
    /// What an earlier brigd collected of the same execution before it was gone.
    told: Vec<Artifact>,
    taken: &'c mut Vec<Taken>,
    collection: &'c mut Collection,
}

impl Collector<'_> {
    async fn run(&mut self) {
        let listing = match self.files.collect(self.request()).await {
            Ok(listing) => listing,
            Err(error) => return self.skipped(&format!("files could not be listed: {error}")),
        };
        self.tell_skipped(&listing);
        if let Some(limit) = listing.totals.truncated {
            let what = match limit {
                Limit::Entries => format!("{} names are the most", listing.totals.examined),
                Limit::Time => format!("{} s are the longest", WALK_MS / 1000),
            };
            self.skipped(&format!("there are more files than were looked at: {what}"));
        }
        self.collection.space = listing.totals.space;
        let mut found: Vec<Found> = listing
            .found
            .into_iter()
            .filter(|found| found.change != Change::Unchanged)
            .collect();
        found.sort_by(|a, b| a.path.cmp(&b.path));
        for found in found {
            if let Err(error) = self.take(&found).await {
                self.skipped(&format!("{}: {error}", shown_path(&found.path)));
            }
        }
    }

    fn request(&self) -> Collect {
        Collect {
            walk: walk(self.job),
            since: self.since,
            max_files: u32::try_from(self.job.artifacts.count).unwrap_or(u32::MAX),
            max_bytes_each: Some(self.job.artifacts.bytes_each),
            expected: self
                .job
                .expected
                .iter()
                .map(|expected| expected.path.as_str().as_bytes().to_vec())
                .collect(),
        }
    }

    async fn take(&mut self, found: &Found) -> Result<(), FilesError> {
        if let Some(told) = self.told.iter().find(|told| is_of(told, &found.path)) {
            self.left = self.left.saturating_sub(told.size_bytes);
            self.collection.artifacts.push(told.clone());
            return Ok(());
        }
        if found.path.len() > names::PATH_MAX {
            self.skipped("a path longer than 1,024 bytes");
            return Ok(());
        }
        if found.size > self.left {
            let all = self.job.limits.disk_bytes;
            let why = format!("is too large, all files together may have {all} bytes");
            self.skipped(&format!("{}: {why}", shown_path(&found.path)));
            return Ok(());
        }
        let most = self.job.artifacts.bytes_each.min(self.left);
        let mut file = self.keep.spool.create(most).await?;
        self.files.get(&found.path, most, &mut file).await?;
        let stored = Arc::new(file.finish()?);
        self.left -= stored.size();
        let rules = &self.job.policy.artifacts;
        let guess = Guess::new(rules, &found.path, stored.prefix(), stored.size());
        // Without a deeper look the judgement is stricter by itself.
        let inspected = self.look(&found.path, &stored, guess.media_type).await;
        let mut judgement = guess.judge(rules, inspected.as_ref());
        if let (Some(scanner), Some(scans)) = (&rules.scanner, &mut self.keep.scans) {
            judgement.scanned(scans.scan(&stored).await, scanner.found);
        }
        let id = new_id('a');
        let download = self.job.policy.files.download;
        let (holding, not_held) = match (download, judgement.review) {
            (Download::None, _) => (None, Some("the policy lets nothing leave".to_owned())),
            (_, Review::Rejected) => (None, Some("the policy rejects what its scanner finds".to_owned())),
            (Download::Any | Download::Artifacts, _) => {
                let (artifacts, id, stored) = (self.keep.artifacts.clone(), id.clone(), Arc::clone(&stored));
                let holding = tokio::spawn(async move { artifacts.hold(&id, &stored).await });
                (Some(holding), None)
            }
        };
        let collected = Collected {
            shown: artifact(&id, found, &stored, &judgement),
            id,
            sha256: stored.sha256(),
            review: judgement.review,
            not_held,
        };
        let leaves = gate::may_leave(download, Way::Artifact(judgement.review)).is_ok() && self.job.want_inline;
        self.taken.push(Taken {
            collected,
            holding,
            bytes: leaves.then_some(stored),
        });
        Ok(())
    }

    /// Lets the helper look into a file of which these bytes are stored.
    async fn look(&mut self, path: &[u8], stored: &Stored, media_type: &str) -> Option<Inspected> {
        let start = Instant::now();
        let left = u32::try_from(self.looks.as_millis()).unwrap_or(u32::MAX);
        let inspect = Inspect {
            path: path.to_vec(),
            media_type: media_type.to_owned(),
            size: stored.size(),
            sha256: stored.sha256(),
            max_bytes: stored.size() + INSPECT_AGAIN,
            time_ms: INSPECT_MS.min(left),
        };
        let inspected = self.files.inspect(inspect).await.ok();
        self.looks = self.looks.saturating_sub(start.elapsed());
        inspected
    }

    /// Tells what is not collected, and by which limit: what is over the number of files in one sentence, the rest name
    /// by name, as far as the helper tells names.
    fn tell_skipped(&self, listing: &Listing) {
        let (beyond, others): (Vec<_>, Vec<_>) = listing.skipped.iter().partition(|(_, why)| *why == Skip::TooMany);
        for (path, why) in others {
            self.skipped(&format!("{}: {}", shown_path(path), self.reason(*why)));
        }
        let untold = listing.totals.skipped.saturating_sub(listing.skipped.len() as u64);
        if let Some((first, _)) = beyond.first() {
            let (first, most) = (shown_path(first), self.job.artifacts.count);
            let more = match beyond.len() as u64 + untold {
                1 => first,
                several => format!("{first} and {} more files", several - 1),
            };
            self.skipped(&format!(
                "{more}: beyond {most} artifacts of one execution, limits.artifacts"
            ));
        } else if untold > 0 {
            self.skipped(&format!("{untold} more names are not collected either"));
        }
    }

    fn reason(&self, skip: Skip) -> String {
        let limits = self.job.artifacts;
        match skip {
            Skip::TooDeep => format!("lies deeper than {} folders, limits.artifact_depth", limits.depth),
            Skip::TooLarge => format!("is larger than {} bytes, limits.artifact_bytes", limits.bytes_each),
            Skip::TooMany => format!("is beyond {} artifacts, limits.artifacts", limits.count),
            Skip::Symlink => "is a symbolic link".to_owned(),
            Skip::Fifo => "is a FIFO".to_owned(),
            Skip::Socket => "is a socket".to_owned(),
            Skip::Device => "is a device".to_owned(),
            Skip::HardLink => "has more than one name (hard links)".to_owned(),
            Skip::OtherFileSystem => "lies on another file system".to_owned(),
            Skip::Directory => "is a directory".to_owned(),
            Skip::Unreadable => "can't be read".to_owned(),
        }
    }

    fn skipped(&self, message: &str) {
        self.log.notice(NoticeKind::ArtifactSkipped, message);
    }
}

/// Whether an artifact is the file of a path.
fn is_of(artifact: &Artifact, path: &[u8]) -> bool {
    path_of(artifact) == path
}

fn path_of(artifact: &Artifact) -> &[u8] {
    if artifact.raw_path.is_empty() {
        artifact.path.as_bytes()
    } else {
        &artifact.raw_path
    }
}

fn artifact(id: &Id, found: &Found, stored: &Stored, judgement: &Judgement) -> Artifact {
    let path = String::from_utf8_lossy(&found.path).into_owned();
    let raw_path = if path.as_bytes() == found.path {
        Vec::new()
    } else {
        found.path.clone()
    };
    Artifact {
        artifact_id: id.to_string(),
        path,
        raw_path: raw_path.into(),
        r#type: judgement.media_type.to_owned(),
        size_bytes: stored.size(),
        sha256: hex(&stored.sha256()),
        change: match found.change {
            Change::Created => ArtifactChange::Created,
            Change::Modified => ArtifactChange::Modified,
            Change::Unchanged => ArtifactChange::Unspecified,
        }
        .into(),
        class: class(judgement.class).into(),
        handling: match judgement.handling {
            Handling::Preview => ArtifactHandling::Preview,
            Handling::Download => ArtifactHandling::Download,
            Handling::Review => ArtifactHandling::Review,
        }
        .into(),
        review: judgement.review.shown().into(),
        flags: judgement.flags.iter().map(|flag| (*flag).to_owned()).collect(),
        details: Some(details(&judgement.details)),
    }
}

fn class(class: Class) -> ArtifactClass {
    match class {
        Class::Chart => ArtifactClass::Chart,
        Class::Data => ArtifactClass::Data,
        Class::Report => ArtifactClass::Report,
        Class::Code => ArtifactClass::Code,
        Class::Executable => ArtifactClass::Executable,
        Class::Archive => ArtifactClass::Archive,
        Class::Other => ArtifactClass::Other,
    }
}

fn details(claims: &[(String, Detail)]) -> ArtifactDetails {
    let numbers: BTreeMap<&str, u64> = claims
        .iter()
        .filter_map(|(name, detail)| match detail {
            Detail::Number(number) => Some((name.as_str(), *number)),
            Detail::Text(_) => None,
        })
        .collect();
    let number = |name| numbers.get(name).copied();
    let small = |name| number(name).and_then(|number| u32::try_from(number).ok());
    ArtifactDetails {
        width: small("width"),
        height: small("height"),
        // Of these the first one has the names of the columns.
        rows: number("records").or(number("rows").map(|lines| lines.saturating_sub(1))),
        columns: number("columns"),
        sheets: number("sheets"),
        pages: number("pages"),
        entries: number("entries"),
        unpacked_bytes: number("unpacked_bytes"),
        lines: number("lines"),
        ratio: number("ratio"),
    }
}

/// The expected outputs that are not among the artifacts as they were asked for.
fn missing(expected: &[Expected], artifacts: &[Artifact]) -> Vec<String> {
    let made = |expected: &&Expected| {
        artifacts.iter().any(|artifact| {
            artifact.path == expected.path.as_str()
                && expected
                    .media_type
                    .as_ref()
                    .is_none_or(|media_type| *media_type == artifact.r#type)
                && expected.max_bytes.is_none_or(|max| artifact.size_bytes <= max)
        })
    };
    expected
        .iter()
        .filter(|expected| !made(expected))
        .map(|expected| expected.path.to_string())
        .collect()
}

/// A path as a notice shows it: no byte of the guest can pass for something else.
fn shown_path(path: &[u8]) -> String {
    let text = path.escape_ascii().to_string();
    format!("\"{}\"", crate::output::cut_text(&text, 200))
}

#[cfg(test)]
mod tests;
