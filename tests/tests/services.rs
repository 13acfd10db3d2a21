//! What stands beside the services of Brig: health, reflection, the host; and what is not built yet.
#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

use std::process::Command;

use brig_proto::v1::host_client::HostClient;
use brig_proto::v1::packages_client::PackagesClient;
use brig_proto::v1::{HostGetRequest, PackagesListRequest};
use brig_tests::host::{Places, can_run};
use brig_tests::{Daemon, daemon};
use tonic::Code;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;

/// The names of all services, as a client without the proto files learns them.
fn reflected(daemon: &Daemon) -> Vec<String> {
    let mut client = ServerReflectionClient::new(daemon.connect());
    let request = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let answer = daemon.wait(async {
        let requests = tokio_stream::once(request);
        let mut answers = client.server_reflection_info(requests).await.unwrap().into_inner();
        answers.message().await.unwrap().unwrap()
    });
    match answer.message_response.unwrap() {
        MessageResponse::ListServicesResponse(list) => list.service.into_iter().map(|service| service.name).collect(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_client_without_the_proto_files_learns_all_services() {
    let daemon = daemon!();
    let names = reflected(&daemon);
    for service in [
        "Sessions",
        "Contexts",
        "Executions",
        "Inputs",
        "Files",
        "Artifacts",
        "Templates",
        "Packages",
        "Ledger",
        "Host",
    ] {
        assert!(names.contains(&format!("brig.v1.{service}")), "{names:?}");
    }
}

#[test]
fn the_daemon_says_that_it_serves() {
    let daemon = daemon!();
    let mut client = HealthClient::new(daemon.connect());
    let request = HealthCheckRequest { service: String::new() };
    let answer = daemon.wait(client.check(request)).unwrap().into_inner();
    assert_eq!(answer.status(), ServingStatus::Serving);
}

#[test]
fn the_host_tells_its_checks_and_what_it_is() {
    let daemon = daemon!();
    let mut client = HostClient::new(daemon.connect());
    let answer = daemon.wait(client.get(HostGetRequest::default())).unwrap().into_inner();
    assert!(
        !answer.checks.is_empty() && answer.checks.iter().any(|check| check.what == "landlock"),
        "{answer:?}"
    );
}

#[test]
fn what_is_not_built_yet_says_so() {
    let daemon = daemon!();
    let mut client = PackagesClient::new(daemon.connect());
    let refused = daemon.wait(client.list(PackagesListRequest::default())).unwrap_err();
    assert_eq!(refused.code(), Code::Unimplemented);
}

/// Something of /proc is covered, as in a container: a fresh /proc can't be mounted then.
#[test]
fn a_host_that_lacks_something_makes_no_jail_and_says_what_to_mend() {
    if !can_run() {
        return;
    }
    let places = Places::find();
    let script = "mount -t tmpfs none /proc/fs && exec \"$0\" run --standalone -c 'print(1)'";
    let output = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "sh", "-c", script])
        .arg(places.program("brig"))
        .env("BRIG_PROGRAMS", &places.programs)
        .env("BRIG_POLICIES", &places.policies)
        .env("BRIG_KERNEL", &places.kernel)
        .env("BRIG_IMAGES", &places.images)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(
        (output.status.code(), output.stdout.as_slice()),
        (Some(78), &b""[..]),
        "{said}"
    );
    assert!(
        said.contains("covered: /proc/fs") && said.contains("brig doctor"),
        "{said}"
    );
}
