//! `brig doctor` with a daemon.

use brig_proto::v1::{HostCheck, HostGetResponse, HostVerdict};

use crate::daemon::Daemon;

fn host(verdict: HostVerdict) -> HostGetResponse {
    let check = HostCheck {
        what: "landlock".into(),
        found: "ABI 1".into(),
        needed: "ABI 2".into(),
        verdict: verdict.into(),
        mend: "use Linux 6.1 or later".into(),
    };
    HostGetResponse {
        checks: vec![check],
        ..Default::default()
    }
}

#[test]
fn each_verdict_has_its_exit_code() {
    let codes = [HostVerdict::Ok, HostVerdict::Degraded, HostVerdict::Missing]
        .map(|verdict| Daemon::on(host(verdict)).run(&["doctor"]).status.code());
    assert_eq!(codes, [Some(0), Some(1), Some(78)]);
}

#[test]
fn json_has_the_checks_and_the_mend() {
    let output = Daemon::on(host(HostVerdict::Missing)).run(&["doctor", "-o", "json"]);
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(document["verdict"], "missing");
    assert_eq!(document["checks"][0]["mend"], "use Linux 6.1 or later");
}
