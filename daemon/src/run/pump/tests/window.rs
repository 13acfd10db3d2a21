//! Output of which a window is kept.

use super::*;
use crate::output::WINDOW;
use crate::run::clock::Clock;
use crate::run::log::Follower;

const MIB: usize = 1 << 20;

fn window_log() -> Arc<Log> {
    let id = Id::parse("e1").unwrap();
    Arc::new(Log::new(id.clone(), id, Output::window(Clock::default())))
}

struct Streamed {
    log: Arc<Log>,
    pumps: Arc<Pumps>,
    files: Files,
    handle: Handle,
    guest: Guest,
}

fn streamed() -> Streamed {
    let (log, pumps, files) = (window_log(), Arc::<Pumps>::default(), Files::new());
    log.keep(files.kept(), b"", b"outline".to_vec()).unwrap();
    let started = brig_proto::v1::ExecutionStarted { pid: 7, start: 1 };
    log.started(started, std::time::SystemTime::now());
    let (guest, pipes) = pipes();
    let handle = pumps.start(&log, &policy(), pipes, PATIENCE).unwrap();
    Streamed {
        log,
        pumps,
        files,
        handle,
        guest,
    }
}

fn block(number: usize) -> Vec<u8> {
    (0..MIB).map(|i| (i / 3 + number).to_le_bytes()[0]).collect()
}

/// Writes blocks until it is told the number of the last one.
fn write_blocks(mut stdout: File, blocks: usize) -> thread::JoinHandle<()> {
    thread::spawn(move || (0..blocks).for_each(|number| stdout.write_all(&block(number)).unwrap()))
}

async fn next_output(follower: &mut Follower) -> (u64, ExecutionOutput) {
    loop {
        let next = tokio::time::timeout(PATIENCE, follower.next()).await;
        let event = next.unwrap().unwrap().unwrap();
        if let Some(Event::Output(output)) = event.event {
            return (event.sequence, output);
        }
    }
}

/// Reads on until a position of stdout, checking every byte; the last sequence.
async fn read_until(follower: &mut Follower, mut at: u64, end: u64) -> u64 {
    let mut last = 0;
    while at < end {
        let (sequence, output) = next_output(follower).await;
        assert_eq!(output.offset, at);
        let whole = block(usize::try_from(at).unwrap() / MIB);
        let place = usize::try_from(at).unwrap() % MIB;
        let here = output.data.len().min(MIB - place);
        assert!(output.data[..here] == whole[place..place + here], "at {at}");
        at += output.data.len() as u64;
        last = sequence;
    }
    last
}

/// Waits until nothing more is taken out of the pipe.
async fn settled(log: &Log) -> u64 {
    let mut before = u64::MAX;
    loop {
        tokio::time::sleep(Duration::from_millis(300)).await;
        let now = log.output().count(Stdout).bytes;
        if now == before && now > 0 {
            return now;
        }
        before = now;
    }
}

