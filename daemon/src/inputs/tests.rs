use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use brig_jailer::units::ByteSize;
use brig_proto::v1::inputs_create_request::Part;
use brig_proto::v1::{self, InputSpec, InputsCreateRequest, Reason};
use sha2::{Digest, Sha256};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use super::room::Amount;
use super::upload::upload;
use super::*;
use crate::principal::Principal;
use crate::run::inputs::hex;
use crate::status::Problem;

const CHUNK: usize = 256 * 1024;

fn limits() -> InputLimits {
    InputLimits {
        size: ByteSize::from_mib(4),
        reserve: ByteSize::from_bytes(0),
        ..InputLimits::default()
    }
}

struct Rig {
    directory: tempfile::TempDir,
    inputs: Inputs,
}

impl Rig {
    fn open(limits: InputLimits) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let inputs = Inputs::open(&directory.path().join("inputs"), limits).unwrap();
        Self { directory, inputs }
    }

    /// The store as the next brigd finds it.
    fn again(&self) -> Inputs {
        Inputs::open(&self.folder(), limits()).unwrap()
    }

    fn folder(&self) -> PathBuf {
        self.directory.path().join("inputs")
    }

    /// Names of all files, those that are coming in behind `incoming/`.
    fn files(&self) -> Vec<String> {
        files(&self.folder())
    }

    async fn put(&self, spec: InputSpec, bytes: &[u8]) -> Result<Record, Problem> {
        put(&self.inputs, "default", spec, bytes).await
    }
}

fn files(folder: &Path) -> Vec<String> {
    let mut found: Vec<String> = names(&folder.join("files")).unwrap().into_keys().collect();
    let incoming = names(&folder.join("incoming")).unwrap();
    found.extend(incoming.into_keys().map(|name| format!("incoming/{name}")));
    found.sort();
    found
}

fn somebody(tenant: &str) -> Principal {
    Principal {
        tenant: tenant.to_owned(),
        class: "default".to_owned(),
        user: "somebody".to_owned(),
        roles: Vec::new(),
    }
}

fn named(name: &str) -> InputSpec {
    InputSpec {
        name: name.to_owned(),
        ..InputSpec::default()
    }
}

fn message(part: Part) -> Result<InputsCreateRequest, tonic::Status> {
    Ok(InputsCreateRequest { part: Some(part) })
}

async fn put(inputs: &Inputs, tenant: &str, spec: InputSpec, bytes: &[u8]) -> Result<Record, Problem> {
    let chunks: Vec<_> = bytes
        .chunks(CHUNK)
        .map(|chunk| message(Part::Data(chunk.to_vec().into())))
        .collect();
    upload(inputs, &somebody(tenant), spec, &mut tokio_stream::iter(chunks)).await
}

async fn read(opened: &Opened) -> Vec<u8> {
    let mut bytes = Vec::new();
    while (bytes.len() as u64) < opened.size() {
        bytes.extend(opened.read(bytes.len() as u64).await.unwrap());
    }
    bytes
}

fn id(text: &str) -> Id {
    Id::parse(text).unwrap()
}

fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// Reason and field of a refusal.
fn refused(result: Result<Record, Problem>) -> (Reason, String) {
    let problem = result.map(|record| panic!("stored: {record:?}")).unwrap_err();
    let field = match &problem {
        Problem::Fields(problems) => problems[0].field.clone(),
        _ => String::new(),
    };
    (problem.reason(), field)
}

