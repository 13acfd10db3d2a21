mod markup;
mod packed;
mod pictures;

use miniz_oxide::deflate::{compress_to_vec, compress_to_vec_zlib};

use super::*;

fn look(media_type: &str, bytes: impl AsRef<[u8]>) -> Inspected {
    look_within(media_type, bytes, u64::MAX)
}

fn look_within(media_type: &str, bytes: impl AsRef<[u8]>, max_bytes: u64) -> Inspected {
    let mut source = Source::of(bytes.as_ref(), max_bytes);
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

/// A picture without colour or transparency, 8 bits deep, with these lines.
fn png_of(width: u32, height: u32, lines: &[u8]) -> Vec<u8> {
    let mut bytes = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR".to_vec();
    bytes.extend([width.to_be_bytes(), height.to_be_bytes()].concat());
    bytes.extend(b"\x08\0\0\0\0CRC1");
    let data = compress_to_vec_zlib(lines, 6);
    // In two chunks, as large ones are.
    for part in [&data[..2], &data[2..]] {
        bytes.extend(u32::try_from(part.len()).unwrap().to_be_bytes());
        bytes.extend([b"IDAT", part, b"CRC2"].concat());
    }
    bytes.extend(b"\0\0\0\0IENDCRC3");
    bytes
}

fn png(width: u32, height: u32) -> Vec<u8> {
    let bytes = usize::try_from((width + 1) * height).unwrap();
    png_of(width, height, &vec![0; bytes])
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
        look("application/json", "[1,2,[1e999],\"\\u0041\"]"),
        top("array", Some(4))
    );
    let cells = [("records", 2), ("columns", 3)];
    for table in [
        r#"[{"a":1,"b":2},{"a":1,"b":2,"c":[3]}]"#,
        "[[1,2,3],[4,5]]",
        r#"{"a":[1,2],"b":[3,4],"c":[5,6]}"#,
        r#"{"a":{"0":1,"1":2},"b":{"0":3,"1":4},"c":{"0":5,"1":6}}"#,
    ] {
        let seen = look("application/json", table);
        assert_eq!(seen.details[2..], valid(&cells).details, "{table}");
    }
    for other in [
        r#"[{"a":1},2]"#,
        r#"{"a":[1],"b":[3,4]}"#,
        r#"{"a":{"x":1},"b":{"y":1}}"#,
        r#"{"a":[1],"b":{"0":1}}"#,
        "[]",
        "{}",
    ] {
        assert_eq!(look("application/json", other).details.len(), 2, "{other}");
    }
    let lines = look("application/x-ndjson", "{\"a\":1}\n{\"a\":1,\"b\":2}\n");
    assert_eq!(
        lines.details[1..],
        valid(&[("entries", 2), ("records", 2), ("columns", 2)]).details
    );
    assert_eq!(
        problem(&look("application/x-ndjson", "{\"a\":1}\n{\"a\"}\n")),
        Some("not JSON")
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
    assert_eq!(pdf("<</JS(x)>> /AA <<").flags, [Flag::Script]);
    assert_eq!(pdf("x/JS\x01y/AA!").flags, [], "by chance, in other data");
    assert_eq!(pdf("trailer <</Encrypt 5 0 R>>").flags, [Flag::Encrypted]);
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

#[test]
fn packed_objects_of_a_pdf_are_seen_too() {
    // Long enough that packing it pays.
    let objects = format!("1 0 <</Type/Page>> <</Type/Page/AA<</O 3 0 R>>>>{}", " ".repeat(1000));
    let packed = compress_to_vec_zlib(objects.as_bytes(), 6);
    let pdf = |dictionary: &str, data: &[u8]| {
        let start = format!("%PDF-1.7\n5 0 obj {dictionary}\nstream\r\n");
        look(
            "application/pdf",
            [start.as_bytes(), data, b"\nendstream\n%%EOF\n"].concat(),
        )
    };
    let seen = pdf("<</Type/ObjStm/Filter/FlateDecode>>", &packed);
    assert_eq!((seen.flags, seen.partial), (vec![Flag::Script], false));
    assert_eq!(seen.details, valid(&[("pages", 2)]).details);
    assert!(pdf("<</Type/ObjStm/Filter/ASCIIHexDecode>>", b"3c3c").partial);
    assert!(pdf("<</Type/ObjStm>>", &packed[..20]).partial);
}

#[test]
fn a_parquet_file_tells_rows_and_columns() {
    // Version 2; a schema of a root with two children, which have names and types; 300 rows; no row groups.
    let footer = b"\x15\x04\x19\x3c\x48\x06schema\x15\x04\x00\x15\x04\x25\x02\x18\x01a\x00\x15\x0c\x25\x02\x18\x01b\x00\x16\xd8\x04\x19\x0c\x00";
    let file = |footer: &[u8]| {
        let length = u32::try_from(footer.len()).unwrap().to_le_bytes();
        [b"PAR1data", footer, &length, b"PAR1"].concat()
    };
    let parquet = "application/vnd.apache.parquet";
    assert_eq!(look(parquet, file(footer)), valid(&[("records", 300), ("columns", 2)]));
    for at in 0..footer.len() {
        let mut broken = footer.to_vec();
        broken[at] ^= 0xff;
        let _ = look(parquet, file(&broken));
        assert!(
            problem(&look(parquet, file(&footer[..at]))).is_some() || at >= 34,
            "{at}"
        );
    }
    let nested = [&b"\x1c"[..]; 1000].concat();
    assert_eq!(
        problem(&look(parquet, file(&nested))),
        Some("a footer that can't be read")
    );
    let many = b"\x19\xf1\xff\xff\xff\xff\xff\xff\xff\xff\x7f";
    assert_eq!(problem(&look(parquet, file(many))), Some("a footer that can't be read"));
    assert_eq!(
        problem(&look(parquet, b"PAR1\xff\xff\xff\x7fPAR1")),
        Some("a footer that is longer than the file")
    );
    assert_eq!(problem(&look(parquet, b"PAR1 and no end")), Some("it ends too early"));
}

#[test]
fn random_bytes_behind_good_heads_end_every_reader() {
    let heads: [(&str, Vec<u8>); 13] = [
        ("image/png", png(1, 1)[..33].to_vec()),
        ("image/jpeg", b"\xff\xd8".to_vec()),
        ("image/gif", b"GIF89a".to_vec()),
        ("image/webp", b"RIFF\x10\0\0\0WEBP".to_vec()),
        ("image/svg+xml", b"<svg ".to_vec()),
        ("text/csv", b"a,".to_vec()),
        ("application/json", b"[".to_vec()),
        ("application/pdf", b"%PDF-1.7 /Type".to_vec()),
        ("text/html", b"<a href='".to_vec()),
        ("application/zip", b"PK\x03\x04".to_vec()),
        ("application/gzip", b"\x1f\x8b\x08\0\0\0\0\0\0\x03".to_vec()),
        ("application/x-tar", b"name".to_vec()),
        ("application/vnd.apache.parquet", b"PAR1\x15".to_vec()),
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
    assert!(reader_for("application/x-7z-compressed").is_none());
    assert_eq!(Inspected::default().verdict, Verdict::Unknown);
}
