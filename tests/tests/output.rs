//! Output is kept to the byte up to its limit, counted beyond it, and read by anybody at any pace from any place.
#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

use std::time::{Duration, Instant};

use brig_proto::v1::execution_event::Event;
use brig_proto::v1::{
    CauseKind, ExecutionSpec, ExecutionStatus as Status, Limits, NoticeKind, OnDisconnect, OutputStream, StreamSummary,
};
use brig_tests::spec::{sh, small, timeout, with_limits};
use brig_tests::{Outcome, daemon, lanes, processes, slow};

const BOTH: [OutputStream; 2] = [OutputStream::Stdout, OutputStream::Stderr];
/// What brigd may have in memory beside the output that it keeps, in bytes.
const BRIGD: u64 = 64 << 20;

fn with_output(bytes: u64, spec: ExecutionSpec) -> ExecutionSpec {
    let limits = Limits {
        output_bytes: Some(bytes),
        ..Limits::default()
    };
    with_limits(limits, spec)
}

fn written(summary: &StreamSummary) -> (u64, u64, bool) {
    (summary.written_bytes, summary.dropped_bytes, summary.truncated)
}

/// Writes so many bytes of a pattern to stdout, and as many of its own to stderr, in pieces of a size.
fn writes(bytes: usize, piece: usize) -> ExecutionSpec {
    small(&format!(
        "import os\nfor fd in 1, 2:\n    data = bytes(i * 7 % (250 + fd) for i in range({bytes}))\n    \
         for at in range(0, len(data), {piece}): os.write(fd, data[at:at + {piece}])"
    ))
}

/// What [`writes`] writes to a stream.
fn pattern(stream: OutputStream, bytes: usize) -> Vec<u8> {
    let modulus = 250 + stream as usize;
    (0..bytes).map(|i| u8::try_from(i * 7 % modulus).unwrap()).collect()
}

fn summary(outcome: &Outcome, stream: OutputStream) -> StreamSummary {
    let output = outcome.result.output.as_ref().unwrap();
    match stream {
        OutputStream::Stderr => output.stderr.unwrap(),
        _ => output.stdout.unwrap(),
    }
}

#[test]
fn a_limit_is_exact_to_the_byte() {
    let daemon = daemon!();
    for cap in [1, 1000, 65_536, 65_537] {
        for written_bytes in [cap - 1, cap, cap + 1, cap + 70_000] {
            let outcome = daemon.run(with_output(cap as u64, writes(written_bytes, 5000)));
            let dropped = written_bytes.saturating_sub(cap) as u64;
            for stream in BOTH {
                let expected = pattern(stream, written_bytes.min(cap));
                assert!(outcome.streamed(stream) == expected, "{cap} {written_bytes} {stream:?}");
                let told = summary(&outcome, stream);
                assert_eq!(
                    (told.written_bytes, told.dropped_bytes),
                    (written_bytes as u64, dropped)
                );
                // Nothing is missing among what is kept.
                let ends = outcome
                    .outputs(stream)
                    .map(|output| (output.offset, output.data.len() as u64));
                let end = ends.fold(0, |end, (offset, length)| {
                    assert_eq!(offset, end);
                    end + length
                });
                assert_eq!(end, expected.len() as u64);
            }
            let hit: &[i32] = if dropped > 0 { &[CauseKind::Output as i32] } else { &[] };
            assert_eq!(outcome.result.limits_hit, hit);
            let notices = outcome.notices(NoticeKind::OutputDropped).len();
            assert_eq!(notices > 0, dropped > 0, "{notices} notices");
        }
    }
}

#[test]
fn merged_streams_keep_the_order_of_writing() {
    let daemon = daemon!();
    let source = "import os\nfor i in range(2000):\n    os.write(1, b'o%d\\n' % i)\n    os.write(2, b'e%d\\n' % i)";
    let outcome = daemon.run(ExecutionSpec {
        merge_stderr: true,
        ..small(source)
    });
    let expected: String = (0..2000).map(|i| format!("o{i}\ne{i}\n")).collect();
    assert!(outcome.streamed(OutputStream::Stdout) == expected.as_bytes());
    assert_eq!(outcome.stdout(), expected);
    assert_eq!(outcome.outputs(OutputStream::Stderr).count(), 0);
    assert_eq!(written(&summary(&outcome, OutputStream::Stderr)), (0, 0, false));
}

#[test]
fn without_a_newline_and_without_anything() {
    let daemon = daemon!();
    let outcome = daemon.run(sh("printf 'no newline'; printf '\\0\\0' >&2"));
    assert_eq!(outcome.streamed(OutputStream::Stdout), b"no newline");
    assert_eq!(outcome.result.stdout, b"no newline".as_slice());
    assert_eq!(outcome.result.stderr, b"\0\0".as_slice());
    let outcome = daemon.run(sh("true"));
    assert_eq!(outcome.order(), ["accepted", "started", "finished"]);
    assert!(
        BOTH.iter()
            .all(|stream| written(&summary(&outcome, *stream)) == (0, 0, false))
    );
}

