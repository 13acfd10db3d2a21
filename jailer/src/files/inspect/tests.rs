use std::io::Write;

use miniz_oxide::deflate::compress_to_vec;

use super::*;

fn look(media_type: &str, bytes: impl AsRef<[u8]>) -> Inspected {
    look_within(media_type, bytes, u64::MAX)
}

fn look_within(media_type: &str, bytes: impl AsRef<[u8]>, max_bytes: u64) -> Inspected {
    let bytes = bytes.as_ref();
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    let mut source = Source::new(file.into(), bytes.len() as u64, max_bytes, 10_000);
    run(reader_for(media_type).unwrap(), &mut source)
}

fn valid(details: &[(&str, u64)]) -> Inspected {
    let details = details
        .iter()
        .map(|(name, value)| ((*name).to_owned(), Detail::Number(*value)));
    Inspected {
        verdict: Verdict::Valid,
        details: details.collect(),
        ..Inspected::default()
    }
}

/// A table or text, whose encoding is told last.
fn valid_text(details: &[(&str, u64)], encoding: &str) -> Inspected {
    let mut seen = valid(details);
    seen.word("encoding", encoding);
    seen
}

fn problem(seen: &Inspected) -> Option<&str> {
    assert_eq!(seen.problem.is_some(), seen.verdict == Verdict::Invalid);
    seen.problem.as_deref()
}

fn png(width: u32, height: u32) -> Vec<u8> {
    let mut bytes = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR".to_vec();
    bytes.extend([width.to_be_bytes(), height.to_be_bytes()].concat());
    bytes.extend(b"\x08\x06\0\0\0CRC1\0\0\0\x03IDATabcCRC2\0\0\0\0IENDCRC3");
    bytes
}

#[test]
fn sizes_of_pictures_come_from_their_headers() {
    assert_eq!(
        look("image/png", png(1200, 800)),
        valid(&[("width", 1200), ("height", 800)])
    );
    let jpeg = b"\xff\xd8\xff\xe0\0\x04ab\xff\xff\xdb\0\x03x\xff\xc2\0\x0b\x08\x03\x20\x04\xb0\x01\x01\x11\0";
    assert_eq!(look("image/jpeg", jpeg), valid(&[("width", 1200), ("height", 800)]));
    assert_eq!(
        look("image/gif", b"GIF89a\xb0\x04\x20\x03\0\0\0;"),
        valid(&[("width", 1200), ("height", 800)])
    );
    let mut webp = b"RIFF\x16\0\0\0WEBPVP8X\x0a\0\0\0\0\0\0\0\xaf\x04\0\x1f\x03\0".to_vec();
    assert_eq!(look("image/webp", &webp), valid(&[("width", 1200), ("height", 800)]));
    webp[4] = 0xff;
    assert_eq!(problem(&look("image/webp", &webp)), Some("it ends too early"));
}

#[test]
fn pictures_cut_short_or_with_something_behind_are_told() {
    let whole = png(3, 2);
    assert_eq!(
        problem(&look("image/png", &whole[..whole.len() - 1])),
        Some("it ends too early")
    );
    assert_eq!(problem(&look("image/png", &whole[..20])), Some("it ends too early"));
    assert_eq!(
        problem(&look("image/png", b"<html>not a picture at all, is it</html>")),
        Some("not a PNG")
    );
    assert_eq!(problem(&look("image/png", png(0, 2))), Some("a side of no length"));
    assert_eq!(
        problem(&look("image/jpeg", b"\xff\xd8\xff\xda\0\x02")),
        Some("no frame header where one is due")
    );
    assert_eq!(
        look("image/png", [&whole[..], b"PK\x03\x04"].concat()).flags,
        [Flag::EmbeddedFile]
    );
    let mut endless = whole[..33].to_vec();
    endless.extend(b"\0\0\0\0teXtCRC4".repeat(200_000));
    assert_eq!(problem(&look("image/png", endless)), Some("too many chunks"));
}

