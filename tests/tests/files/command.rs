//! `brig put`, `get` and `ls`.

use super::Rig;

#[test]
fn files_go_in_and_out_by_command() {
    let Some(rig) = Rig::open("download = \"any\"") else {
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    std::fs::write(at("data.csv"), "a,b\n").unwrap();
    let put = rig.daemon.brig(&["put", "-p", &at("data.csv"), "mine:in/"]);
    assert_eq!(put.code, Some(0), "{}", put.stderr);
    let again = rig
        .daemon
        .brig(&["put", &at("data.csv"), "mine:in/data.csv", "-o", "json"]);
    assert_eq!(again.code, Some(2));
    assert!(again.text().contains("file_exists"), "{}", again.text());
    assert_eq!(rig.sh("cat in/data.csv; echo done > out.txt"), "a,b\n");
    assert_eq!(rig.daemon.brig(&["get", "mine:out.txt", "-"]).text(), "done\n");
    assert_eq!(rig.daemon.brig(&["get", "mine:out.txt", &at("")]).code, Some(0));
    assert_eq!(std::fs::read_to_string(at("out.txt")).unwrap(), "done\n");
    assert_eq!(rig.daemon.brig(&["get", "mine:out.txt", &at("out.txt")]).code, Some(2));
    let list = rig.daemon.brig(&["ls", "mine", "-d", "2", "-o", "jsonl"]).text();
    let paths: Vec<String> = list
        .lines()
        .map(|line| {
            serde_json::from_str::<serde_json::Value>(line).unwrap()["path"]
                .as_str()
                .unwrap()
                .to_owned()
        })
        .collect();
    assert_eq!(paths, ["in", "in/data.csv", "out.txt"]);
    assert_eq!(rig.daemon.brig(&["ls", "mine:/etc"]).code, Some(2));
}
