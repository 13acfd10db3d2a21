//! Links: who can make them, and what those get who follow one, over HTTP and without a credential.

use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, SystemTime};

use brig_proto::v1::{
    ArtifactsLinkRequest, ArtifactsLinkResponse, ArtifactsSweepRequest, ExecutionSpec, LedgerEntryKind,
    LedgerEraseRequest, LedgerListRequest, Origin,
};
use brig_tests::http::{self, Answer};
use brig_tests::policies::Policies;
use brig_tests::services::Setup;
use brig_tests::spec::{sh, span};
use brig_tests::{Client, DEADLINE, Daemon, Refused, Service, Services, artifacts, daemon, eventually};
use hyper::Method;
use rusqlite::Connection;
use rustix::process::Signal;

use crate::{artifact, id, sha256};

/// Links at a port that is free.
pub(crate) const ON: &str = "[links]\nlisten = \"127.0.0.1:0\"\n";

pub(crate) fn link_as(
    client: &Client,
    artifact: &str,
    change: ArtifactsLinkRequest,
) -> Result<ArtifactsLinkResponse, Refused> {
    let request = ArtifactsLinkRequest {
        artifact_id: artifact.to_owned(),
        ..change
    };
    client.ask(client.artifacts().link(request))
}

pub(crate) fn link(client: &Client, path: &str) -> String {
    let artifact = artifact(client, path);
    link_as(client, id(&artifact), ArtifactsLinkRequest::default())
        .unwrap()
        .url
}

fn lasting(lifetime: Duration) -> ArtifactsLinkRequest {
    ArtifactsLinkRequest {
        lifetime: Some(span(lifetime)),
        ..ArtifactsLinkRequest::default()
    }
}

/// Has `ann` leave files by a script.
pub(crate) fn leave(client: &Client, script: &str) {
    let spec = ExecutionSpec {
        origin: Some(Origin {
            user: "ann".to_owned(),
            ..Origin::default()
        }),
        ..sh(script)
    };
    client.run(spec).expect_success();
}

fn records(daemon: &Daemon) -> Connection {
    Connection::open(daemon.directory().join("artifacts/records.db")).unwrap()
}

/// All that an answer says but for when it was given.
pub(crate) fn without_date(answer: Answer) -> (u16, Vec<(String, String)>, String) {
    let headers = answer.headers.iter().filter(|(name, _)| *name != "date");
    let mut headers: Vec<_> = headers
        .map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned()))
        .collect();
    headers.sort();
    (answer.status, headers, String::from_utf8(answer.body).unwrap())
}

const GUARDS: [(&str, &str); 6] = [
    ("cache-control", "private, no-store"),
    ("content-security-policy", "sandbox; default-src 'none'"),
    ("cross-origin-resource-policy", "same-site"),
    ("referrer-policy", "no-referrer"),
    ("x-content-type-options", "nosniff"),
    ("x-robots-tag", "noindex"),
];

pub(crate) fn guarded(headers: &[(&str, &str)]) -> Vec<(String, String)> {
    let all = headers.iter().chain(&GUARDS);
    let mut all: Vec<_> = all
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect();
    all.sort();
    all
}

#[test]
fn a_link_hands_out_what_may_leave_to_who_has_no_credential() {
    let Some(daemon) = Daemon::start_configured(ON) else {
        return;
    };
    leave(&daemon, "printf 'a,b\\n1,2\\n' > out.csv");
    let record = artifact(&daemon, "out.csv");
    let made = link_as(&daemon, id(&record), ArtifactsLinkRequest::default()).unwrap();
    let left = SystemTime::try_from(made.expire_time.unwrap())
        .unwrap()
        .duration_since(SystemTime::now());
    assert!((270..=300).contains(&left.unwrap().as_secs()));
    let etag = format!("\"{}\"", sha256(b"a,b\n1,2\n"));
    let (status, headers, body) = without_date(http::get(&daemon, &made.url));
    let expected = guarded(&[
        ("accept-ranges", "bytes"),
        ("content-disposition", "attachment; filename=\"out.csv\""),
        ("content-length", "8"),
        ("content-type", "text/csv; charset=utf-8"),
        ("etag", &etag),
    ]);
    assert_eq!((status, headers, body.as_str()), (200, expected.clone(), "a,b\n1,2\n"));
    let head = without_date(http::ask(&daemon, Method::HEAD, &made.url, &[]));
    assert_eq!(head, (200, expected, String::new()));
    // Whoever sees the address learns nothing from it, and each is another one.
    let token = made.url.rsplit('/').next().unwrap();
    assert!(
        token.len() > 100
            && token
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
    );
    assert!(daemon.log().contains("artifact downloaded by link"), "{}", daemon.log());
    assert!(!daemon.log().contains(token));
    let features = daemon.host().features;
    assert!(features.iter().any(|feature| feature == "artifacts.links"));
    // That it was made is on record.
    let request = LedgerListRequest {
        kinds: vec![LedgerEntryKind::Downloaded.into()],
        ..LedgerListRequest::default()
    };
    let entries = daemon.ask(daemon.ledger().list(request)).unwrap().entries;
    let [entry] = &entries[..] else { panic!("{entries:?}") };
    assert_eq!(
        (entry.artifact_id.as_str(), entry.user.as_str()),
        (id(&record), "uid 0")
    );
    assert_eq!(entry.origin.as_ref().unwrap().user, "ann");
    assert!(entry.message.starts_with("by link until 20"), "{}", entry.message);
    daemon.brig(&["ledger", "verify"]).expect(0);
    let listed = daemon
        .brig(&["ledger", "list", "--kind", "downloaded"])
        .expect(0)
        .text();
    assert!(listed.contains(&format!("{} by link until", id(&record))), "{listed}");
}