#[test]
fn tables_are_counted_with_their_quotes() {
    let table = "name,city,n\r\n\"Doe, J.\",\"New\nYork\",1\r\n\"say \"\"hi\"\"\",x,-2.5\n\n,,\n";
    assert_eq!(
        look("text/csv", table),
        valid_text(&[("rows", 4), ("columns", 3)], "ascii")
    );
    assert_eq!(
        look("text/csv; charset=utf-8", "a;b\n\u{e9};2,5"),
        valid_text(&[("rows", 2), ("columns", 2)], "utf-8")
    );
    assert_eq!(
        look("text/tab-separated-values", "a\tb,c\n"),
        valid_text(&[("rows", 1), ("columns", 2)], "ascii")
    );
    assert_eq!(
        look("text/csv", "one\ntwo\n"),
        valid_text(&[("rows", 2), ("columns", 1)], "ascii")
    );
    assert_eq!(
        look("text/csv", ""),
        valid_text(&[("rows", 0), ("columns", 0)], "ascii")
    );
    assert_eq!(
        look("text/csv", b"caf\xe9,1\n"),
        valid_text(&[("rows", 1), ("columns", 2)], "unknown")
    );
    assert_eq!(
        problem(&look("text/csv", "a,\"b\n1,2\n")),
        Some("a quote that never ends")
    );
    assert_eq!(problem(&look("text/csv", "a,b\0\n")), Some("NUL bytes in text"));
    assert_eq!(
        look("text/csv", "x\n".repeat(200_000)),
        valid_text(&[("rows", 200_000), ("columns", 1)], "ascii")
    );
}

#[test]
fn fields_that_a_spreadsheet_would_run_are_flagged() {
    for table in [
        "a,=1+1\n",
        "\"=cmd|' /C calc'!A0\",1\n",
        "@SUM(A1)\n",
        "x\n-cmd()\n",
        "+(1)\n",
        "\"+A1\"\n",
    ] {
        assert_eq!(look("text/csv", table).flags, [Flag::Formula], "{table}");
    }
    for table in ["a,-1,+2.5\n", "-inf,-nan\n", "a=b,c@d\n", "- x,\"-\"\n"] {
        assert_eq!(look("text/csv", table).flags, [], "{table}");
    }
}

#[test]
fn text_is_counted_and_its_encoding_told_across_pieces() {
    assert_eq!(look("text/plain", ""), valid_text(&[("lines", 0)], "ascii"));
    assert_eq!(look("text/plain", "one\ntwo"), valid_text(&[("lines", 2)], "ascii"));
    for shift in 0..4 {
        let text = format!("{}{}", "x".repeat(shift), "\u{1f600}\n".repeat(40_000));
        assert_eq!(look("text/markdown", text), valid_text(&[("lines", 40_000)], "utf-8"));
    }
    assert_eq!(
        look("text/plain", b"\xf0\x9f\x98"),
        valid_text(&[("lines", 1)], "unknown")
    );
    assert_eq!(
        look("text/plain", b"\xf0\x41\x98\x80"),
        valid_text(&[("lines", 1)], "unknown")
    );
    assert_eq!(problem(&look("text/plain", b"\xff\xfea\0")), Some("NUL bytes in text"));
}

