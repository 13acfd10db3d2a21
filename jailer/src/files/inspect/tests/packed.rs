//! Archives and office documents.

use super::*;

/// Makes an archive; names and contents, deflated or not.
fn zip(parts: &[(&str, &str)], deflated: bool) -> Vec<u8> {
    let le32 = |number: usize| u32::try_from(number).unwrap().to_le_bytes();
    let (mut bytes, mut directory) = (Vec::new(), Vec::new());
    for (name, content) in parts {
        let packed = if deflated {
            compress_to_vec(content.as_bytes(), 6)
        } else {
            content.as_bytes().to_vec()
        };
        let method = [if deflated { 8 } else { 0 }, 0];
        let sizes = [le32(packed.len()), le32(content.len())].concat();
        let name_length = u16::try_from(name.len()).unwrap().to_le_bytes();
        let offset = le32(bytes.len());
        bytes.extend(
            [
                &b"PK\x03\x04\x14\0\0\0"[..],
                &method,
                &[0; 8],
                &sizes,
                &name_length,
                &[0, 0],
            ]
            .concat(),
        );
        bytes.extend([name.as_bytes(), &packed].concat());
        directory.extend(
            [
                &b"PK\x01\x02\x14\0\x14\0\0\0"[..],
                &method,
                &[0; 8],
                &sizes,
                &name_length,
            ]
            .concat(),
        );
        directory.extend([&[0; 12][..], &offset, name.as_bytes()].concat());
    }
    let end = [
        &b"PK\x05\x06\0\0\0\0\0\0\0\0"[..],
        &le32(directory.len()),
        &le32(bytes.len()),
        &[0, 0],
    ]
    .concat();
    [bytes, directory, end].concat()
}

fn workbook_file(sheet: &str, deflated: bool) -> Vec<u8> {
    let parts = [
        ("xl/workbook.xml", "<workbook/>"),
        ("xl/worksheets/sheet10.xml", ""),
        ("xl/worksheets/sheet1.xml", sheet),
    ];
    zip(&parts, deflated)
}

fn workbook(sheet: &str, deflated: bool) -> Inspected {
    look(
        "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
        workbook_file(sheet, deflated),
    )
}

#[test]
fn a_workbook_tells_its_sheets_and_the_size_of_the_first() {
    let sheet = "<worksheet><dimension ref=\"A1:C12449\"/><sheetData/></worksheet>";
    let sized = |sheet: &str, rows, columns| {
        let unpacked = 11 + sheet.len() as u64;
        valid(&[
            ("sheets", 2),
            ("unpacked_bytes", unpacked),
            ("ratio", unpacked / workbook_file(sheet, true).len() as u64),
            ("rows", rows),
            ("columns", columns),
        ])
    };
    assert_eq!(workbook(sheet, true), sized(sheet, 12_449, 3));
    assert_eq!(workbook(sheet, false), sized(sheet, 12_449, 3));
    let rows = "<row r=\"1\"><c r=\"A1\"/><c r=\"B1\" t=\"s\"><v>1</v></c><cols/></row>".repeat(5_000);
    assert_eq!(workbook(&rows, true), sized(&rows, 5_000, 2));
    let hostile = "<dimension ref=\"ZZZZZ99999999999:A1\"/><row>";
    assert_eq!(workbook(hostile, true), sized(hostile, 1, 0));
}

#[test]
fn a_workbook_with_programs_or_links_is_flagged_and_a_broken_one_invalid() {
    let xlsx = "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet";
    let sheet = ("xl/worksheets/sheet1.xml", "<row>");
    let parts = [
        ("xl/workbook.xml", ""),
        sheet,
        ("xl/vbaProject.bin", ""),
        ("xl/externalLinks/a.xml", ""),
    ];
    assert_eq!(
        look(xlsx, zip(&parts, true)).flags,
        [Flag::ExternalReference, Flag::Macro]
    );
    assert_eq!(problem(&look(xlsx, zip(&[sheet], true))), Some("not a workbook"));
    assert_eq!(
        problem(&look(xlsx, "PK\x03\x04 and nothing more")),
        Some("an archive without its directory")
    );
    assert_eq!(problem(&look(xlsx, "a,b,c")), Some("not a ZIP archive"));
    let whole = zip(&parts, true);
    for at in 0..whole.len() {
        let mut broken = whole.clone();
        broken[at] ^= 0xff;
        let _ = look(xlsx, &broken);
        let _ = look(xlsx, &whole[..at]);
    }
}

#[test]
fn a_bomb_is_unpacked_no_further_than_the_bound() {
    let bomb = " ".repeat(200 << 20);
    let started = std::time::Instant::now();
    let seen = workbook(&bomb, true);
    assert_eq!(
        seen.details[1],
        ("unpacked_bytes".to_owned(), Detail::Number((200 << 20) + 11))
    );
    assert!(started.elapsed().as_secs() < 30);
}