#[test]
fn a_link_is_made_to_what_may_leave_and_to_nothing_else() {
    let policies = Policies::with(&[("shut", ("download = \"artifacts\"", "download = \"none\""))]);
    let Some(policies) = policies else { return };
    let daemon = Daemon::start_as(policies.path(), ON).unwrap();
    let files = ["free.csv", "pending.py", "approved.py", "rejected.py", "expired.py"];
    leave(
        &daemon,
        &format!("for f in {}; do printf $f > $f; done", files.join(" ")),
    );
    let approved = artifact(&daemon, "approved.py");
    artifacts::approve(&daemon, id(&approved), &approved.artifact.as_ref().unwrap().sha256).unwrap();
    artifacts::reject(&daemon, id(&artifact(&daemon, "rejected.py")), "no").unwrap();
    let overdue = "UPDATE artifacts SET expire_ms = 1 WHERE path = CAST('expired.py' AS BLOB)";
    assert_eq!(records(&daemon).execute(overdue, []).unwrap(), 1);
    let sweep = || {
        daemon
            .ask(daemon.artifacts().sweep(ArtifactsSweepRequest::default()))
            .unwrap()
    };
    sweep();
    let made = files.map(|path| {
        let made = link_as(&daemon, id(&artifact(&daemon, path)), ArtifactsLinkRequest::default());
        match made {
            Ok(made) => String::from_utf8(http::get(&daemon, &made.url).body).unwrap(),
            Err(refused) => refused.reason,
        }
    });
    let expected = [
        "free.csv",
        "REVIEW_REQUIRED",
        "approved.py",
        "REVIEW_REFUSED",
        "REVIEW_REFUSED",
    ];
    assert_eq!(made, expected);
    // Under a policy that lets nothing out.
    let spec = ExecutionSpec {
        policy: "shut".to_owned(),
        ..sh("printf a > shut.csv")
    };
    daemon.run(spec).expect_success();
    let refused = link_as(
        &daemon,
        id(&artifact(&daemon, "shut.csv")),
        ArtifactsLinkRequest::default(),
    )
    .unwrap_err();
    assert_eq!(refused.reason, "DOWNLOAD_FORBIDDEN");
    for unknown in ["a0", "no id", ""] {
        let refused = link_as(&daemon, unknown, ArtifactsLinkRequest::default()).unwrap_err();
        assert_eq!(refused.reason, "ARTIFACT_NOT_FOUND", "{unknown:?}");
    }
}

#[test]
fn a_link_asks_the_gate_each_time_it_is_used() {
    let Some(daemon) = Daemon::start_configured(ON) else {
        return;
    };
    leave(
        &daemon,
        "for f in erased rejected shut kept; do printf $f > $f.csv; done",
    );
    let links = ["erased", "rejected", "shut", "kept"].map(|name| link(&daemon, &format!("{name}.csv")));
    let statuses = || links.each_ref().map(|link| http::get(&daemon, link).status);
    assert_eq!(statuses(), [200; 4]);
    // What was linked can't be rejected any more; somebody may have mended the records by hand all the same.
    let refused = artifacts::reject(&daemon, id(&artifact(&daemon, "kept.csv")), "late").unwrap_err();
    assert_eq!(refused.reason, "NOT_PENDING");
    let change = |sql: &str| assert_eq!(records(&daemon).execute(sql, []).unwrap(), 1, "{sql}");
    change("UPDATE artifacts SET review = 'rejected' WHERE path = CAST('rejected.csv' AS BLOB)");
    change("UPDATE artifacts SET download = 'none' WHERE path = CAST('shut.csv' AS BLOB)");
    assert_eq!(statuses(), [200, 410, 410, 200]);
    change("UPDATE artifacts SET expire_ms = 1 WHERE path = CAST('kept.csv' AS BLOB)");
    assert_eq!(statuses(), [200, 410, 410, 410]);
    daemon
        .ask(daemon.artifacts().sweep(ArtifactsSweepRequest::default()))
        .unwrap();
    let erasure = LedgerEraseRequest {
        user: "ann".to_owned(),
        comment: "asked by letter".to_owned(),
        ..LedgerEraseRequest::default()
    };
    daemon.ask(daemon.ledger().erase(erasure)).unwrap();
    assert_eq!(statuses(), [410; 4]);
    let gone = http::ask(&daemon, Method::HEAD, &links[0], &[("range", "bytes=0-1")]);
    assert_eq!((gone.status, gone.header("etag")), (410, ""));
}

