//! `brig session`, and `brig run` in a session that stays.

use brig_proto::v1::execution_spec::Work;
use brig_proto::v1::input_source::Source;
use brig_proto::v1::{ExecutionStatus, OnTimeout, OutputStream, Reason, Session, SessionCloseReason, SessionState};
use serde_json::{Value, json};

use crate::daemon::{Daemon, Script, brig, finished, reason, wrote};
use crate::process::{code, json, stderr, stdout};

fn session(id: &str) -> Session {
    Session {
        session_id: id.into(),
        state: SessionState::Running.into(),
        policy: "data@0123".into(),
        ..Session::default()
    }
}

fn with_sessions(ids: &[&str]) -> Daemon {
    Daemon::start(Script {
        sessions: ids.iter().map(|id| session(id)).collect(),
        steps: vec![wrote(OutputStream::Stdout, b"a\n"), finished(ExecutionStatus::Success)],
        ..Script::default()
    })
}

fn refusing(status: tonic::Status) -> Daemon {
    Daemon::start(Script {
        no_call: Some(status),
        ..Script::default()
    })
}

fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

#[test]
fn options_of_create_become_the_request() {
    let daemon = with_sessions(&[]);
    let line = "session create --policy strict --template base --memory 256M --cpus 0.5 --disk 1G --pids 9 --idle 5m \
                --max-age 1500ms --label a=b=c --label d= --user ann --id sales --request-id r1";
    let output = daemon.run(&words(line));
    assert_eq!(
        (code(&output), stdout(&output), stderr(&output)),
        (0, "sales\n".to_owned(), String::new())
    );
    let request = &daemon.asked().created[0];
    assert_eq!(
        (request.session_id.as_str(), request.request_id.as_str()),
        ("sales", "r1")
    );
    assert_eq!((request.policy.as_str(), request.template.as_str()), ("strict", "base"));
    let limits = request.limits.unwrap();
    assert_eq!(
        (limits.memory_bytes, limits.disk_bytes),
        (Some(256 << 20), Some(1 << 30))
    );
    assert_eq!((limits.cpus, limits.pids, limits.timeout), (Some(0.5), Some(9), None));
    let (idle, age) = (request.idle_timeout.unwrap(), request.max_age.unwrap());
    assert_eq!((idle.seconds, age.seconds, age.nanos), (300, 1, 500_000_000));
    assert_eq!(
        (request.labels["a"].as_str(), request.labels["d"].as_str()),
        ("b=c", "")
    );
    assert_eq!(request.origin.as_ref().unwrap().user, "ann");
}

#[test]
fn what_is_not_given_is_left_to_the_policy_and_each_request_has_a_name() {
    let daemon = with_sessions(&[]);
    assert_eq!(stdout(&daemon.run(&["session", "create"])), "s1\n");
    assert_eq!(stdout(&daemon.run(&["session", "create"])), "s1\n");
    let created = daemon.asked().created;
    assert_eq!(
        (created[0].limits, created[0].idle_timeout),
        (Some(Default::default()), None)
    );
    assert_ne!(created[0].request_id, created[1].request_id);
}

#[test]
fn an_id_that_is_none_is_refused_here() {
    let output = brig(&["session", "create", "--json", "--id", "Sales-1"])
        .output()
        .unwrap();
    assert_eq!(code(&output), 2);
    let message = json(&output)["refused"]["message"].as_str().unwrap().to_owned();
    assert!(
        message.contains("\"Sales-1\" is not an id: 1 to 40 characters"),
        "{message}"
    );
}

#[test]
fn a_session_is_shown_as_a_document_with_every_key() {
    let daemon = Daemon::start(Script {
        sessions: vec![Session {
            close_reason: SessionCloseReason::Idle.into(),
            state: SessionState::Closed.into(),
            create_time: Some(prost_types::Timestamp { seconds: 0, nanos: 0 }),
            ..session("s1")
        }],
        ..Script::default()
    });
    let document = json(&daemon.run(&["session", "show", "s1", "--json"]));
    assert_eq!(
        (&document["state"], &document["close_reason"], &document["create_time"]),
        (&json!("closed"), &json!("idle"), &json!("1970-01-01T00:00:00Z"))
    );
    let keys: Vec<&String> = document.as_object().unwrap().keys().collect();
    assert_eq!(keys.len(), 23, "{keys:?}");
    assert_eq!(
        stdout(&daemon.run(&["session", "show", "s1"])),
        "s1\n  state        closed (idle)\n  policy       data@0123\n  created      1970-01-01T00:00:00Z\n"
    );
    let created = json(&daemon.run(&["session", "create", "--json"]));
    assert_eq!(
        (&created["session_id"], &created["access_token"]),
        (&json!("s1"), &Value::Null)
    );
    assert_eq!(created.as_object().unwrap().len(), 24);
}

