use std::os::unix::fs::PermissionsExt;

use brig_jailer::policy::Download;
use brig_jailer::units::{ByteSize, Span};
use brig_proto::{Bytes, v1};
use tempfile::TempDir;

use super::decide::Ruling;
use super::*;
use crate::artifacts::{Spool, Stored};
use crate::ledger::{Filter, Ledger, Most, Start};
use crate::run::admit::new_id;
use crate::status::Problem;

/// A store and a ledger in a directory of their own.
struct Rig {
    directory: TempDir,
    config: config::Artifacts,
    store: ArtifactStore,
    ledger: Ledger,
}

impl Rig {
    fn new(config: config::Artifacts) -> Self {
        let directory = tempfile::tempdir().unwrap();
        Self {
            store: ArtifactStore::open(&directory.path().join("artifacts"), &config).unwrap(),
            ledger: Ledger::open(&directory.path().join("ledger.db")).unwrap(),
            directory,
            config,
        }
    }

    /// The same after brigd has died.
    fn reopen(mut self) -> Self {
        self.store = ArtifactStore::open(&self.directory.path().join("artifacts"), &self.config).unwrap();
        self
    }

    async fn stored(&self, bytes: &'static [u8]) -> Arc<Stored> {
        let spool = Spool::new(self.directory.path(), 1 << 30, 100);
        let mut file = spool.create(1 << 30).await.unwrap();
        file.write(Bytes::from_static(bytes)).await.unwrap();
        Arc::new(file.finish().unwrap())
    }

    /// An artifact of the execution of that name.
    async fn keep(&self, execution: &str, review: Review, bytes: &'static [u8]) -> Record {
        let stored = self.stored(bytes).await;
        let id = new_id('a');
        self.store.hold(&id, &stored).await.unwrap();
        let collected = Collected {
            shown: v1::Artifact {
                artifact_id: id.to_string(),
                path: "a.txt".to_owned(),
                size_bytes: stored.size(),
                review: review.shown().into(),
                ..v1::Artifact::default()
            },
            id,
            sha256: stored.sha256(),
            review,
            not_held: None,
        };
        let entered = self.store.enter(left(execution), vec![collected], Vec::new()).await;
        entered.unwrap().remove(0)
    }

    async fn now(&self, record: &Record) -> Record {
        self.store.find("default", &record.id).await.unwrap().unwrap()
    }

    async fn decide(&self, record: &Record, review: Review, sha256: [u8; 32]) -> Result<Record, Problem> {
        self.store.decide(&self.ledger, ruling(record, review, sha256)).await
    }

    async fn bytes(&self, record: &Record) -> Option<Vec<u8>> {
        let record = self.now(record).await;
        let size = record.shown.size_bytes;
        let mut opened = self.store.read(record, 0..size).await.unwrap()?;
        let mut all = Vec::new();
        loop {
            let bytes = opened.next().await.unwrap();
            if bytes.is_empty() {
                return Some(all);
            }
            all.extend_from_slice(&bytes);
        }
    }

    /// Names of all files below a folder.
    fn files(&self, folder: &str) -> Vec<String> {
        let mut found = Vec::new();
        let mut folders = vec![self.directory.path().join("artifacts").join(folder)];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
                if entry.file_type().unwrap().is_dir() {
                    folders.push(entry.path());
                } else {
                    found.push(entry.file_name().into_string().unwrap());
                }
            }
        }
        found
    }

    async fn reviews(&self) -> usize {
        let filter = Filter {
            kinds: vec!["reviewed"],
            ..Filter::default()
        };
        let most = Most {
            entries: 100,
            bytes: 1 << 20,
        };
        let batch = self.ledger.batch(filter, Start::After(0), most).await.unwrap();
        batch.entries.len()
    }
}

fn left(execution: &str) -> Left {
    Left {
        source: Source {
            tenant: "default".to_owned(),
            execution: Id::parse(execution).unwrap(),
            session: Id::parse("s1").unwrap(),
            user: "ann".to_owned(),
            origin: v1::Origin::default(),
            policy: "data@0".to_owned(),
        },
        labels: [("team".to_owned(), "blue".to_owned())].into(),
        download: Download::Artifacts,
        retention: std::time::Duration::from_secs(60),
        known: std::time::Duration::from_secs(3600),
    }
}