/// Waits until the window is full, and sees that no more is taken.
async fn fills(log: &Log) {
    let bytes = || log.output().count(Stdout).bytes;
    let start = Instant::now();
    while bytes() < WINDOW {
        assert!(start.elapsed() < PATIENCE, "{} of {WINDOW}", bytes());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(bytes(), WINDOW);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_reads_and_the_program_waits_and_goes_on_with_a_reader() {
    let mut streamed = streamed();
    let writer = write_blocks(streamed.guest.stdout.take().unwrap(), 20);
    fills(&streamed.log).await;
    assert!(!writer.is_finished());
    let mut follower = streamed.log.follow(0, false);
    read_until(&mut follower, 0, 20 * MIB as u64).await;
    tokio::task::spawn_blocking(|| writer.join().unwrap()).await.unwrap();
    let held = streamed.log.holds().memory_bytes;
    assert!(held < 6 << 20, "{held}");
    let blocks = std::os::unix::fs::MetadataExt::blocks(&streamed.files.0[0].metadata().unwrap()) * 512;
    assert!(blocks < 6 << 20, "{blocks}");
    drop(streamed.guest);
    assert_eq!(streamed.handle.finish(Instant::now() + PATIENCE).await, Finish::Whole);
    assert_eq!(
        streamed.log.output().count(Stdout),
        Count {
            bytes: 20 << 20,
            dropped: 0
        }
    );
    // What the result shows is the end.
    let view = streamed.log.output().view(Stdout, 1000);
    assert!(view.head.is_empty() && view.tail == block(19)[MIB - 1000..] && view.is_truncated());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_comes_and_knows_all_that_is_there_lets_the_program_go_on() {
    let mut streamed = streamed();
    let writer = write_blocks(streamed.guest.stdout.take().unwrap(), 3);
    fills(&streamed.log).await;
    let mut follower = streamed.log.follow(streamed.log.progress().last_sequence, false);
    read_until(&mut follower, WINDOW, 3 * MIB as u64).await;
    tokio::task::spawn_blocking(|| writer.join().unwrap()).await.unwrap();
    drop(streamed.guest);
    let finish = streamed.handle.finish(Instant::now() + PATIENCE).await;
    assert_eq!(finish, Finish::Whole);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_slowest_reader_counts_and_who_comes_back_misses_nothing() {
    let mut streamed = streamed();
    let writer = write_blocks(streamed.guest.stdout.take().unwrap(), 10);
    let (mut quick, mut slow) = (streamed.log.follow(0, false), streamed.log.follow(0, false));
    read_until(&mut quick, 0, MIB as u64).await;
    // The slow one has read nothing.
    fills(&streamed.log).await;
    let last = read_until(&mut slow, 0, 3 * MIB as u64 / 2).await;
    read_until(&mut quick, MIB as u64, 2 * MIB as u64).await;
    settled(&streamed.log).await;
    // Both vanish. The program waits again, and nothing that was read a little while ago is gone.
    drop((quick, slow));
    let stopped = settled(&streamed.log).await;
    assert!(stopped <= 3 << 20, "{stopped}");
    let mut back = streamed.log.follow(last - 8, false);
    let (sequence, output) = next_output(&mut back).await;
    assert_eq!(sequence, last - 7);
    read_until(&mut back, output.offset + output.data.len() as u64, 10 * MIB as u64).await;
    tokio::task::spawn_blocking(|| writer.join().unwrap()).await.unwrap();
    // Far behind it is refused, and from the beginning it gets what is there.
    let mut late = streamed.log.follow(2, false);
    let refused = late.next().await.unwrap().unwrap_err();
    assert_eq!(refused.code(), tonic::Code::OutOfRange);
    assert!(late.next().await.is_none());
    let mut anew = streamed.log.follow(0, false);
    let mut first = Vec::new();
    for _ in 0..4 {
        first.push(anew.next().await.unwrap().unwrap().event.unwrap());
    }
    assert!(
        matches!(&first[..], [Event::Accepted(_), Event::Started(_), Event::Notice(_), Event::Output(output)] if output.offset > 0),
        "{first:?}"
    );
    drop(streamed.guest);
    assert_eq!(streamed.handle.finish(Instant::now() + PATIENCE).await, Finish::Whole);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_short_chunks_take_no_more_than_long_ones_and_the_journal_stays_short() {
    let mut streamed = streamed();
    let mut stdout = streamed.guest.stdout.take().unwrap();
    let mut stderr = streamed.guest.stderr.take().unwrap();
    let writer = thread::spawn(move || {
        for _ in 0..150_000 {
            stdout.write_all(b"o").unwrap();
            stderr.write_all(b"e").unwrap();
        }
    });
    let mut follower = streamed.log.follow(0, false);
    let (mut read, mut most) = (0, 0);
    while read < 300_000 {
        read += next_output(&mut follower).await.1.data.len();
        most = most.max(streamed.log.holds().memory_bytes);
    }
    tokio::task::spawn_blocking(|| writer.join().unwrap()).await.unwrap();
    assert!(most < 8 << 20, "{most}");
    let journal = std::os::unix::fs::MetadataExt::blocks(&streamed.files.0[3].metadata().unwrap()) * 512;
    assert!(journal < 4 << 20, "{journal}");
    drop(streamed.guest);
    assert_eq!(streamed.handle.finish(Instant::now() + PATIENCE).await, Finish::Whole);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_brigd_has_the_window_under_the_same_numbers() {
    let mut streamed = streamed();
    let writer = write_blocks(streamed.guest.stdout.take().unwrap(), 12);
    let mut follower = streamed.log.follow(0, false);
    let last = read_until(&mut follower, 0, 5 << 20).await;
    settled(&streamed.log).await;
    drop(follower);
    let Streamed {
        log,
        pumps,
        files,
        handle,
        guest,
    } = streamed;
    let before = settled(&log).await;
    drop(handle);
    while Arc::strong_count(&log) > 1 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // A pump that ends takes what is in the pipe.
    let kept = log.output().count(Stdout).bytes;
    assert!(kept >= before);
    let id = Id::parse("e1").unwrap();
    let restored = Log::restore(id.clone(), id, Output::window(Clock::default()), files.kept()).unwrap();
    let again = Arc::new(restored);
    assert_eq!(again.output().count(Stdout).bytes, kept);
    let (now, then) = (again.progress(), log.progress());
    assert_eq!((now.pid, now.last_sequence), (Some(7), then.last_sequence));
    let mut back = again.follow(last, false);
    read_until(&mut back, 5 << 20, kept).await;
    let mut gone = again.follow(2, false);
    assert!(gone.next().await.unwrap().is_err());
    // The writer's pipe broke with the first pump.
    assert!(writer.join().is_err());
    drop((guest, pumps));
}
