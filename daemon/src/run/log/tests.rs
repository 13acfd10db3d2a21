use crate::artifacts::Spool;

use super::*;

fn log() -> Arc<Log> {
    Arc::new(Log::new(
        Id::parse("e1").unwrap(),
        Id::parse("s1").unwrap(),
        Output::new(1024),
    ))
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
    log.output.record(Stream::Stdout, b"hello");
    log.output.finish();
    log.follow_output().await;
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
async fn output_that_was_read_is_told_before_what_must_not_overtake_it_and_only_once() {
    let log = log();
    log.output.record(Stream::Stdout, b"before");
    log.catch_up();
    log.notice(NoticeKind::OutputDropped, "x");
    log.output.record(Stream::Stdout, b"after");
    log.output.finish();
    log.follow_output().await;
    log.finish(ExecutionResult::default(), SystemTime::now());
    let events = drain(&mut log.follow(0, false)).await;
    let output = |event: &Event| match event {
        Event::Output(output) => Some(output.data.clone()),
        _ => None,
    };
    let told: Vec<_> = events.iter().skip(1).map(|(_, event)| output(event)).collect();
    assert_eq!(told, [Some("before".into()), None, Some("after".into()), None]);
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
    file.write(vec![7; 300 * 1024]).await.unwrap();
    let artifact = Artifact {
        artifact_id: "a1".to_owned(),
        ..Artifact::default()
    };
    log.artifact(artifact, Some(Arc::new(file.finish().unwrap())));
    let held = log.holds();
    assert_eq!((held.files, held.file_bytes), (1, 300 * 1024));
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
