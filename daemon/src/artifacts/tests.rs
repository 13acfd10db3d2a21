use brig_jailer::policy::Rule;
use brig_jailer::units::ByteSize;

use super::*;

use Class::{Archive, Chart, Code, Data, Executable, Other, Report};
use Handling::{Download, Preview, Review as ByReview};

const PNG: &[u8] = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x01\0\0\0\x01\x08\x06\0\0\0";
const JPEG: &[u8] = b"\xff\xd8\xff\xe0\0\x10JFIF\0\x01";
const WEBP: &[u8] = b"RIFF\x24\0\0\0WEBPVP8 \x18\0\0\0";
const GIF: &[u8] = b"GIF89a\x01\0\x01\0\0\0\0;";
const PDF: &[u8] = b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n1 0 obj\n";
const PARQUET: &[u8] = b"PAR1\x15\x04\x15\x10\0\0";
const SVG: &[u8] =
    b"<?xml version=\"1.0\"?>\n<!DOCTYPE svg PUBLIC \"-//W3C//DTD SVG 1.1//EN\" \"x\">\n<svg><path/></svg>";
const CSV: &[u8] = b"region,revenue\nnorth,12\n";
const JSON: &[u8] = b"{\"rows\": 12448}";
const PYTHON: &[u8] = b"import os\nprint(os.getcwd())\n";
const SHELL: &[u8] = b"#!/bin/sh\nrm -rf /\n";
const HTML: &[u8] = b"<!DOCTYPE html>\n<html><body onload=\"x()\"></body></html>";
const GZIP: &[u8] = b"\x1f\x8b\x08\0\0\0\0\0\0\x03";
const TEXT: &[u8] = b"A short report.\n";

fn elf() -> Vec<u8> {
    [b"\x7fELF\x02\x01\x01".as_slice(), &[0; 57]].concat()
}

fn exe() -> Vec<u8> {
    [b"MZ\x90\0\x03\0\0\0".as_slice(), &[0; 56]].concat()
}

/// A ZIP archive's first bytes: local headers with empty files of these names.
fn zip(names: &[&str]) -> Vec<u8> {
    let header = |name: &&str| {
        let length = u16::try_from(name.len()).unwrap().to_le_bytes();
        [
            b"PK\x03\x04".as_slice(),
            &[20, 0, 0, 0, 0, 0],
            &[0; 16],
            &length,
            &[0, 0],
            name.as_bytes(),
        ]
        .concat()
    };
    names.iter().flat_map(header).collect()
}

fn xlsx() -> Vec<u8> {
    zip(&[
        "docProps/app.xml",
        "docProps/core.xml",
        "xl/theme/theme1.xml",
        "[Content_Types].xml",
    ])
}

/// The table of the `data` policy.
fn rules() -> Artifacts {
    let listed = |handling, extensions: &[&str]| Rule {
        handling,
        extensions: extensions.iter().map(|text| (*text).to_owned()).collect(),
        ..Rule::default()
    };
    let chart = listed(Handling::Preview, &[".png", ".jpg", ".jpeg", ".webp", ".svg"]);
    let report = listed(Handling::Preview, &[".txt", ".md", ".pdf"]);
    Artifacts {
        chart: Rule {
            max_bytes: Some(ByteSize::from_bytes(10 << 20)),
            ..chart
        },
        data: listed(Handling::Download, &[".csv", ".json", ".xlsx", ".parquet"]),
        report: Rule {
            preview_max_bytes: Some(ByteSize::from_bytes(256 << 10)),
            ..report
        },
        ..Artifacts::default()
    }
}

fn judged(name: &str, content: &[u8]) -> Judgement {
    let prefix = &content[..content.len().min(PREFIX_MAX)];
    Guess::new(&rules(), name.as_bytes(), prefix, content.len() as u64).judge(&rules(), None)
}

fn judged_as(name: &str, content: &[u8], size: u64, inspected: Option<&Inspected>) -> Judgement {
    let prefix = &content[..content.len().min(PREFIX_MAX)];
    Guess::new(&rules(), name.as_bytes(), prefix, size).judge(&rules(), inspected)
}

/// The parts of a judgement that the contract's table shows, in words.
fn row(judgement: &Judgement) -> String {
    let pending = judgement.handling == Handling::Review;
    assert_eq!(judgement.review == Review::Pending, pending);
    let words = [judgement.class.name(), judgement.media_type, judgement.handling.name()];
    words
        .iter()
        .chain(&judgement.flags)
        .copied()
        .collect::<Vec<_>>()
        .join(" ")
}

fn assert_rows(rows: &[(&str, &[u8], &str)]) {
    for (name, content, expected) in rows {
        assert_eq!(row(&judged(name, content)), *expected, "{name}");
    }
}

