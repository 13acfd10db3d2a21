use std::sync::LazyLock;

use brig_jailer::policy::{Policy, Rule};

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

/// The rules of the `data` policy as it is shipped.
fn rules() -> Artifacts {
    static RULES: LazyLock<Artifacts> = LazyLock::new(|| {
        let text = include_str!("../../../policies/data.toml");
        Policy::parse("data", text).unwrap().rules.artifacts
    });
    RULES.clone()
}

/// What the helper says of a file that it has seen all of.
fn calm() -> Inspected {
    Inspected {
        verdict: Verdict::Valid,
        ..Inspected::default()
    }
}

fn judged(name: &str, content: &[u8]) -> Judgement {
    judged_as(name, content, content.len() as u64, Some(&calm()))
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
        ("c.gif", GIF, "other image/gif review unlisted_name"),
    ]);
}

/// Class, handling and flags of a file as large as this, which the helper has seen all of.
fn sized(name: &str, content: &[u8], size: u64) -> String {
    short(judged_as(name, content, size, Some(&calm())))
}

/// Class, handling and flags.
fn short(judgement: Judgement) -> String {
    let words = [judgement.class.name(), judgement.handling.name()];
    words.into_iter().chain(judgement.flags).collect::<Vec<_>>().join(" ")
}

#[test]
fn each_row_of_the_contract_holds_at_its_sizes() {
    let (chart, report, any) = (10 << 20, 256 << 10, 50 << 20);
    let charts = [
        ("c.png", PNG),
        ("c.jpg", JPEG),
        ("c.jpeg", JPEG),
        ("c.webp", WEBP),
        ("c.svg", SVG),
    ];
    for (name, content) in charts {
        assert_eq!(sized(name, content, chart), "chart preview", "{name}");
        assert_eq!(sized(name, content, chart + 1), "chart review too_large", "{name}");
    }
    let book = xlsx();
    for (name, content) in [
        ("d.csv", CSV),
        ("d.json", JSON),
        ("d.xlsx", &book),
        ("d.parquet", PARQUET),
    ] {
        assert_eq!(sized(name, content, 1), "data download", "{name}");
        assert_eq!(sized(name, content, any), "data download", "{name}");
    }
    for (name, content) in [("r.txt", TEXT), ("r.md", TEXT), ("r.pdf", PDF)] {
        assert_eq!(sized(name, content, report), "report preview", "{name}");
        assert_eq!(
            sized(name, content, report + 1),
            "report download too_large_to_preview",
            "{name}"
        );
        assert_eq!(
            sized(name, content, any),
            "report download too_large_to_preview",
            "{name}"
        );
    }
    let archive = zip(&["a"]);
    for (name, content, class) in [
        ("x.py", PYTHON, "code"),
        ("x.so", &elf(), "executable"),
        ("x.zip", &archive, "archive"),
        ("x.bin", b"\0\x01\x02", "other"),
    ] {
        for size in [1, report, any] {
            assert_eq!(sized(name, content, size), format!("{class} review"), "{name}");
        }
    }
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
        (
            "result.tsv",
            TEXT,
            "other text/tab-separated-values review unlisted_name",
        ),
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
            "other image/gif review polyglot unlisted_name",
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
fn what_can_be_active_leaves_only_after_a_whole_look() {
    let look = |name: &str, content: &[u8], verdict, flags: &[Flag], partial| {
        let flags = flags.to_vec();
        let inspected = Inspected {
            verdict,
            flags,
            partial,
            ..Inspected::default()
        };
        seen_as(name, content, Some(&inspected))
    };
    let rows = [
        (seen_as("c.svg", SVG, None), "chart review not_fully_checked"),
        (seen_as("r.pdf", PDF, None), "report review not_fully_checked"),
        (seen_as("d.xlsx", &xlsx(), None), "data review not_fully_checked"),
        (seen_as("c.png", PNG, None), "chart download not_fully_checked"),
        (seen_as("d.csv", CSV, None), "data download"),
        (look("c.svg", SVG, Verdict::Valid, &[], false), "chart preview"),
        (
            look("c.svg", SVG, Verdict::Valid, &[], true),
            "chart review not_fully_checked",
        ),
        (
            look("c.svg", SVG, Verdict::Unknown, &[], false),
            "chart review not_fully_checked",
        ),
        (
            look("c.svg", SVG, Verdict::Invalid, &[], false),
            "chart review not_readable",
        ),
        (
            look("c.png", PNG, Verdict::Invalid, &[], false),
            "chart download not_readable",
        ),
        (
            look("d.csv", CSV, Verdict::Valid, &[], true),
            "data download not_fully_checked",
        ),
    ];
    for (row, expected) in rows {
        assert_eq!(row, expected);
    }
}

fn seen_as(name: &str, content: &[u8], inspected: Option<&Inspected>) -> String {
    short(judged_as(name, content, content.len() as u64, inspected))
}

#[test]
fn what_the_helper_flags_is_reviewed_if_opening_it_does_something() {
    let seen = |name: &str, content: &[u8], flag| {
        let inspected = Inspected {
            flags: vec![flag],
            ..calm()
        };
        seen_as(name, content, Some(&inspected))
    };
    let svg = [
        Flag::Script,
        Flag::EventHandler,
        Flag::ForeignObject,
        Flag::ExternalReference,
        Flag::Entity,
    ];
    for flag in svg {
        let expected = format!("chart review active_content {}", flag.name());
        assert_eq!(seen("c.svg", SVG, flag), expected);
    }
    let rows = [
        (
            seen("c.png", PNG, Flag::EmbeddedFile),
            "chart review active_content embedded_file",
        ),
        (seen("c.png", PNG, Flag::Bomb), "chart review bomb"),
        (seen("d.xlsx", &xlsx(), Flag::Bomb), "data review bomb"),
        (seen("d.xlsx", &xlsx(), Flag::Macro), "data review active_content macro"),
        (
            seen("d.xlsx", &xlsx(), Flag::ExternalReference),
            "data download external_reference",
        ),
        (seen("d.csv", CSV, Flag::Formula), "data review active_content formula"),
        (seen("r.pdf", PDF, Flag::Encrypted), "report review encrypted"),
        (
            seen("r.pdf", PDF, Flag::ExternalReference),
            "report download external_reference",
        ),
        (
            seen("x.zip", &zip(&["a"]), Flag::EscapingName),
            "archive review escaping_name",
        ),
    ];
    for (row, expected) in rows {
        assert_eq!(row, expected);
    }
}

#[test]
fn a_claim_never_makes_the_judgement_milder() {
    let calm = calm();
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
        Guess::new(&rules, name.as_bytes(), content, content.len() as u64).judge(&rules, Some(&calm()))
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

#[test]
fn of_a_look_that_was_cut_short_no_number_is_told_that_could_be_too_small() {
    let number = |name: &str| (name.to_owned(), Detail::Number(7));
    let inspected = Inspected {
        partial: true,
        details: ["width", "rows", "height", "pages", "entries"].map(number).to_vec(),
        ..calm()
    };
    let details = judged_as("c.png", PNG, 40, Some(&inspected)).details;
    assert_eq!(details, [number("width"), number("height")]);
}

#[test]
fn what_the_scanner_says_makes_a_judgement_stricter() {
    let scanned = |scan, found| {
        let mut judgement = judged("c.png", PNG);
        judgement.scanned(scan, found);
        let review = judgement.review.name();
        format!("{} {review}", short(judgement))
    };
    assert_eq!(scanned(Scan::Clean, Found::Refuse), "chart preview not_needed");
    assert_eq!(
        scanned(Scan::Found, Found::Review),
        "chart review scanner_found pending"
    );
    assert_eq!(
        scanned(Scan::Found, Found::Refuse),
        "chart review scanner_found rejected"
    );
    assert_eq!(scanned(Scan::Failed, Found::Refuse), "chart review not_scanned pending");
}
