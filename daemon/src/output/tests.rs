use super::testing::{memory_file, output, write};
use super::*;

use Stream::{Stderr, Stdout};

#[test]
fn what_was_kept_is_read_back_by_ranges() {
    let output = output(100);
    write(&output, Stdout, b"\0\xff\xfe");
    write(&output, Stderr, b"other");
    write(&output, Stdout, b"\x1b[31m\r\n\xe2\x82");
    let read = |stream, start, len| {
        let time = SystemTime::UNIX_EPOCH;
        output
            .read(&Range {
                stream,
                start,
                len,
                time,
            })
            .ok()
    };
    assert_eq!(read(Stdout, 1, 4).as_deref(), Some(&b"\xff\xfe\x1b["[..]));
    assert_eq!(read(Stderr, 0, 5).as_deref(), Some(&b"other"[..]));
    assert_eq!(read(Stderr, 3, 5), None, "beyond the end");
    let view = output.view(Stdout, 100);
    assert_eq!(view.bytes(), b"\0\xff\xfe\x1b[31m\r\n\xe2\x82");
    assert_eq!(view.text(), "\0\u{fffd}\u{fffd}\u{1b}[31m\r\n\u{fffd}");
    assert!(view.is_lossy() && !view.is_truncated());
}

#[test]
fn ranges_of_a_stream_join_and_are_small_enough() {
    let time = SystemTime::UNIX_EPOCH;
    let ranges = Range::cut(Stderr, 10, 200_000, time);
    let sizes: Vec<_> = ranges.iter().map(|range| (range.start, range.len)).collect();
    assert_eq!(
        sizes,
        [(10, 65_536), (65_546, 65_536), (131_082, 65_536), (196_618, 3_382)]
    );
    assert!(Range::cut(Stderr, 7, 7, time).is_empty());
}

#[tokio::test]
async fn the_limit_wakes_whoever_waits_for_it_and_exactly_the_cap_is_no_excess() {
    let output = output(4);
    write(&output, Stdout, b"1234");
    let waiting = tokio::spawn({
        let output = Arc::clone(&output);
        async move { output.limit_reached().await }
    });
    tokio::task::yield_now().await;
    assert!(!waiting.is_finished() && !output.is_limited());
    write(&output, Stdout, b"5");
    tokio::time::timeout(Duration::from_secs(5), waiting)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(output.count(Stdout), Count { bytes: 5, dropped: 1 });
    assert_eq!(output.count(Stderr), Count::default());
}

#[tokio::test(start_paused = true)]
async fn the_clock_of_silence_begins_anew_with_each_byte() {
    let output = output(4);
    let limit = Duration::from_millis(300);
    let start = tokio::time::Instant::now();
    let idle = output.idle_for(limit);
    tokio::pin!(idle);
    let early = tokio::time::timeout(Duration::from_millis(200), &mut idle);
    assert!(early.await.is_err());
    write(&output, Stderr, b"x");
    idle.await;
    let elapsed = start.elapsed();
    assert!(
        (limit + Duration::from_millis(200)..limit + Duration::from_millis(210)).contains(&elapsed),
        "{elapsed:?}"
    );
    // What was silent before a restart counts.
    output.restore([None, None], [Count::default(); 2], Duration::from_secs(60));
    output.idle_for(Duration::from_secs(59)).await;
}

#[test]
fn after_the_seal_nothing_counts_and_only_what_is_large_needs_a_file() {
    let output = output(1 << 30);
    write(&output, Stdout, b"abc");
    write(&output, Stderr, &vec![7; (8 << 20) + 1]);
    let range = |stream, start, len| Range {
        stream,
        start,
        len,
        time: SystemTime::UNIX_EPOCH,
    };
    let read =
        |output: &Output| [range(Stdout, 1, 2), range(Stderr, 1, 65_536)].map(|range| output.read(&range).unwrap());
    let before = (read(&output), output.view(Stdout, 2), output.view(Stderr, 100));
    assert_eq!(output.open_files(), 2);
    output.seal();
    assert_eq!(output.open_files(), 1);
    assert_eq!(
        (read(&output), output.view(Stdout, 2), output.view(Stderr, 100)),
        before
    );
    assert!(output.read(&range(Stdout, 1, 3)).is_err(), "beyond the end");
    assert!(!output.took(Stdout, 1, 0));
    assert_eq!(output.count(Stdout), Count { bytes: 3, dropped: 0 });
}

#[test]
fn a_view_of_what_can_not_be_read_says_that_something_is_missing() {
    let output = Output::new(10);
    let count = Count { bytes: 5, dropped: 0 };
    output.restore(
        [Some(Arc::new(memory_file())), None],
        [count, Count::default()],
        Duration::ZERO,
    );
    let view = output.view(Stdout, 10);
    assert_eq!((view.head.len(), view.left_out, view.is_truncated()), (0, 5, true));
}

fn view_of(bytes: &[u8], cap: u64, limit: u64) -> View {
    let output = output(cap);
    write(&output, Stdout, bytes);
    output.view(Stdout, limit)
}

#[test]
fn a_view_within_the_limit_is_the_whole() {
    let view = view_of(b"hello", 100, 5);
    assert_eq!(view.text(), "hello");
    assert!(!view.is_truncated() && !view.is_lossy());
}

#[test]
fn a_view_over_the_limit_is_three_quarters_head_and_one_quarter_tail() {
    let bytes: Vec<u8> = (b'a'..=b'z').collect();
    let view = view_of(&bytes, 100, 8);
    assert_eq!(
        (view.head.as_slice(), view.tail.as_slice(), view.left_out),
        (&b"abcdef"[..], &b"yz"[..], 18)
    );
    assert_eq!(view.text(), "abcdef\n[... 18 bytes left out ...]\nyz");
    assert!(view.is_truncated());
}

#[test]
fn cuts_of_a_view_fall_between_characters() {
    let text = "é€😀".repeat(20);
    for limit in 0..text.len() {
        let view = view_of(text.as_bytes(), 1000, limit as u64);
        assert!(!view.is_lossy(), "limit {limit}");
        assert!(view.head.len() + view.tail.len() <= limit);
    }
    for cap in 0..text.len() {
        let view = view_of(text.as_bytes(), cap as u64, 1000);
        assert!(!view.is_lossy() && view.is_truncated(), "cap {cap}");
    }
}

#[test]
fn views_of_any_bytes_can_be_made() {
    let bytes: Vec<u8> = (0..=255)
        .chain((0..=255).rev())
        .chain([0xf0, 0x9f, 0x80, 0x80, 0xe2, 0x82])
        .collect();
    for end in 0..bytes.len() {
        for limit in [0, 1, 2, 3, 5, 64, 200] {
            let view = view_of(&bytes[..end], 300, limit);
            assert!(view.head.len() + view.tail.len() <= 200.max(end));
            assert_eq!(view.is_truncated(), view.left_out > 0 || end > 300);
        }
    }
}

#[test]
fn a_text_is_cut_between_characters() {
    let cuts = [0, 1, 2, 3, 4, 9].map(|max| cut_text("aé😀", max));
    assert_eq!(cuts, ["", "a", "a", "aé", "aé", "aé😀"]);
}