#[test]
fn each_row_of_the_contract_holds() {
    assert_rows(&[
        ("c.png", PNG, "chart image/png preview"),
        ("c.jpg", JPEG, "chart image/jpeg preview"),
        ("C.JPEG", JPEG, "chart image/jpeg preview"),
        ("c.webp", WEBP, "chart image/webp preview"),
        ("c.svg", SVG, "chart image/svg+xml preview"),
        ("d.csv", CSV, "data text/csv download"),
        ("d.json", JSON, "data application/json download"),
        (
            "d.xlsx",
            &xlsx(),
            "data application/vnd.openxmlformats-officedocument.spreadsheetml.sheet download",
        ),
        ("d.parquet", PARQUET, "data application/vnd.apache.parquet download"),
        ("r.txt", TEXT, "report text/plain preview"),
        ("r.md", b"# Title\n", "report text/markdown preview"),
        ("r.pdf", PDF, "report application/pdf preview"),
        ("x.py", PYTHON, "code text/x-python review"),
        ("x.sh", SHELL, "code text/x-script review"),
        ("x.html", HTML, "code text/html review active_content"),
        ("x.ipynb", JSON, "code application/x-ipynb+json review"),
        (
            "x.exe",
            &exe(),
            "executable application/vnd.microsoft.portable-executable review",
        ),
        ("x.so", &elf(), "executable application/x-executable review"),
        ("x.zip", &zip(&["a.txt"]), "archive application/zip review"),
        ("x.tar.gz", GZIP, "archive application/gzip review"),
        ("x.bin", b"\0\x01\x02\x03", "other application/octet-stream review"),
        ("notes", TEXT, "other text/plain review"),
        ("c.gif", GIF, "other image/gif review"),
    ]);
}

#[test]
fn names_that_lie_get_the_stricter_class() {
    assert_rows(&[
        ("chart.png", PYTHON, "other text/plain review name_mismatch"),
        ("chart.png", SHELL, "code text/x-script review name_mismatch"),
        (
            "chart.png",
            &elf(),
            "executable application/x-executable review name_mismatch",
        ),
        (
            "data.csv",
            &elf(),
            "executable application/x-executable review name_mismatch",
        ),
        (
            "data.csv",
            &exe(),
            "executable application/vnd.microsoft.portable-executable review name_mismatch",
        ),
        ("data.csv", PNG, "data image/png download name_mismatch"),
        (
            "data.xlsx",
            &zip(&["evil.sh"]),
            "archive application/zip review name_mismatch",
        ),
        ("data.xlsx", CSV, "other text/plain review name_mismatch"),
        ("data.json", PYTHON, "other text/plain review name_mismatch"),
        ("data.parquet", GZIP, "archive application/gzip review name_mismatch"),
        ("report.txt", SHELL, "code text/x-script review name_mismatch"),
        ("report.txt", HTML, "code text/html review name_mismatch active_content"),
        ("report.md", PDF, "report application/pdf preview name_mismatch"),
        ("report.pdf", TEXT, "other text/plain review name_mismatch"),
        ("chart.jpg", PNG, "chart image/png preview name_mismatch"),
        ("chart.png", SVG, "other image/svg+xml review name_mismatch"),
        ("chart.svg", PNG, "chart image/png preview name_mismatch"),
        (
            "tool.zip",
            &elf(),
            "executable application/x-executable review name_mismatch",
        ),
        ("report.pdf.exe", PDF, "executable application/pdf review"),
        ("code.py", GZIP, "archive application/gzip review name_mismatch"),
    ]);
}

#[test]
fn names_that_say_nothing_never_make_a_file_milder() {
    assert_rows(&[
        ("result", PNG, "other image/png review"),
        ("result.xyz", &elf(), "executable application/x-executable review"),
        ("result.xyz", &zip(&["a"]), "archive application/zip review"),
        ("result.", SHELL, "code text/x-script review"),
        ("", TEXT, "other text/plain review"),
        ("a.png/result", PNG, "other image/png review"),
    ]);
}

#[test]
fn empty_files_are_texts_and_nothing_else() {
    assert_rows(&[
        ("d.csv", b"", "data text/csv download empty"),
        ("r.txt", b"", "report text/plain preview empty"),
        ("c.png", b"", "other text/plain review name_mismatch empty"),
        ("x.xlsx", b"", "other text/plain review name_mismatch empty"),
    ]);
}

