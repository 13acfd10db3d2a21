//! `brig input`, and records in `brig run` and `brig exec`.

use brig_proto::v1::SessionsCreateRequest;
use brig_tests::{Brig, daemon};

use super::hex;

#[test]
fn a_file_is_put_listed_given_to_jobs_and_removed() {
    let daemon = daemon!();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("Q3 sales.csv");
    std::fs::write(&file, "a,b\n").unwrap();
    let file = file.to_str().unwrap();
    let put = [
        "input",
        "put",
        file,
        "--type",
        "text/csv",
        "--keep-for",
        "2h",
        "--label",
        "q=3",
        "--user",
        "ann",
    ];
    let put = daemon.brig(&put).expect(0);
    let id = put.text().trim().to_owned();
    assert!(
        put.stderr.contains("Q3 sales.csv") && put.stderr.contains(&hex(b"a,b\n")),
        "{}",
        put.stderr
    );
    let shown = daemon.brig(&["input", "show", &id, "--json"]).expect(0).json();
    assert_eq!(
        (
            &shown["name"],
            &shown["type"],
            &shown["size_bytes"],
            &shown["user"],
            &shown["labels"]["q"]
        ),
        (
            &"Q3 sales.csv".into(),
            &"text/csv".into(),
            &4.into(),
            &"ann".into(),
            &"3".into()
        )
    );
    let other = Brig::command(
        &daemon.socket(),
        &["input", "put", "-", "--name", "in.txt", "-q", "--id", "second"],
    );
    assert_eq!(other.stdin(b"piped").run().expect(0).text(), "second\n");
    let ids = |arguments: &[&str]| -> Vec<String> {
        let all = [&["input", "list", "--json"], arguments].concat();
        let list = daemon.brig(&all).expect(0).json();
        let inputs = list["inputs"].as_array().unwrap().clone();
        inputs
            .iter()
            .map(|input| input["input_id"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(ids(&[]), ["second", &id]);
    assert_eq!(ids(&["--label", "q=3"]), [id.as_str()]);
    assert_eq!(ids(&["--user", "ann"]), [id.as_str()]);
    let text = daemon.brig(&["input", "list"]).expect(0).text();
    assert!(text.contains("Q3 sales.csv") && text.contains("in.txt"), "{text}");

    let (own, renamed) = (format!("input:{id}"), format!("input:{id}=in/x.csv"));
    let run = [
        "run",
        "-q",
        "--template",
        "base",
        "--input",
        &own,
        "--input",
        &renamed,
        "--",
        "sh",
        "-c",
    ];
    let run = daemon.brig(&[&run[..], &["cat q3_sales.csv x.csv"]].concat()).expect(0);
    assert_eq!(run.text(), "a,b\na,b\n");
    daemon.create(SessionsCreateRequest {
        session_id: "kept".to_owned(),
        template: "base".to_owned(),
        ..SessionsCreateRequest::default()
    });
    let exec = daemon
        .brig(&["exec", "kept", "--input", "input:second", "--input", file, "--", "ls"])
        .expect(0);
    assert_eq!(exec.text(), "in.txt\nq3_sales.csv\n");
    let run = [
        "run",
        "-q",
        "--session",
        "kept",
        "--input",
        &own,
        "-c",
        "print(open('q3_sales.csv').read())",
    ];
    assert_eq!(daemon.brig(&run).expect(0).text(), "a,b\n\n");

    // A file of such a name is named by its path.
    std::fs::write(directory.path().join("input:second"), "a file").unwrap();
    let mut line = Brig::command(
        &daemon.socket(),
        &[
            "run",
            "-q",
            "--template",
            "base",
            "--input",
            "./input:second=f",
            "--",
            "cat",
            "f",
        ],
    );
    line.command.current_dir(directory.path());
    assert_eq!(line.run().expect(0).text(), "a file");
    let refused = daemon
        .brig(&["run", "--json", "--input", "input:NO", "-c", "1"])
        .expect(2)
        .json();
    assert_eq!(refused["refused"]["field"], "input");

    let removed = daemon.brig(&["input", "remove", &id, "second", &id]).expect(0);
    assert_eq!(removed.text(), format!("{id}\nsecond\n{id}\n"));
    assert_eq!(ids(&[]), Vec::<String>::new());
    let gone = daemon.brig(&["input", "show", &id, "--json"]).expect(2).json();
    assert_eq!(gone["refused"]["reason"], "input_not_found");
}

#[test]
fn a_put_that_is_repeated_is_done_once() {
    let daemon = daemon!();
    let put = |text: &[u8]| {
        let arguments = ["input", "put", "-", "--name", "x", "--request-id", "r1", "--json"];
        Brig::command(&daemon.socket(), &arguments).stdin(text).run()
    };
    let first = put(b"abc").expect(0).json();
    assert_eq!(put(b"abc").expect(0).json(), first);
    assert_eq!(put(b"abd").expect(2).json()["refused"]["reason"], "request_id_reused");
}
