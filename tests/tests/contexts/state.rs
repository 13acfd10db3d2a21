//! What stays, what is apart, who waits.

use brig_proto::v1::execution_event::Event;
use brig_proto::v1::rich_datum::Content;
use brig_proto::v1::{ContextState, ContextsCreateRequest, ExecutionSpec, ExecutionState, ExecutionStatus, NoticeKind};
use brig_tests::daemon;
use brig_tests::spec::{code, command, input};

use super::{Kept, MINE, has_state};

#[test]
fn variables_stay_in_one_context_and_are_in_no_other() {
    let daemon = daemon!();
    let kept = Kept::new(&daemon);
    assert_eq!((kept.shown().state(), kept.shown().generation), (ContextState::Idle, 1));
    let first = kept.run("x = 20\ndef twice(n): return 2 * n").expect_success();
    assert!(has_state(&first));
    kept.context("other", "python");
    let elsewhere = kept.begin("other", code("print('x' in globals())")).finish();
    assert_eq!(elsewhere.expect_success().stdout(), "False\n");
    let second = kept.run("print('seen')\ntwice(x) + 2").expect_success();
    assert_eq!(second.stdout(), "seen\n");
    let [result] = second.result.results.as_slice() else {
        panic!("{:?}", second.result.results)
    };
    assert_eq!(result.data[0].content, Some(Content::Text("42".to_owned())));
    assert!(result.main && second.result.usage.unwrap().cpu_time.is_some());
    assert_eq!(kept.shown().execution_count, 2);
    let names: Vec<_> = daemon
        .list_contexts(MINE)
        .into_iter()
        .map(|context| context.context_id)
        .collect();
    assert_eq!(names, ["other", MINE]);
    let failed = kept.run("x / 0");
    let error = failed.result.error.as_ref().unwrap();
    assert_eq!(
        (failed.status(), error.name.as_str()),
        (ExecutionStatus::Error, "ZeroDivisionError")
    );
    assert_eq!(kept.stdout("print(x)"), "20\n");
    daemon.close(MINE);
    assert_eq!(daemon.log().matches("WARN").count(), 0, "{}", daemon.log());
}

#[test]
fn a_context_has_a_directory_and_an_environment_of_its_own() {
    let daemon = daemon!();
    let kept = Kept::new(&daemon);
    kept.stdout("import os; os.mkdir('below')");
    let request = ContextsCreateRequest {
        session_id: MINE.to_owned(),
        context_id: "below".to_owned(),
        directory: "below".to_owned(),
        environment: [("TZ".to_owned(), "Asia/Tokyo".to_owned())].into(),
        ..ContextsCreateRequest::default()
    };
    daemon.context(request.clone()).unwrap();
    let print = "import os; print(os.getcwd(), os.environ.get('TZ'), os.environ.get('LANG'))";
    let spec = ExecutionSpec {
        environment: [("LANG".to_owned(), "C".to_owned())].into(),
        ..code(print)
    };
    let outcome = kept.begin("below", spec).finish().expect_success();
    assert_eq!(outcome.stdout(), "/home/user/below Asia/Tokyo C\n");
    let nowhere = ContextsCreateRequest {
        context_id: "nowhere".to_owned(),
        directory: "/nowhere".to_owned(),
        ..request.clone()
    };
    // What the interpreter says and its end come together.
    for _ in 0..8 {
        let refused = daemon.context(nowhere.clone()).unwrap_err();
        assert_eq!(refused.fields, ["directory"], "{refused:?}");
    }
    let forbidden = ContextsCreateRequest {
        context_id: "forbidden".to_owned(),
        environment: [("LD_PRELOAD".to_owned(), "x".to_owned())].into(),
        ..request
    };
    assert_eq!(daemon.context(forbidden).unwrap_err().reason, "POLICY_FORBIDS");
}

