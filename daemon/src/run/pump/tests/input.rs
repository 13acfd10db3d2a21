//! Input that comes while the program runs.

use super::*;
use crate::run::stdin::{Refused, progress};

/// A pump that gives a program what callers bring.
struct Fed {
    running: Running,
    input: Arc<Stdin>,
}

fn fed(given: &[u8]) -> Fed {
    let (log, pumps, files) = (new_log(1 << 20), Arc::<Pumps>::default(), Files::new());
    log.keep(files.kept(), b"", Vec::new()).unwrap();
    let (guest, mut pipes) = pipes();
    let input = files.input(given, true);
    pipes.input = Some(Arc::clone(&input));
    let handle = pumps.start(&log, &policy(), pipes, PATIENCE).unwrap();
    let running = Running {
        guest,
        log,
        pumps,
        handle,
        files,
    };
    Fed { running, input }
}

async fn within<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, work).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_reads_what_callers_bring_and_then_the_end() {
    let mut fed = fed(b"first ");
    let mut stdin = fed.running.guest.stdin.take().unwrap();
    let reader = tokio::task::spawn_blocking(move || {
        let mut read = Vec::new();
        stdin.read_to_end(&mut read).unwrap();
        read
    });
    let piece: Vec<u8> = (0..100_000_u32).map(|i| i.to_le_bytes()[1]).collect();
    let mut expected = b"first ".to_vec();
    for _ in 0..50 {
        let total = within(fed.input.add(Some(expected.len() as u64), &piece))
            .await
            .unwrap();
        expected.extend_from_slice(&piece);
        assert_eq!(total, expected.len() as u64);
    }
    fed.input.close().unwrap();
    assert!(within(reader).await.unwrap() == expected);
    let told = within(fed.running.handle.inputs.recv()).await;
    // The request, of which there was none, is at its end too.
    let told = [told, within(fed.running.handle.inputs.recv()).await];
    assert!(told.contains(&Some(Input::Stdin)), "{told:?}");
    let held = std::os::unix::fs::MetadataExt::blocks(&fed.running.files.0[4].metadata().unwrap()) * 512;
    assert!(held <= 600_000, "{held} of {} bytes are held", expected.len());
    assert_eq!(fed.running.end().await.1, Finish::Whole);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_that_does_not_read_makes_its_caller_wait_and_nobody_else() {
    let fed = fed(b"");
    let flood = vec![7; 1 << 20];
    let adding = tokio::spawn({
        let input = Arc::clone(&fed.input);
        async move { input.add(None, &flood).await }
    });
    let full = async {
        while progress(&fed.running.files.0[4]).unwrap().total < 300_000 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    within(full).await;
    assert!(!adding.is_finished());
    // It ends without ever having read, and whoever waits is told.
    let (_, finish, _) = fed.running.end().await;
    assert_eq!(finish, Finish::Whole);
    fed.input.release();
    assert_eq!(within(adding).await.unwrap(), Err(Refused::ByProgram));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_that_closes_its_input_is_noticed_though_nothing_is_given() {
    let mut fed = fed(b"");
    drop(fed.running.guest.stdin.take());
    drop(fed.running.guest.request.take());
    for _ in 0..2 {
        within(fed.running.handle.inputs.recv()).await.unwrap();
    }
    assert_eq!(within(fed.input.add(None, b"x")).await, Err(Refused::ByProgram));
    assert_eq!(fed.running.end().await.1, Finish::Whole);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_pump_gives_on_where_the_last_one_stopped() {
    let fed = fed(b"");
    let Running {
        mut guest,
        log,
        pumps,
        handle,
        files,
    } = fed.running;
    let mut stdin = guest.stdin.take().unwrap();
    // More than the pipe holds, so that some of it lies in the file.
    let sent: Vec<u8> = (0..200_000_u32).map(|i| (i / 7).to_le_bytes()[0]).collect();
    assert_eq!(within(fed.input.add(Some(0), &sent)).await, Ok(200_000));
    drop(handle);
    let (_other, mut pipes) = pipes();
    let (read, write) = pipe_with(PipeFlags::CLOEXEC).unwrap();
    // The jailer's copy of the same pipe; here another pipe takes the rest.
    let start = tokio::task::spawn_blocking(move || {
        let mut start = Vec::new();
        // It ends when the first pump has: until then that may give more.
        stdin.read_to_end(&mut start).unwrap();
        start
    });
    let start = within(start).await.unwrap();
    assert_eq!(start.len() as u64, progress(&files.0[4]).unwrap().given);
    let next = Stdin::new(true);
    next.restore(files.0[4].try_clone().unwrap().into());
    let next = Arc::new(next);
    (pipes.stdin, pipes.input) = (Some(write), Some(Arc::clone(&next)));
    let handle = pumps.start(&log, &policy(), pipes, PATIENCE).unwrap();
    assert_eq!(
        within(next.add(Some(199_999), &[sent[199_999], b'!'])).await,
        Ok(200_001)
    );
    next.close().unwrap();
    let rest = tokio::task::spawn_blocking(move || {
        let mut rest = Vec::new();
        File::from(read).read_to_end(&mut rest).unwrap();
        rest
    });
    let rest = within(rest).await.unwrap();
    assert!([start, rest].concat() == [sent, b"!".to_vec()].concat());
    drop(handle);
}