#[test]
fn text_is_told_from_bytes_of_other_kinds() {
    assert_rows(&[
        // The first letters of an executable, of a bitmap and of LLVM bitcode.
        ("d.csv", b"MZ,intensity\n1,2\n", "data text/csv download"),
        ("d.csv", b"BM,BC\n1,2\n", "data text/csv download"),
        ("d.csv", "id;größe\n1;2\n".as_bytes(), "data text/csv download"),
        (
            "d.csv",
            b"id;gr\xf6\xdfe\n1;2\n3;4\n",
            "data text/csv download not_utf8",
        ),
        ("d.csv", b"\xef\xbb\xbfid,x\n", "data text/csv download"),
        (
            "d.csv",
            b"a,b\0c\n",
            "other application/octet-stream review name_mismatch",
        ),
        ("r.txt", b"\x1b[31mred\x1b[0m\n", "report text/plain preview"),
        (
            "r.txt",
            &[0xfe; 100],
            "other application/octet-stream review name_mismatch",
        ),
        ("d.json", b"\n  [NaN]", "data application/json download"),
        ("d.json", b"NaN", "data application/json download"),
    ]);
    let cut = format!("x{}", "é".repeat(PREFIX_MAX));
    assert_eq!(row(&judged("r.txt", cut.as_bytes())), "report text/plain preview");
}

#[test]
fn polyglots_are_reviewed() {
    let image_and = |more: &[u8]| [PNG, b"tEXt".as_slice(), more].concat();
    assert_rows(&[
        ("c.png", &image_and(b"%PDF-1.4"), "other image/png review polyglot"),
        ("c.png", &image_and(&zip(&["a"])), "other image/png review polyglot"),
        (
            "c.png",
            &image_and(b"<script>alert(1)</script>"),
            "other image/png review polyglot",
        ),
        (
            "c.png",
            &image_and(b"<?php system('id');"),
            "other image/png review polyglot",
        ),
        (
            "r.pdf",
            &[PDF, &zip(&["a"])].concat(),
            "other application/pdf review polyglot",
        ),
        (
            "c.gif",
            &[GIF, b"/*<html>*/".as_slice()].concat(),
            "other image/gif review polyglot",
        ),
    ]);
    // A script that begins like a portable executable, with bytes of one behind it.
    let ape = [b"MZqFpD='\n".as_slice(), &[0; 64], b"' ; exec sh"].concat();
    assert_eq!(judged("r.txt", &ape).class, Executable);
}

#[test]
fn active_content_is_reviewed() {
    let svg = |inner: &str| format!("<svg xmlns=\"http://www.w3.org/2000/svg\">{inner}</svg>").into_bytes();
    for inner in [
        "<script>alert(1)</script>",
        "<SCRIPT href='x'/>",
        "<rect onload=\"x()\"/>",
        "<rect\nonclick = 'x()'/>",
        "<a href='javascript:x()'/>",
        "<foreignObject/>",
    ] {
        let judgement = judged("c.svg", &svg(inner));
        assert_eq!(row(&judgement), "chart image/svg+xml review active_content", "{inner}");
    }
    let entity = b"<?xml version=\"1.0\"?><!DOCTYPE svg [<!ENTITY a \"b\">]><svg>&a;</svg>";
    let pdf = [PDF, b"<< /OpenAction << /S /JavaScript /JS (x) >> >>".as_slice()].concat();
    let workbook = [xlsx(), zip(&["xl/vbaProject.bin"])].concat();
    assert_rows(&[
        ("c.svg", entity, "chart image/svg+xml review active_content"),
        ("r.pdf", &pdf, "report application/pdf review active_content"),
        ("r.txt", b"use <script> and onload=x here", "report text/plain preview"),
    ]);
    let judgement = judged("d.xlsx", &workbook);
    assert_eq!(
        (judgement.class, judgement.handling, judgement.flags),
        (Data, ByReview, vec!["active_content"])
    );
}

#[test]
fn what_was_not_seen_whole_is_previewed_only_after_a_deeper_look() {
    let size = 100_000;
    let look = |verdict, flags: &[Flag], partial| {
        let flags = flags.to_vec();
        let inspected = Inspected {
            verdict,
            flags,
            partial,
            ..Inspected::default()
        };
        row(&judged_as("c.svg", SVG, size, Some(&inspected)))
    };
    let alone = row(&judged_as("c.svg", SVG, size, None));
    assert_eq!(alone, "chart image/svg+xml download not_fully_checked");
    let rows = [
        (look(Verdict::Valid, &[], false), "preview"),
        (look(Verdict::Valid, &[], true), "download not_fully_checked"),
        (look(Verdict::Unknown, &[], false), "download not_fully_checked"),
        (look(Verdict::Invalid, &[], false), "download not_readable"),
        (
            look(Verdict::Valid, &[Flag::Script], false),
            "review active_content script",
        ),
        (
            look(Verdict::Valid, &[Flag::ExternalReference], false),
            "download external_reference",
        ),
    ];
    for (row, expected) in rows {
        assert_eq!(row, format!("chart image/svg+xml {expected}"));
    }
}

