use std::io::Write;
use std::thread;

use super::*;

use Stream::{Stderr, Stdout};

/// Reads what is there without waiting for more.
async fn read_all(output: &Arc<Output>) -> Vec<Chunk> {
    output.finish();
    let mut reader = output.follow(0);
    let mut chunks = Vec::new();
    while let Some(chunk) = reader.next().await {
        chunks.push(chunk);
    }
    chunks
}

fn bytes_of(chunks: &[Chunk], stream: Stream) -> Vec<u8> {
    chunks
        .iter()
        .filter(|chunk| chunk.stream == stream)
        .flat_map(|chunk| chunk.data.clone())
        .collect()
}

/// Each stream's chunks join without a gap, and sequence numbers count up from 0.
fn assert_joined(chunks: &[Chunk]) {
    let sequences: Vec<u64> = chunks.iter().map(|chunk| chunk.sequence).collect();
    assert_eq!(sequences, (0..chunks.len() as u64).collect::<Vec<_>>());
    for stream in [Stdout, Stderr] {
        let mut at = 0;
        for chunk in chunks.iter().filter(|chunk| chunk.stream == stream) {
            assert_eq!(chunk.offset, at);
            assert!((1..=CHUNK_MAX).contains(&chunk.data.len()));
            at += chunk.data.len() as u64;
        }
    }
}

/// Resident memory of this process, in KiB.
fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[tokio::test]
async fn the_cap_holds_to_the_byte_for_each_stream_by_itself() {
    let output = Output::new(7);
    output.record(Stdout, b"123456");
    output.record(Stderr, b"abc");
    output.record(Stdout, b"789");
    output.record(Stderr, b"d");
    let chunks = read_all(&output).await;
    assert_eq!(bytes_of(&chunks, Stdout), b"1234567");
    assert_eq!(bytes_of(&chunks, Stderr), b"abcd");
    assert_eq!(output.count(Stdout), Count { bytes: 9, dropped: 2 });
    assert_eq!(output.count(Stderr), Count { bytes: 4, dropped: 0 });
    assert_joined(&chunks);
}

#[tokio::test]
async fn exactly_the_cap_is_no_excess() {
    let output = Output::new(4);
    output.record(Stdout, b"1234");
    assert_eq!(output.count(Stdout), Count { bytes: 4, dropped: 0 });
    assert!(
        tokio::time::timeout(Duration::from_millis(20), output.limit_reached())
            .await
            .is_err()
    );
    output.record(Stdout, b"5");
    output.limit_reached().await;
}

#[tokio::test]
async fn the_limit_wakes_whoever_waits_for_it() {
    let output = Output::new(1);
    let waiting = tokio::spawn({
        let output = Arc::clone(&output);
        async move { output.limit_reached().await }
    });
    tokio::task::yield_now().await;
    output.record(Stderr, b"ab");
    tokio::time::timeout(Duration::from_secs(5), waiting)
        .await
        .unwrap()
        .unwrap();
}

#[tokio::test]
async fn large_writes_are_cut_into_chunks_of_64_kib() {
    let output = Output::new(1 << 20);
    let bytes: Vec<u8> = (0..200_000_u32).map(|i| i.to_le_bytes()[0]).collect();
    output.record(Stdout, &bytes);
    let chunks = read_all(&output).await;
    let sizes: Vec<usize> = chunks.iter().map(|chunk| chunk.data.len()).collect();
    assert_eq!(sizes, [65_536, 65_536, 65_536, 3_392]);
    assert_eq!(bytes_of(&chunks, Stdout), bytes);
    assert_joined(&chunks);
}

#[tokio::test]
async fn bytes_stay_bytes() {
    let output = Output::new(100);
    output.record(Stdout, b"\0\xff\xfe");
    output.record(Stdout, b"\x1b[31m\r\n\xe2\x82");
    let chunks = read_all(&output).await;
    assert_eq!(bytes_of(&chunks, Stdout), b"\0\xff\xfe\x1b[31m\r\n\xe2\x82");
    let view = output.view(Stdout, 100);
    assert_eq!(view.bytes(), b"\0\xff\xfe\x1b[31m\r\n\xe2\x82");
    assert_eq!(view.text(), "\0\u{fffd}\u{fffd}\u{1b}[31m\r\n\u{fffd}");
    assert!(view.is_lossy() && !view.is_truncated());
}

