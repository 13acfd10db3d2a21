use std::os::unix::fs::symlink;
use std::time::{Duration, SystemTime};

use super::*;
use crate::files::wire::{Change, Limit};

#[test]
fn new_and_changed_files_are_told_and_the_others_are_not() {
    let place = Place::tmpfs("1M", "100");
    let mut client = place.serve();
    for name in ["same", "longer", "rewritten", "replaced", "touched", "renamed"] {
        client.put(put_of(name, 3), b"abc").unwrap();
    }
    assert_eq!(client.snapshot(), 6);
    place.write("longer", "abcd");
    place.write("rewritten", "xyz");
    place.write("other", "abc");
    std::fs::rename(place.join("other"), place.join("replaced")).unwrap();
    let file = std::fs::File::options()
        .write(true)
        .open(place.join("touched"))
        .unwrap();
    file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
    std::fs::rename(place.join("renamed"), place.join("moved")).unwrap();
    std::fs::create_dir_all(place.join("out/deep")).unwrap();
    place.write("out/deep/new", "12345");
    let collection = client.collect(everything());
    let changes: Vec<_> = collection
        .found
        .iter()
        .map(|found| (text(&found.path), found.change))
        .collect();
    let expected = [
        ("longer", Change::Modified),
        ("moved", Change::Created),
        ("out/deep/new", Change::Created),
        ("replaced", Change::Modified),
        ("rewritten", Change::Modified),
        ("touched", Change::Modified),
    ];
    assert_eq!(changes, expected.map(|(path, change)| (path.to_owned(), change)));
    assert_eq!((collection.found[2].size, collection.found[2].mode), (5, 0o644));
    assert_eq!(
        collection.totals,
        Collected {
            examined: 9,
            changed: 6,
            space: collection.totals.space,
            ..Collected::default()
        }
    );
}

#[test]
fn a_change_at_once_after_the_snapshot_is_seen_although_size_and_mtime_are_the_same() {
    let place = Place::tmpfs("1M", "100");
    let mut client = place.serve();
    for round in 0..50 {
        let before = SystemTime::UNIX_EPOCH + Duration::from_secs(round);
        let mtime = Some(crate::files::wire::Time {
            seconds: i64::try_from(round).unwrap(),
            nanoseconds: 0,
        });
        client
            .put(
                Put {
                    mtime,
                    ..put_of("file", 3)
                },
                b"abc",
            )
            .unwrap();
        client.snapshot();
        place.write("file", "xyz");
        std::fs::File::options()
            .write(true)
            .open(place.join("file"))
            .unwrap()
            .set_modified(before)
            .unwrap();
        assert_eq!(client.collect(everything()).paths(), ["file"]);
        client.snapshot();
        assert_eq!(client.collect(everything()).paths(), Vec::<String>::new());
    }
}

#[test]
fn since_a_time_everything_that_changed_is_told_whoever_looks_and_nothing_before() {
    let place = Place::tmpfs("1M", "100");
    let mut client = place.serve();
    for name in ["same", "rewritten", "touched", "early"] {
        client.put(put_of(name, 3), b"abc").unwrap();
    }
    let first = client.now();
    place.write("rewritten", "xyz");
    let back = |name: &str| {
        let file = std::fs::File::options().write(true).open(place.join(name)).unwrap();
        file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
    };
    back("rewritten");
    let since = |since| Collect {
        since: Some(since),
        expected: vec![b"same".to_vec()],
        ..everything()
    };
    client.collect(since(first));
    let second = client.now();
    place.write("new", "1");
    back("new");
    back("touched");
    let changes = |collection: Collection| -> Vec<_> {
        let found = collection.found.iter();
        found.map(|found| (text(&found.path), found.change)).collect()
    };
    let told = |changes: &[(&str, Change)]| -> Vec<_> {
        changes
            .iter()
            .map(|(path, change)| ((*path).to_owned(), *change))
            .collect()
    };
    let later = [
        ("new", Change::Created),
        ("same", Change::Unchanged),
        ("touched", Change::Modified),
    ];
    assert_eq!(changes(client.collect(since(second))), told(&later));
    let all = [later[0], ("rewritten", Change::Modified), later[1], later[2]];
    assert_eq!(changes(client.collect(since(first))), told(&all));
}

