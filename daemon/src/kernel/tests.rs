use super::*;

fn frame(body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len()).unwrap();
    [&length.to_le_bytes()[..], body].concat()
}

fn json(body: &str) -> Vec<u8> {
    frame(body.as_bytes())
}

/// Puts bytes into a file behind a base, as a pump does.
fn kept(bytes: &[u8]) -> Frames {
    let file = crate::output::testing::memory_file();
    file.write_all_at(bytes, 100).unwrap();
    Frames::new(Arc::new(file), 100, Mark::default())
}

/// Reads all claims of a stream of bytes that has come to its end.
fn claims_of(bytes: &[u8]) -> (Vec<Claim>, Frames) {
    let mut frames = kept(bytes);
    let claims = std::iter::from_fn(|| frames.next(bytes.len() as u64, true)).collect();
    (claims, frames)
}

fn broken(bytes: &[u8]) -> Option<Broken> {
    claims_of(bytes).1.broken
}

fn result_of(data: &[(&str, &str)]) -> RichResult {
    let data = data
        .iter()
        .map(|(name, datum)| ((*name).to_owned(), (*datum).to_owned()))
        .collect();
    RichResult {
        main: true,
        display_id: None,
        data,
        chart: None,
    }
}

#[test]
fn a_run_travels_as_one_frame() {
    let run = Run {
        code: "print('é\u{0}')\n".to_owned(),
        argv: vec!["main.py".to_owned(), "x".to_owned()],
        filename: "main.py".to_owned(),
        threads: 1,
    };
    let bytes = request(&run).unwrap();
    let body =
        br#"{"op":"run","code":"print('\u00e9\u0000')\n","argv":["main.py","x"],"filename":"main.py","threads":1}"#;
    let expected: serde_json::Value = serde_json::from_slice(body).unwrap();
    let got: serde_json::Value = serde_json::from_slice(&bytes[4..]).unwrap();
    assert_eq!(got, expected);
    assert_eq!(
        usize::try_from(u32::from_le_bytes(bytes[..4].try_into().unwrap())).unwrap(),
        bytes.len() - 4
    );
}

#[test]
fn code_of_the_largest_size_fits_and_more_is_refused() {
    let run = |code: String| Run {
        code,
        argv: Vec::new(),
        filename: "main.py".to_owned(),
        threads: 1,
    };
    request(&run("\u{1}".repeat(1 << 20))).unwrap();
    let error = request(&run("\u{1}".repeat(2 << 20))).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
}

