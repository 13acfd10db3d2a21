use std::io::Cursor;
use std::time::Duration;

use tokio::net::unix::pipe;

use super::*;

fn frame(body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len()).unwrap();
    [&length.to_le_bytes()[..], body].concat()
}

fn json(body: &str) -> Vec<u8> {
    frame(body.as_bytes())
}

/// Reads all claims of a stream of bytes.
async fn claims_of(bytes: &[u8]) -> (Vec<Claim>, KernelReader<Cursor<Vec<u8>>>) {
    let mut reader = KernelReader::new(Cursor::new(bytes.to_vec()));
    let mut claims = Vec::new();
    while let Some(claim) = reader.next().await {
        claims.push(claim);
    }
    (claims, reader)
}

async fn broken(bytes: &[u8]) -> Option<Broken> {
    claims_of(bytes).await.1.broken
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
    }
}

#[tokio::test]
async fn a_run_travels_as_one_frame() {
    let (mut ours, mut theirs) = pipe::pipe().unwrap();
    let run = Run {
        code: "print('é\u{0}')\n".to_owned(),
        argv: vec!["main.py".to_owned(), "x".to_owned()],
        filename: "main.py".to_owned(),
        threads: 1,
    };
    send_run(&mut ours, &run).await.unwrap();
    drop(ours);
    let mut bytes = Vec::new();
    theirs.read_to_end(&mut bytes).await.unwrap();
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

#[tokio::test]
async fn code_of_the_largest_size_fits_and_more_is_refused() {
    let run = |code: String| Run {
        code,
        argv: Vec::new(),
        filename: "main.py".to_owned(),
        threads: 1,
    };
    let mut sink = tokio::io::sink();
    send_run(&mut sink, &run("\u{1}".repeat(1 << 20))).await.unwrap();
    let error = send_run(&mut sink, &run("\u{1}".repeat(2 << 20))).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
}

#[tokio::test]
async fn claims_come_in_order_and_done_ends_them() {
    let bytes = [
        json(r#"{"ev":"result","main":true,"display_id":null,"data":{"text/plain":"1","image/png":"iVBO"}}"#),
        json(r#"{"ev":"error","name":"KeyError","message":"'missing'","line":7,"traceback":"Traceback ..."}"#),
        json(r#"{"ev":"done"}"#),
        json(r#"{"ev":"result","main":true,"data":{}}"#),
    ]
    .concat();
    let (claims, reader) = claims_of(&bytes).await;
    let error = ErrorClaim {
        name: "KeyError".to_owned(),
        message: "'missing'".to_owned(),
        line: Some(7),
        traceback: "Traceback ...".to_owned(),
    };
    let result = result_of(&[("image/png", "iVBO"), ("text/plain", "1")]);
    assert_eq!(claims, [Claim::Result(result), Claim::Error(error), Claim::Done]);
    assert_eq!((reader.broken, reader.dropped), (None, 0));
}

#[tokio::test]
async fn unknown_events_and_fields_are_passed_over() {
    let bytes = [
        json(r#"{"ev":"progress","percent":[1,{"a":null}]}"#),
        json(r#"{"ev":"result","new":{"x":1},"data":{"text/plain":"ok"}}"#),
        json(r#"{"later":1,"ev":"done"}"#),
    ]
    .concat();
    let (claims, reader) = claims_of(&bytes).await;
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

#[tokio::test]
async fn an_end_between_frames_is_no_fault() {
    assert_eq!(broken(b"").await, None);
    assert_eq!(broken(&json(r#"{"ev":"x"}"#)).await, None);
}

#[tokio::test]
async fn the_first_bad_frame_ends_the_reading() {
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
        let (claims, reader) = claims_of(&[json(bad), good.clone()].concat()).await;
        assert_eq!((claims, reader.broken), (vec![], Some(Broken::Malformed)), "{bad}");
    }
    let odd_data = [
        r#"{"ev":"result","data":[]}"#,
        r#"{"ev":"result","data":{"text/plain":1}}"#,
    ];
    for bad in odd_data {
        assert_eq!(broken(&json(bad)).await, Some(Broken::Malformed), "{bad}");
    }
    assert_eq!(broken(&frame(b"{\"ev\":\"\xff\"}")).await, Some(Broken::Malformed));
}

#[tokio::test]
async fn what_is_not_unicode_in_a_text_costs_only_itself() {
    let bytes = [
        json(r#"{"ev":"result","data":{"text/plain":"a\ud800b","\udfff":"x"},"display_id":"\udc00"}"#),
        frame(b"{\"ev\":\"error\",\"name\":\"E\",\"message\":\"\xff\"}"),
        json(r#"{"ev":"result","data":{"text/plain":7}}"#),
    ]
    .concat();
    let (claims, reader) = claims_of(&bytes).await;
    let [Claim::Result(result), Claim::Error(error)] = claims.as_slice() else {
        panic!("{claims:?}")
    };
    assert_eq!(
        result.data["text/plain"].trim_matches('\u{fffd}'),
        "a\u{fffd}\u{fffd}\u{fffd}b"
    );
    assert_eq!(
        (error.message.as_str(), reader.dropped, reader.broken),
        ("\u{fffd}", 1, Some(Broken::Malformed))
    );
}

#[tokio::test]
async fn frames_cut_short_are_seen_as_such() {
    let whole = json(r#"{"ev":"done"}"#);
    for end in 1..whole.len() {
        assert_eq!(broken(&whole[..end]).await, Some(Broken::CutShort), "{end} bytes");
    }
}

#[tokio::test]
async fn a_frame_over_the_cap_is_refused_before_anything_is_allocated() {
    for length in [u32::try_from(FRAME_MAX).unwrap() + 1, u32::MAX] {
        let (claims, reader) = claims_of(&length.to_le_bytes()).await;
        assert_eq!((claims.len(), reader.broken), (0, Some(Broken::TooLarge)));
        assert_eq!(reader.body.capacity(), 0);
    }
}

#[tokio::test]
async fn a_promised_frame_that_does_not_come_takes_no_memory() {
    let mut bytes = u32::try_from(FRAME_MAX).unwrap().to_le_bytes().to_vec();
    bytes.extend(b"{\"ev\"");
    let (_, reader) = claims_of(&bytes).await;
    assert_eq!(reader.broken, Some(Broken::CutShort));
    assert!(reader.body.capacity() < 4096, "{} bytes", reader.body.capacity());
}

#[tokio::test]
async fn deep_nesting_is_passed_over_or_refused_without_overflow() {
    let deep = format!("{}{}", "[".repeat(500_000), "]".repeat(500_000));
    assert_eq!(broken(&json(&format!(r#"{{"ev":"x","y":{deep}}}"#))).await, None);
    assert_eq!(
        broken(&json(&format!(r#"{{"ev":{deep}}}"#))).await,
        Some(Broken::Malformed)
    );
    assert_eq!(
        broken(&json(&format!(r#"{{"ev":"result","data":{deep}}}"#))).await,
        Some(Broken::Malformed)
    );
    assert_eq!(broken(&json(&deep)).await, Some(Broken::Malformed));
}

#[tokio::test]
async fn results_beyond_count_and_size_are_dropped_and_counted() {
    let mut bytes = json(r#"{"ev":"result","data":{"text/plain":"x"}}"#).repeat(RESULTS_MAX + 6);
    bytes.extend(json(r#"{"ev":"done"}"#));
    let (claims, reader) = claims_of(&bytes).await;
    assert_eq!((claims.len(), reader.dropped), (RESULTS_MAX + 1, 6));

    let large = format!(
        r#"{{"ev":"result","data":{{"text/plain":"{}"}}}}"#,
        "x".repeat(500 * 1024)
    );
    let (claims, reader) = claims_of(&json(&large).repeat(20)).await;
    assert_eq!((claims.len(), reader.dropped), (16, 4));
}

#[tokio::test]
async fn data_that_are_too_large_or_oddly_named_are_dropped_one_by_one() {
    let long = "x".repeat(512 * 1024 + 1);
    let body = format!(
        r#"{{"ev":"result","main":true,"data":{{"text/plain":"kept","image/png":"{long}","a b":"","a\u0000":"","{}":""}}}}"#,
        "n".repeat(201)
    );
    let (claims, reader) = claims_of(&json(&body)).await;
    assert_eq!(claims, [Claim::Result(result_of(&[("text/plain", "kept")]))]);
    assert_eq!(reader.dropped, 4);

    let many: Vec<String> = (0..50_000).map(|i| format!(r#""t/{i}":"""#)).collect();
    let body = format!(r#"{{"ev":"result","data":{{{}}}}}"#, many.join(","));
    let (claims, reader) = claims_of(&json(&body)).await;
    let Claim::Result(result) = &claims[0] else {
        panic!("{claims:?}")
    };
    assert_eq!((result.data.len(), reader.dropped), (16, 49_984));
}

#[tokio::test]
async fn only_the_first_error_counts_and_its_texts_are_cut_between_characters() {
    let body = format!(
        r#"{{"ev":"error","name":"{}","message":"{}","line":-3,"traceback":"{}"}}"#,
        "é".repeat(300),
        "€".repeat(10_000),
        "😀".repeat(40_000)
    );
    let bytes = [json(&body), json(r#"{"ev":"error","name":"Second"}"#)].concat();
    let (claims, reader) = claims_of(&bytes).await;
    let [Claim::Error(error)] = claims.as_slice() else {
        panic!("{} claims", claims.len())
    };
    assert_eq!((error.name.len(), error.message.len(), error.line), (200, 8190, None));
    assert!(error.traceback.len() <= 64 * 1024 + 10 && error.traceback.contains("\n[...]\n"));
    assert_eq!(reader.broken, None);
}

#[tokio::test]
async fn a_flood_of_frames_comes_to_an_end() {
    let small = json(r#"{"ev":"x"}"#).repeat(20_000);
    assert_eq!(broken(&small).await, Some(Broken::TooMany));
    let large = format!(r#"{{"ev":"x","y":"{}"}}"#, "y".repeat(1_000_000));
    assert_eq!(broken(&json(&large).repeat(80)).await, Some(Broken::TooMany));
}

#[tokio::test]
async fn any_bytes_at_all_end_without_a_panic() {
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
        let (claims, _) = claims_of(&bytes).await;
        assert!(claims.len() <= 3);
    }
}

#[tokio::test]
async fn a_process_that_is_killed_is_an_end_for_both_ways() {
    let (mut requests, theirs_in) = pipe::pipe().unwrap();
    let (theirs_out, frames) = pipe::pipe().unwrap();
    requests.write_all(b"never read").await.unwrap();
    drop((theirs_in, theirs_out));
    let error = requests.write_all(b"x").await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    let mut reader = KernelReader::new(frames);
    let next = tokio::time::timeout(Duration::from_secs(5), reader.next())
        .await
        .unwrap();
    assert_eq!((next, reader.broken), (None, None));
}