#[test]
fn the_list_goes_through_all_pages() {
    let daemon = with_sessions(&["s1", "s2", "s3", "s4", "s5"]);
    let text = stdout(&daemon.run(&["session", "list"]));
    let ids: Vec<&str> = text
        .lines()
        .skip(1)
        .map(|line| line.split(' ').next().unwrap())
        .collect();
    assert_eq!(ids, ["s1", "s2", "s3", "s4", "s5"]);
    let tokens: Vec<String> = daemon
        .asked()
        .listed
        .into_iter()
        .map(|request| request.page_token)
        .collect();
    assert_eq!(tokens, ["", "2", "4"]);
    let document = json(&daemon.run(&["session", "list", "--json"]));
    assert_eq!(document["sessions"].as_array().unwrap().len(), 5);
    let lines = stdout(&daemon.run(&["session", "list", "-o", "jsonl"]));
    let ids: Vec<Value> = lines
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["session_id"].clone())
        .collect();
    assert_eq!(ids, ["s1", "s2", "s3", "s4", "s5"]);
}

#[test]
fn an_empty_list_is_a_heading_or_an_empty_document() {
    let daemon = with_sessions(&[]);
    assert_eq!(
        json(&daemon.run(&["session", "list", "--json"])),
        json!({"sessions": []})
    );
    assert_eq!(stdout(&daemon.run(&["session", "list", "-ojsonl"])), "");
}

#[test]
fn filters_of_the_list_become_the_request() {
    let daemon = with_sessions(&[]);
    daemon.run(&words("session list --label a=b --state running --state paused"));
    daemon.run(&words("session list --all"));
    daemon.run(&words("session list"));
    let listed = daemon.asked().listed;
    assert_eq!(
        (listed[0].labels["a"].as_str(), listed[0].states.as_slice()),
        ("b", &[2, 3][..])
    );
    assert_eq!(listed[1].states, [1, 2, 3, 4, 5]);
    assert!(listed[2].states.is_empty());
    assert_eq!(code(&daemon.run(&words("session list --all --state closed"))), 2);
    let wrong = daemon.run(&words("session list --state dead"));
    assert!(
        stderr(&wrong).contains("creating, running, paused, closing, closed"),
        "{}",
        stderr(&wrong)
    );
}

#[test]
fn sessions_are_closed_one_after_the_other() {
    let daemon = with_sessions(&["s1", "s2"]);
    let output = daemon.run(&words("session close s1 s2"));
    assert_eq!((code(&output), stdout(&output)), (0, "s1\ns2\n".to_owned()));
    let document = json(&daemon.run(&words("session close s1 --json")));
    assert_eq!(document["sessions"][0]["state"], "closed");
    assert_eq!(document.get("refused"), None);
}

#[test]
fn one_that_is_not_there_does_not_keep_the_others_open() {
    let daemon = with_sessions(&["s1", "s2"]);
    let output = daemon.run(&words("session close s1 s9 s2"));
    assert_eq!((code(&output), stdout(&output)), (2, "s1\ns2\n".to_owned()));
    assert_eq!(stderr(&output), "error: no session \"s9\"\n");
    let document = json(&daemon.run(&words("session close s1 s9 --json")));
    assert_eq!(
        (&document["status"], &document["refused"]["reason"]),
        (&Value::Null, &json!("session_not_found"))
    );
    assert_eq!(document["sessions"][0]["session_id"], "s1");
}

#[test]
fn an_update_names_what_changes() {
    let daemon = with_sessions(&["s1"]);
    let output = daemon.run(&words("session update s1 --idle 5m --label a=b --json"));
    assert_eq!((code(&output), json(&output)["session_id"].as_str()), (0, Some("s1")));
    let request = &daemon.asked().updated[0];
    assert_eq!(request.update_mask.as_ref().unwrap().paths, ["idle_timeout", "labels"]);
    let nothing = daemon.run(&words("session update s1"));
    assert_eq!(code(&nothing), 2);
    assert!(stderr(&nothing).contains("accepted: --idle TIME, --expire TIME, --on-timeout WHAT, --label KEY=VALUE"));
    assert_eq!(daemon.asked().updated.len(), 1);
}

