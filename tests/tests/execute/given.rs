//! What a program is given: input, arguments, a place, variables.

use std::collections::BTreeMap;

use brig_proto::v1::execution_spec::Work;
use brig_proto::v1::{Code, Command, ExecutionSpec, ExecutionStatus as Status};
use brig_tests::daemon;
use brig_tests::spec::{command, sh, small};
use tonic::Code as Answer;

use crate::error;

#[test]
fn stdin_is_given_whole_and_ends() {
    let daemon = daemon!();
    let bytes: Vec<u8> = (0..300_000_u32).map(|number| (number % 251) as u8).collect();
    let outcome = daemon.run(ExecutionSpec {
        stdin: bytes.into(),
        ..sh("wc -c; sha256sum </dev/null | head -c 8")
    });
    assert_eq!(outcome.expect_success().stdout(), "300000\ne3b0c442");
}

#[test]
fn without_stdin_a_program_reads_the_end_at_once() {
    let daemon = daemon!();
    assert_eq!(daemon.stdout(sh("wc -c")), "0\n");
    let outcome = daemon.run(small("input('name? ')"));
    assert_eq!(outcome.status(), Status::Error);
    assert_eq!(error(&outcome).0, "EOFError");
    assert!(outcome.result.hint.unwrap().contains("input()"));
}

#[test]
fn a_program_that_does_not_read_its_stdin_ends_all_the_same() {
    let daemon = daemon!();
    let outcome = daemon.run(ExecutionSpec {
        stdin: vec![b'x'; 1 << 20].into(),
        ..sh("exec <&-; echo done")
    });
    assert_eq!(outcome.expect_success().stdout(), "done\n");
}

#[test]
fn arguments_arrive_as_they_were_given() {
    let daemon = daemon!();
    let odd = ["", " ", "a b", "$HOME", "'", "\"", "\\", "ü€", "-x", "line\nbreak"];
    let arguments: Vec<String> = odd.iter().map(|&word| word.to_owned()).collect();
    let work = Code {
        source: "import sys, json\nprint(json.dumps(sys.argv))".to_owned(),
        filename: "job.py".to_owned(),
        arguments: arguments.clone(),
        ..Code::default()
    };
    let text = daemon.stdout(ExecutionSpec {
        work: Some(Work::Code(work)),
        template: "base".to_owned(),
        ..ExecutionSpec::default()
    });
    let mut expected = vec!["job.py"];
    expected.extend(odd);
    assert_eq!(serde_json::from_str::<Vec<String>>(&text).unwrap(), expected);
    let argv = ["python3", "-c", "import sys, json; print(json.dumps(sys.argv[1:]))"];
    let all: Vec<&str> = argv.into_iter().chain(odd).collect();
    let text = daemon.stdout(command(&all));
    assert_eq!(serde_json::from_str::<Vec<String>>(&text).unwrap(), odd);
}

#[test]
fn arguments_that_are_not_utf8_arrive_as_bytes() {
    let daemon = daemon!();
    let work = Command {
        raw_argv: vec!["printf".into(), "%s".into(), b"caf\xe9".to_vec().into()],
        ..Command::default()
    };
    let outcome = daemon.run(ExecutionSpec {
        work: Some(Work::Command(work)),
        template: "base".to_owned(),
        ..ExecutionSpec::default()
    });
    assert_eq!(&outcome.result.stdout[..], b"caf\xe9");
}

#[test]
fn a_command_runs_where_it_is_told() {
    let daemon = daemon!();
    for (directory, expected) in [
        ("", "/home/user\n"),
        ("/usr/share", "/usr/share\n"),
        (".", "/home/user\n"),
        ("../../usr", "/usr\n"),
    ] {
        let work = Command {
            argv: vec!["pwd".to_owned()],
            directory: directory.to_owned(),
            ..Command::default()
        };
        let text = daemon.stdout(ExecutionSpec {
            work: Some(Work::Command(work)),
            template: "base".to_owned(),
            ..ExecutionSpec::default()
        });
        assert_eq!(text, expected, "{directory:?}");
    }
}

#[test]
fn allowed_variables_are_set_and_nothing_of_the_host_is() {
    let daemon = daemon!();
    let text = daemon.stdout(ExecutionSpec {
        environment: BTreeMap::from([
            ("TZ".to_owned(), "Asia/Tokyo".to_owned()),
            ("LC_TIME".to_owned(), "C".to_owned()),
        ]),
        ..sh("env | cut -d= -f1 | sort | tr '\\n' ' '; echo $TZ; date -d @0 +%H")
    });
    assert_eq!(
        text,
        "HOME LANG LC_TIME LOGNAME MKL_NUM_THREADS NUMEXPR_NUM_THREADS OMP_NUM_THREADS OPENBLAS_NUM_THREADS PATH PWD \
         PYTHONDONTWRITEBYTECODE PYTHONUNBUFFERED SHELL TZ USER VECLIB_MAXIMUM_THREADS XDG_CACHE_HOME Asia/Tokyo\n09\n"
    );
}

#[test]
fn a_variable_of_the_caller_takes_the_place_of_the_templates() {
    let daemon = daemon!();
    let text = daemon.stdout(ExecutionSpec {
        environment: BTreeMap::from([("TZ".to_owned(), "Asia/Tokyo".to_owned())]),
        ..sh("tr '\\0' '\\n' </proc/$$/environ | grep ^TZ=")
    });
    assert_eq!(text, "TZ=Asia/Tokyo\n");
}

#[test]
fn variables_that_the_policy_does_not_allow_are_refused_by_name() {
    let daemon = daemon!();
    for name in ["LD_PRELOAD", "PYTHONPATH", "PATH", "TZX", "LC", "BASH_ENV"] {
        let refused = daemon.refused(ExecutionSpec {
            environment: BTreeMap::from([(name.to_owned(), "x".to_owned())]),
            ..sh("true")
        });
        assert_eq!(
            (refused.code, refused.reason.as_str()),
            (Answer::PermissionDenied, "POLICY_FORBIDS")
        );
        assert!(
            refused.fields[0].contains(name) && refused.message.contains("LC_*"),
            "{refused:?}"
        );
    }
}
