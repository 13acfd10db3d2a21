use std::time::Duration;

use brig_proto::v1::{ExecutionStarted, OutputStream, RichResult};

use crate::artifacts::Spool;
use crate::output::testing::{memory_file, output, write};

use super::*;

fn ids() -> (Id, Id) {
    (Id::parse("e1").unwrap(), Id::parse("s1").unwrap())
}

fn log() -> Arc<Log> {
    let (execution, session) = ids();
    Arc::new(Log::new(execution, session, output(1024)))
}

/// The files of an execution, twice: each side holds its own descriptors of the same files.
struct Files([File; 4]);

impl Files {
    fn new() -> Self {
        Self(std::array::from_fn(|_| memory_file()))
    }

    fn kept(&self) -> Kept {
        let [stdout, stderr, frames, journal] = self.0.each_ref().map(|file| file.try_clone().unwrap().into());
        Kept {
            stdin: None,
            stdout: Some(stdout),
            stderr: Some(stderr),
            frames: Some(frames),
            journal,
        }
    }

    fn restore(&self, cap: u64) -> Arc<Log> {
        let (execution, session) = ids();
        Arc::new(Log::restore(execution, session, Output::new(cap), self.kept()).unwrap())
    }
}

fn range(stream: Stream, start: u64, len: usize) -> Range {
    let time = SystemTime::now();
    Range {
        stream,
        start,
        len,
        time,
    }
}

/// Puts bytes into a stream and tells them as one chunk.
fn record(log: &Log, stream: Stream, bytes: &[u8]) {
    let start = log.output.count(stream).kept();
    write(&log.output, stream, bytes);
    log.output_came(vec![range(stream, start, bytes.len())]);
}

/// The events that are there, without waiting for more.
async fn present(log: &Arc<Log>) -> Vec<ExecutionEvent> {
    let count = usize::try_from(log.progress().last_sequence).unwrap();
    let mut follower = log.follow(0, true);
    let mut events = Vec::new();
    while events.len() < count {
        let event = follower.next().await.unwrap().unwrap();
        events.extend((event.sequence > 0).then_some(event));
    }
    events
}

async fn drain(follower: &mut Follower) -> Vec<(u64, Event)> {
    let mut events = Vec::new();
    while let Some(event) = follower.next().await {
        let event = event.unwrap();
        events.push((event.sequence, event.event.unwrap()));
    }
    events
}

fn accepted(state: ExecutionState, queue_position: u32) -> Event {
    let (execution_id, session_id) = ("e1".to_owned(), "s1".to_owned());
    Event::Accepted(ExecutionAccepted {
        execution_id,
        session_id,
        state: state.into(),
        queue_position,
    })
}

#[tokio::test]
async fn sequence_numbers_have_no_gaps_and_finished_is_last() {
    let log = log();
    log.place(ExecutionState::Running, 0);
    record(&log, Stream::Stdout, b"hello");
    log.notice(NoticeKind::OutputDropped, "x");
    log.finish(ExecutionResult::default(), SystemTime::now());
    log.notice(NoticeKind::OutputDropped, "after the end");
    let events = drain(&mut log.follow(0, false)).await;
    let numbers: Vec<u64> = events.iter().map(|(sequence, _)| *sequence).collect();
    assert_eq!(numbers, [0, 1, 2, 3]);
    assert!(matches!(&events[1].1, Event::Output(output) if &output.data[..] == b"hello"));
    assert!(matches!(events[3].1, Event::Finished(_)));
}

#[tokio::test]
async fn following_from_a_sequence_leaves_out_what_is_known() {
    let log = log();
    log.notice(NoticeKind::LimitClamped, "a");
    log.notice(NoticeKind::LimitClamped, "b");
    log.finish(ExecutionResult::default(), SystemTime::now());
    let events = drain(&mut log.follow(1, false)).await;
    assert_eq!(
        events.iter().map(|(sequence, _)| *sequence).collect::<Vec<_>>(),
        [0, 2, 3]
    );
    assert!(drain(&mut log.follow(u64::MAX, false)).await.len() == 1);
}