#[test]
fn a_flood_is_cut_to_the_byte_and_the_daemon_stays_small() {
    let daemon = daemon!();
    let brigd = processes::process(daemon.pid());
    let outcome = daemon.run(with_output(
        1_000_003,
        small("import os\nline = b'0123456789abcde\\n' * 4096\nfor i in range(3200): os.write(1, line)\nopen('after.txt', 'w').write('x')"),
    ));
    assert_eq!(outcome.status(), Status::Success);
    let streamed = outcome.streamed(OutputStream::Stdout);
    let expected: Vec<u8> = b"0123456789abcde\n".iter().copied().cycle().take(1_000_003).collect();
    assert!(streamed == expected, "{}", streamed.len());
    let summary = outcome.result.output.unwrap().stdout.unwrap();
    let all = 3200 * 65_536;
    assert_eq!(written(&summary), (all, all - 1_000_003, true));
    assert_eq!(outcome.result.limits_hit, [CauseKind::Output as i32]);
    assert_eq!(outcome.notices(NoticeKind::OutputDropped).len(), 1);
    assert_eq!(outcome.paths(), ["after.txt"]);
    let peak = brigd.memory("VmHWM");
    assert!(peak < 64 << 20, "{peak}");
}

#[test]
fn the_result_has_the_head_and_the_tail_of_long_output() {
    let daemon = daemon!();
    let limits = Limits {
        result_output_bytes: Some(1000),
        ..Limits::default()
    };
    let outcome = daemon.run(with_limits(limits, sh("seq -w 1 99999")));
    let all: String = (1..=99_999).map(|number| format!("{number:05}\n")).collect();
    assert_eq!(outcome.streamed(OutputStream::Stdout), all.as_bytes());
    let text = outcome.stdout();
    assert!(
        text.starts_with(&all[..700]) && text.ends_with(&all[all.len() - 240..]),
        "{text}"
    );
    assert!(text.len() <= 1000 + 200, "{}", text.len());
    assert_eq!(
        written(&outcome.result.output.unwrap().stdout.unwrap()),
        (599_994, 0, true)
    );
}

#[test]
fn output_limits_hold_for_each_stream_by_itself() {
    let daemon = daemon!();
    let outcome = daemon.run(with_output(1000, sh("head -c 5000 /dev/zero; echo small >&2")));
    let output = outcome.result.output.unwrap();
    assert_eq!(written(&output.stdout.unwrap()), (5000, 4000, true));
    assert_eq!(written(&output.stderr.unwrap()), (6, 0, false));
    assert_eq!(outcome.streamed(OutputStream::Stderr), b"small\n");
}

#[test]
fn output_in_single_bytes_arrives_whole() {
    let daemon = daemon!();
    let outcome = daemon.run(small("import os\nfor i in range(20000): os.write(1, b'%d' % (i % 10))"));
    let expected: Vec<u8> = (0..20_000_u32).map(|number| b'0' + (number % 10) as u8).collect();
    assert!(outcome.streamed(OutputStream::Stdout) == expected);
}

#[test]
fn bytes_that_are_no_text_pass_unchanged() {
    let daemon = daemon!();
    let outcome = daemon.run(small(
        "import os\nos.write(1, bytes(range(256)) + b'\\xff\\xfe\\xed\\xa0\\x80no newline')",
    ));
    let expected: Vec<u8> = (0..=255).chain(*b"\xff\xfe\xed\xa0\x80no newline").collect();
    assert_eq!(outcome.streamed(OutputStream::Stdout), expected);
    assert_eq!(&outcome.result.stdout[..], expected);
    let document = outcome.document();
    assert_eq!(document["output"]["stdout"]["lossy"], true);
    assert!(document["stdout"].as_str().unwrap().ends_with("no newline"));
}

#[test]
fn a_cut_within_a_character_is_a_cut_of_bytes() {
    let daemon = daemon!();
    let outcome = daemon.run(with_output(1000, small("print('€' * 10000)")));
    assert_eq!(outcome.streamed(OutputStream::Stdout).len(), 1000);
    assert_eq!(outcome.result.output.unwrap().stdout.unwrap().written_bytes, 30_001);
}

#[test]
fn a_flood_is_read_as_fast_as_it_comes_and_the_daemon_does_not_grow() {
    const ALL: u64 = 10_000_000_000;
    let daemon = daemon!();
    let brigd = processes::process(daemon.pid());
    daemon.run(sh("head -c 20000000 /dev/zero")).expect_success();
    let before = brigd.memory("VmRSS");
    let spec = ExecutionSpec {
        limits: timeout(6000 * u64::from(slow())),
        ..sh(&format!("exec head -c {ALL} /dev/zero"))
    };
    let outcome = daemon.run(spec);
    let told = summary(&outcome, OutputStream::Stdout);
    match outcome.end() {
        (Status::Success, None) => assert_eq!(told.written_bytes, ALL),
        end => assert_eq!(end, (Status::Timeout, Some(CauseKind::WallTime))),
    }
    let kept = 8 << 20;
    assert_eq!(told.dropped_bytes, told.written_bytes - kept);
    assert_eq!(outcome.streamed(OutputStream::Stdout).len() as u64, kept);
    let took = Duration::try_from(outcome.result.duration.unwrap())
        .unwrap()
        .as_secs_f64();
    let grown = brigd.memory("VmHWM").saturating_sub(before);
    println!(
        "{} MB in {took:.2} s, {:.0} MB/s",
        told.written_bytes / 1_000_000,
        told.written_bytes as f64 / 1e6 / took
    );
    println!("brigd has grown by {grown} bytes at most");
    assert!(grown < 24 << 20, "{grown}");
}