fn ruling(record: &Record, review: Review, sha256: [u8; 32]) -> Ruling {
    Ruling {
        tenant: "default".to_owned(),
        artifact: record.id.clone(),
        review,
        sha256: Some(sha256),
        reviewer: "default/rita".to_owned(),
        user: "rita".to_owned(),
        comment: "read it".to_owned(),
        request: None,
    }
}

fn refused<T>(result: Result<T, Problem>) -> String {
    result.map(|_| ()).unwrap_err().reason().name().to_owned()
}

#[tokio::test]
async fn what_is_approved_goes_into_the_store_and_what_is_rejected_goes() {
    let rig = Rig::new(config::Artifacts::default());
    let good = rig.keep("e1", Review::Pending, b"good").await;
    let bad = rig.keep("e2", Review::Pending, b"bad").await;
    rig.store.tidy().await.unwrap();
    assert_eq!((rig.files("quarantine").len(), rig.files("store").len()), (2, 0));
    assert_eq!(
        refused(rig.decide(&good, Review::Approved, bad.sha256).await),
        "NOT_PENDING"
    );
    let approved = rig.decide(&good, Review::Approved, good.sha256).await.unwrap();
    assert_eq!((approved.review, approved.place), (Review::Approved, Place::Held));
    assert_eq!(rig.bytes(&good).await.unwrap(), b"good");
    let rejected = rig.decide(&bad, Review::Rejected, [0; 32]).await.unwrap();
    assert_eq!((rejected.review, rejected.place), (Review::Rejected, Place::Gone));
    assert_eq!(rig.bytes(&bad).await, None);
    rig.store.tidy().await.unwrap();
    assert!(rig.files("quarantine").is_empty());
    assert_eq!(rig.files("store"), [crate::run::inputs::hex(&good.sha256)]);
    assert_eq!(rig.now(&good).await.place, Place::Store);
    assert_eq!(rig.bytes(&good).await.unwrap(), b"good");
    for record in [&good, &bad] {
        assert_eq!(
            refused(rig.decide(record, Review::Rejected, [0; 32]).await),
            "NOT_PENDING"
        );
    }
    assert_eq!(rig.reviews().await, 2);
}

#[tokio::test]
async fn a_decision_that_was_on_its_way_is_brought_to_its_end_once() {
    let rig = Rig::new(config::Artifacts::default());
    let record = rig.keep("e1", Review::Pending, b"good").await;
    let decision = record::Decision {
        review: "approved".to_owned(),
        reviewer: "default/rita".to_owned(),
        user: "rita".to_owned(),
        comment: String::new(),
        request: None,
        time_ms: 1_700_000_000_000,
    };
    let begun = rig
        .store
        .shared
        .records()
        .begin("default", &record.id, &decision)
        .unwrap();
    assert!(matches!(begun, records::Begun::Deciding(_)));
    // Nobody else decides meanwhile.
    assert_eq!(
        refused(rig.decide(&record, Review::Rejected, [0; 32]).await),
        "NOT_PENDING"
    );
    let rig = rig.reopen();
    rig.store.recover(&rig.ledger).await.unwrap();
    rig.store.recover(&rig.ledger).await.unwrap();
    assert_eq!(rig.now(&record).await.review, Review::Approved);
    assert_eq!(rig.reviews().await, 1);
}

#[tokio::test]
async fn what_nobody_names_is_swept_and_what_lost_its_bytes_is_known_to_have() {
    let rig = Rig::new(config::Artifacts::default());
    let kept = rig.keep("e1", Review::Pending, b"kept").await;
    let lost = rig.keep("e2", Review::Pending, b"lost").await;
    let quarantine = rig.store.shared.quarantine();
    std::fs::write(quarantine.join("stray"), b"x").unwrap();
    std::fs::write(quarantine.join(lost.id.as_str()), b"los").unwrap();
    let tenant = rig.directory.path().join("artifacts/store/default/ab");
    std::fs::create_dir_all(&tenant).unwrap();
    std::fs::write(tenant.join("abcd#1"), b"half").unwrap();
    let rig = rig.reopen();
    assert_eq!(rig.files("quarantine"), [kept.id.to_string()]);
    assert!(rig.files("store").is_empty());
    assert_eq!(rig.now(&lost).await.place, Place::Gone);
    assert_eq!(
        refused(rig.decide(&lost, Review::Approved, lost.sha256).await),
        "NOT_PENDING"
    );
}

