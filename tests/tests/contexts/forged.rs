//! Code that writes to the pipe of frames itself harms itself alone, and in bounds.

use brig_proto::v1::{ExecutionSpec, ExecutionStatus, NoticeKind};
use brig_tests::daemon;
use brig_tests::spec::{code, timeout};

use super::{Kept, MINE, has_state};

const FRAME: &str = "import os, json, struct\ndef frame(**event):\n    body = json.dumps(event).encode()\n    \
                     return struct.pack('<I', len(body)) + body\n";

#[test]
fn a_forged_end_ends_only_its_own_execution() {
    let daemon = daemon!();
    let kept = Kept::new(&daemon);
    kept.stdout(FRAME);
    let forged = ExecutionSpec {
        execution_id: "forged".to_owned(),
        ..code(
            "import time\nprint('before', flush=True)\n\
             os.write(201, frame(ev='done', id='forged', exit_code=0, execution_count=1 << 60, kept=True, names=1))\n\
             while not os.path.exists('go'): time.sleep(0.01)\nprint('after', flush=True)",
        )
    };
    let outcome = kept.begin(MINE, forged).finish().expect_success();
    assert_eq!(outcome.stdout(), "before\n");
    kept.shell("touch go");
    let next = kept.run("print('next')").expect_success();
    assert_eq!(next.stdout(), "after\nnext\n");
    let for_others = "os.write(201, frame(ev='done', id='other', exit_code=7))\n\
                      os.write(201, frame(ev='result', id='other', main=True, data={'text/plain': 'x'}))\n\
                      os.write(201, frame(ev='ready'))\nprint('whole')";
    let outcome = kept.run(for_others).expect_success();
    assert_eq!(
        (outcome.stdout().as_str(), outcome.result.results.len()),
        ("whole\n", 0)
    );
}

#[test]
fn frames_that_are_none_cost_the_interpreter_and_nobody_waits_for_them() {
    let daemon = daemon!();
    let kept = Kept::new(&daemon);
    let rows = [
        (
            "os.write(201, b'\\xff' * 64)\nimport time; time.sleep(60)",
            ExecutionStatus::Error,
        ),
        (
            "chunk = frame(ev='') * 1000\nwhile True: os.write(201, chunk)",
            ExecutionStatus::Error,
        ),
        ("os.close(201)\nimport time; time.sleep(60)", ExecutionStatus::Error),
    ];
    for (source, status) in rows {
        let outcome = kept.run(&format!("{FRAME}{source}"));
        assert_eq!(
            (outcome.status(), has_state(&outcome)),
            (status, false),
            "{source}: {:?}",
            outcome.result
        );
        assert_eq!(outcome.notices(NoticeKind::ContextReplaced).len(), 1, "{source}");
        assert!(outcome.result.hint.is_some(), "{source}");
        assert_eq!(kept.stdout("print(1)"), "1\n");
    }
    let cut = ExecutionSpec {
        limits: timeout(1000),
        ..code(&format!(
            "{FRAME}os.write(201, struct.pack('<I', 1000) + b'cut')\nprint(1)"
        ))
    };
    // Its `done` is taken for the rest of the frame.
    let outcome = kept.begin(MINE, cut).finish();
    assert_eq!(outcome.status(), ExecutionStatus::Timeout);
    assert_eq!(kept.stdout("print(2)"), "2\n");
    let nonsense = kept.run(&format!(
        "{FRAME}os.write(201, struct.pack('<I', 3) + b'{{]}}')\nprint(3)"
    ));
    assert_eq!(nonsense.expect_success().stdout(), "3\n");
}