#[tokio::test]
async fn small_writes_are_joined_while_nobody_has_seen_them() {
    let output = Output::new(1 << 20);
    for _ in 0..100_000 {
        output.record(Stdout, b"x");
    }
    let chunks = read_all(&output).await;
    assert_eq!(
        chunks.iter().map(|chunk| chunk.data.len()).collect::<Vec<_>>(),
        [65_536, 34_464]
    );
}

#[tokio::test]
async fn a_chunk_that_was_seen_never_changes() {
    let output = Output::new(100);
    let mut early = output.follow(0);
    output.record(Stdout, b"one");
    let first = early.next().await.unwrap();
    output.record(Stdout, b"two");
    let second = early.next().await.unwrap();
    assert_eq!(
        (first.data.as_slice(), second.data.as_slice(), second.offset),
        (&b"one"[..], &b"two"[..], 3)
    );
    assert_eq!(read_all(&output).await, [first, second]);
}

#[tokio::test]
async fn order_between_the_streams_is_that_of_reading() {
    let output = Output::new(1000);
    for _ in 0..50 {
        output.record(Stdout, b"o");
        output.record(Stderr, b"ee");
    }
    let chunks = read_all(&output).await;
    let order: Vec<Stream> = chunks.iter().map(|chunk| chunk.stream).collect();
    assert_eq!(order, [Stdout, Stderr].repeat(50));
    assert_joined(&chunks);
}

#[tokio::test]
async fn a_flood_of_tiny_alternating_writes_gets_few_chunks_even_with_a_quick_reader() {
    let output = Output::new(400_000);
    let mut reader = output.follow(0);
    let mut chunks = Vec::new();
    for _ in 0..200_000 {
        output.record(Stdout, b"o");
        output.record(Stderr, b"e");
        // Takes what can be had at once, as the quickest reader would.
        while let Taken::Chunk(chunk) = output.lock().take(reader.next, Instant::now()) {
            reader.next += 1;
            chunks.push(chunk);
        }
    }
    output.finish();
    while let Some(chunk) = reader.next().await {
        chunks.push(chunk);
    }
    assert_joined(&chunks);
    assert_eq!(bytes_of(&chunks, Stdout), vec![b'o'; 200_000]);
    assert_eq!(bytes_of(&chunks, Stderr), vec![b'e'; 200_000]);
    // 1,024 free ones, one per 256 bytes, and one per 50 ms, however long the machine took.
    assert!(chunks.len() < 4_000, "{} chunks", chunks.len());
}

#[tokio::test]
async fn a_reader_sees_each_write_soon_although_chunks_are_scarce() {
    let output = Output::new(1 << 20);
    let mut reader = output.follow(0);
    for _ in 0..2_000 {
        output.record(Stdout, b"x");
        reader.next += u64::from(matches!(
            output.lock().take(reader.next, Instant::now()),
            Taken::Chunk(_)
        ));
    }
    let Taken::Soon(delay) = output.lock().take(reader.next, Instant::now()) else {
        panic!("chunks are not scarce")
    };
    assert!(delay <= Duration::from_millis(50));
    output.record(Stdout, b"\n");
    let wait = async {
        let mut seen = Vec::new();
        while !seen.ends_with(b"\n") {
            seen.extend(reader.next().await.unwrap().data);
        }
    };
    tokio::time::timeout(Duration::from_secs(1), wait).await.unwrap();
}

#[tokio::test]
async fn readers_from_any_sequence_see_the_same_chunks() {
    let output = Output::new(1 << 20);
    for _ in 0..10 {
        output.record(Stdout, b"line\n");
        output.record(Stderr, b"warning\n");
    }
    let all = read_all(&output).await;
    for from in 0..=all.len() {
        let mut reader = output.follow(from as u64);
        for expected in &all[from..] {
            assert_eq!(reader.next().await.as_ref(), Some(expected));
        }
        assert_eq!(reader.next().await, None);
    }
}