#[tokio::test]
async fn equal_bytes_are_stored_once_and_stay_until_the_last_artifact_goes() {
    let rig = Rig::new(config::Artifacts::default());
    let first = rig.keep("e1", Review::NotNeeded, b"same").await;
    let second = rig.keep("e2", Review::NotNeeded, b"same").await;
    rig.store.tidy().await.unwrap();
    assert_eq!(rig.files("store").len(), 1);
    let of = |execution: &str| Which {
        tenant: Some("default".to_owned()),
        execution: Some(execution.to_owned()),
        ..Which::default()
    };
    assert_eq!(rig.store.erase(of("e1"), true).await.unwrap(), 1);
    assert_eq!(rig.store.erase(of("e1"), false).await.unwrap(), 1);
    rig.store.tidy().await.unwrap();
    assert!(rig.store.find("default", &first.id).await.unwrap().is_none());
    assert_eq!(rig.bytes(&second).await.unwrap(), b"same");
    assert_eq!(rig.store.erase(of("e2"), false).await.unwrap(), 1);
    rig.store.tidy().await.unwrap();
    assert!(rig.files("store").is_empty());
}

#[tokio::test]
async fn what_has_expired_goes_and_a_review_nobody_made_is_a_no() {
    let rig = Rig::new(config::Artifacts::default());
    let [pending, free] = [
        rig.keep("e1", Review::Pending, b"pending").await,
        rig.keep("e2", Review::NotNeeded, b"free").await,
    ];
    rig.store.tidy().await.unwrap();
    assert_eq!(rig.store.sweep(&rig.ledger).await.unwrap(), keeper::Swept::default());
    let old = "UPDATE artifacts SET expire_ms = 1";
    let folder = rig.directory.path().join("artifacts/records.db");
    rusqlite::Connection::open(folder).unwrap().execute_batch(old).unwrap();
    let due = rig.store.count_due().await.unwrap();
    assert_eq!(
        ((due.expired.files, due.expired.bytes), (due.kept.files, due.kept.bytes)),
        ((1, 7), (1, 4))
    );
    assert_eq!(rig.store.sweep(&rig.ledger).await.unwrap(), due);
    rig.store.tidy().await.unwrap();
    let (pending, free) = (rig.now(&pending).await, rig.now(&free).await);
    assert_eq!((pending.review, pending.place), (Review::Expired, Place::Gone));
    assert_eq!((free.review, free.place), (Review::NotNeeded, Place::Gone));
    assert!(rig.files("quarantine").is_empty() && rig.files("store").is_empty());
    assert_eq!(rig.reviews().await, 1);
}

#[tokio::test]
async fn what_there_is_no_room_for_is_told_and_can_not_be_approved() {
    let rig = Rig::new(config::Artifacts {
        pending_files: 1,
        tenant_bytes: ByteSize::from_bytes(4),
        ..config::Artifacts::default()
    });
    let first = rig.keep("e1", Review::Pending, b"first").await;
    let second = rig.keep("e2", Review::Pending, b"second").await;
    assert_eq!((first.review, second.review), (Review::Pending, Review::Rejected));
    assert_eq!(second.shown.flags, ["not_kept"]);
    assert!(second.comment.contains("artifacts.pending_files"), "{}", second.comment);
    assert_eq!(rig.files("quarantine").len(), 1);
    let large = rig.keep("e3", Review::NotNeeded, b"large").await;
    assert_eq!((large.review, large.place), (Review::NotNeeded, Place::Gone));
    assert_eq!(
        refused(rig.decide(&first, Review::Approved, first.sha256).await),
        "STORAGE_QUOTA"
    );
    assert_eq!(rig.now(&first).await.review, Review::Pending);
}

#[tokio::test]
async fn bytes_that_were_changed_are_never_approved_nor_stored() {
    let rig = Rig::new(config::Artifacts::default());
    let pending = rig.keep("e1", Review::Pending, b"good").await;
    let free = rig.keep("e2", Review::NotNeeded, b"free").await;
    for record in [&pending, &free] {
        std::fs::write(rig.store.shared.quarantine().join(record.id.as_str()), b"evil").unwrap();
    }
    assert_eq!(
        refused(rig.decide(&pending, Review::Approved, pending.sha256).await),
        "INTERNAL"
    );
    rig.store.tidy().await.unwrap();
    assert!(rig.files("store").is_empty());
    assert_eq!(rig.now(&free).await.place, Place::Gone);
}

