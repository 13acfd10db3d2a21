//! What the ledger has of it: the request before the decision, the decision before the run.

use brig_proto::v1::{
    ExecutionSpec, LedgerEntry, LedgerEntryKind as Kind, LedgerListRequest, LedgerVerifyRequest, Origin, ReviewState,
};
use brig_tests::Daemon;
use brig_tests::policies::{Policies, REVIEWED};

use crate::{daemon, script};

/// The entries of an execution, oldest first.
fn entries(daemon: &Daemon, execution: &str) -> Vec<LedgerEntry> {
    let request = LedgerListRequest {
        execution_id: execution.to_owned(),
        ..LedgerListRequest::default()
    };
    let mut entries = daemon.ask(daemon.ledger().list(request)).unwrap().entries;
    entries.reverse();
    entries
}

fn kinds(entries: &[LedgerEntry]) -> Vec<Kind> {
    entries.iter().map(LedgerEntry::kind).collect()
}

fn of_ann(name: &str) -> ExecutionSpec {
    ExecutionSpec {
        origin: Some(Origin {
            user: "ann".to_owned(),
            ..Origin::default()
        }),
        ..script(name, "echo ran")
    }
}

#[test]
fn the_decision_is_an_entry_between_the_request_and_the_end() {
    let Some((daemon, _policies)) = daemon("") else { return };
    for (name, verdict) in [("e1", ReviewState::Approved), ("e2", ReviewState::Rejected)] {
        let mut live = daemon.begin(of_ann(name));
        live.until_pending();
        assert_eq!(kinds(&entries(&daemon, name)), [Kind::Accepted]);
        match verdict {
            ReviewState::Approved => drop(daemon.approve(name).unwrap()),
            _ => drop(daemon.reject(name, "no reason").unwrap()),
        }
        live.finish();
        let entries = entries(&daemon, name);
        assert_eq!(kinds(&entries), [Kind::Accepted, Kind::Reviewed, Kind::Finished]);
        let [accepted, reviewed, _] = &entries[..] else {
            panic!("{entries:?}")
        };
        assert_eq!(reviewed.review(), verdict);
        assert_eq!(reviewed.work_sha256, accepted.work_sha256);
        assert_eq!((accepted.user.as_str(), reviewed.user.as_str()), ("uid 0", "uid 0"));
        assert_eq!(reviewed.origin.as_ref().unwrap().user, "ann");
        assert_eq!(reviewed.session_id, accepted.session_id);
    }
    assert_eq!(entries(&daemon, "e2")[1].message, "no reason");
    let verified = daemon
        .ask(daemon.ledger().verify(LedgerVerifyRequest::default()))
        .unwrap();
    assert!(verified.intact, "{}", verified.message);
    // Who asked is forgotten with what was said about it.
    let erase = ["ledger", "erase", "--user", "ann", "--comment", "asked for"];
    daemon.brig(&erase).expect(0);
    let reviewed = &entries(&daemon, "e2")[1];
    assert_eq!((reviewed.message.as_str(), &reviewed.origin), ("", &None));
    let verified = daemon
        .ask(daemon.ledger().verify(LedgerVerifyRequest::default()))
        .unwrap();
    assert!(verified.intact, "{}", verified.message);
}

#[test]
fn that_nobody_decided_is_an_entry_too() {
    let soon = ("review_timeout = \"24h\"", "review_timeout = \"300ms\"");
    let Some(policies) = Policies::with(&[]).map(|policies| policies.and(crate::ASKING, &[REVIEWED, soon])) else {
        return;
    };
    let daemon = Daemon::start_with(policies.path()).unwrap();
    daemon.run(of_ann("e1"));
    let entries = entries(&daemon, "e1");
    assert_eq!(kinds(&entries), [Kind::Accepted, Kind::Reviewed, Kind::Finished]);
    assert_eq!(
        (entries[1].review(), entries[1].user.as_str()),
        (ReviewState::Expired, "")
    );
}