#[test]
fn a_claim_never_makes_the_judgement_milder() {
    let calm = Inspected {
        verdict: Verdict::Valid,
        ..Inspected::default()
    };
    let script = b"<svg><script>x</script></svg>";
    assert_eq!(judged_as("c.svg", script, 29, Some(&calm)).handling, ByReview);
    assert_eq!(judged_as("c.png", &elf(), 64, Some(&calm)).class, Executable);
}

#[test]
fn a_workbook_that_is_none_is_an_archive() {
    let inspected = Inspected {
        verdict: Verdict::Invalid,
        ..Inspected::default()
    };
    let judgement = judged_as("d.xlsx", &xlsx(), 5000, Some(&inspected));
    assert_eq!((judgement.class, judgement.handling), (Archive, ByReview));
    assert_eq!(judgement.flags, ["name_mismatch", "not_readable"]);
}

#[test]
fn sizes_turn_previews_into_downloads_and_charts_into_reviews() {
    let handling = |name, content: &[u8], size| judged_as(name, content, size, None).handling;
    assert_eq!(handling("r.txt", TEXT, 256 << 10), Preview);
    assert_eq!(handling("r.txt", TEXT, (256 << 10) + 1), Download);
    assert_eq!(handling("c.png", PNG, 10 << 20), Preview);
    let large = judged_as("c.png", PNG, (10 << 20) + 1, None);
    assert_eq!(
        (large.handling, large.review, large.flags),
        (ByReview, Review::Pending, vec!["too_large"])
    );
}

#[test]
fn odd_names_are_flagged() {
    let flags = |path: &[u8]| Guess::new(&rules(), path, TEXT, 16).judge(&rules(), None).flags;
    assert_eq!(flags("txt.\u{202e}gnp.txt".as_bytes()), ["odd_name"]);
    assert_eq!(flags(b"a\nb.txt"), ["odd_name"]);
    assert_eq!(flags(b"\xff.txt"), ["odd_name"]);
    assert_eq!(flags("売上/rapport é.txt".as_bytes()), Vec::<&str>::new());
}

#[test]
fn a_policy_may_list_endings_that_are_not_known() {
    let mut rules = rules();
    rules.data.extensions.extend([".npy".to_owned(), ".gif".to_owned()]);
    let judge = |name: &str, content: &[u8]| {
        Guess::new(&rules, name.as_bytes(), content, content.len() as u64).judge(&rules, None)
    };
    assert_eq!(judge("a.npy", b"\x93NUMPY\x01\0").class, Data);
    assert_eq!(judge("a.npy", &elf()).class, Executable);
    assert_eq!(judge("a.gif", GIF).class, Data);
    let any = Artifacts {
        report: Rule {
            handling: Preview,
            ..Rule::default()
        },
        ..Artifacts::default()
    };
    let judged = Guess::new(&any, b"a.log", TEXT, 16).judge(&any, None);
    assert_eq!((judged.class, judged.handling), (Report, Preview));
}

#[test]
fn stricter_follows_the_policy_before_the_nature_of_a_class() {
    let rules = Artifacts {
        executable: Rule {
            handling: Download,
            ..Rule::default()
        },
        ..rules()
    };
    assert_eq!(stricter(&rules, Executable, Other), Other);
    assert_eq!(stricter(&rules, Executable, Data), Executable);
    assert_eq!(stricter(&rules, Code, Archive), Archive);
}

#[test]
fn any_bytes_can_be_classified() {
    // xorshift64: the same bytes on every run.
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let seeds = [
        PNG.to_vec(),
        PDF.to_vec(),
        SVG.to_vec(),
        HTML.to_vec(),
        xlsx(),
        elf(),
        JPEG.to_vec(),
        GZIP.to_vec(),
    ];
    for round in 0..20_000 {
        let mut bytes = seeds[round % seeds.len()].clone();
        for _ in 0..random() % 8 {
            let at = usize::try_from(random()).unwrap() % bytes.len();
            bytes[at] = random().to_le_bytes()[0];
        }
        bytes.truncate(usize::try_from(random()).unwrap() % (bytes.len() + 1));
        let judgement = judged("d.csv", &bytes);
        let mild = judgement.handling != ByReview;
        assert!(!mild || [Data, Chart, Report].contains(&judgement.class), "{bytes:?}");
    }
}

#[test]
fn details_of_a_claim_are_bounded() {
    let details = (0..100)
        .map(|i| (format!("{i}{}", "n".repeat(100)), Detail::Text("é".repeat(100))))
        .collect();
    let inspected = Inspected {
        details,
        ..Inspected::default()
    };
    let details = judged_as("c.png", PNG, 40, Some(&inspected)).details;
    assert_eq!(details.len(), DETAILS_MAX);
    assert_eq!(
        details[0],
        (format!("0{}", "n".repeat(63)), Detail::Text("é".repeat(32)))
    );
}
