//! The ledger's file system is full: nothing new is accepted, and what runs is recorded as soon as there is space.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::Command;

use brig_proto::v1::{
    ExecutionSpec, ExecutionStatus, ExecutionsSignalRequest, LedgerVerifyRequest, SessionsCreateRequest,
};
use brig_tests::services::{Setup, UID};
use brig_tests::spec::sh;
use brig_tests::{Services, eventually, host};
use tempfile::TempDir;
use tonic::Code;

/// Twice what the ledger keeps free for what runs.
const SIZE: usize = 64 << 20;
const RESERVE: usize = 32 << 20;
const SIGUSR1: u32 = 10;

/// A small file system of the test's own.
struct Small(TempDir);

impl Small {
    fn mount() -> Self {
        // Not named as other directories of tests: some of those count mounts.
        let directory = tempfile::Builder::new().prefix("brig-small-").tempdir().unwrap();
        let options = format!("size={SIZE},mode=755,uid={UID},gid={UID}");
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &options, "brig-small"])
            .arg(directory.path())
            .status()
            .unwrap();
        assert!(mounted.success());
        Self(directory)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    /// Leaves so many bytes free.
    fn fill(&self, left: usize) {
        let mut filler = File::create(self.path().join("filler")).unwrap();
        let stat = rustix::fs::statvfs(self.path()).unwrap();
        let free = usize::try_from(stat.f_bavail * stat.f_frsize).unwrap();
        let block = vec![0; 64 << 10];
        for _ in 0..free.saturating_sub(left) / block.len() {
            filler.write_all(&block).unwrap();
        }
        if left == 0 {
            // To the last byte.
            while filler.write(&block[..4096]).is_ok_and(|written| written > 0) {}
        }
    }

    fn free(&self) {
        std::fs::remove_file(self.path().join("filler")).unwrap();
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _gone_already = Command::new("umount").arg("--lazy").arg(self.path()).status();
    }
}

/// Writes more than fits a page and ends when it is told to.
fn waiting(id: &str) -> ExecutionSpec {
    ExecutionSpec {
        execution_id: id.to_owned(),
        ..sh("trap 'head -c 60000 /dev/zero | tr \"\\0\" x; exit 0' USR1; echo up; while :; do sleep 0.05; done")
    }
}

fn end(services: &Services, id: &str) {
    let request = ExecutionsSignalRequest {
        execution_id: id.to_owned(),
        signal: SIGUSR1,
        ..ExecutionsSignalRequest::default()
    };
    services.ask(services.client().signal(request)).unwrap();
}

fn assert_refused(services: &Services) {
    let refused = services.refused(sh("true"));
    assert_eq!(
        (refused.code, refused.reason.as_str()),
        (Code::ResourceExhausted, "LEDGER_FULL"),
        "{refused:?}"
    );
    let session = services.try_create(SessionsCreateRequest::default()).unwrap_err();
    assert_eq!(session.reason, "LEDGER_FULL");
}

#[test]
fn nothing_new_is_accepted_and_what_runs_is_recorded_once_there_is_space() {
    if !host::can_run() {
        return;
    }
    let small = Small::mount();
    let setup = Setup {
        state: Some(small.path().to_owned()),
        ..Setup::default()
    };
    let Some(services) = Services::start(setup) else {
        return;
    };
    let mut first = services.begin(waiting("first"));
    let mut second = services.begin(waiting("second"));
    first.until_written("up\n");
    second.until_written("up\n");
    // Little space: what runs is recorded at once, from what was kept free for it.
    small.fill(RESERVE / 2);
    assert_refused(&services);
    end(&services, "first");
    assert_eq!(first.finish().status(), ExecutionStatus::Success);
    assert_eq!(services.recorded("first").as_deref(), Some("success"));
    small.free();
    services.run(sh("true")).expect_success();
    // None at all: it has ended, and is told and recorded once there is some.
    small.fill(0);
    assert_refused(&services);
    end(&services, "second");
    eventually("the end waits", *brig_tests::DEADLINE, || {
        let log = services.log(brig_tests::Service::Daemon);
        if log.contains("an end waits until it can be recorded") {
            Ok(())
        } else {
            Err(log)
        }
    });
    assert_eq!(services.recorded("second").as_deref(), Some(""));
    small.free();
    let outcome = second.finish();
    assert_eq!(
        (outcome.status(), outcome.result.stdout.len()),
        (ExecutionStatus::Success, 60_003)
    );
    assert_eq!(services.recorded("second").as_deref(), Some("success"));
    services.run(sh("true")).expect_success();
    let verified = services
        .ask(services.ledger().verify(LedgerVerifyRequest::default()))
        .unwrap();
    assert!(verified.intact, "{verified:?}");
}