#[test]
fn a_link_ends_with_its_time_and_with_the_artifact() {
    let Some(daemon) = Daemon::start_configured(ON) else {
        return;
    };
    leave(&daemon, "printf a > out.csv");
    let record = artifact(&daemon, "out.csv");
    let short = link_as(&daemon, id(&record), lasting(Duration::from_secs(1)))
        .unwrap()
        .url;
    let long = link_as(&daemon, id(&record), lasting(Duration::from_secs(3600)))
        .unwrap()
        .url;
    eventually("the link ends", *DEADLINE, || match http::get(&daemon, &short).status {
        410 => Ok(()),
        status => Err(status),
    });
    assert_eq!(http::get(&daemon, &long).status, 200);
    for wrong in [Duration::from_millis(999), Duration::from_secs(3601)] {
        let refused = link_as(&daemon, id(&record), lasting(wrong)).unwrap_err();
        assert_eq!(refused.fields, ["lifetime"]);
        assert!(
            refused.message.contains("1000 ms to 3600000 ms (links.lifetime_max)"),
            "{}",
            refused.message
        );
    }
    // An artifact that goes sooner takes the link along.
    let end = "UPDATE artifacts SET expire_ms = expire_ms - 30 * 86400000 + 60000";
    assert_eq!(records(&daemon).execute(end, []).unwrap(), 1);
    let made = link_as(&daemon, id(&record), lasting(Duration::from_secs(3600))).unwrap();
    let record = artifact(&daemon, "out.csv");
    assert_eq!(made.expire_time.unwrap(), record.expire_time.unwrap());
}

#[test]
fn links_outlive_the_daemon_and_end_with_their_key() {
    let setup = Setup {
        links: "127.0.0.1:0",
        ..Setup::default()
    };
    let Some(mut services) = Services::start(setup) else {
        return;
    };
    leave(&services, "printf a > out.csv");
    let (_, path) = http::split(&link(&services, "out.csv"));
    services.stop();
    services.launch(Service::Daemon);
    let (address, _) = http::split(&link(&services, "out.csv"));
    let url = format!("http://{address}{path}");
    assert_eq!(http::get(&services, &url).status, 200);
    let key = services.directory().join("state/links.key");
    assert_eq!(key.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    std::fs::remove_file(&key).unwrap();
    services.signal(Service::Daemon, Signal::HUP);
    eventually("the key is another one", *DEADLINE, || {
        match http::get(&services, &url).status {
            404 => Ok(()),
            status => Err(status),
        }
    });
    assert_eq!(http::get(&services, &link(&services, "out.csv")).status, 200);
    // A key that others can read is none: all stays as it was.
    let fresh = link(&services, "out.csv");
    std::fs::set_permissions(&key, PermissionsExt::from_mode(0o644)).unwrap();
    services.signal(Service::Daemon, Signal::HUP);
    eventually("the reload is refused", *DEADLINE, || {
        let log = services.log(Service::Daemon);
        if log.contains("reload refused") && log.contains("mode 0644") {
            Ok(())
        } else {
            Err(log)
        }
    });
    assert_eq!(http::get(&services, &fresh).status, 200);
}

#[test]
fn a_server_in_front_reaches_links_at_a_socket() {
    let folder = tempfile::Builder::new().prefix("brig-test-").tempdir().unwrap();
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o777)).unwrap();
    let socket = folder.path().join("links.sock");
    let configuration = format!("[links]\nlisten = {socket:?}\npublic = \"https://files.example.org/brig/\"\n");
    let Some(daemon) = Daemon::start_configured(&configuration) else {
        return;
    };
    leave(&daemon, "printf a > out.csv");
    let url = link(&daemon, "out.csv");
    let path = url.strip_prefix("https://files.example.org/brig").unwrap();
    let answer = http::get_at(&daemon, &socket, path);
    assert_eq!((answer.status, answer.body.as_slice()), (200, &b"a"[..]));
    daemon.stop();
    assert!(!socket.exists());
}

#[test]
fn where_no_links_are_served_none_are_made() {
    let daemon = daemon!();
    leave(&daemon, "printf a > out.csv");
    let record = artifact(&daemon, "out.csv");
    let refused = link_as(&daemon, id(&record), ArtifactsLinkRequest::default()).unwrap_err();
    assert_eq!(refused.reason, "LINKS_OFF");
    let refused = daemon.brig(&["artifact", "link", id(&record)]).expect(78);
    assert!(
        refused.stderr.contains("listen of [links] in brigd.toml"),
        "{}",
        refused.stderr
    );
    assert!(!daemon.directory().join("links.key").exists());
}