#[test]
fn many_floods_at_one_time_fit_the_memory_of_the_daemon() {
    const RUNS: u64 = 8;
    let daemon = daemon!();
    let runs: Vec<u64> = (0..RUNS).collect();
    lanes(runs.len(), &runs, |_| {
        let outcome = daemon.run(sh("head -c 9000000 /dev/zero & head -c 9000000 /dev/zero >&2; wait"));
        let told = (9_000_000, 9_000_000 - (8 << 20), true);
        assert!(BOTH.iter().all(|stream| written(&summary(&outcome, *stream)) == told));
    });
    let peak = processes::process(daemon.pid()).memory("VmHWM");
    assert!(peak < BRIGD + RUNS * 2 * (8 << 20), "{peak}");
}

/// A run whose caller may leave.
fn kept(name: &str, spec: ExecutionSpec) -> ExecutionSpec {
    ExecutionSpec {
        execution_id: name.to_owned(),
        on_disconnect: OnDisconnect::Continue.into(),
        ..spec
    }
}

#[test]
fn whoever_attaches_reads_on_from_any_event() {
    let daemon = daemon!();
    let script = "for i in $(seq 40); do echo out $i; echo err $i >&2; sleep 0.01; done; echo x >made.csv";
    let outcome = daemon.run(kept("read", sh(script)));
    let all: Vec<_> = outcome.events.iter().filter(|event| event.sequence > 0).collect();
    assert!(all.len() > 5, "{}", all.len());
    for known in 0..all.len() {
        let again = daemon.attach("read", known as u64).unwrap().finish();
        let told: Vec<_> = again.events.iter().filter(|event| event.sequence > 0).collect();
        assert_eq!(told, all[known..]);
    }
}

#[test]
fn several_read_while_it_runs_and_each_is_told_everything() {
    let daemon = daemon!();
    let mut first = daemon.begin(kept("shared", sh("for i in $(seq 300); do echo $i; sleep 0.002; done")));
    first.until_written("1\n");
    let others: Vec<_> = (0..3).map(|_| daemon.attach("shared", 0).unwrap()).collect();
    let known = first.seen().last().unwrap().sequence;
    let late = daemon.attach("shared", known).unwrap().finish();
    let outcome = first.finish();
    let expected: String = (1..=300).map(|i| format!("{i}\n")).collect();
    assert_eq!(
        String::from_utf8(outcome.streamed(OutputStream::Stdout)).unwrap(),
        expected
    );
    let kept = |outcome: &Outcome| {
        outcome
            .events
            .iter()
            .filter(|event| event.sequence > 0)
            .cloned()
            .collect::<Vec<_>>()
    };
    for other in others {
        assert_eq!(kept(&other.finish()), kept(&outcome));
    }
    let rest: Vec<_> = kept(&outcome)
        .into_iter()
        .filter(|event| event.sequence > known)
        .collect();
    assert_eq!(kept(&late), rest);
}

#[test]
fn a_slow_reader_holds_nobody_and_loses_nothing() {
    let daemon = daemon!();
    let mut slow_one = daemon.begin(kept("slow", writes(3_000_000, 65_536)));
    slow_one.until_started();
    // The program ends, and another reader has all of it, before the slow one has read its second event.
    let other = daemon.attach("slow", 0).unwrap().finish().expect_success();
    for _ in 0..5 {
        slow_one.until(|_| true);
        std::thread::sleep(Duration::from_millis(50));
    }
    let outcome = slow_one.finish();
    for stream in BOTH {
        assert!(outcome.streamed(stream) == pattern(stream, 3_000_000));
        assert!(other.streamed(stream) == pattern(stream, 3_000_000));
    }
}

#[test]
fn a_reader_that_vanishes_in_a_flood_leaves_it_whole_for_the_next() {
    let daemon = daemon!();
    let mut live = daemon.begin(kept("left", writes(2_000_000, 1000)));
    live.until(|event| matches!(event, Event::Output(_)));
    drop(live);
    let outcome = daemon.attach("left", 0).unwrap().finish().expect_success();
    for stream in BOTH {
        assert!(outcome.streamed(stream) == pattern(stream, 2_000_000));
    }
}

#[test]
fn what_a_child_writes_after_the_end_is_not_waited_for() {
    let daemon = daemon!();
    let begun = Instant::now();
    let outcome = daemon.run(sh(
        "(setsid sh -c 'while :; do echo late; sleep 0.1; done' &); echo end",
    ));
    assert_eq!(outcome.status(), Status::Success);
    assert!(outcome.stdout().contains("end\n"));
    assert!(
        begun.elapsed() < Duration::from_secs(5) * slow(),
        "{:?}",
        begun.elapsed()
    );
}
