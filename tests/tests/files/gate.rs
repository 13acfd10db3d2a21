//! Which files may leave, by policy.

use super::Rig;

#[test]
fn where_only_artifacts_may_leave_those_do_and_nothing_else() {
    let Some(rig) = Rig::open("download = \"artifacts\"") else {
        return;
    };
    rig.put("secret.csv", b"a,b\n1,2\n");
    rig.sh("printf 'x,y\\n1,2\\n' > out.csv; printf 'print(1)\\n' > code.py; echo temporary > /tmp/out.csv");
    let refused = |path: &str| rig.download(path, 0, None).unwrap_err().reason;
    assert_eq!(rig.download("out.csv", 0, None).unwrap().1, b"x,y\n1,2\n");
    assert_eq!(rig.download("out.csv", 2, Some(3)).unwrap().1, b"y\n1");
    // Uploaded and never collected; not in the working directory.
    for path in ["secret.csv", "/tmp/out.csv"] {
        assert_eq!(refused(path), "DOWNLOAD_FORBIDDEN", "{path}");
    }
    assert_eq!(refused("code.py"), "REVIEW_REQUIRED");
    // The same bytes elsewhere, or other bytes there, are not what was judged.
    rig.rename("out.csv", "renamed.csv").unwrap();
    assert_eq!(refused("renamed.csv"), "DOWNLOAD_FORBIDDEN");
    rig.put("out.csv", b"x,y\n1,3\n");
    assert_eq!(refused("out.csv"), "DOWNLOAD_FORBIDDEN");
    assert_eq!(refused("none.csv"), "FILE_NOT_FOUND");
}

#[test]
fn where_nothing_may_leave_nothing_does() {
    let Some(rig) = Rig::open("download = \"none\"") else {
        return;
    };
    rig.sh("printf 'x,y\\n1,2\\n' > out.csv");
    assert_eq!(
        rig.download("out.csv", 0, None).unwrap_err().reason,
        "DOWNLOAD_FORBIDDEN"
    );
    assert_eq!(rig.stat("out.csv").unwrap().size_bytes, 8);
}
