//! Output that streams: the program waits for its reader.

use std::sync::LazyLock;
use std::time::Duration;

use brig_proto::v1::execution_event::Event;
use brig_proto::v1::{
    CauseKind, ExecuteRequest, ExecutionEvent, ExecutionSpec, ExecutionStatus as Status, ExecutionsInputRequest,
    OnDisconnect,
};
use brig_tests::processes::process;
use brig_tests::{Client, DEADLINE, Daemon, daemon};
use sha2::{Digest, Sha256};
use tonic::{Code as Answer, Streaming};

use super::{open, piece, session, start_in, streaming};

/// Bytes that no window could hold: fewer where all of them would take minutes.
static BYTES: LazyLock<usize> = LazyLock::new(|| (100 << 20) / usize::try_from(brig_tests::slow().min(4)).unwrap());
/// Writes without end, and says how far it is in a file.
const WRITER: &str = "python3 -c '
import os
block = bytes(range(256)) * 256
n = 0
while True:
    os.write(1, block)
    n += len(block)
    open(\"n\", \"w\").write(str(n))
'";

async fn next(stream: &mut Streaming<ExecutionEvent>) -> ExecutionEvent {
    let next = tokio::time::timeout(*DEADLINE * 2, stream.message()).await;
    next.unwrap().unwrap().expect("it goes on")
}

/// How much the writer has written.
fn written(daemon: &Daemon, session: &str) -> u64 {
    let spec = ExecutionSpec {
        stdin_open: false,
        ..open("cat n")
    };
    let text = daemon.execute(session, spec).unwrap().finish().stdout();
    text.parse().unwrap_or(0)
}

/// Waits until the writer waits; how much it has written then.
fn stopped(daemon: &Daemon, session: &str) -> u64 {
    let mut before = 0;
    loop {
        std::thread::sleep(Duration::from_millis(500));
        let now = written(daemon, session);
        if now > 0 && now == before {
            return now;
        }
        before = now;
    }
}

fn execute(client: &Client, session: &str, name: &str, spec: ExecutionSpec) -> Streaming<ExecutionEvent> {
    let spec = ExecutionSpec {
        execution_id: name.to_owned(),
        ..streaming(spec)
    };
    let request = ExecuteRequest {
        session_id: session.to_owned(),
        context_id: String::new(),
        spec: Some(spec),
    };
    client.wait(client.client().execute(request)).unwrap().into_inner()
}

#[test]
fn a_hundred_megabytes_go_in_and_come_out_the_same_and_brigd_holds_little() {
    let daemon = daemon!();
    session(&daemon, "s1");
    let data: Vec<u8> = (0..*BYTES)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 11).to_le_bytes()[0])
        .collect();
    let given = Sha256::digest(&data);
    let mut stream = execute(&daemon, "s1", "e1", open("cat; echo over >&2"));
    let started = async { while !matches!(next(&mut stream).await.event, Some(Event::Started(_))) {} };
    daemon.wait(started);
    let before = process(daemon.pid()).memory("VmHWM");
    let mut client = daemon.client();
    let feeding = daemon.spawn(async move {
        let pieces = data
            .chunks(200_000)
            .enumerate()
            .map(|(number, chunk)| ExecutionsInputRequest {
                offset: Some(number as u64 * 200_000),
                close: chunk.len() < 200_000,
                ..piece("e1", chunk, None)
            });
        client.input(tokio_stream::iter(pieces.collect::<Vec<_>>())).await
    });
    let reading = daemon.spawn(async move {
        let (mut hash, mut bytes) = (Sha256::new(), 0_u64);
        loop {
            match next(&mut stream).await.event.unwrap() {
                Event::Output(output) if output.stream() == brig_proto::v1::OutputStream::Stdout => {
                    assert_eq!(output.offset, bytes);
                    hash.update(&output.data);
                    bytes += output.data.len() as u64;
                }
                Event::Finished(result) => return (hash.finalize(), bytes, result),
                _ => {}
            }
        }
    });
    let (came, bytes, result) = daemon.wait(reading).unwrap();
    assert_eq!((bytes, result.status()), (*BYTES as u64, Status::Success));
    assert!(came == given, "the same bytes");
    let total = daemon.wait(feeding).unwrap().unwrap().into_inner().total_bytes;
    assert_eq!(total, *BYTES as u64);
    let grown = process(daemon.pid()).memory("VmHWM") - before;
    assert!(grown < 16 << 20, "brigd grew by {grown} bytes");
    // The result has the end alone, and says how much there was.
    let output = result.output.unwrap().stdout.unwrap();
    assert_eq!(
        (output.written_bytes, output.dropped_bytes, output.truncated),
        (*BYTES as u64, 0, true)
    );
    assert_eq!(result.stderr, b"over\n".as_slice());
}