#[tokio::test]
async fn what_is_stored_is_found_by_its_tenant_and_nobody_else() {
    let rig = Rig::open(limits());
    let bytes: Vec<u8> = (0..200_000_u32).flat_map(u32::to_le_bytes).collect();
    let spec = InputSpec {
        input_id: "sales".to_owned(),
        r#type: "text/csv".to_owned(),
        size_bytes: Some(bytes.len() as u64),
        sha256: sha256(&bytes),
        origin: Some(v1::Origin {
            user: "ann".to_owned(),
            ..v1::Origin::default()
        }),
        labels: [("a".to_owned(), "b".to_owned())].into(),
        ..named("Q3 sales.csv")
    };
    let record = rig.put(spec, &bytes).await.unwrap();
    assert_eq!((record.name.as_str(), record.user.as_str()), ("Q3 sales.csv", "ann"));
    assert_eq!((record.size, hex(&record.sha256)), (bytes.len() as u64, sha256(&bytes)));
    let kept = record.expire_time.duration_since(record.create_time).unwrap();
    assert_eq!(kept, Duration::from_secs(24 * 3600));
    assert_eq!(
        rig.inputs.find("default", &record.id).await.unwrap(),
        Some(record.clone())
    );
    assert_eq!(rig.inputs.find("other", &record.id).await.unwrap(), None);
    assert_eq!(rig.inputs.remove("other", &record.id).await.unwrap(), Removed::Never);
    let opened = rig.inputs.bytes(&record).await.unwrap().unwrap();
    assert_eq!(read(&opened).await, bytes);
    // The id is the tenant's own.
    let other = InputSpec {
        input_id: "sales".to_owned(),
        ..named("x")
    };
    let other = put(&rig.inputs, "other", other, b"1").await.unwrap();
    assert_eq!((other.user.as_str(), other.size), ("somebody", 1));
    assert_eq!(rig.files().len(), 2);
}

#[tokio::test]
async fn what_is_refused_names_its_field_and_leaves_nothing() {
    let rig = Rig::open(InputLimits {
        tenant_bytes: ByteSize::from_mib(5),
        ..limits()
    });
    let sized = |size| InputSpec {
        size_bytes: Some(size),
        ..named("a")
    };
    let field = |reason, field: &str| (reason, field.to_owned());
    let mib = vec![7; 1 << 20];
    assert_eq!(
        refused(rig.put(sized(2), b"1").await),
        field(Reason::DigestMismatch, "size_bytes")
    );
    assert_eq!(
        refused(rig.put(sized(1), b"22").await),
        field(Reason::DigestMismatch, "size_bytes")
    );
    assert_eq!(
        refused(rig.put(sized(5 << 20), b"").await),
        field(Reason::TooLarge, "size_bytes")
    );
    assert_eq!(
        refused(rig.put(named("a"), &mib.repeat(5)).await),
        field(Reason::TooLarge, "data")
    );
    let other = InputSpec {
        sha256: sha256(b"other"),
        ..named("a")
    };
    assert_eq!(
        refused(rig.put(other, b"1").await),
        field(Reason::DigestMismatch, "sha256")
    );
    for (spec, reason, wrong) in [
        (named(""), Reason::InvalidPath, "name"),
        (named("../a"), Reason::InvalidPath, "name"),
        (named(&"a".repeat(1025)), Reason::TooLarge, "name"),
        (
            InputSpec {
                input_id: "A".to_owned(),
                ..named("a")
            },
            Reason::InvalidId,
            "input_id",
        ),
        (
            InputSpec {
                retention: Some(prost_types::Duration {
                    seconds: 91 * 86_400,
                    nanos: 0,
                }),
                ..named("a")
            },
            Reason::InvalidValue,
            "retention",
        ),
        (
            InputSpec {
                sha256: "AB".to_owned(),
                ..named("a")
            },
            Reason::InvalidValue,
            "sha256",
        ),
    ] {
        assert_eq!(refused(rig.put(spec, b"1").await), field(reason, wrong));
    }
    assert_eq!(rig.files(), Vec::<String>::new());
    assert_eq!(rig.inputs.shared.room.of("default"), Amount::default());
    // All of the tenant's together.
    rig.put(named("a"), &mib.repeat(3)).await.unwrap();
    assert_eq!(
        refused(rig.put(named("b"), &mib.repeat(3)).await).0,
        Reason::StorageQuota
    );
    assert_eq!(refused(rig.put(sized(3 << 20), b"").await).0, Reason::StorageQuota);
    assert_eq!(rig.files().len(), 1);
    put(&rig.inputs, "other", named("b"), &mib.repeat(3)).await.unwrap();
}

#[tokio::test]
async fn space_that_must_stay_free_is_not_taken() {
    let rig = Rig::open(InputLimits {
        reserve: ByteSize::from_bytes(1 << 60),
        ..limits()
    });
    let problem = rig.put(named("a"), b"1").await.unwrap_err();
    assert_eq!(problem.reason(), Reason::StorageFull);
    assert!(problem.to_string().contains("(inputs.reserve)"), "{problem}");
    assert_eq!(rig.files(), Vec::<String>::new());
}

