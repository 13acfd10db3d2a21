//! Limits that few hosts can hold: held where they can be, refused by name where not. Needs root and the `base` image.
#![allow(clippy::unwrap_used, reason = "a test that can not go on fails")]

mod support;

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use brig_jailer::api::{Check, Make, Refusal, Verdict};
use brig_jailer::policy::{PolicySet, Trust};
use support::{Rig, policies, quantities};

/// A jailer that also has a policy of its own, named `x`.
fn rig_with(limits: &str) -> (Rig, tempfile::TempDir, Make) {
    let folder = tempfile::Builder::new().prefix("brig-test-").tempdir().unwrap();
    fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).unwrap();
    let text = format!("template = \"base\"\n[syscalls]\ngroups = [\"base\", \"python\"]\n[limits]\n{limits}\n");
    fs::write(folder.path().join("x.toml"), text).unwrap();
    let set = PolicySet::load(&[policies(), folder.path().to_owned()], Trust::RootOwned).unwrap();
    let policy = set.get("x").unwrap();
    let make = Make {
        policy: policy.name.clone(),
        policy_hash: policy.hash.clone(),
        ..Rig::request("data", "limited", quantities())
    };
    let rig = Rig::launch(|command| command.arg("--policies").arg(folder.path()));
    (rig, folder, make)
}

fn line(rig: &mut Rig, what: &str) -> Check {
    let report = rig.host();
    report.checks.into_iter().find(|check| check.what == what).unwrap()
}

#[test]
fn a_limit_of_disks_is_held_or_refused_by_name() {
    let (mut rig, _folder, make) = rig_with("io = { read = \"1M\", write_ops = 50 }");
    let check = line(&mut rig, "cgroup io");
    assert_eq!(check.needed, "for policy x (limits.io)");
    let made = rig.try_make(make);
    if check.verdict == Verdict::Ok {
        assert!(made.unwrap().enforced.io);
    } else {
        let Err(Refusal::HostCannot(why)) = made else {
            panic!("{made:?}")
        };
        assert!(why.starts_with("policy x has limits.io: "), "{why}");
        assert!(!check.mend.is_empty());
    }
    rig.stop();
}

#[test]
fn who_asks_for_no_limit_of_disks_gets_a_session_and_the_truth() {
    let mut rig = Rig::start();
    assert_eq!(line(&mut rig, "cgroup io").verdict, Verdict::Ok);
    assert!(!rig.make("s1").enforced.io);
    rig.stop();
}
