//! Artifacts in a bucket of a server that speaks S3, which may be away.

use std::os::unix::fs::{PermissionsExt, chown};

use brig_tests::bucket::{self, BUCKET, Server};
use brig_tests::services::{Setup, UID};
use brig_tests::spec::small;
use brig_tests::{DEADLINE, Services, artifacts, eventually, host, http};
use hyper::Method;

use crate::links::link;
use crate::{artifact, id, sha256};

/// More than one part of an upload. Source: `PART` of daemon/src/review/objects.rs.
const LARGE: usize = 20 << 20;

fn configured(port: u16, credentials: &std::path::Path) -> Setup {
    let table = format!(
        "\n[artifacts.s3]\nbucket = {BUCKET:?}\nendpoint = \"http://127.0.0.1:{port}\"\nregion = \"us-east-1\"\n\
         prefix = \"brig/\"\ncredentials = {credentials:?}\n"
    );
    Setup {
        limits: table,
        links: "127.0.0.1:0",
        ..Setup::default()
    }
}

fn await_empty_quarantine(services: &Services) {
    let quarantine = services.directory().join("state/artifacts/quarantine");
    eventually("the quarantine is empty", *DEADLINE, || {
        match std::fs::read_dir(&quarantine).unwrap().count() {
            0 => Ok(()),
            left => Err(left),
        }
    });
}

#[test]
fn artifacts_go_into_a_bucket_once_it_is_there_and_come_out_of_it() {
    if !host::can_run() {
        return;
    }
    let Some(program) = bucket::program() else { return };
    let folder = tempfile::Builder::new().prefix("brig-s3-").tempdir().unwrap();
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let credentials = folder.path().join("credentials.toml");
    std::fs::write(
        &credentials,
        "access_key_id = \"key\"\nsecret_access_key = \"canary-secret\"\n",
    )
    .unwrap();
    std::fs::set_permissions(&credentials, PermissionsExt::from_mode(0o600)).unwrap();
    chown(&credentials, Some(UID), Some(UID)).unwrap();
    let port = bucket::free_port();
    let services = Services::start(configured(port, &credentials)).unwrap();
    let source = format!(
        "open('tool.py', 'w').write('print(1)\\n')\nopen('out.csv', 'w').write('a,b\\n' * {})",
        LARGE / 4
    );
    services.run(small(&source)).expect_success();
    let (pending, large) = (artifact(&services, "tool.py"), artifact(&services, "out.csv"));
    // Nothing waits for the store: a decision counts at once, and bytes come from where they are.
    let hash = sha256(b"print(1)\n");
    artifacts::approve(&services, id(&pending), &hash).unwrap();
    assert_eq!(artifacts::bytes(&services, id(&pending)).unwrap(), b"print(1)\n");
    let server = Server::start(&program, port);
    await_empty_quarantine(&services);
    let object = format!("brig/default/{}/{hash}", &hash[..2]);
    assert_eq!(server.object(&object).unwrap(), b"print(1)\n");
    assert_eq!(artifacts::bytes(&services, id(&pending)).unwrap(), b"print(1)\n");
    let bytes = artifacts::bytes(&services, id(&large)).unwrap();
    assert_eq!(
        (bytes.len(), sha256(&bytes)),
        (LARGE, large.artifact.clone().unwrap().sha256)
    );
    let part = brig_proto::v1::ArtifactsDownloadRequest {
        artifact_id: id(&large).to_owned(),
        offset: (LARGE - 3) as u64,
        ..Default::default()
    };
    assert_eq!(artifacts::download(&services, part).unwrap(), b",b\n");
    let url = link(&services, "out.csv");
    let whole = http::get(&services, &url);
    assert_eq!((whole.status, whole.body == bytes), (200, true));
    let part = http::ask(&services, Method::GET, &url, &[("range", "bytes=-3")]);
    assert_eq!((part.status, part.body.as_slice()), (206, &b",b\n"[..]));
    // What must be reviewed never leaves the host.
    services
        .run(small("open('other.py', 'w').write('print(2)\\n')"))
        .expect_success();
    services
        .run(small("open('next.csv', 'w').write('x\\n')"))
        .expect_success();
    let next = sha256(b"x\n");
    eventually("the next one is stored", *DEADLINE, || {
        let listed = server.list();
        if listed.contains(&next) { Ok(()) } else { Err(listed) }
    });
    assert!(!server.list().contains(&sha256(b"print(2)\n")));
    // Erased is erased there too.
    let erase = brig_proto::v1::LedgerEraseRequest {
        execution_id: pending.execution_id.clone(),
        comment: "asked".to_owned(),
        ..Default::default()
    };
    services.ask(services.ledger().erase(erase)).unwrap();
    eventually("the object is gone", *DEADLINE, || match server.object(&object) {
        None => Ok(()),
        Some(_) => Err(server.list()),
    });
    assert_eq!(http::get(&services, &url).status, 410);
    let url = link(&services, "next.csv");
    drop(server);
    let away = http::get(&services, &url);
    assert_eq!((away.status, away.header("retry-after")), (503, "1"));
    let refused = artifacts::bytes(&services, id(&artifact(&services, "next.csv"))).unwrap_err();
    assert_eq!(refused.reason, "STORE_UNAVAILABLE", "{refused:?}");
    assert!(!services.log(brig_tests::Service::Daemon).contains("canary-secret"));
}
