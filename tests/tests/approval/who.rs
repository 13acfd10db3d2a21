//! Who may decide: whoever has the role in the tenant, and nobody else.

use std::os::unix::process::CommandExt;
use std::time::Duration;

use brig_proto::v1::{ExecutionState, LedgerEntryKind, LedgerListRequest, Reason};
use brig_tests::{Brig, Daemon, eventually, slow};

use crate::{daemon, script};

/// Groups of Debian that nobody is in, by number. Source: base-passwd.
const DAEMON: u32 = 1;
const BIN: u32 = 2;
/// The tests' own connection runs code and may not decide; whoever runs in one of the groups is a reviewer.
const CLIENTS: &str = "
[[client]]
group = \"daemon\"
user = \"rita\"
roles = [\"reviewer\"]

[[client]]
group = \"bin\"
tenant = \"other\"
roles = [\"runner\", \"reviewer\"]

[[client]]
uid = 0
user = \"ann\"
roles = [\"runner\", \"auditor\"]
";

fn brig(daemon: &Daemon, group: u32, arguments: &[&str]) -> Brig {
    let mut line = Brig::command(&daemon.socket(), arguments);
    line.command.gid(group);
    line.run()
}

#[test]
fn who_asked_may_not_decide_without_the_role_and_a_reviewer_of_the_tenant_may() {
    let Some((daemon, _policies)) = daemon(CLIENTS) else {
        return;
    };
    let mut live = daemon.begin(script("e1", "echo ran"));
    live.until_pending();
    for refused in [daemon.approve("e1").unwrap_err(), daemon.reject("e1", "").unwrap_err()] {
        assert_eq!(refused.reason, "ROLE_MISSING");
    }
    // Such refusals are recorded behind the answer.
    let refused = LedgerListRequest {
        kinds: vec![LedgerEntryKind::Refused.into()],
        ..LedgerListRequest::default()
    };
    eventually("both are recorded", Duration::from_secs(10) * slow(), || {
        let entries = daemon.ask(daemon.ledger().list(refused.clone())).unwrap().entries;
        let reasons: Vec<Reason> = entries.iter().map(brig_proto::v1::LedgerEntry::reason).collect();
        if reasons == [Reason::RoleMissing, Reason::RoleMissing] {
            Ok(())
        } else {
            Err(reasons)
        }
    });
    let other = brig(&daemon, BIN, &["execution", "approve", "e1", "--json"]).expect(2);
    assert_eq!(other.json()["refused"]["reason"], "execution_not_found");
    assert_eq!(daemon.execution("e1").state(), ExecutionState::PendingApproval);
    // A reviewer without the role runner runs nothing.
    brig(&daemon, DAEMON, &["run", "-c", "1"]).expect(77);
    brig(&daemon, DAEMON, &["execution", "approve", "e1"]).expect(0);
    assert_eq!(live.finish().expect_success().stdout(), "ran\n");
    assert_eq!(daemon.execution("e1").reviewer, "default/rita");
}

#[test]
fn code_in_a_session_has_no_way_to_decide() {
    let Some((daemon, _policies)) = daemon("") else { return };
    // The daemon's socket is of the host; a session has nothing of it to connect to.
    let probe = "import glob, os, stat\n\
                 places = [path for top in ('run', 'tmp', 'home', 'var') for path in glob.glob(f'/{top}/**', recursive=True)]\n\
                 print([path for path in places if stat.S_ISSOCK(os.lstat(path).st_mode)])";
    let mut live = daemon.begin(crate::asking("e1", brig_tests::spec::small(probe)));
    live.until_pending();
    daemon.approve("e1").unwrap();
    assert_eq!(live.finish().expect_success().stdout(), "[]\n");
}