#[test]
fn pause_and_resume_show_the_session_and_each_request_has_a_name() {
    let daemon = with_sessions(&["s1"]);
    for (verb, state) in [("pause", "paused"), ("resume", "running")] {
        let document = json(&daemon.run(&["session", verb, "s1", "--json"]));
        assert_eq!(
            (&document["session_id"], &document["state"]),
            (&json!("s1"), &json!(state))
        );
        let text = stdout(&daemon.run(&["session", verb, "s1"]));
        assert_eq!(text, format!("s1\n  state        {state}\n  policy       data@0123\n"));
    }
    let paused = daemon.asked().paused;
    let asked: Vec<_> = paused.iter().map(|(paused, id, _)| (*paused, id.as_str())).collect();
    assert_eq!(asked, [(true, "s1"), (true, "s1"), (false, "s1"), (false, "s1")]);
    let names: std::collections::HashSet<_> = paused.iter().map(|(.., request)| request).collect();
    assert_eq!((names.len(), names.contains(&String::new())), (4, false));
    assert_eq!(code(&daemon.run(&words("session pause s9"))), 2);
}

#[test]
fn what_happens_to_a_session_whose_time_is_over_can_be_chosen() {
    let daemon = with_sessions(&["s1"]);
    assert_eq!(
        code(&daemon.run(&words("session create --on-timeout pause --expire 5m"))),
        0
    );
    assert_eq!(code(&daemon.run(&words("session create"))), 0);
    let created = daemon.asked().created;
    assert_eq!(
        (created[0].on_timeout(), created[0].expire_after.unwrap().seconds),
        (OnTimeout::Pause, 300)
    );
    assert_eq!(
        (created[1].on_timeout(), created[1].expire_after),
        (OnTimeout::Close, None)
    );
    assert_eq!(code(&daemon.run(&words("session update s1 --on-timeout close"))), 0);
    assert_eq!(daemon.asked().updated[0].on_timeout(), OnTimeout::Close);
    assert_eq!(code(&daemon.run(&words("session create --on-timeout fork"))), 2);
}

#[test]
fn a_watch_tells_sessions_and_what_was_lost() {
    let daemon = with_sessions(&["s1", "s2"]);
    let output = daemon.run(&words("session watch s1 s2 --label a=b"));
    assert_eq!(code(&output), 0);
    assert_eq!(
        stdout(&output),
        "1970-01-01T00:00:00Z  s1  running\n1970-01-01T00:00:00Z  s2  running\n\
         some changes were lost: list again\n"
    );
    let asked = &daemon.asked().watched[0];
    assert_eq!((asked.session_ids.len(), asked.labels["a"].as_str()), (2, "b"));
    let lines = stdout(&daemon.run(&words("session watch -o jsonl")));
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let events: Vec<_> = lines.iter().map(|line| line["event"].as_str().unwrap()).collect();
    assert_eq!(events, ["session", "session", "ready", "overflow"]);
    assert_eq!(lines[1]["session"]["session_id"], "s2");
}

#[test]
fn each_refusal_is_one_document() {
    let daemon = refusing(reason(Reason::NotImplemented, "Sessions.Update is not built yet"));
    for line in [
        "session create --json",
        "session list --json",
        "session show s1 --json",
        "session update s1 --idle 1m --json",
        "session close s1 --json",
        "session pause s1 --json",
        "session resume s1 --json",
    ] {
        let output = daemon.run(&words(line));
        assert_eq!(
            (code(&output), stderr(&output).as_str()),
            (2, "error: Sessions.Update is not built yet\n")
        );
        assert_eq!(json(&output)["refused"]["code"], "unimplemented", "{line}");
    }
    let lines = stdout(&daemon.run(&words("session list -o jsonl")));
    assert_eq!(serde_json::from_str::<Value>(&lines).unwrap()["event"], "refused");
}

#[test]
fn a_job_runs_in_a_session_that_exists() {
    let place = tempfile::tempdir().unwrap();
    std::fs::write(place.path().join("in.csv"), "a,b\n").unwrap();
    let daemon = with_sessions(&["s1"]);
    let line = "run -q --session s1 --timeout 5s --env TZ=UTC --input in.csv=x.csv --expect y -c 1";
    let output = daemon.brig(&words(line)).current_dir(place.path()).output().unwrap();
    assert_eq!(
        (code(&output), stdout(&output), stderr(&output)),
        (0, "a\n".to_owned(), String::new())
    );
    let asked = daemon.asked();
    let spec = asked.spec();
    assert_eq!(
        (asked.sessions.as_slice(), asked.created.len()),
        (&["s1".to_owned()][..], 0)
    );
    assert_eq!(
        (spec.policy.as_str(), spec.limits.unwrap().timeout.unwrap().seconds),
        ("", 5)
    );
    let Some(Work::Code(code)) = &spec.work else {
        panic!("{:?}", spec.work)
    };
    assert_eq!((code.source.as_str(), spec.expected_outputs.len()), ("1", 1));
    assert_eq!(spec.inputs[0].name, "x.csv");
    assert_eq!(spec.inputs[0].source, Some(Source::Data(b"a,b\n"[..].into())));
}

