//! Limits that few hosts can hold: held where they can be, refused by name where not. Needs root and the `base` image.
#![allow(clippy::unwrap_used, reason = "a test that can not go on fails")]

mod support;

use brig_jailer::api::{Make, Refusal, Verdict};
use support::{Rig, own_policy};

fn rig_with(limits: &str) -> (Rig, tempfile::TempDir, Make) {
    let (folder, make) = own_policy("limited", limits);
    let rig = Rig::launch(|command| command.arg("--policies").arg(folder.path()));
    (rig, folder, make)
}

#[test]
fn a_limit_of_disks_is_held_or_refused_by_name() {
    let (mut rig, _folder, make) = rig_with("io = { read = \"1M\", write_ops = 50 }");
    let check = rig.check("cgroup io");
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
    assert_eq!(rig.check("cgroup io").verdict, Verdict::Ok);
    assert!(!rig.make("s1").enforced.io);
    rig.stop();
}