#[tokio::test]
async fn a_reader_ahead_of_the_output_waits_for_its_chunk() {
    let output = Output::new(100);
    let mut reader = output.follow(1);
    output.record(Stdout, b"a");
    assert!(
        tokio::time::timeout(Duration::from_millis(20), reader.next())
            .await
            .is_err()
    );
    output.record(Stderr, b"b");
    assert_eq!(reader.next().await.unwrap().data, b"b");
    output.finish();
    assert_eq!(output.follow(u64::MAX).next().await, None);
}

#[tokio::test]
async fn what_comes_after_the_end_is_ignored() {
    let output = Output::new(100);
    output.record(Stdout, b"a");
    output.finish();
    output.record(Stdout, b"b");
    output.finish();
    assert_eq!(output.count(Stdout), Count { bytes: 1, dropped: 0 });
    assert!(output.is_finished());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_vanished_and_many_readers_do_not_hold_the_pump_back() {
    let (read, mut write) = std::io::pipe().unwrap();
    let output = Output::new(4 << 20);
    let slow = output.follow(0);
    let vanished = output.follow(0);
    let readers: Vec<_> = (0..20)
        .map(|_| {
            let mut reader = output.follow(0);
            tokio::spawn(async move {
                let mut bytes = Vec::new();
                while let Some(chunk) = reader.next().await {
                    bytes.extend(chunk.data);
                }
                bytes
            })
        })
        .collect();
    let writer = thread::spawn(move || {
        let block: Vec<u8> = (0..8192_u32).map(|i| i.to_le_bytes()[0]).collect();
        (0..1024).for_each(|_| write.write_all(&block).unwrap());
    });
    drop(vanished);
    pump(read.into(), Stdout, &output).await.unwrap();
    output.finish();
    writer.join().unwrap();
    assert_eq!(
        output.count(Stdout),
        Count {
            bytes: 8 << 20,
            dropped: 4 << 20
        }
    );
    let block: Vec<u8> = (0..8192_u32).map(|i| i.to_le_bytes()[0]).collect();
    let expected = block.repeat(512);
    for reader in readers {
        assert!(reader.await.unwrap() == expected);
    }
    let mut slow = slow;
    let mut bytes = Vec::new();
    while let Some(chunk) = slow.next().await {
        bytes.extend(chunk.data);
    }
    assert!(bytes == expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_one_gib_leaves_memory_flat() {
    const GIB: u64 = 1 << 30;
    let (read, mut write) = std::io::pipe().unwrap();
    let output = Output::new(8 << 20);
    let before = resident_kib();
    let writer = thread::spawn(move || {
        let block = vec![b'x'; 1 << 20];
        let mut peak = 0;
        for _ in 0..1024 {
            write.write_all(&block).unwrap();
            peak = peak.max(resident_kib());
        }
        peak
    });
    let pumped = pump(read.into(), Stdout, &output);
    tokio::time::timeout(Duration::from_secs(300), pumped)
        .await
        .unwrap()
        .unwrap();
    let peak = writer.join().unwrap();
    assert_eq!(
        output.count(Stdout),
        Count {
            bytes: GIB,
            dropped: GIB - (8 << 20)
        }
    );
    // The kept 8 MiB, the writer's block, the pump's buffer, and what other tests use meanwhile.
    assert!(peak < before + 96 * 1024, "{before} KiB before, {peak} KiB at most");
}

#[tokio::test]
async fn a_pump_refuses_what_is_no_pipe() {
    let file = tempfile::tempfile().unwrap();
    let error = pump(file.into(), Stdout, &Output::new(1)).await.unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
}

#[test]
fn memory_for_the_kept_bytes_never_passes_the_cap_by_much() {
    let output = Output::new(1_000_000);
    for _ in 0..3_000 {
        output.record(Stdout, &[b'x'; 1000]);
    }
    let state = output.lock();
    assert_eq!(state.kept(Stdout).len(), 1_000_000);
    assert!(state.memory() < 1_100_000, "{} bytes", state.memory());
}

fn view_of(bytes: &[u8], cap: u64, limit: u64) -> View {
    let output = Output::new(cap);
    output.record(Stdout, bytes);
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