#[tokio::test]
async fn a_follower_hears_of_every_change_of_its_place_in_the_queue() {
    let log = log();
    log.place(ExecutionState::Queued, 2);
    let mut follower = log.follow(0, false);
    assert_eq!(
        follower.next().await.unwrap().unwrap().event,
        Some(accepted(ExecutionState::Queued, 2))
    );
    log.place(ExecutionState::Queued, 1);
    assert_eq!(
        follower.next().await.unwrap().unwrap().event,
        Some(accepted(ExecutionState::Queued, 1))
    );
}

#[tokio::test]
async fn bytes_of_artifacts_come_only_to_who_wants_them() {
    let log = log();
    let spool = Spool::new(&std::env::temp_dir(), 1024 * 1024, 8);
    let mut file = spool.create(1024 * 1024).await.unwrap();
    file.write(vec![7; 300 * 1024].into()).await.unwrap();
    let artifact = Artifact {
        artifact_id: "a1".to_owned(),
        ..Artifact::default()
    };
    log.artifact(artifact, Some(Arc::new(file.finish().unwrap())));
    let held = log.holds();
    // With the two files of the output.
    assert_eq!((held.files, held.file_bytes), (3, 300 * 1024));
    log.finish(ExecutionResult::default(), SystemTime::now());
    assert_eq!(drain(&mut log.follow(0, false)).await.len(), 3);
    let events = drain(&mut log.follow(0, true)).await;
    let chunks: Vec<_> = events
        .iter()
        .filter_map(|(_, event)| match event {
            Event::ArtifactChunk(chunk) => Some((chunk.offset, chunk.data.len(), chunk.last)),
            _ => None,
        })
        .collect();
    assert_eq!(chunks, [(0, 256 * 1024, false), (256 * 1024, 44 * 1024, true)]);
}

#[tokio::test]
async fn a_refusal_ends_the_stream_of_what_never_started() {
    let log = log();
    log.refuse(ExecutionResult::default(), SystemTime::now(), Status::unavailable("no"));
    let mut follower = log.follow(0, false);
    assert!(follower.next().await.unwrap().is_ok());
    assert_eq!(follower.next().await.unwrap().unwrap_err().message(), "no");
    assert!(follower.next().await.is_none());
    assert_eq!(log.progress().state, ExecutionState::Finished);
}

#[tokio::test]
async fn a_restored_log_says_the_same_under_the_same_numbers() {
    let files = Files::new();
    let (execution, session) = ids();
    let log = Arc::new(Log::new(execution, session, Output::new(10)));
    log.notice(NoticeKind::LimitClamped, "before the program was there");
    log.keep(files.kept(), b"asked", Vec::new()).unwrap();
    log.started(ExecutionStarted { pid: 7, start: 1 }, SystemTime::now());
    record(&log, Stream::Stdout, b"out");
    record(&log, Stream::Stderr, b"err");
    let mut mark = Mark::default();
    mark.at = 44;
    log.heard(vec![Event::Result(RichResult::default())], None, mark);
    let error = ErrorClaim {
        name: "E".to_owned(),
        message: String::new(),
        line: None,
        traceback: String::new(),
    };
    mark.at = 50;
    log.heard(Vec::new(), Some(error.clone()), mark);
    let artifact = Artifact {
        path: "a".to_owned(),
        ..Artifact::default()
    };
    log.artifact(artifact, None);
    let before = present(&log).await;

    let again = files.restore(10);
    assert_eq!(present(&again).await, before);
    let progress = again.progress();
    assert_eq!((progress.state, progress.pid), (ExecutionState::Running, Some(7)));
    assert_eq!(progress.start_time, log.progress().start_time);
    let past = again.past().unwrap();
    assert_eq!((past.chunks, past.mark.at, past.sealed), (2, 50, false));
    let claims = again.claims();
    assert_eq!((claims.results.len(), claims.error), (1, Some(error)));

    // And it goes on in the same journal.
    again.finish(ExecutionResult::default(), SystemTime::now());
    let last = files.restore(10);
    assert_eq!(present(&last).await, present(&again).await);
    assert_eq!(last.progress().state, ExecutionState::Finished);
    last.notice(NoticeKind::LimitClamped, "after the end");
    assert_eq!(last.progress().last_sequence, again.progress().last_sequence);
}