#[test]
fn a_session_that_exists_has_its_own_sandbox() {
    for (option, value) in [
        ("policy", "data"),
        ("template", "base"),
        ("memory", "1G"),
        ("cpus", "1"),
        ("disk", "1G"),
        ("pids", "9"),
    ] {
        let daemon = with_sessions(&["s1"]);
        let option_word = format!("--{option}");
        let output = daemon.run(&["run", "--json", "--session", "s1", &option_word, value, "-c", "1"]);
        assert_eq!(
            (code(&output), json(&output)["refused"]["field"].as_str()),
            (2, Some(option))
        );
        assert!(
            stderr(&output).starts_with(&format!(
                "error: {option}: --{option} is for a new session, and session \"s1\" exists; leave it out\n"
            )),
            "{}",
            stderr(&output)
        );
        assert!(daemon.asked().specs.is_empty());
    }
    for line in [
        "run --session s1 --keep -c 1",
        "run --session s1 --standalone -c 1",
        "run --keep --standalone -c 1",
    ] {
        assert_eq!(code(&brig(&words(line)).output().unwrap()), 2, "{line}");
    }
}

#[test]
fn an_input_that_is_too_large_for_a_session_is_refused_with_what_is_accepted() {
    let place = tempfile::tempdir().unwrap();
    std::fs::write(place.path().join("large"), vec![0; 512 * 1024 + 1]).unwrap();
    let daemon = with_sessions(&["s1"]);
    let mut command = daemon.brig(&words("run --session s1 --input large -c 1"));
    let output = command.current_dir(place.path()).output().unwrap();
    assert_eq!(code(&output), 2);
    assert_eq!(
        stderr(&output),
        "error: input: large: is larger than 512K; accepted in a kept session: at most 512K\n\
         hint: larger ones: brig put FILE SESSION:, or brig input put FILE and --input input:ID\n"
    );
}

#[test]
fn a_job_can_leave_its_session_behind() {
    let daemon = with_sessions(&["s1"]);
    let line = "run -q --keep --policy strict --memory 1G --timeout 5s --label a=b --user ann -c 1";
    let output = daemon.run(&words(line));
    assert_eq!((code(&output), stdout(&output)), (0, "a\n".to_owned()));
    assert_eq!(
        stderr(&output),
        "hint: session s1 is kept until it is idle for 10 min; run in it: brig run --session s1 ...; \
         end it: brig session close s1\n"
    );
    let asked = daemon.asked();
    let (created, spec) = (&asked.created[0], asked.spec());
    assert_eq!((created.policy.as_str(), created.labels["a"].as_str()), ("strict", "b"));
    assert_eq!(created.limits.unwrap().memory_bytes, Some(1 << 30));
    assert_eq!(
        (asked.sessions.as_slice(), spec.policy.as_str()),
        (&["s1".to_owned()][..], "")
    );
    let limits = spec.limits.unwrap();
    assert_eq!((limits.timeout.unwrap().seconds, limits.memory_bytes), (5, None));
    assert_ne!(created.request_id, spec.request_id);
    assert!(asked.closed.is_empty());
}

#[test]
fn a_session_in_which_nothing_ran_is_not_left_behind() {
    let daemon = Daemon::start(Script {
        sessions: vec![session("s1")],
        refusal: Some(reason(Reason::PolicyForbids, "not allowed")),
        ..Script::default()
    });
    let output = daemon.run(&words("run --keep --json -c 1"));
    assert_eq!((code(&output), stderr(&output).as_str()), (77, "error: not allowed\n"));
    assert_eq!(json(&output)["refused"]["reason"], "policy_forbids");
    assert_eq!(daemon.asked().closed, ["s1"]);
}

#[test]
fn a_session_that_can_not_be_made_is_a_refusal_of_the_job() {
    let daemon = refusing(reason(Reason::SessionQuota, "8 sessions are as many as may"));
    let output = daemon.run(&words("run --keep --json -c 1"));
    assert_eq!(
        (code(&output), json(&output)["refused"]["reason"].as_str()),
        (75, Some("session_quota"))
    );
    assert!(daemon.asked().specs.is_empty());
}