#[test]
fn frames_that_come_in_pieces_are_read_when_they_are_whole() {
    let bytes = [
        json(r#"{"ev":"result","data":{"text/plain":"1"}}"#),
        json(r#"{"ev":"x"}"#),
        json(r#"{"ev":"result","data":{"text/plain":"2"}}"#),
    ]
    .concat();
    let mut frames = kept(&bytes);
    let mut claims = Vec::new();
    for end in 0..=bytes.len() as u64 {
        claims.extend(std::iter::from_fn(|| frames.next(end, false)));
        // The next brigd goes on at the mark and hears the same.
        frames = Frames::new(Arc::clone(&frames.file), 100, frames.mark);
    }
    assert_eq!((claims.len(), frames.mark.at), (2, bytes.len() as u64));
    assert!(frames.next(bytes.len() as u64, true).is_none() && frames.mark.ended && frames.broken.is_none());
}

#[test]
fn claims_come_in_order_and_done_ends_them() {
    let bytes = [
        json(r#"{"ev":"result","main":true,"display_id":null,"data":{"text/plain":"1","image/png":"iVBO"}}"#),
        json(r#"{"ev":"error","name":"KeyError","message":"'missing'","line":7,"traceback":"Traceback ..."}"#),
        json(r#"{"ev":"done"}"#),
        json(r#"{"ev":"result","main":true,"data":{}}"#),
    ]
    .concat();
    let (claims, reader) = claims_of(&bytes);
    let error = ErrorClaim {
        name: "KeyError".to_owned(),
        message: "'missing'".to_owned(),
        line: Some(7),
        traceback: "Traceback ...".to_owned(),
    };
    let result = result_of(&[("image/png", "iVBO"), ("text/plain", "1")]);
    assert_eq!(claims, [Claim::Result(result), Claim::Error(error), Claim::Done]);
    assert_eq!((reader.broken, reader.mark.dropped), (None, 0));
}

#[test]
fn unknown_events_and_fields_are_passed_over() {
    let bytes = [
        json(r#"{"ev":"progress","percent":[1,{"a":null}]}"#),
        json(r#"{"ev":"result","new":{"x":1},"data":{"text/plain":"ok"}}"#),
        json(r#"{"later":1,"ev":"done"}"#),
    ]
    .concat();
    let (claims, reader) = claims_of(&bytes);
    assert_eq!(
        claims,
        [
            Claim::Result(RichResult {
                main: false,
                ..result_of(&[("text/plain", "ok")])
            }),
            Claim::Done
        ]
    );
    assert_eq!(reader.broken, None);
}

#[test]
fn an_end_between_frames_is_no_fault() {
    assert_eq!(broken(b""), None);
    assert_eq!(broken(&json(r#"{"ev":"x"}"#)), None);
}

#[test]
fn the_first_bad_frame_ends_the_reading() {
    let good = json(r#"{"ev":"done"}"#);
    for bad in [
        "",
        "{",
        "[]",
        "null",
        "7",
        r#""done""#,
        r#"{"ev":1}"#,
        r#"{"op":"run"}"#,
        r#"{"ev":"error"}"#,
    ] {
        let (claims, reader) = claims_of(&[json(bad), good.clone()].concat());
        assert_eq!((claims, reader.broken), (vec![], Some(Broken::Malformed)), "{bad}");
    }
    let odd_data = [
        r#"{"ev":"result","data":[]}"#,
        r#"{"ev":"result","data":{"text/plain":1}}"#,
    ];
    for bad in odd_data {
        assert_eq!(broken(&json(bad)), Some(Broken::Malformed), "{bad}");
    }
    assert_eq!(broken(&frame(b"{\"ev\":\"\xff\"}")), Some(Broken::Malformed));
}

#[test]
fn what_is_not_unicode_in_a_text_costs_only_itself() {
    let bytes = [
        json(r#"{"ev":"result","data":{"text/plain":"a\ud800b","\udfff":"x"},"display_id":"\udc00"}"#),
        frame(b"{\"ev\":\"error\",\"name\":\"E\",\"message\":\"\xff\"}"),
        json(r#"{"ev":"result","data":{"text/plain":7}}"#),
    ]
    .concat();
    let (claims, reader) = claims_of(&bytes);
    let [Claim::Result(result), Claim::Error(error)] = claims.as_slice() else {
        panic!("{claims:?}")
    };
    assert_eq!(
        result.data["text/plain"].trim_matches('\u{fffd}'),
        "a\u{fffd}\u{fffd}\u{fffd}b"
    );
    assert_eq!(
        (error.message.as_str(), reader.mark.dropped, reader.broken),
        ("\u{fffd}", 1, Some(Broken::Malformed))
    );
}

#[test]
fn frames_cut_short_are_seen_as_such() {
    let whole = json(r#"{"ev":"done"}"#);
    for end in 1..whole.len() {
        assert_eq!(broken(&whole[..end]), Some(Broken::CutShort), "{end} bytes");
    }
}

#[test]
fn a_frame_over_the_cap_is_refused_by_its_header() {
    for length in [u32::try_from(FRAME_MAX).unwrap() + 1, u32::MAX] {
        let mut frames = kept(&length.to_le_bytes());
        assert_eq!((frames.next(4, false), frames.broken), (None, Some(Broken::TooLarge)));
    }
}

#[test]
fn a_promised_frame_that_does_not_come_is_waited_for_and_then_cut_short() {
    let mut bytes = u32::try_from(FRAME_MAX).unwrap().to_le_bytes().to_vec();
    bytes.extend(b"{\"ev\"");
    let mut frames = kept(&bytes);
    assert_eq!((frames.next(10, false), frames.broken), (None, None));
    assert_eq!((frames.next(10, true), frames.broken), (None, Some(Broken::CutShort)));
}

#[test]
fn deep_nesting_is_passed_over_or_refused_without_overflow() {
    let deep = format!("{}{}", "[".repeat(500_000), "]".repeat(500_000));
    assert_eq!(broken(&json(&format!(r#"{{"ev":"x","y":{deep}}}"#))), None);
    assert_eq!(broken(&json(&format!(r#"{{"ev":{deep}}}"#))), Some(Broken::Malformed));
    assert_eq!(
        broken(&json(&format!(r#"{{"ev":"result","data":{deep}}}"#))),
        Some(Broken::Malformed)
    );
    assert_eq!(broken(&json(&deep)), Some(Broken::Malformed));
}

#[test]
fn results_beyond_count_and_size_are_dropped_and_counted() {
    let mut bytes = json(r#"{"ev":"result","data":{"text/plain":"x"}}"#).repeat(RESULTS_MAX + 6);
    bytes.extend(json(r#"{"ev":"done"}"#));
    let (claims, reader) = claims_of(&bytes);
    assert_eq!((claims.len(), reader.mark.dropped), (RESULTS_MAX + 1, 6));

    let large = format!(
        r#"{{"ev":"result","data":{{"text/plain":"{}"}}}}"#,
        "x".repeat(500 * 1024)
    );
    let (claims, reader) = claims_of(&json(&large).repeat(20));
    assert_eq!((claims.len(), reader.mark.dropped), (16, 4));
}

#[test]
fn data_that_are_too_large_or_oddly_named_are_dropped_one_by_one() {
    let long = "x".repeat(512 * 1024 + 1);
    let body = format!(
        r#"{{"ev":"result","main":true,"data":{{"text/plain":"kept","image/png":"{long}","a b":"","a\u0000":"","{}":""}}}}"#,
        "n".repeat(201)
    );
    let (claims, reader) = claims_of(&json(&body));
    assert_eq!(claims, [Claim::Result(result_of(&[("text/plain", "kept")]))]);
    assert_eq!(reader.mark.dropped, 4);

    let many: Vec<String> = (0..50_000).map(|i| format!(r#""t/{i}":"""#)).collect();
    let body = format!(r#"{{"ev":"result","data":{{{}}}}}"#, many.join(","));
    let (claims, reader) = claims_of(&json(&body));
    let Claim::Result(result) = &claims[0] else {
        panic!("{claims:?}")
    };
    assert_eq!((result.data.len(), reader.mark.dropped), (16, 49_984));
}

#[test]
fn only_the_first_error_counts_and_its_texts_are_cut_between_characters() {
    let body = format!(
        r#"{{"ev":"error","name":"{}","message":"{}","line":-3,"traceback":"{}"}}"#,
        "é".repeat(300),
        "€".repeat(10_000),
        "😀".repeat(40_000)
    );
    let bytes = [json(&body), json(r#"{"ev":"error","name":"Second"}"#)].concat();
    let (claims, reader) = claims_of(&bytes);
    let [Claim::Error(error)] = claims.as_slice() else {
        panic!("{} claims", claims.len())
    };
    assert_eq!((error.name.len(), error.message.len(), error.line), (200, 8190, None));
    assert!(error.traceback.len() <= 64 * 1024 + 10 && error.traceback.contains("\n[...]\n"));
    assert_eq!(reader.broken, None);
}

#[test]
fn a_flood_of_frames_comes_to_an_end() {
    let small = json(r#"{"ev":"x"}"#).repeat(20_000);
    assert_eq!(broken(&small), Some(Broken::TooMany));
    let large = format!(r#"{{"ev":"x","y":"{}"}}"#, "y".repeat(1_000_000));
    assert_eq!(broken(&json(&large).repeat(80)), Some(Broken::TooMany));
}

#[test]
fn any_bytes_at_all_end_without_a_panic() {
    // xorshift64: the same bytes on every run.
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let valid = [
        json(r#"{"ev":"result","main":true,"display_id":"a","data":{"text/plain":"\ud83d\ude00"}}"#),
        json(r#"{"ev":"error","name":"E","message":"m","line":1,"traceback":"t"}"#),
        json(r#"{"ev":"done"}"#),
    ]
    .concat();
    for round in 0..20_000_u32 {
        let mut bytes = valid.clone();
        for _ in 0..=random() % 4 {
            let at = usize::try_from(random()).unwrap() % bytes.len();
            bytes[at] = random().to_le_bytes()[0];
        }
        if round % 3 == 0 {
            bytes.truncate(usize::try_from(random()).unwrap() % bytes.len());
        }
        if round % 5 == 0 {
            bytes = (0..random() % 64).flat_map(|_| random().to_le_bytes()).collect();
        }
        let (claims, _) = claims_of(&bytes);
        assert!(claims.len() <= 3);
    }
}