#[test]
fn a_slow_reader_stops_the_program_and_a_reader_lets_it_go_on() {
    let daemon = daemon!();
    session(&daemon, "s1");
    let mut stream = execute(&daemon, "s1", "e1", open(WRITER));
    // What lies in the window, in pipes and on its way through sockets.
    let first = stopped(&daemon, "s1");
    assert!(first < 8 << 20, "{first}");
    let mut read = 0;
    let reading = async {
        while read < 50_u64 << 20 {
            if let Some(Event::Output(output)) = next(&mut stream).await.event {
                assert_eq!(output.offset, read);
                read += output.data.len() as u64;
            }
        }
    };
    daemon.wait(reading);
    let second = stopped(&daemon, "s1");
    assert!(
        second >= read && second < read + (8 << 20),
        "{second} after {read} were read"
    );
    daemon.cancel("e1");
    let ended = async {
        loop {
            if let Some(Event::Finished(result)) = next(&mut stream).await.event {
                return result;
            }
        }
    };
    assert_eq!(daemon.wait(ended).status(), Status::Cancelled);
}

#[test]
fn a_reader_that_vanishes_is_missed_until_somebody_attaches() {
    let daemon = daemon!();
    session(&daemon, "s1");
    let mut stream = execute(&daemon, "s1", "e1", open(WRITER));
    let (mut seen, mut end) = (0, 0);
    let reading = async {
        while end < 20_u64 << 20 {
            let event = next(&mut stream).await;
            if let Some(Event::Output(output)) = &event.event {
                (seen, end) = (event.sequence, output.offset + output.data.len() as u64);
            }
        }
    };
    daemon.wait(reading);
    drop(stream);
    let waits = stopped(&daemon, "s1");
    assert!(waits < end + (8 << 20), "{waits}");
    // Behind what was seen last nothing is missing.
    let mut back = daemon.attach("e1", seen).unwrap();
    let Event::Output(output) = back.until(|event| matches!(event, Event::Output(_))) else {
        unreachable!()
    };
    assert_eq!(output.offset, end);
    drop(back);
    let gone = daemon.attach("e1", 3).unwrap().refusal().unwrap();
    assert_eq!((gone.code, gone.reason.as_str()), (Answer::OutOfRange, "EVENTS_GONE"));
    // Who begins anew is told that the beginning is gone.
    let mut anew = daemon.attach("e1", 0).unwrap();
    anew.until(|event| matches!(event, Event::Notice(notice) if notice.message.contains("are gone")));
    let Event::Output(output) = anew.until(|event| matches!(event, Event::Output(_))) else {
        unreachable!()
    };
    assert!(output.offset > 10 << 20, "{}", output.offset);
    drop(anew);
    daemon.cancel("e1");
}

#[test]
fn a_caller_who_is_needed_ends_it_by_going_away() {
    let daemon = daemon!();
    session(&daemon, "s1");
    let spec = ExecutionSpec {
        on_disconnect: OnDisconnect::Cancel.into(),
        ..open(WRITER)
    };
    let mut stream = execute(&daemon, "s1", "e1", spec);
    daemon.wait(async { while !matches!(next(&mut stream).await.event, Some(Event::Output(_))) {} });
    drop(stream);
    brig_tests::eventually("it is cancelled", *DEADLINE, || {
        let result = daemon.execution("e1").result.ok_or("it runs")?;
        let cause = result.cause.map(|cause| cause.kind());
        assert_eq!(
            (result.status, cause),
            (Status::Cancelled.into(), Some(CauseKind::ClientGone))
        );
        Ok::<_, &str>(())
    });
}

#[test]
fn what_is_short_comes_whole_also_in_the_result() {
    let daemon = daemon!();
    session(&daemon, "s1");
    let spec = ExecutionSpec {
        stdin_open: false,
        ..streaming(open("echo out; echo err >&2; exit 3"))
    };
    let outcome = start_in(&daemon, "s1", "e1", spec).finish();
    assert_eq!(outcome.result.exit_code, Some(3));
    assert_eq!(
        (outcome.stdout(), outcome.stderr()),
        ("out\n".to_owned(), "err\n".to_owned())
    );
}
