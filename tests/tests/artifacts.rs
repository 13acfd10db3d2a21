//! What comes out of a jail: which files, as what, and which bytes. Never anything of somewhere else.
#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

use std::time::Duration;

use brig_proto::v1::{
    Artifact, ArtifactClass, ArtifactHandling, ExecutionSpec, ExecutionStatus as Status, ExpectedOutput, Limits,
    NoticeKind, ReviewState, WantArtifacts,
};
use brig_tests::policies::Policies;
use brig_tests::spec::{code, input, sh, small};
use brig_tests::{Daemon, Outcome, daemon, eventually};
use sha2::{Digest, Sha256};

/// Asks for the bytes.
fn inline(spec: ExecutionSpec) -> ExecutionSpec {
    ExecutionSpec {
        want_artifacts: WantArtifacts::Inline.into(),
        ..spec
    }
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn word(name: &str, prefix: &str) -> String {
    name.strip_prefix(prefix).unwrap().to_lowercase()
}

/// Path, class, type, handling and flags in one line, as the table of the contract has them.
fn row(artifact: &Artifact) -> String {
    let pending = artifact.handling() == ArtifactHandling::Review;
    assert_eq!(artifact.review() == ReviewState::Pending, pending, "{artifact:?}");
    let mut words = vec![
        artifact.path.clone(),
        word(artifact.class().as_str_name(), "ARTIFACT_CLASS_"),
        artifact.r#type.clone(),
        word(artifact.handling().as_str_name(), "ARTIFACT_HANDLING_"),
    ];
    words.extend(artifact.flags.clone());
    words.join(" ")
}

fn rows(outcome: &Outcome) -> Vec<String> {
    outcome.result.artifacts.iter().map(row).collect()
}

#[test]
fn each_row_of_the_contract_holds_for_files_that_libraries_write() {
    let daemon = daemon!();
    let outcome = daemon.run(inline(code(
        "import pandas as pd, json, zipfile, tarfile\nimport matplotlib.pyplot as plt\n\
         frame = pd.DataFrame({'a': [1, 2, 3], 'b': ['x', 'y', 'z']})\n\
         frame.to_csv('t.csv', index=False); frame.to_json('t.json'); frame.to_excel('t.xlsx', index=False)\n\
         frame.to_parquet('t.parquet')\nplt.plot([1, 2])\n\
         for ending in ('png', 'jpg', 'webp', 'svg', 'pdf'): plt.savefig('c.' + ending)\nplt.close()\n\
         open('r.txt', 'w').write('words\\n'); open('r.md', 'w').write('# Words\\n')\n\
         open('p.py', 'w').write('print(1)\\n'); open('p.sh', 'w').write('#!/bin/sh\\necho\\n')\n\
         open('p.html', 'w').write('<!DOCTYPE html><html><script>1</script></html>')\n\
         open('n.ipynb', 'w').write(json.dumps({'cells': []}))\n\
         zipfile.ZipFile('z.zip', 'w').writestr('a', 'b')\ntarfile.open('z.tar.gz', 'w:gz').close()\n\
         open('b.bin', 'wb').write(bytes(range(9)))\nopen('x.elf', 'wb').write(open('/usr/bin/true', 'rb').read())\n\
         open('noending', 'w').write('words\\n')",
    )));
    assert_eq!(outcome.status(), Status::Success, "{}", outcome.stderr());
    let xlsx = "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet";
    assert_eq!(
        rows(&outcome),
        [
            "b.bin other application/octet-stream review",
            "c.jpg chart image/jpeg preview",
            "c.pdf report application/pdf preview",
            "c.png chart image/png preview",
            "c.svg chart image/svg+xml preview",
            "c.webp chart image/webp preview",
            "n.ipynb code application/x-ipynb+json review",
            "noending other text/plain review",
            "p.html code text/html review active_content script",
            "p.py code text/x-python review",
            "p.sh code text/x-script review",
            "r.md report text/markdown preview",
            "r.txt report text/plain preview",
            "t.csv data text/csv download",
            "t.json data application/json download",
            "t.parquet data application/vnd.apache.parquet download",
            &format!("t.xlsx data {xlsx} download"),
            "x.elf executable application/x-executable review",
            "z.tar.gz archive application/gzip review",
            "z.zip archive application/zip review",
        ]
    );
    for artifact in &outcome.result.artifacts {
        let leaves = artifact.handling() != ArtifactHandling::Review;
        let bytes = outcome.bytes(artifact);
        assert_eq!(bytes.is_some(), leaves, "{}", artifact.path);
        if let Some(bytes) = bytes {
            assert_eq!(
                (bytes.len() as u64, sha256(&bytes)),
                (artifact.size_bytes, artifact.sha256.clone())
            );
        }
    }
    let csv = outcome.artifact("t.csv").details.unwrap();
    assert_eq!((csv.rows, csv.columns), (Some(3), Some(2)));
    let sheet = outcome.artifact("t.xlsx").details.unwrap();
    assert_eq!(sheet.sheets, Some(1));
    assert_eq!((sheet.rows, sheet.columns), (Some(3), Some(2)));
    for path in ["t.json", "t.parquet"] {
        let table = outcome.artifact(path).details.unwrap();
        assert_eq!((table.rows, table.columns), (Some(3), Some(2)), "{path}");
    }
    for path in ["c.png", "c.jpg", "c.webp"] {
        let chart = outcome.artifact(path).details.unwrap();
        assert_eq!((chart.width, chart.height), (Some(640), Some(480)), "{path}");
    }
    assert_eq!(outcome.artifact("c.pdf").details.unwrap().pages, Some(1));
    assert_eq!(outcome.artifact("r.txt").details.unwrap().lines, Some(1));
    let archive = outcome.artifact("z.zip").details.unwrap();
    assert_eq!(
        (archive.entries, archive.unpacked_bytes, archive.ratio),
        (Some(1), Some(1), Some(0))
    );
}

#[test]
fn names_that_lie_get_the_stricter_treatment() {
    let daemon = daemon!();
    let outcome = daemon.run(inline(sh(
        "cp /usr/bin/true chart.png; cp /usr/bin/true data.csv; printf '#!/bin/sh\\nrm -rf /\\n' >report.txt; \
         echo '<!doctype html><script>x</script>' >page.md; printf 'PK\\003\\004xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx' >book.xlsx; \
         echo 'import os' >plot.svg",
    )));
    for artifact in &outcome.result.artifacts {
        assert_eq!(artifact.handling(), ArtifactHandling::Review, "{}", row(artifact));
        assert!(
            artifact.flags.contains(&"name_mismatch".to_owned()),
            "{}",
            row(artifact)
        );
        assert_eq!(outcome.bytes(artifact), None);
    }
    assert_eq!(outcome.result.artifacts.len(), 6);
    assert_eq!(outcome.artifact("chart.png").class(), ArtifactClass::Executable);
}

#[test]
fn active_pictures_wait_for_review() {
    let daemon = daemon!();
    let outcome = daemon.run(inline(sh(
        "echo '<svg xmlns=\"http://www.w3.org/2000/svg\"><script>alert(1)</script></svg>' >a.svg; \
         echo '<svg xmlns=\"http://www.w3.org/2000/svg\"><circle r=\"1\" onload=\"x()\"/></svg>' >b.svg; \
         echo '<svg xmlns=\"http://www.w3.org/2000/svg\"><circle r=\"1\"/></svg>' >c.svg",
    )));
    let handlings: Vec<ArtifactHandling> = outcome.result.artifacts.iter().map(Artifact::handling).collect();
    assert_eq!(
        handlings,
        [
            ArtifactHandling::Review,
            ArtifactHandling::Review,
            ArtifactHandling::Preview
        ]
    );
    assert!(outcome.artifact("a.svg").flags.contains(&"active_content".to_owned()));
}

#[test]
fn what_a_large_drawing_hides_is_found_inside_the_jail() {
    let daemon = daemon!();
    let outcome = daemon.run(inline(small(
        "path = '<path d=\"' + 'M 1 1 ' * 2000 + '\"/>'\n\
         def svg(name, body, start=''): open(name, 'w').write(start + '<svg xmlns=\"http://www.w3.org/2000/svg\">' + path + body + '</svg>')\n\
         svg('calm.svg', '')\nsvg('script.svg', '<![CDATA[<!--]]><script>1</script><!-- -->')\n\
         svg('event.svg', '<g onload=\"x()\"/>')\nsvg('link.svg', '<image href=\"http://host/x.png\"/>')\n\
         svg('html.svg', '<foreignObject/>')\nsvg('entity.svg', '&a;', '<!DOCTYPE svg [' + ' ' * 5000 + '<!ENTITY a \"b\">]>')",
    )));
    assert_eq!(outcome.status(), Status::Success, "{}", outcome.stderr());
    assert_eq!(
        rows(&outcome),
        [
            "calm.svg chart image/svg+xml preview",
            // No drawing within what is looked at first: the name claims what can't be seen.
            "entity.svg other text/plain review name_mismatch",
            "event.svg chart image/svg+xml review active_content event_handler",
            "html.svg chart image/svg+xml review active_content foreign_object",
            "link.svg chart image/svg+xml review active_content external_reference",
            "script.svg chart image/svg+xml review active_content script",
        ]
    );
}

#[test]
fn bombs_are_told_and_wait_for_review() {
    let daemon = daemon!();
    let outcome = daemon.run(inline(small(
        "import gzip, struct, tarfile, io, zipfile, zlib\n\
         def chunk(kind, data): return struct.pack('>I', len(data)) + kind + data + struct.pack('>I', zlib.crc32(kind + data))\n\
         head = struct.pack('>IIBBBBB', 50000, 50000, 8, 2, 0, 0, 0)\n\
         data = zlib.compress(bytes(1 << 20))\n\
         open('bomb.png', 'wb').write(b'\\x89PNG\\r\\n\\x1a\\n' + chunk(b'IHDR', head) + chunk(b'IDAT', data) + chunk(b'IEND', b''))\n\
         with zipfile.ZipFile('bomb.zip', 'w', zipfile.ZIP_DEFLATED) as z:\n    for i in range(300): z.writestr(f'{i}', bytes(1 << 20))\n\
         with zipfile.ZipFile('up.zip', 'w') as z: z.writestr('../../etc/cron.d/x', 'x')\n\
         with gzip.open('bomb.gz', 'wb') as g:\n    for i in range(300): g.write(bytes(1 << 20))\n\
         with tarfile.open('three.tgz', 'w:gz') as t:\n    for i in range(3): t.addfile(tarfile.TarInfo(f'{i}'), io.BytesIO())",
    )));
    assert_eq!(outcome.status(), Status::Success, "{}", outcome.stderr());
    assert_eq!(
        rows(&outcome),
        [
            "bomb.gz archive application/gzip review bomb",
            "bomb.png chart image/png review bomb",
            "bomb.zip archive application/zip review bomb",
            "three.tgz archive application/gzip review",
            "up.zip archive application/zip review escaping_name",
        ]
    );
    let details = |path: &str| outcome.artifact(path).details.unwrap();
    assert_eq!(
        (details("bomb.png").width, details("bomb.png").height),
        (Some(50_000), Some(50_000))
    );
    for path in ["bomb.zip", "bomb.gz"] {
        assert_eq!(details(path).unpacked_bytes, Some(300 << 20), "{path}");
        assert!(details(path).ratio > Some(500), "{path}");
    }
    assert_eq!(
        (details("bomb.zip").entries, details("three.tgz").entries),
        (Some(300), Some(3))
    );
}

/// Looks for a word, as a scanner would, and behaves badly where it is told to.
const SCANNER: &str = "\
    grep -q VIRUS artifact && exit 1; grep -q ODD artifact && exit 7; grep -q SLOW artifact && sleep 600; \
    grep -q DIES artifact && kill -9 $$; [ $(ls -A | wc -l) = 1 ] && [ ! -w artifact ] && exit 0; exit 9";

/// Policies that have artifacts scanned; what is found is reviewed, or refused.
fn scanned() -> Option<(Policies, Daemon)> {
    let policies = Policies::with(&[])?;
    let data = std::fs::read_to_string(policies.path().join("data.toml")).unwrap();
    for found in ["review", "refuse"] {
        let scanner = format!(
            "{data}\n[artifacts.scanner]\npolicy = \"scan\"\nfound = \"{found}\"\n\
             command = [\"/bin/sh\", \"-c\", '{SCANNER}']\n"
        );
        std::fs::write(policies.path().join(format!("{found}.toml")), scanner).unwrap();
    }
    let timeout = 2 * brig_tests::slow();
    let scan = format!("template = \"base\"\n[limits]\ntimeout = \"{timeout}s\"\n[syscalls]\ngroups = [\"base\"]\n");
    std::fs::write(policies.path().join("scan.toml"), scan).unwrap();
    let daemon = Daemon::start_with(policies.path())?;
    Some((policies, daemon))
}

#[test]
fn a_scanner_looks_at_each_artifact_in_a_session_of_its_own() {
    let Some((_policies, daemon)) = scanned() else { return };
    let outcome = daemon.run(inline(ExecutionSpec {
        policy: "review".to_owned(),
        ..sh("echo calm >a.csv; echo VIRUS >b.csv; echo ODD >c.csv; echo DIES >d.csv; echo VIRUS >e.sh; echo SLOW >f.csv")
    }));
    assert_eq!(outcome.status(), Status::Success, "{}", outcome.stderr());
    assert_eq!(
        rows(&outcome),
        [
            "a.csv data text/csv download",
            "b.csv data text/csv review scanner_found",
            "c.csv data text/csv review not_scanned",
            "d.csv data text/csv review not_scanned",
            "e.sh code text/x-script review scanner_found",
            "f.csv data text/csv review not_scanned",
        ]
    );
    let leaves = |artifact: &Artifact| outcome.bytes(artifact).is_some();
    let leave: Vec<bool> = outcome.result.artifacts.iter().map(leaves).collect();
    assert_eq!(leave, [true, false, false, false, false, false]);
    eventually(
        "the sessions of scanners are gone",
        Duration::from_secs(10),
        || match daemon.host().load.unwrap().sessions {
            0 => Ok(()),
            left => Err(left),
        },
    );
}

#[test]
fn what_a_scanner_finds_can_be_refused() {
    let Some((_policies, daemon)) = scanned() else { return };
    let outcome = daemon.run(inline(ExecutionSpec {
        policy: "refuse".to_owned(),
        ..sh("echo calm >a.csv; echo VIRUS >b.csv; echo ODD >c.csv")
    }));
    let states: Vec<ReviewState> = outcome.result.artifacts.iter().map(Artifact::review).collect();
    assert_eq!(
        states,
        [ReviewState::NotNeeded, ReviewState::Rejected, ReviewState::Pending]
    );
    assert_eq!(outcome.bytes(outcome.artifact("b.csv")), None);
}

#[test]
fn large_files_lose_their_preview_or_wait() {
    let daemon = daemon!();
    let outcome = daemon.run(small(
        "open('small.txt', 'w').write('x\\n' * 1000)\nopen('large.txt', 'w').write('x\\n' * 200000)\n\
         open('huge.png', 'wb').write(b'\\x89PNG\\r\\n\\x1a\\n' + bytes(11 << 20))",
    ));
    let handling = |path: &str| outcome.artifact(path).handling();
    assert_eq!(handling("small.txt"), ArtifactHandling::Preview);
    assert_eq!(handling("large.txt"), ArtifactHandling::Download);
    assert_eq!(handling("huge.png"), ArtifactHandling::Review);
    assert_eq!(outcome.artifact("large.txt").flags, ["too_large_to_preview"]);
    assert_eq!(outcome.artifact("large.txt").details.unwrap().lines, Some(200_000));
}

#[test]
fn links_and_special_files_are_never_followed_nor_handed_out() {
    let daemon = daemon!();
    let outcome = daemon.run(inline(ExecutionSpec {
        inputs: vec![input("input.csv", b"a\n1\n")],
        ..sh(
            "ln -s /etc/passwd passwd.txt; ln -s input.csv rel.csv; ln -s /proc/self/environ env.txt; ln -s /dev/zero zero.txt; \
             ln -s /tmp dir; echo x >/tmp/in_tmp.txt; mkfifo fifo.txt; ln input.csv hard.csv; \
             python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"sock.txt\")'; \
             mkdir -p real; echo y >real/file.txt; ln -s real linked",
        )
    }));
    assert_eq!(outcome.status(), Status::Success, "{}", outcome.stderr());
    assert_eq!(outcome.paths(), ["real/file.txt"]);
    let skipped = outcome.notices(NoticeKind::ArtifactSkipped).join("\n");
    for name in ["passwd.txt", "env.txt", "zero.txt", "fifo.txt", "sock.txt", "hard.csv"] {
        assert!(skipped.contains(name), "{name} is not in {skipped}");
    }
}

#[test]
fn a_link_in_the_place_of_an_expected_output_is_missing() {
    let daemon = daemon!();
    let outcome = daemon.run(inline(ExecutionSpec {
        expected_outputs: vec![ExpectedOutput {
            path: "out/result.txt".to_owned(),
            ..ExpectedOutput::default()
        }],
        ..sh("mkdir /tmp/elsewhere; echo secret >/tmp/elsewhere/result.txt; ln -s /tmp/elsewhere out")
    }));
    assert_eq!(outcome.result.missing_outputs, ["out/result.txt"]);
    assert!(outcome.result.artifacts.is_empty());
}

#[test]
fn size_and_depth_are_capped_and_what_is_left_out_is_told() {
    let daemon = daemon!();
    let limits = Limits {
        artifact_bytes: Some(1000),
        artifact_depth: Some(2),
        ..Limits::default()
    };
    let outcome = daemon.run(ExecutionSpec {
        limits: Some(limits),
        ..sh(
            "mkdir -p a/b/c; echo x >a/1.txt; echo x >a/b/2.txt; echo x >a/b/c/3.txt; \
              head -c 1001 /dev/zero | tr '\\0' x >big.txt; head -c 1000 /dev/zero | tr '\\0' x >fits.txt",
        )
    });
    assert_eq!(outcome.paths(), ["a/1.txt", "a/b/2.txt", "fits.txt"]);
    let mut told = outcome.notices(NoticeKind::ArtifactSkipped);
    told.sort_unstable();
    assert_eq!(
        told,
        [
            "\"a/b/c\": lies deeper than 2 folders, limits.artifact_depth",
            "\"big.txt\": is larger than 1000 bytes, limits.artifact_bytes",
        ]
    );
}

#[test]
fn the_number_of_artifacts_is_capped_and_how_many_are_left_out_is_told() {
    let daemon = daemon!();
    let capped = |script: &str| {
        let limits = Limits {
            artifacts: Some(5),
            ..Limits::default()
        };
        let outcome = daemon.run(ExecutionSpec {
            limits: Some(limits),
            ..sh(script)
        });
        assert_eq!(outcome.result.artifacts.len(), 5);
        outcome.notices(NoticeKind::ArtifactSkipped).join("\n")
    };
    let told = capped("for i in 1 2 3 4 5 6 7 8; do echo x >f$i.txt; done");
    assert!(
        told.ends_with("and 2 more files: beyond 5 artifacts of one execution, limits.artifacts"),
        "{told}"
    );
    // More than the helper names one by one.
    let told = capped("for i in $(seq 1000); do echo x >f$i.txt; done");
    assert!(
        told.ends_with("and 994 more files: beyond 5 artifacts of one execution, limits.artifacts"),
        "{told}"
    );
}

#[test]
fn expected_outputs_come_before_others_where_there_are_too_many() {
    let daemon = daemon!();
    let limits = Limits {
        artifacts: Some(3),
        ..Limits::default()
    };
    let outcome = daemon.run(ExecutionSpec {
        limits: Some(limits),
        expected_outputs: vec![ExpectedOutput {
            path: "zz.txt".to_owned(),
            ..ExpectedOutput::default()
        }],
        ..sh("for i in 1 2 3 4 5 6; do echo x >a$i.txt; done; echo x >zz.txt")
    });
    assert!(outcome.paths().contains(&"zz.txt"), "{:?}", outcome.paths());
    assert!(outcome.result.missing_outputs.is_empty());
}

#[test]
fn hostile_names_stay_data() {
    let daemon = daemon!();
    let outcome = daemon.run(inline(small(
        "import os\nnames = [b'new\\nline.txt', b'bad\\xff.txt', b'..x', b'...', b'.. .txt', b'esc\\x1b[2J.txt', b'-rf.txt', \
         b'x' * 251 + b'.txt', 'tu\\u202etxt.exe'.encode(), b'{\"a\":1}.txt', b' ', b'\\\\..\\\\up.txt']\n\
         for name in names: open(os.path.join(b'.', name), 'w').write('x')",
    )));
    assert_eq!(outcome.status(), Status::Success, "{}", outcome.stderr());
    let mut found: Vec<Vec<u8>> = outcome
        .result
        .artifacts
        .iter()
        .map(|artifact| {
            if artifact.raw_path.is_empty() {
                artifact.path.as_bytes().to_vec()
            } else {
                artifact.raw_path.to_vec()
            }
        })
        .collect();
    found.sort();
    let mut expected: Vec<Vec<u8>> = [
        &b"new\nline.txt"[..],
        b"bad\xff.txt",
        b"..x",
        b"...",
        b".. .txt",
        b"esc\x1b[2J.txt",
        b"-rf.txt",
        &[&[b'x'; 251][..], b".txt"].concat(),
        "tu\u{202e}txt.exe".as_bytes(),
        b"{\"a\":1}.txt",
        b" ",
        b"\\..\\up.txt",
    ]
    .iter()
    .map(|name| name.to_vec())
    .collect();
    expected.sort();
    assert_eq!(found, expected);
    assert_eq!(outcome.artifact("bad\u{fffd}.txt").raw_path.as_ref(), b"bad\xff.txt");
    assert!(outcome.artifact("new\nline.txt").flags.contains(&"odd_name".to_owned()));
}

#[test]
fn a_deep_tree_and_many_names_are_looked_at_within_bounds() {
    let daemon = daemon!();
    let start = std::time::Instant::now();
    let source = "import os\nfor i in range(20000): open(f'f{i:05}.txt', 'w').close()\n\
                  for i in range(300):\n    os.mkdir('d' * 100); os.chdir('d' * 100)\nopen('deep.txt', 'w').write('x')";
    let outcome = daemon.run(ExecutionSpec {
        limits: brig_tests::spec::timeout(20_000 * u64::from(brig_tests::slow())),
        ..small(source)
    });
    assert_eq!(outcome.status(), Status::Success, "{}", outcome.stderr());
    assert_eq!(outcome.result.artifacts.len(), 64);
    assert!(
        start.elapsed() < std::time::Duration::from_secs(20) * brig_tests::slow(),
        "{:?}",
        start.elapsed()
    );
}

#[test]
fn a_program_that_swaps_a_file_for_a_link_gets_nothing_out() {
    let daemon = daemon!();
    // It swaps until its time is up; whatever is there at the end, only a regular file of the session may come out.
    for _ in 0..3 {
        let outcome = daemon.run(inline(ExecutionSpec {
            limits: brig_tests::spec::timeout(600),
            ..small(
                "import os\nopen('x.txt', 'w').write('mine')\nwhile True:\n    \
                 os.symlink('/etc/passwd', 'link.txt'); os.rename('link.txt', 'x.txt')\n    \
                 open('file.txt', 'w').write('mine'); os.rename('file.txt', 'x.txt')",
            )
        }));
        assert_eq!(outcome.status(), Status::Timeout, "{}", outcome.stderr());
        for artifact in &outcome.result.artifacts {
            let bytes = outcome.bytes(artifact).unwrap();
            assert!(bytes == b"mine" || bytes.is_empty(), "{}: {bytes:?}", artifact.path);
        }
    }
}

#[test]
fn a_program_that_renames_folders_on_the_way_gets_nothing_out() {
    let daemon = daemon!();
    let outcome = daemon.run(inline(ExecutionSpec {
        limits: brig_tests::spec::timeout(600),
        ..small(
            "import os\nos.makedirs('a/b'); open('a/b/passwd', 'w').write('mine')\nos.symlink('/etc', 'link')\n\
             while True:\n    os.rename('a/b', 'a/c'); os.rename('link', 'a/b'); os.rename('a/b', 'link'); os.rename('a/c', 'a/b')",
        )
    }));
    assert_eq!(outcome.status(), Status::Timeout, "{}", outcome.stderr());
    for artifact in &outcome.result.artifacts {
        assert_eq!(artifact.sha256, sha256(b"mine"));
    }
}

#[test]
fn only_the_working_directory_is_looked_at() {
    let daemon = daemon!();
    let outcome = daemon.run(sh("echo x >/tmp/a.txt; echo x >/dev/shm/b.txt; echo x >c.txt"));
    assert_eq!(outcome.paths(), ["c.txt"]);
}

#[test]
fn files_of_a_run_that_failed_come_out_too() {
    let daemon = daemon!();
    let failed = daemon.run(inline(sh("echo partial >out.txt; exit 3")));
    assert_eq!(failed.status(), Status::Error);
    assert_eq!(failed.bytes(failed.artifact("out.txt")).unwrap(), b"partial\n");
    let late = daemon.run(inline(ExecutionSpec {
        limits: brig_tests::spec::timeout(2000 * u64::from(brig_tests::slow())),
        ..sh("echo partial >out.txt; sleep 60")
    }));
    assert_eq!(late.status(), Status::Timeout);
    assert_eq!(late.bytes(late.artifact("out.txt")).unwrap(), b"partial\n");
}

#[test]
fn unreadable_and_strange_modes_do_not_hide_or_harm() {
    let daemon = daemon!();
    let outcome = daemon.run(inline(sh(
        "echo x >none.txt; chmod 000 none.txt; echo x >all.txt; chmod 6777 all.txt; mkdir closed; echo x >closed/in.txt; \
         chmod 000 closed; echo x >plain.txt",
    )));
    assert!(outcome.paths().contains(&"plain.txt") && outcome.paths().contains(&"all.txt"));
    let told = outcome.notices(NoticeKind::ArtifactSkipped).join("\n");
    for name in ["none.txt", "closed"] {
        let seen = outcome.paths().iter().any(|path| path.starts_with(name)) || told.contains(name);
        assert!(seen, "{name}: {:?} {told}", outcome.paths());
    }
}

#[test]
fn an_input_that_is_left_alone_is_no_artifact_and_a_changed_one_is() {
    let daemon = daemon!();
    let outcome = daemon.run(ExecutionSpec {
        inputs: vec![
            input("same.csv", b"a\n1\n"),
            input("changed.csv", b"a\n1\n"),
            input("gone.csv", b"a\n"),
        ],
        ..sh("cat same.csv >/dev/null; echo 2 >>changed.csv; rm gone.csv; echo n >new.csv")
    });
    assert_eq!(outcome.paths(), ["changed.csv", "new.csv"]);
    let changes: Vec<&str> = outcome
        .result
        .artifacts
        .iter()
        .map(|found| found.change().as_str_name())
        .collect();
    assert_eq!(changes, ["ARTIFACT_CHANGE_MODIFIED", "ARTIFACT_CHANGE_CREATED"]);
}