#[tokio::test]
async fn a_second_collection_replaces_what_nobody_was_told_of() {
    let rig = Rig::new(config::Artifacts::default());
    let told = rig.keep("e1", Review::Pending, b"told").await;
    let stored = rig.stored(b"new").await;
    let id = new_id('a');
    rig.store.hold(&id, &stored).await.unwrap();
    let collected = Collected {
        shown: v1::Artifact {
            path: "b.txt".to_owned(),
            size_bytes: stored.size(),
            ..v1::Artifact::default()
        },
        id: id.clone(),
        sha256: stored.sha256(),
        review: Review::NotNeeded,
        not_held: None,
    };
    let again = rig.store.enter(left("e1"), vec![collected], Vec::new()).await.unwrap();
    assert_eq!(again[0].id, id);
    assert!(rig.store.find("default", &told.id).await.unwrap().is_none());
    assert_eq!(rig.files("quarantine"), [id.to_string()]);
}

#[tokio::test]
async fn a_second_collection_finds_the_same_file_under_its_id_with_what_was_decided() {
    let rig = Rig::new(config::Artifacts::default());
    let approved = rig.keep("e1", Review::Pending, b"same").await;
    rig.decide(&approved, Review::Approved, approved.sha256).await.unwrap();
    let again = rig.keep("e1", Review::Pending, b"same").await;
    assert_eq!((&again.id, again.review), (&approved.id, Review::Approved));
    assert_eq!(again.shown_now().review(), v1::ReviewState::Approved);
    assert_eq!(rig.files("quarantine"), [approved.id.to_string()]);
}

#[tokio::test]
async fn a_second_collection_of_another_file_leaves_what_was_decided() {
    let rig = Rig::new(config::Artifacts::default());
    let approved = rig.keep("e1", Review::Pending, b"earlier").await;
    rig.decide(&approved, Review::Approved, approved.sha256).await.unwrap();
    let other = rig.keep("e1", Review::Pending, b"later").await;
    assert_ne!(other.id, approved.id);
    assert_eq!(rig.now(&approved).await.review, Review::Approved);
    assert_eq!(rig.bytes(&approved).await.unwrap(), b"earlier");
    assert_eq!(rig.now(&other).await.review, Review::Pending);
}

#[tokio::test]
async fn of_equal_files_of_a_session_the_last_decision_counts() {
    let rig = Rig::new(config::Artifacts::default());
    let review = async |rig: &Rig, record: &Record| {
        let found = rig
            .store
            .review_of(&record.source.session, b"a.txt", record.sha256)
            .await;
        found.unwrap()
    };
    let first = rig.keep("e1", Review::Pending, b"same").await;
    assert_eq!(review(&rig, &first).await, Some(Review::Pending));
    rig.decide(&first, Review::Approved, first.sha256).await.unwrap();
    rig.keep("e2", Review::Pending, b"same").await;
    assert_eq!(review(&rig, &first).await, Some(Review::Approved));
    let other = Record {
        sha256: [1; 32],
        ..first
    };
    assert_eq!(review(&rig, &other).await, None);
}

#[test]
fn credentials_are_read_from_a_file_that_not_everybody_reads_and_are_never_told() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("credentials.toml");
    let bucket = config::Bucket {
        bucket: "b".to_owned(),
        endpoint: "http://127.0.0.1:1".to_owned(),
        region: "us-east-1".to_owned(),
        credentials: file.clone(),
        ..config::Bucket::default()
    };
    let config = config::Artifacts {
        s3: bucket,
        review: Span::from_secs(1),
        ..config::Artifacts::default()
    };
    let open = || ArtifactStore::open(&directory.path().join("artifacts"), &config).map(|_| ());
    let refused = |text: &str, mode: u32| {
        std::fs::write(&file, text).unwrap();
        std::fs::set_permissions(&file, PermissionsExt::from_mode(mode)).unwrap();
        open().unwrap_err().to_string()
    };
    let good = "access_key_id = \"id\"\nsecret_access_key = \"hush\"\n";
    assert!(refused(good, 0o644).contains("everybody"), "{}", refused(good, 0o644));
    let broken = refused("access_key_id = \"id\"\nsecret_access_key = hush\n", 0o600);
    assert!(broken.contains("TOML") && !broken.contains("hush"), "{broken}");
    std::fs::write(&file, good).unwrap();
    open().unwrap();
}