#[test]
fn a_time_lies_after_what_was_put_and_collected_and_before_what_changes_at_once() {
    let place = Place::tmpfs("1M", "100");
    let mut client = place.serve();
    let since = |since| Collect {
        since: Some(since),
        ..everything()
    };
    for round in 0..20 {
        client.put(put_of("input", 3), b"abc").unwrap();
        let now = client.now();
        let name = format!("new{round}");
        place.write(&name, "x");
        assert_eq!(client.collect(since(now)).paths(), [name.as_str()], "round {round}");
        let next = client.now();
        assert_eq!(
            client.collect(since(next)).paths(),
            Vec::<String>::new(),
            "round {round}"
        );
    }
}

#[test]
fn what_programs_keep_for_themselves_is_ignored_unless_expected() {
    let place = Place::new();
    for directory in [
        "pkg/__pycache__",
        ".cache/matplotlib",
        ".config",
        ".ipynb_checkpoints",
        "kept",
    ] {
        std::fs::create_dir_all(place.join(directory)).unwrap();
        std::fs::write(place.join(directory).join("file"), "x").unwrap();
    }
    place.write(".python_history", "x");
    place.write(".brig-put-0123456789abcdef", "x");
    place.write(".env", "x");
    let mut client = place.serve();
    let expected = vec![b".config/file".to_vec()];
    let collection = client.collect(Collect {
        expected,
        ..everything()
    });
    assert_eq!(collection.paths(), [".config/file", ".env", "kept/file"]);
    assert_eq!(collection.totals.ignored, 6);
}

#[test]
fn expected_files_come_even_unchanged_and_within_the_cap_before_all_others() {
    let place = Place::new();
    std::fs::create_dir(place.join("sub")).unwrap();
    place.write("sub/wanted", "x");
    place.write("old", "x");
    symlink("old", place.join("link")).unwrap();
    symlink("sub", place.join("way")).unwrap();
    let mut client = place.serve();
    client.snapshot();
    place.write("new", "x");
    let paths = [
        "sub/wanted",
        "old",
        "old",
        "link",
        "way/wanted",
        "missing",
        "missing/too",
        "sub",
    ];
    let expected = paths.map(|path| path.as_bytes().to_vec()).to_vec();
    let collection = client.collect(Collect {
        expected: expected.clone(),
        max_files: 2,
        ..everything()
    });
    assert_eq!(collection.paths(), ["old", "sub/wanted"]);
    assert!(collection.found.iter().all(|found| found.change == Change::Unchanged));
    let skipped = [
        ("link", Skip::Symlink),
        ("new", Skip::TooMany),
        ("sub", Skip::Directory),
        ("way", Skip::Symlink),
        ("way/wanted", Skip::Symlink),
    ];
    assert_eq!(collection.skipped, skipped.map(|(path, why)| (path.to_owned(), why)));
    client.send(&Request::Collect(Collect {
        expected: vec![b"../x".to_vec()],
        ..everything()
    }));
    assert!(matches!(client.receive(), Response::Failed(failure) if failure.errno == libc::EINVAL));
}

#[test]
fn caps_on_number_size_and_depth_are_told() {
    let place = Place::new();
    std::fs::create_dir_all(place.join("a/b/c")).unwrap();
    place.write("a/b/c/low", "x");
    place.write("a/b/high", "x");
    place.write("big", "0123456789");
    let mut client = place.serve();
    let walk = Walk { max_depth: 3, ..WALK };
    let collection = client.collect(Collect {
        walk,
        max_bytes_each: Some(9),
        ..everything()
    });
    assert_eq!(collection.paths(), ["a/b/high"]);
    assert_eq!(
        collection.skipped,
        [("a/b/c".to_owned(), Skip::TooDeep), ("big".to_owned(), Skip::TooLarge)]
    );
    let collection = client.collect(Collect {
        max_files: 1,
        ..everything()
    });
    assert_eq!(
        (
            collection.found.len(),
            collection.totals.changed,
            collection.totals.skipped
        ),
        (1, 3, 2)
    );
    let walk = Walk { max_entries: 2, ..WALK };
    let collection = client.collect(Collect { walk, ..everything() });
    assert_eq!(
        (collection.totals.examined, collection.totals.truncated),
        (2, Some(Limit::Entries))
    );
    let walk = Walk { time_ms: 0, ..WALK };
    let collection = client.collect(Collect { walk, ..everything() });
    assert_eq!(
        (collection.totals.examined, collection.totals.truncated),
        (0, Some(Limit::Time))
    );
}