#[test]
fn an_archive_is_listed() {
    let archive = zip(&[("a.txt", "words"), ("b/c.csv", "1,2\n")], true);
    assert_eq!(
        look("application/zip", &archive),
        valid(&[("entries", 2), ("unpacked_bytes", 9), ("ratio", 0)])
    );
    let empty = zip(&[], true);
    assert_eq!(
        look("application/zip", &empty),
        valid(&[("entries", 0), ("unpacked_bytes", 0), ("ratio", 0)])
    );
    for name in ["../a", "/etc/passwd", "a/../../b", "..\\a", "C:\\a", "\\a"] {
        assert_eq!(
            look("application/zip", zip(&[(name, "")], false)).flags,
            [Flag::EscapingName],
            "{name}"
        );
    }
    assert_eq!(look("application/zip", zip(&[("a..b/c", "")], false)).flags, []);
    let at = archive.windows(4).position(|bytes| bytes == b"PK\x01\x02").unwrap();
    let mut locked = archive;
    locked[at + 8] = 1;
    assert_eq!(look("application/zip", locked).flags, [Flag::Encrypted]);
}

#[test]
fn an_archive_that_is_a_bomb_is_told_and_not_unpacked() {
    let mut bomb = zip(&[("a", "words")], true);
    let at = bomb.windows(4).position(|bytes| bytes == b"PK\x01\x02").unwrap();
    bomb[at + 24..at + 28].copy_from_slice(&(300_u32 << 20).to_le_bytes());
    let seen = look("application/zip", &bomb);
    assert_eq!((seen.verdict, &seen.flags[..]), (Verdict::Valid, &[Flag::Bomb][..]));
    assert_eq!(
        seen.details[1],
        ("unpacked_bytes".to_owned(), Detail::Number(300 << 20))
    );
    let zeros = compress_to_vec(&vec![0; 32 << 20], 6);
    let member = [&b"\x1f\x8b\x08\0\0\0\0\0\0\x03"[..], &zeros, &[0; 8]].concat();
    assert_eq!(look("application/gzip", member.repeat(8)).flags, []);
    assert_eq!(look("application/gzip", member.repeat(9)).flags, [Flag::Bomb]);
}

/// Makes a tar; names, kinds and contents.
fn tar(entries: &[(&str, u8, &str)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (name, kind, content) in entries {
        let mut header = [0; 512];
        header[..name.len()].copy_from_slice(name.as_bytes());
        header[124..135].copy_from_slice(format!("{:011o}", content.len()).as_bytes());
        header[148..156].fill(b' ');
        header[156] = *kind;
        header[257..263].copy_from_slice(b"ustar\0");
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        bytes.extend(header);
        bytes.extend(content.as_bytes());
        bytes.resize(bytes.len().next_multiple_of(512), 0);
    }
    bytes.extend([0; 1024]);
    bytes
}

#[test]
fn a_tar_is_listed_packed_or_not() {
    let bytes = tar(&[
        ("x", b'x', "path=long"),
        ("a", b'0', "words"),
        ("b/", b'5', ""),
        ("c", b'2', ""),
    ]);
    assert_eq!(
        look("application/x-tar", &bytes),
        valid(&[("entries", 3), ("unpacked_bytes", 5), ("ratio", 0)])
    );
    assert_eq!(
        look("application/x-tar", tar(&[("../a", b'0', "")])).flags,
        [Flag::EscapingName]
    );
    assert_eq!(
        problem(&look("application/x-tar", &bytes[..1030])),
        Some("it ends too early")
    );
    assert_eq!(
        problem(&look("application/x-tar", vec![b'x'; 600])),
        Some("not a tar archive")
    );
    let member = |content: &[u8]| {
        let packed = compress_to_vec(content, 6);
        [&b"\x1f\x8b\x08\x08\0\0\0\0\0\x03name\0"[..], &packed, &[0; 8]].concat()
    };
    let total = bytes.len() as u64;
    let seen = look("application/gzip", member(&bytes));
    let ratio = total / member(&bytes).len() as u64;
    assert_eq!(
        seen,
        valid(&[("entries", 3), ("unpacked_bytes", total), ("ratio", ratio)])
    );
    let two = [member(b"some "), member(b"words")].concat();
    assert_eq!(
        look("application/gzip", &two),
        valid(&[("unpacked_bytes", 10), ("ratio", 0)])
    );
    assert_eq!(
        problem(&look("application/gzip", &two[..two.len() - 1])),
        Some("it ends too early")
    );
    assert_eq!(
        problem(&look("application/gzip", [two, b"more than that".to_vec()].concat())),
        Some("not a gzip stream")
    );
}

#[test]
fn programs_in_office_documents_are_found_by_their_type() {
    let document = "application/vnd.openxmlformats-officedocument.wordprocessingml.document";
    let types = |text: &str| {
        look(
            document,
            zip(&[("[Content_Types].xml", text), ("word/document.xml", "")], true),
        )
        .flags
    };
    assert_eq!(
        types("<Override ContentType=\"application/vnd.ms-word.document.main+xml\"/>"),
        []
    );
    assert_eq!(
        types("<Override PartName=\"/x\" ContentType=\"application/vnd.ms-office.vbaProject\"/>"),
        [Flag::Macro]
    );
    let relation = |text: &str| look(document, zip(&[("word/_rels/settings.xml.rels", text)], true)).flags;
    assert_eq!(
        relation("<Relationship Type=\"x/hyperlink\" TargetMode=\"External\"/>"),
        [Flag::ExternalReference]
    );
    assert_eq!(
        relation("<Relationship Type=\"x/attachedTemplate\" TargetMode=\"External\"/>"),
        [Flag::ExternalReference, Flag::Macro]
    );
    assert_eq!(
        look(document, zip(&[("word/embeddings/a.bin", "")], true)).flags,
        [Flag::EmbeddedFile]
    );
    assert!(look(document, zip(&[("word/_rels/a.rels", &" ".repeat(2 << 20))], true)).partial);
}