#[tokio::test]
async fn the_same_request_gets_the_first_answer_and_another_one_does_not() {
    let rig = Rig::open(limits());
    let spec = InputSpec {
        request_id: "r1".to_owned(),
        ..named("a")
    };
    let first = rig.put(spec.clone(), b"abc").await.unwrap();
    assert_eq!(rig.put(spec.clone(), b"abc").await.unwrap(), first);
    for other in [&b"abd"[..], b"ab", b"abcd", b""] {
        assert_eq!(refused(rig.put(spec.clone(), other).await).0, Reason::RequestIdReused);
    }
    let other = InputSpec {
        name: "b".to_owned(),
        ..spec.clone()
    };
    assert_eq!(refused(rig.put(other, b"abc").await).0, Reason::RequestIdReused);
    let elsewhere = put(&rig.inputs, "other", spec.clone(), b"abd").await.unwrap();
    assert_ne!(elsewhere.id, first.id);
    // It stays answered behind a removal and a restart, and the id is not given away.
    assert_eq!(rig.inputs.remove("default", &first.id).await.unwrap(), Removed::Now);
    assert_eq!(rig.inputs.remove("default", &first.id).await.unwrap(), Removed::Before);
    let again = rig.again();
    assert_eq!(put(&again, "default", spec, b"abc").await.unwrap(), first);
    let taken = InputSpec {
        input_id: first.id.to_string(),
        ..named("a")
    };
    assert_eq!(refused(put(&again, "default", taken, b"x").await).0, Reason::IdTaken);
    // A digest that was announced is as good as the content.
    let announced = InputSpec {
        request_id: "r2".to_owned(),
        sha256: sha256(b"abc"),
        ..named("a")
    };
    let second = put(&again, "default", announced.clone(), b"abc").await.unwrap();
    assert_eq!(put(&again, "default", announced, b"").await.unwrap(), second);
}

#[tokio::test]
async fn an_upload_that_stands_still_is_replaced_by_the_same_request() {
    let rig = Rig::open(limits());
    let spec = InputSpec {
        request_id: "r1".to_owned(),
        ..named("a")
    };
    let (sender, receiver) = mpsc::channel(4);
    sender.try_send(message(Part::Data(b"ab"[..].into()))).unwrap();
    let (inputs, given) = (rig.inputs.clone(), spec.clone());
    let first = tokio::spawn(async move {
        let mut stream = ReceiverStream::new(receiver);
        upload(&inputs, &somebody("default"), given, &mut stream).await
    });
    while rig.inputs.shared.room.of("default").uploads == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let other = InputSpec {
        name: "b".to_owned(),
        ..spec.clone()
    };
    assert_eq!(refused(rig.put(other, b"abc").await).0, Reason::RequestIdReused);
    let second = rig.put(spec, b"abc").await.unwrap();
    assert_eq!(refused(first.await.unwrap()).0, Reason::RequestReplaced);
    assert_eq!(rig.files(), [second.file]);
}

#[tokio::test]
async fn what_was_opened_stays_readable_when_its_record_goes() {
    let rig = Rig::open(limits());
    let record = rig.put(named("a"), b"abc").await.unwrap();
    let opened = rig.inputs.bytes(&record).await.unwrap().unwrap();
    rig.inputs.remove("default", &record.id).await.unwrap();
    assert_eq!(read(&opened).await, b"abc");
    assert!(rig.inputs.bytes(&record).await.unwrap().is_none());
    assert_eq!(rig.files(), Vec::<String>::new());
    assert_eq!(rig.inputs.shared.room.of("default"), Amount::default());
}

#[tokio::test]
async fn what_has_expired_is_not_found_and_then_swept() {
    let rig = Rig::open(limits());
    let short = InputSpec {
        retention: Some(prost_types::Duration {
            seconds: 0,
            nanos: 1_000_000,
        }),
        ..named("a")
    };
    let record = rig.put(short.clone(), b"abc").await.unwrap();
    let stays = rig.put(named("b"), b"d").await.unwrap();
    tokio::time::sleep(Duration::from_millis(5)).await;
    assert_eq!(rig.inputs.find("default", &record.id).await.unwrap(), None);
    assert!(rig.inputs.bytes(&record).await.unwrap().is_none());
    assert_eq!(rig.files().len(), 2, "nobody has swept");
    rig.inputs.shared.expire().unwrap();
    assert_eq!(rig.files(), std::slice::from_ref(&stays.file));
    let left = Amount {
        files: 1,
        bytes: 1,
        uploads: 0,
    };
    assert_eq!(rig.inputs.shared.room.of("default"), left);
    // The start sweeps too.
    rig.put(short, b"abc").await.unwrap();
    tokio::time::sleep(Duration::from_millis(5)).await;
    let again = rig.again();
    assert_eq!(rig.files(), [stays.file]);
    assert_eq!(again.shared.room.of("default"), left);
}

