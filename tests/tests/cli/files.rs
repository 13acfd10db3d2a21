//! Files on their way into a job and out of it.

use std::os::unix::fs::{PermissionsExt, symlink};

use brig_tests::daemon;

use crate::{folder, run, text};

#[test]
fn inputs_are_placed_under_safe_names_and_the_mapping_is_told() {
    let daemon = daemon!();
    let folder = folder();
    let names = ["Q3 sales (1).csv", "a;rm -rf $HOME.csv", "ünï.csv", "-rf"];
    let files: Vec<String> = names
        .iter()
        .map(|name| {
            let file = folder.path().join(name);
            std::fs::write(&file, name).unwrap();
            text(&file).to_owned()
        })
        .collect();
    let mut arguments = vec!["--json"];
    for file in &files {
        arguments.extend(["--input", file]);
    }
    let renamed = format!("{}=dir/New Name.csv", files[0]);
    arguments.extend(["--input", &renamed, "-c", "import os\nprint(sorted(os.listdir('.')))"]);
    let document = run(&daemon, &arguments).expect(0).json();
    let mapping: Vec<(&str, &str)> = document["inputs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|input| (input["name"].as_str().unwrap(), input["path"].as_str().unwrap()))
        .collect();
    assert_eq!(
        mapping.iter().map(|(name, _)| *name).collect::<Vec<_>>(),
        [&names[..], &["dir/New Name.csv"]].concat()
    );
    let safe =
        |path: &str| !path.starts_with(['.', '-']) && path.chars().all(|c| c.is_alphanumeric() || "._-".contains(c));
    assert!(mapping.iter().all(|(_, path)| safe(path)), "{mapping:?}");
    assert_eq!(mapping[0].1, "q3_sales_1.csv");
    let mut paths: Vec<&str> = mapping.iter().map(|(_, path)| *path).collect();
    paths.sort_unstable();
    assert_eq!(document["stdout"], format!("{paths:?}\n").replace('"', "'"));
}

#[test]
fn large_inputs_are_streamed_and_arrive_whole() {
    let daemon = daemon!();
    let folder = folder();
    let file = folder.path().join("large.bin");
    let bytes: Vec<u8> = (0..5_000_000_u32).map(|number| (number % 253) as u8).collect();
    std::fs::write(&file, &bytes).unwrap();
    let brig = run(
        &daemon,
        &["--json", "--input", text(&file), "--", "sha256sum", "large.bin"],
    )
    .expect(0);
    let document = brig.json();
    let stdout = document["stdout"].as_str().unwrap();
    assert_eq!(stdout.split(' ').next(), document["inputs"][0]["sha256"].as_str());
    assert_eq!(document["inputs"][0]["size_bytes"], 5_000_000);
}

#[test]
fn artifacts_are_saved_as_plain_files_and_those_for_review_are_not() {
    let daemon = daemon!();
    let folder = folder();
    let out = folder.path().join("new/out");
    let brig = run(
        &daemon,
        &["--out", text(&out), "--", "sh", "-c", "mkdir sub; echo a,b >sub/t.csv; chmod 777 sub/t.csv; cp /usr/bin/true prog; echo x >s.sh; ln -s /etc/passwd l.txt"],
    )
    .expect(0);
    assert_eq!(std::fs::read_to_string(out.join("sub/t.csv")).unwrap(), "a,b\n");
    let mode = std::fs::metadata(out.join("sub/t.csv")).unwrap().permissions().mode();
    assert_eq!(mode & 0o111, 0, "{mode:o}");
    for name in ["prog", "s.sh", "l.txt"] {
        assert!(out.join(name).symlink_metadata().is_err(), "{name}");
    }
    assert!(
        brig.stderr.contains("sub/t.csv") && brig.stderr.contains("prog"),
        "{}",
        brig.stderr
    );
}

#[test]
fn a_link_that_waits_in_the_out_directory_is_not_written_through() {
    let daemon = daemon!();
    let folder = folder();
    let out = folder.path().join("out");
    let victim = folder.path().join("victim");
    std::fs::create_dir_all(&out).unwrap();
    std::fs::create_dir_all(folder.path().join("elsewhere")).unwrap();
    std::fs::write(&victim, "precious").unwrap();
    symlink(&victim, out.join("t.csv")).unwrap();
    symlink(folder.path().join("elsewhere"), out.join("sub")).unwrap();
    let script = "echo new >t.csv; mkdir sub; echo new >sub/u.csv";
    let brig = run(&daemon, &["--out", text(&out), "--", "sh", "-c", script]);
    assert_eq!(std::fs::read_to_string(&victim).unwrap(), "precious");
    assert_eq!(std::fs::read_dir(folder.path().join("elsewhere")).unwrap().count(), 0);
    assert_eq!(std::fs::read_to_string(out.join("t.csv")).unwrap(), "new\n");
    assert!(brig.stderr.contains("sub/u.csv"), "{}", brig.stderr);
}

#[test]
fn hostile_names_of_artifacts_can_not_command_the_terminal() {
    let daemon = daemon!();
    let folder = folder();
    let brig = run(
        &daemon,
        &[
            "--out",
            text(folder.path()),
            "-c",
            "open('a\\x1b[2J\\n.csv', 'w').write('x')\nopen('..csv', 'w').write('y')",
        ],
    )
    .expect(0);
    assert!(!brig.stderr.contains('\u{1b}'), "{:?}", brig.stderr);
    assert!(folder.path().join("..csv").is_file());
}
