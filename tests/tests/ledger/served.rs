//! The service Ledger over gRPC.

use brig_proto::v1::{
    ExecutionSpec, LedgerEntry, LedgerEntryKind, LedgerExportRequest, LedgerFollowRequest, LedgerListRequest,
    LedgerVerifyRequest, Origin, Reason,
};
use brig_tests::spec::{input, sh, small};
use brig_tests::{Daemon, daemon};
use serde_json::Value;
use tonic::{Code, Streaming};

use crate::holds;

fn named(id: &str, script: &str) -> ExecutionSpec {
    ExecutionSpec {
        execution_id: id.to_owned(),
        ..sh(script)
    }
}

fn list(daemon: &Daemon, request: LedgerListRequest) -> Vec<LedgerEntry> {
    daemon.ask(daemon.ledger().list(request)).unwrap().entries
}

fn numbers(entries: &[LedgerEntry]) -> Vec<u64> {
    entries.iter().map(|entry| entry.sequence).collect()
}

fn follow(daemon: &Daemon, request: LedgerFollowRequest) -> Streaming<brig_proto::v1::LedgerFollowResponse> {
    daemon.ask(daemon.ledger().follow(request)).unwrap()
}

fn next(daemon: &Daemon, stream: &mut Streaming<brig_proto::v1::LedgerFollowResponse>) -> LedgerEntry {
    daemon.wait(stream.message()).unwrap().unwrap().entry.unwrap()
}

#[test]
fn an_entry_says_who_asked_what_ran_and_what_came_out() {
    let daemon = daemon!();
    let source = "print('hello')\nopen('out.csv', 'w').write('a\\n')";
    let outcome = daemon.run(ExecutionSpec {
        execution_id: "e1".to_owned(),
        request_id: "ask".to_owned(),
        origin: Some(Origin {
            user: "ann".to_owned(),
            ..Origin::default()
        }),
        labels: [("team".to_owned(), "blue".to_owned())].into(),
        inputs: vec![input("in put.csv", b"a\n")],
        ..small(source)
    });
    let entries = list(&daemon, LedgerListRequest::default());
    let [finished, accepted] = &entries[..] else {
        panic!("{entries:?}")
    };
    for entry in [finished, accepted] {
        assert_eq!((entry.user.as_str(), entry.tenant.as_str()), ("uid 0", "default"));
        assert_eq!(entry.origin.as_ref().unwrap().user, "ann");
        assert_eq!((entry.execution_id.as_str(), entry.request_id.as_str()), ("e1", "ask"));
        assert_eq!(entry.labels["team"], "blue");
        assert_eq!(
            (entry.policy.as_str(), entry.template.as_str()),
            (outcome.result.policy.as_str(), outcome.result.template.as_str())
        );
        assert_eq!(entry.inputs, outcome.result.inputs);
    }
    assert_eq!(
        (accepted.kind(), finished.kind()),
        (LedgerEntryKind::Accepted, LedgerEntryKind::Finished)
    );
    assert_eq!(accepted.work, source.as_bytes());
    assert_eq!(accepted.previous_hash, "0".repeat(64));
    assert_eq!(finished.previous_hash, accepted.hash);
    let (recorded, told) = (finished.result.as_ref().unwrap(), &outcome.result);
    assert_eq!((recorded.status, recorded.exit_code), (told.status, told.exit_code));
    assert_eq!((&recorded.stdout, &recorded.output), (&told.stdout, &told.output));
    assert_eq!(recorded.limits, told.limits);
    assert_eq!(recorded.artifacts[0].sha256, told.artifacts[0].sha256);
    assert_eq!(
        (&recorded.artifacts[0].path, recorded.artifacts[0].review),
        (&told.artifacts[0].path, told.artifacts[0].review)
    );
}

#[test]
fn each_entry_says_whose_connection_it_was_whatever_the_request_says() {
    let daemon = daemon!();
    let of_ann = ExecutionSpec {
        origin: Some(Origin {
            user: "ann".to_owned(),
            ..Origin::default()
        }),
        ..sh("true")
    };
    daemon.run(of_ann.clone());
    daemon.run(sh("true"));
    daemon.refused(ExecutionSpec {
        policy: "dota".to_owned(),
        ..of_ann
    });
    let entries = list(&daemon, LedgerListRequest::default());
    let who: Vec<_> = entries
        .iter()
        .map(|entry| {
            (
                entry.user.as_str(),
                entry.origin.as_ref().map(|origin| origin.user.as_str()),
            )
        })
        .collect();
    let (ann, nobody) = (("uid 0", Some("ann")), ("uid 0", None));
    assert_eq!(who, [ann, nobody, nobody, ann, ann]);
    let table = daemon.brig(&["ledger", "list"]).expect(0).text();
    let both = table.matches(" uid 0 for ann ").count();
    assert_eq!((both, table.matches(" uid 0 ").count()), (3, 2 + 3), "{table}");
}