#[tokio::test]
async fn a_start_finds_what_was_stored_and_sweeps_what_was_not() {
    let rig = Rig::open(limits());
    let good = rig.put(named("a"), b"abc").await.unwrap();
    let torn = rig.put(named("b"), b"abc").await.unwrap();
    let lost = rig.put(named("c"), b"abc").await.unwrap();
    let at = |name: &str| rig.folder().join(name);
    std::fs::write(at("incoming/left"), "half").unwrap();
    std::fs::write(at("files/nobodys"), "whole").unwrap();
    std::fs::write(at("files").join(&torn.file), "a").unwrap();
    std::fs::remove_file(at("files").join(&lost.file)).unwrap();
    let again = rig.again();
    assert_eq!(rig.files(), std::slice::from_ref(&good.file));
    assert_eq!(again.find("default", &good.id).await.unwrap(), Some(good));
    for gone in [torn, lost] {
        assert_eq!(again.find("default", &gone.id).await.unwrap(), None);
    }
    assert_eq!(again.shared.room.of("default").files, 1);
}

#[tokio::test]
async fn a_list_is_newest_first_in_pages_that_hold_while_records_go() {
    let rig = Rig::open(limits());
    for number in 0..7 {
        let spec = InputSpec {
            input_id: format!("i{number}"),
            labels: [("odd".to_owned(), (number % 2).to_string())].into(),
            ..named("a")
        };
        rig.put(spec, b"x").await.unwrap();
        // Two in one millisecond go by their ids.
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    put(&rig.inputs, "other", named("a"), b"x").await.unwrap();
    let list = async |request| show::page(&rig.inputs, "default", request).await.unwrap();
    let ids = |page: &v1::InputsListResponse| -> Vec<String> {
        page.inputs.iter().map(|input| input.input_id.clone()).collect()
    };
    let mut request = v1::InputsListRequest {
        page_size: 3,
        ..v1::InputsListRequest::default()
    };
    let first = list(request.clone()).await;
    assert_eq!(ids(&first), ["i6", "i5", "i4"]);
    rig.inputs.remove("default", &id("i4")).await.unwrap();
    request.page_token = first.next_page_token;
    let second = list(request.clone()).await;
    assert_eq!(ids(&second), ["i3", "i2", "i1"]);
    request.page_token = second.next_page_token;
    let last = list(request.clone()).await;
    assert_eq!((ids(&last), last.next_page_token.as_str()), (vec!["i0".to_owned()], ""));
    let odd = v1::InputsListRequest {
        labels: [("odd".to_owned(), "1".to_owned())].into(),
        ..v1::InputsListRequest::default()
    };
    assert_eq!(ids(&list(odd).await), ["i5", "i3", "i1"]);
    request.page_token = "x".to_owned();
    assert!(show::page(&rig.inputs, "default", request).await.is_err());
}

/// Runs one of the tests below as a process of its own.
fn child(name: &str, folder: &Path, wrapper: &[&str]) -> Command {
    let exe = std::env::current_exe().unwrap();
    let mut command = match wrapper.split_first() {
        Some((program, arguments)) => {
            let mut command = Command::new(program);
            command.args(arguments).arg(exe);
            command
        }
        None => Command::new(exe),
    };
    command.args(["--exact", name, "--ignored", "--nocapture"]);
    command.env("BRIG_TEST_INPUTS", folder);
    command
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "run by the test below, which kills it"]
async fn uploads_until_it_is_killed() {
    let Ok(folder) = std::env::var("BRIG_TEST_INPUTS") else {
        return;
    };
    let inputs = Inputs::open(Path::new(&folder), limits()).unwrap();
    let count = AtomicU32::new(0);
    let lane = async |lane: usize| loop {
        let bytes = vec![u8::try_from(lane).unwrap(); (lane + 1) * 100_000];
        let record = put(&inputs, "default", named("a"), &bytes).await.unwrap();
        println!("stored {}", record.id);
        if count.fetch_add(1, Ordering::Relaxed).is_multiple_of(3) {
            println!("removing {}", record.id);
            inputs.remove("default", &record.id).await.unwrap();
            println!("removed {}", record.id);
        }
    };
    tokio::join!(lane(0), lane(1), lane(2));
}

#[tokio::test]
async fn kill_minus_nine_leaves_whole_files_with_records_and_nothing_else() {
    let directory = tempfile::tempdir().unwrap();
    let mut seen: Vec<String> = Vec::new();
    for round in 0..8 {
        let mut child = child("inputs::tests::uploads_until_it_is_killed", directory.path(), &[])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let from = seen.len();
        while seen.len() < from + 4 + round {
            seen.extend(lines.next().unwrap().ok().filter(|line| line.contains(" i")));
        }
        std::thread::sleep(Duration::from_micros(
            u64::from(uuid::Uuid::now_v7().as_bytes()[15]) * 40,
        ));
        child.kill().unwrap();
        child.wait().unwrap();
        seen.extend(lines.map_while(Result::ok).filter(|line| line.contains(" i")));
        let inputs = Inputs::open(directory.path(), limits()).unwrap();
        let here = inputs.shared.records().here().unwrap();
        let mut names: Vec<String> = here.iter().map(|(_, left)| left.file.clone()).collect();
        names.sort();
        assert_eq!(files(directory.path()), names);
        for (id, _) in &here {
            let record = inputs.find("default", id).await.unwrap().unwrap();
            let bytes = read(&inputs.bytes(&record).await.unwrap().unwrap()).await;
            assert_eq!(sha256(&bytes), hex(&record.sha256));
        }
        let told = |word: &str| -> Vec<Id> {
            let lines = seen.iter().filter_map(|line| line.strip_prefix(word));
            lines.map(|text| id(text.trim())).collect()
        };
        let (removing, removed) = (told("removing "), told("removed "));
        for stored in told("stored ") {
            let found = inputs.find("default", &stored).await.unwrap().is_some();
            assert!(
                found || removing.contains(&stored),
                "{stored} was told and is not there"
            );
            assert!(
                !(found && removed.contains(&stored)),
                "{stored} was removed and is there"
            );
        }
    }
    assert!(seen.len() >= 60);
}

#[tokio::test]
#[ignore = "run by the test below, on a small file system"]
async fn fills_its_file_system() {
    let Ok(folder) = std::env::var("BRIG_TEST_INPUTS") else {
        return;
    };
    let folder = Path::new(&folder).join("inputs");
    let inputs = Inputs::open(&folder, limits()).unwrap();
    let mib = vec![7; 1 << 20];
    let kept = put(&inputs, "default", named("a"), &mib).await.unwrap();
    let problem = put(&inputs, "default", named("b"), &mib.repeat(4)).await.unwrap_err();
    assert_eq!(problem.reason(), Reason::StorageFull, "{problem}");
    assert_eq!(files(&folder), [kept.file]);
    assert_eq!(inputs.shared.room.of("default").bytes, 1 << 20);
    // What the refused one had is free again.
    put(&inputs, "default", named("c"), &mib).await.unwrap();
    println!("all was checked");
}

#[test]
fn a_full_disk_is_told_and_nothing_stays_of_what_did_not_fit() {
    if !nix::unistd::Uid::effective().is_root() {
        return assert!(!std::env::var("BRIG_TEST_HAS").unwrap_or_default().contains("root"));
    }
    let directory = tempfile::tempdir().unwrap();
    let mount = "mount -t tmpfs -o size=4m brig-test \"$BRIG_TEST_INPUTS\" && exec \"$@\"";
    // A mount namespace of its own, which goes with the process.
    let wrapper = [
        "unshare",
        "--mount",
        "--propagation",
        "private",
        "sh",
        "-c",
        mount,
        "sh",
    ];
    let output = child("inputs::tests::fills_its_file_system", directory.path(), &wrapper)
        .output()
        .unwrap();
    let (out, err) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(
        output.status.success() && out.contains("all was checked"),
        "{out} {err}"
    );
}