#[test]
fn executions_wait_for_each_other_are_told_their_places_and_can_be_cancelled() {
    let daemon = daemon!();
    let kept = Kept::new(&daemon);
    let waiting = "import os, time\nprint('waiting')\nwhile not os.path.exists('go'): time.sleep(0.01)\nn = 1";
    let mut first = kept.begin_as("first", waiting);
    first.until_written("waiting");
    let mut second = kept.begin_as("second", "n += 1");
    let place = |event: &Event, place: u32| match event {
        Event::Accepted(told) => told.state() == ExecutionState::Queued && told.queue_position == place,
        _ => false,
    };
    second.until(|event| place(event, 1));
    let mut third = kept.begin_as("third", "n += 10");
    third.until(|event| place(event, 2));
    let mut fourth = kept.begin_as("fourth", "print(n)");
    fourth.until(|event| place(event, 3));
    assert_eq!(kept.shown().queue_length, 3);
    daemon.cancel("second");
    assert_eq!(second.finish().status(), ExecutionStatus::Cancelled);
    third.until(|event| place(event, 1));
    daemon
        .execute(MINE, command(&["touch", "go"]))
        .unwrap()
        .finish()
        .expect_success();
    for live in [first, third] {
        live.finish().expect_success();
    }
    assert_eq!(fourth.finish().expect_success().stdout(), "11\n");
}

#[test]
fn what_threads_write_between_executions_comes_with_the_next_one() {
    let daemon = daemon!();
    let kept = Kept::new(&daemon);
    let source = "import os, threading, time\ndone = threading.Event()\ndef late():\n    \
                  while not os.path.exists('go'): time.sleep(0.01)\n    \
                  print('late', flush=True)\n    done.set()\nthreading.Thread(target=late).start()\nprint('soon')";
    assert_eq!(kept.stdout(source), "soon\n");
    kept.shell("touch go");
    // The thread is at its end only behind the write, whenever that is.
    let next = kept.run("done.wait()\nprint('next')").expect_success();
    let third = kept.run("print('third')").expect_success();
    assert_eq!(next.stdout(), "late\nnext\n");
    assert_eq!(third.stdout(), "third\n");
    assert_eq!(third.notices(NoticeKind::EarlierOutput), Vec::<&str>::new());
}

#[test]
fn a_bash_keeps_variables_and_functions_and_exits_without_the_context() {
    let daemon = daemon!();
    let kept = Kept::of(&daemon, "base", "bash");
    let in_bash = |source: &str| kept.begin(MINE, code(source)).finish();
    in_bash("x=7; f() { echo \"f $x\"; }; cd /tmp").expect_success();
    assert_eq!(in_bash("f; pwd").expect_success().stdout(), "f 7\n/tmp\n");
    let failed = in_bash("false");
    assert_eq!(
        (failed.status(), failed.result.exit_code),
        (ExecutionStatus::Error, Some(1))
    );
    let gone = in_bash("exit 3");
    assert_eq!((gone.result.exit_code, has_state(&gone)), (Some(3), false));
    assert_eq!(gone.notices(NoticeKind::ContextReplaced).len(), 1);
    assert_eq!(in_bash("echo \"[$x]\"").expect_success().stdout(), "[]\n");
}

#[test]
fn a_plot_is_shown_with_its_data() {
    let daemon = daemon!();
    let kept = Kept::of(&daemon, "data", "python");
    let source = "import matplotlib.pyplot as plt\nplt.plot([1, 2], [3, 4], label='north')\nplt.title('Sales')";
    let mut live = kept.begin(MINE, code(source));
    let Event::Result(result) = live.until(|event| matches!(event, Event::Result(result) if result.chart.is_some()))
    else {
        panic!("no result")
    };
    let types: Vec<_> = result.data.iter().map(|datum| datum.r#type.as_str()).collect();
    assert!(types.contains(&"image/png"), "{types:?}");
    let text = |key: &str| match &result.chart.as_ref().unwrap().fields[key].kind {
        Some(prost_types::value::Kind::StringValue(text)) => text.clone(),
        other => panic!("{key}: {other:?}"),
    };
    assert_eq!((text("type"), text("title")), ("line".to_owned(), "Sales".to_owned()));
    live.finish().expect_success();
}

#[test]
fn what_is_refused_leaves_no_input_in_the_session() {
    let daemon = daemon!();
    let kept = Kept::new(&daemon);
    let spec = || ExecutionSpec {
        execution_id: "taken1".to_owned(),
        ..code("import os; print(os.listdir())")
    };
    assert_eq!(kept.begin(MINE, spec()).finish().expect_success().stdout(), "[]\n");
    let again = ExecutionSpec {
        inputs: vec![input("left.csv", b"1")],
        ..spec()
    };
    let refusal = daemon.execute_in(MINE, MINE, again).unwrap_err();
    assert_eq!(refusal.reason, "ID_TAKEN");
    assert_eq!(kept.stdout("print(os.listdir())"), "[]\n");
}