#[test]
fn entries_are_listed_newest_first_page_by_page() {
    let daemon = daemon!();
    for id in ["e1", "e2", "e3"] {
        daemon.run(named(id, "true"));
    }
    daemon.refused(ExecutionSpec {
        policy: "dota".to_owned(),
        ..sh("true")
    });
    let mut request = LedgerListRequest {
        page_size: 3,
        ..LedgerListRequest::default()
    };
    let mut all = Vec::new();
    for _ in 0..3 {
        let page = daemon.ask(daemon.ledger().list(request.clone())).unwrap();
        all.extend(numbers(&page.entries));
        request.page_token = page.next_page_token;
    }
    assert_eq!((all, request.page_token.as_str()), (vec![7, 6, 5, 4, 3, 2, 1], ""));
    let of = LedgerListRequest {
        execution_id: "e2".to_owned(),
        ..LedgerListRequest::default()
    };
    assert_eq!(numbers(&list(&daemon, of)), [4, 3]);
    let refused = list(
        &daemon,
        LedgerListRequest {
            kinds: vec![LedgerEntryKind::Refused.into()],
            ..LedgerListRequest::default()
        },
    );
    assert_eq!(
        (refused[0].reason(), refused[0].count, refused[0].policy.as_str()),
        (Reason::UnknownPolicy, 1, "dota")
    );
    let wrong = LedgerListRequest {
        page_token: "x".to_owned(),
        ..LedgerListRequest::default()
    };
    let refused = daemon.ask(daemon.ledger().list(wrong)).unwrap_err();
    assert_eq!(
        (refused.code, refused.fields),
        (Code::InvalidArgument, vec!["page_token".to_owned()])
    );
}

#[test]
fn who_follows_sees_what_was_and_what_comes() {
    let daemon = daemon!();
    daemon.run(named("e1", "true"));
    let mut stream = follow(&daemon, LedgerFollowRequest::default());
    let mut second = follow(
        &daemon,
        LedgerFollowRequest {
            after_sequence: 1,
            kinds: vec![LedgerEntryKind::Finished.into()],
            ..LedgerFollowRequest::default()
        },
    );
    let old: Vec<u64> = (0..2).map(|_| next(&daemon, &mut stream).sequence).collect();
    assert_eq!(old, [1, 2]);
    daemon.run(named("e2", "true"));
    let new: Vec<LedgerEntry> = (0..2).map(|_| next(&daemon, &mut stream)).collect();
    assert_eq!(numbers(&new), [3, 4]);
    assert_eq!(new[1].previous_hash, new[0].hash);
    let ends: Vec<String> = (0..2).map(|_| next(&daemon, &mut second).execution_id).collect();
    assert_eq!(ends, ["e1", "e2"]);
}

#[test]
fn a_slow_reader_misses_nothing_and_holds_nobody_up() {
    let daemon = daemon!();
    let mut stream = follow(&daemon, LedgerFollowRequest::default());
    // More than what lies on the way to a client.
    for number in 0..40 {
        daemon.run(named(&format!("e{number}"), "head -c 200000 /dev/zero | tr '\\0' x"));
    }
    let seen: Vec<LedgerEntry> = (0..80).map(|_| next(&daemon, &mut stream)).collect();
    assert_eq!(numbers(&seen), (1..=80).collect::<Vec<_>>());
    let output: usize = seen
        .iter()
        .filter_map(|entry| entry.result.as_ref())
        .map(|result| result.stdout.len())
        .sum();
    // Head and tail of each, and a line between them.
    assert!(output >= 40 * (64 << 10), "{output}");
}

#[test]
fn an_export_has_every_entry_on_a_line() {
    let daemon = daemon!();
    let evil = "\u{1b}[2J\u{9b}\n{\"sequence\":1}";
    for number in 0..10 {
        daemon.run(ExecutionSpec {
            labels: [("evil".to_owned(), evil.to_owned())].into(),
            ..named(&format!("e{number}"), "head -c 60000 /dev/zero | tr '\\0' x")
        });
    }
    let request = LedgerExportRequest {
        after_sequence: 4,
        ..LedgerExportRequest::default()
    };
    let mut stream = daemon.ask(daemon.ledger().export(request)).unwrap();
    let mut text = Vec::new();
    while let Some(part) = daemon.wait(stream.message()).unwrap() {
        assert!((1..=256 << 10).contains(&part.data.len()), "{}", part.data.len());
        text.extend_from_slice(&part.data);
    }
    let text = String::from_utf8(text).unwrap();
    assert!(
        text.chars()
            .all(|character| character == '\n' || !character.is_control())
    );
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let sequences: Vec<u64> = lines.iter().map(|line| line["sequence"].as_u64().unwrap()).collect();
    assert_eq!(sequences, (5..=20).collect::<Vec<_>>());
    assert!(lines.iter().all(|line| line["labels"]["evil"] == evil));
    assert_eq!(lines[1]["result"]["stdout"].as_str().unwrap().len(), 60_000);
    assert!(lines.windows(2).all(|pair| pair[1]["previous_hash"] == pair[0]["hash"]));
}