#[test]
fn json_is_checked_whole_and_its_top_told() {
    let top = |kind: &str, entries: Option<u64>| {
        let mut seen = valid(&[]);
        seen.word("kind", kind);
        entries.into_iter().for_each(|entries| seen.number("entries", entries));
        seen
    };
    assert_eq!(
        look("application/json", r#" {"a":[1,{"b":"]"}],"c":null} "#),
        top("object", Some(2))
    );
    assert_eq!(
        look("application/json", "[1,2,1e999,\"\\u0041\"]"),
        top("array", Some(4))
    );
    assert_eq!(look("application/json", "\"x\""), top("string", None));
    assert_eq!(look("application/json", "-1.5"), top("number", None));
    for bad in ["{\"a\":1}x", "{'a':1}", "[1,]", "[NaN]", "nil", "\"\x01\""] {
        assert_eq!(problem(&look("application/json", bad)), Some("not JSON"), "{bad}");
    }
    for cut in ["", "[1", "{\"a\":"] {
        assert_eq!(
            problem(&look("application/json", cut)),
            Some("it ends too early"),
            "{cut}"
        );
    }
    assert_eq!(
        problem(&look("application/json", "[".repeat(1 << 20))),
        Some("nested too deep")
    );
    let long = format!("{{\"{}\":1}}", "k".repeat(5 << 20));
    assert_eq!(problem(&look("application/json", long)), Some("a string too long"));
}

#[test]
fn limits_make_a_look_partial_and_not_invalid() {
    let cut = |media_type, bytes: &[u8], limit| look_within(media_type, bytes, limit);
    for (media_type, bytes) in [
        ("application/json", &b"[[1],[2],[3]]"[..]),
        ("text/csv", b"a,\"b\n\",c\nd"),
        ("image/png", &png(3, 2)),
        ("text/plain", b"several words"),
        ("image/svg+xml", b"<svg width='1' height='2'><g/></svg>"),
    ] {
        let seen = cut(media_type, bytes, 6);
        assert_eq!((seen.verdict, seen.partial), (Verdict::Valid, true), "{media_type}");
        assert!(!cut(media_type, bytes, 1 << 20).partial, "{media_type}");
    }
}

#[test]
fn active_content_of_svg_and_html_is_flagged() {
    let svg = |body: &str| look("image/svg+xml", format!("<?xml version=\"1.0\"?><svg>{body}</svg>")).flags;
    assert_eq!(svg("<script>1</script>"), [Flag::Script]);
    assert_eq!(svg("<x:SCRIPT\n/>"), [Flag::Script]);
    assert_eq!(
        svg("<a xlink:href=' java&#x73;cript&colon;alert(1)'>x</a>"),
        [Flag::Script, Flag::ExternalReference]
    );
    assert_eq!(
        svg("<set attributeName='href' to='javascript:1'/>"),
        [Flag::Script, Flag::ExternalReference]
    );
    assert_eq!(svg("<g onclick=alert(1)>"), [Flag::EventHandler]);
    assert_eq!(svg("<g class=a/onload='x'/>"), []);
    assert_eq!(svg("<g class='a'onload='x'/>"), [Flag::EventHandler]);
    assert_eq!(svg("<foreignObject/>"), [Flag::ForeignObject]);
    assert_eq!(svg("<image href='//host/x.png'/>"), [Flag::ExternalReference]);
    assert_eq!(svg("<use href='#a'/><image href='data:image/png;base64,AA=='/>"), []);
    assert_eq!(
        svg("<rect fill='url(#g)' style='fill: url(\"http://host/\")'/>"),
        [Flag::ExternalReference]
    );
    assert_eq!(svg("<style>@import 'x.css';</style>"), [Flag::ExternalReference]);
    assert_eq!(
        svg(&format!("<style>{}</style>", "a{}".repeat(3000) + "b{c:url(http://h)}")),
        [Flag::ExternalReference]
    );
    assert_eq!(svg("<!-- <script> --><text>on = 'x' href</text><![CDATA[x]]>"), []);
    assert_eq!(svg("<!ENTITY x 'y'>"), [Flag::Entity]);
    let html = look(
        "text/html",
        "<!DOCTYPE html><iframe src=http://h></iframe><p onmouseover=\"x\">",
    );
    assert_eq!(
        html.flags,
        [Flag::EventHandler, Flag::ForeignObject, Flag::ExternalReference]
    );
}

#[test]
fn an_svg_tells_its_size_and_must_be_one() {
    let svg = |attributes: &str| {
        look(
            "image/svg+xml",
            format!("<!-- x --><svg {attributes}><rect width='9'/></svg>"),
        )
    };
    let sized = |width, height| {
        let mut seen = valid(&[]);
        seen.word("encoding", "ascii");
        seen.number("width", width);
        seen.number("height", height);
        seen
    };
    let namespaces = "xmlns='http://www.w3.org/2000/svg' xmlns:xlink='http://www.w3.org/1999/xlink'";
    assert_eq!(
        svg(&format!("{namespaces} width=\"460.8pt\" height='345.6pt'")),
        sized(460, 345)
    );
    assert_eq!(svg("width='100%' height='100%' viewBox='0 0 640,480'"), sized(640, 480));
    assert_eq!(
        problem(&look("image/svg+xml", "<html></html>")),
        Some("the first element is not svg")
    );
    assert_eq!(problem(&look("image/svg+xml", b"<svg>\xff</svg>")), Some("not UTF-8"));
}

#[test]
fn pages_and_actions_of_a_pdf_are_seen_by_name() {
    let pdf = |body: &str| look("application/pdf", format!("%PDF-1.7\n{body}\n%%EOF\n"));
    let pages = "<</Type /Pages/Count 2>> <</Type/Page/X 1>> <</Type /Page >> <</Type/PageLabel>>";
    assert_eq!(pdf(pages), valid(&[("pages", 2)]));
    assert_eq!(pdf("<</Count 17>>"), valid(&[("pages", 17)]));
    assert_eq!(
        pdf("<</S/J#61vaScript>> <</URI(x)>>").flags,
        [Flag::Script, Flag::ExternalReference]
    );
    assert_eq!(pdf("<</JavaScripts 1>>").flags, []);
    for shift in 0..80 {
        let text = format!("{}<</Type /Page >>", " ".repeat(65_536 - 40 + shift));
        assert_eq!(pdf(&text), valid(&[("pages", 1)]), "{shift}");
    }
    assert_eq!(
        problem(&look("application/pdf", "%PDF-1.7 and no end")),
        Some("it ends too early")
    );
    assert_eq!(problem(&look("application/pdf", "something else")), Some("not a PDF"));
}

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

fn workbook(sheet: &str, deflated: bool) -> Inspected {
    let parts = [
        ("xl/workbook.xml", "<workbook/>"),
        ("xl/worksheets/sheet10.xml", ""),
        ("xl/worksheets/sheet1.xml", sheet),
    ];
    look(
        "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
        zip(&parts, deflated),
    )
}

#[test]
fn a_workbook_tells_its_sheets_and_the_size_of_the_first() {
    let sheet = "<worksheet><dimension ref=\"A1:C12449\"/><sheetData/></worksheet>";
    let sized = |unpacked, rows, columns| {
        valid(&[
            ("sheets", 2),
            ("unpacked_bytes", unpacked),
            ("rows", rows),
            ("columns", columns),
        ])
    };
    assert_eq!(workbook(sheet, true), sized(11 + sheet.len() as u64, 12_449, 3));
    assert_eq!(workbook(sheet, false), sized(11 + sheet.len() as u64, 12_449, 3));
    let rows = "<row r=\"1\"><c r=\"A1\"/><c r=\"B1\" t=\"s\"><v>1</v></c><cols/></row>".repeat(5_000);
    assert_eq!(workbook(&rows, true), sized(11 + rows.len() as u64, 5_000, 2));
    let hostile = "<dimension ref=\"ZZZZZ99999999999:A1\"/><row>";
    assert_eq!(workbook(hostile, true), sized(11 + hostile.len() as u64, 1, 0));
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
fn random_bytes_behind_good_heads_end_every_reader() {
    let heads: [(&str, Vec<u8>); 9] = [
        ("image/png", png(1, 1)[..33].to_vec()),
        ("image/jpeg", b"\xff\xd8".to_vec()),
        ("image/gif", b"GIF89a".to_vec()),
        ("image/webp", b"RIFF\x10\0\0\0WEBP".to_vec()),
        ("image/svg+xml", b"<svg ".to_vec()),
        ("text/csv", b"a,".to_vec()),
        ("application/json", b"[".to_vec()),
        ("application/pdf", b"%PDF-1.7 /Type".to_vec()),
        ("text/html", b"<a href='".to_vec()),
    ];
    let mut state = 88_172_645_463_325_252_u64;
    for round in 0..300 {
        for (media_type, head) in &heads {
            let mut bytes = head.clone();
            for _ in 0..round {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                bytes.push(state.to_le_bytes()[0]);
            }
            let _ = look(media_type, &bytes);
        }
    }
}

#[test]
fn types_that_nothing_here_reads_are_unknown() {
    assert!(reader_for("application/x-tar").is_none());
    assert_eq!(Inspected::default().verdict, Verdict::Unknown);
}