#[tokio::test]
async fn what_left_the_pipes_and_was_told_to_nobody_is_told_by_the_next() {
    let files = Files::new();
    let log = log();
    log.keep(files.kept(), b"", Vec::new()).unwrap();
    record(&log, Stream::Stdout, b"told");
    write(&log.output, Stream::Stdout, &[b'x'; 100_000][..900]);
    write(&log.output, Stream::Stderr, b"untold");
    let again = files.restore(1024);
    let chunks: Vec<_> = present(&again)
        .await
        .into_iter()
        .map(|event| match event.event {
            Some(Event::Output(output)) => (output.stream(), output.offset, output.data.len()),
            other => panic!("{other:?}"),
        })
        .collect();
    let expected = [
        (OutputStream::Stdout, 0, 4),
        (OutputStream::Stdout, 4, 900),
        (OutputStream::Stderr, 0, 6),
    ];
    assert_eq!(chunks, expected);
    assert_eq!(present(&files.restore(1024)).await, present(&again).await, "only once");
}

#[tokio::test]
async fn what_was_dropped_is_known_to_the_next_and_told_once() {
    let files = Files::new();
    let (execution, session) = ids();
    let log = Log::new(execution, session, Output::new(4));
    log.keep(files.kept(), b"", Vec::new()).unwrap();
    write(&log.output, Stream::Stdout, b"123456");
    log.dropped([2, 0, 9]);
    let first = files.restore(4);
    assert_eq!(first.output.count(Stream::Stdout), Count { bytes: 6, dropped: 2 });
    let second = files.restore(4);
    let told = |events: Vec<ExecutionEvent>| {
        let notices = events
            .into_iter()
            .filter(|event| matches!(event.event, Some(Event::Notice(_))));
        notices.count()
    };
    assert_eq!((told(present(&first).await), told(present(&second).await)), (1, 1));
    assert_eq!(second.past().unwrap().counts.dropped, [2, 0, 9]);
}

#[tokio::test]
async fn after_the_seal_nothing_of_the_output_is_told_by_anybody() {
    let files = Files::new();
    let log = log();
    log.keep(files.kept(), b"", Vec::new()).unwrap();
    write(&log.output, Stream::Stdout, b"whole");
    log.seal();
    let before = present(&log).await;
    // A thread that comes late.
    files.0[0].write_all_at(b"late", 5).unwrap();
    assert!(!log.output.took(Stream::Stdout, 4, 0));
    log.output_came(vec![range(Stream::Stdout, 5, 4)]);
    log.heard(vec![Event::Result(RichResult::default())], None, Mark::default());
    log.limit_reached();
    assert_eq!((before.len(), present(&log).await), (1, before.clone()));
    let again = files.restore(1024);
    assert_eq!(present(&again).await, before);
    assert!(again.past().unwrap().sealed);
    assert_eq!(again.output.count(Stream::Stdout).bytes, 5);
}

#[tokio::test]
async fn a_journal_that_can_not_be_written_fails_the_execution() {
    let files = Files::new();
    let log = log();
    log.keep(files.kept(), b"", Vec::new()).unwrap();
    {
        let mut state = log.lock();
        let read_only = File::open("/dev/null").unwrap();
        state.journal.as_mut().unwrap().replace(read_only);
    }
    log.notice(NoticeKind::LimitClamped, "x");
    let fault = tokio::time::timeout(Duration::from_secs(5), log.failed())
        .await
        .unwrap();
    assert!(fault.starts_with("journal: "), "{fault}");
}

#[test]
fn an_execution_whose_journal_was_not_begun_is_told_apart() {
    let (execution, session) = ids();
    let restored = Log::restore(execution, session, Output::new(1), Files::new().kept());
    assert!(matches!(restored, Err(JournalError::Empty)));
}