#[test]
fn streams_have_a_bound() {
    let daemon = daemon!();
    let mut streams: Vec<_> = (0..64)
        .map(|_| follow(&daemon, LedgerFollowRequest::default()))
        .collect();
    let refused = daemon
        .ask(daemon.ledger().follow(LedgerFollowRequest::default()))
        .unwrap_err();
    assert_eq!(
        (refused.code, refused.reason.as_str()),
        (Code::ResourceExhausted, "LEDGER_BUSY")
    );
    streams.pop();
    brig_tests::eventually("a place is free", *brig_tests::DEADLINE, || {
        let again = daemon.ask(daemon.ledger().follow(LedgerFollowRequest::default()));
        again.map(drop).map_err(|refused| refused.message)
    });
}

#[test]
fn a_daemon_that_stops_ends_who_follows() {
    let daemon = daemon!();
    daemon.run(sh("true"));
    let mut stream = follow(&daemon, LedgerFollowRequest::default());
    next(&daemon, &mut stream);
    next(&daemon, &mut stream);
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(i32::try_from(daemon.pid()).unwrap()).unwrap(),
        rustix::process::Signal::TERM,
    )
    .unwrap();
    let status = daemon.wait(stream.message()).unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "{status}");
}

#[test]
fn the_chain_is_verified_against_a_head_that_was_logged() {
    let daemon = daemon!();
    daemon.run(sh("true"));
    let verify = |daemon: &Daemon, request| daemon.ask(daemon.ledger().verify(request)).unwrap();
    let whole = verify(&daemon, LedgerVerifyRequest::default());
    assert_eq!((whole.intact, whole.entries, whole.broken_sequence), (true, 2, None));
    let wrong = LedgerVerifyRequest {
        expected_hash: "0".repeat(64),
        ..LedgerVerifyRequest::default()
    };
    assert_eq!(verify(&daemon, wrong).broken_sequence, Some(2));
    let next = {
        let mut daemon = daemon;
        rustix::process::kill_process(
            rustix::process::Pid::from_raw(i32::try_from(daemon.pid()).unwrap()).unwrap(),
            rustix::process::Signal::TERM,
        )
        .unwrap();
        assert!(daemon.wait_end().unwrap().success());
        // The planned end notes the head.
        let log = daemon.log();
        let note = log.lines().rfind(|line| line.contains("ledger_head=")).unwrap();
        assert!(
            note.contains(&format!("ledger_head={} ledger_sequence=2", whole.head_hash)),
            "{note}"
        );
        daemon.start_again()
    };
    let noted = LedgerVerifyRequest {
        first_sequence: 1,
        last_sequence: 2,
        expected_hash: whole.head_hash.clone(),
    };
    assert!(verify(&next, noted).intact);
    assert!(
        next.log().contains(&format!("ledger_head={}", whole.head_hash)),
        "the start notes it"
    );
    let backwards = LedgerVerifyRequest {
        first_sequence: 2,
        last_sequence: 1,
        ..LedgerVerifyRequest::default()
    };
    assert_eq!(
        next.ask(next.ledger().verify(backwards)).unwrap_err().fields,
        ["last_sequence"]
    );
}

#[test]
fn no_input_no_environment_and_no_stdin_is_ever_stored() {
    let daemon = daemon!();
    let spec = ExecutionSpec {
        environment: [("TZ".to_owned(), "canary-environment".to_owned())].into(),
        stdin: b"canary-stdin".to_vec().into(),
        inputs: vec![input("in.txt", b"canary-content")],
        ..sh("cat in.txt >/dev/null; cat >/dev/null; printf %s \"$TZ\" >/dev/null; echo canary-output")
    };
    daemon.run(spec).expect_success();
    let forbidden = ExecutionSpec {
        environment: [("SECRET".to_owned(), "canary-refused".to_owned())].into(),
        ..sh("true")
    };
    daemon.refused(forbidden);
    // What is looked for can be found.
    assert!(holds(daemon.directory(), "canary-output") && holds(daemon.directory(), "cat in.txt"));
    for canary in ["canary-environment", "canary-content", "canary-stdin", "canary-refused"] {
        assert!(!holds(daemon.directory(), canary), "{canary}");
    }
}
