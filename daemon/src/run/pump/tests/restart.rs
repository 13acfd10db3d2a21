//! A brigd that is killed at any moment, again and again, while a program writes, shows and reads.

use std::collections::BTreeMap;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use brig_jailer::wire;
use brig_proto::v1::ExecutionEvent;
use prost::Message;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::*;

/// Set in the process that stands for a brigd.
const CHILD: &str = "BRIG_TEST_PUMP_CHILD";
/// Bytes on each stream, beyond the cap of stdout.
const BYTES: usize = 3 << 20;
const CAP: u64 = 2 << 20;
/// Results; as many as an execution may have.
const RESULTS: usize = 60;
const STDIN: usize = 700_000;

fn pattern(stream: Stream) -> Vec<u8> {
    let salt: u32 = if stream == Stdout { 1 } else { 77 };
    let byte = |i: u32| (i.wrapping_mul(2_654_435_761).rotate_left(9) ^ salt).to_le_bytes()[0];
    (0..u32::try_from(BYTES).unwrap()).map(byte).collect()
}

fn given() -> Vec<u8> {
    pattern(Stderr)[..STDIN].to_vec()
}

/// What one brigd does: goes on where the one before was, and tells its follower. Ends when it is killed, or when all
/// is read.
async fn be_brigd(socket: OwnedFd) {
    let (first, mut fds) = wire::receive::<bool>(socket.as_fd()).unwrap().unwrap();
    let files = fds.split_off(5);
    let mut fds = fds.into_iter();
    let mut next = || fds.next();
    let mut pipes = Pipes {
        stdin: next(),
        stdout: next(),
        stderr: next(),
        request: next(),
        frames: next(),
        ..Pipes::default()
    };
    let [stdout, stderr, frames, journal, input] = files.try_into().unwrap();
    let kept = Kept {
        stdin: None,
        stdout: Some(stdout),
        stderr: Some(stderr),
        frames: Some(frames),
        journal,
    };
    let stdin = Stdin::new(false);
    let log = if first {
        let log = new_log(CAP);
        stdin.begin(input, &given()).unwrap();
        log.keep(kept, b"request", Vec::new()).unwrap();
        log
    } else {
        let id = Id::parse("e1").unwrap();
        stdin.restore(input);
        Arc::new(Log::restore(id.clone(), id, Output::new(CAP), kept).unwrap())
    };
    let follower = tokio::spawn({
        let (log, socket) = (Arc::clone(&log), socket.try_clone().unwrap());
        async move {
            let mut follower = log.follow(0, false);
            while let Some(event) = follower.next().await {
                let event = event.unwrap();
                if event.sequence > 0 {
                    let event = event.encode_to_vec();
                    tokio::task::block_in_place(|| wire::send(socket.as_fd(), &event, &[]).unwrap());
                }
            }
        }
    });
    if log.is_finished() {
        return follower.await.unwrap();
    }
    pipes.input = Some(Arc::new(stdin));
    let pumps = Arc::<Pumps>::default();
    let mut handle = pumps.start(&log, &policy(), pipes, PATIENCE).unwrap();
    // Until the pump has ended by itself.
    while handle.inputs.recv().await.is_some() {}
    let finish = handle.finish(Instant::now() + PATIENCE).await;
    assert_eq!(finish, Finish::Whole);
    log.seal();
    log.finish(brig_proto::v1::ExecutionResult::default(), std::time::SystemTime::now());
    follower.await.unwrap();
}

/// The same test in a process of its own is a brigd.
fn start_brigd(first: bool, ours: &[OwnedFd]) -> (Child, OwnedFd) {
    let (socket, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    let name = "run::pump::tests::restart::everything_is_seen_exactly_once_however_often_brigd_is_killed";
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name])
        .env(CHILD, "1")
        .stdin(Stdio::from(theirs))
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let fds: Vec<_> = ours.iter().map(AsFd::as_fd).collect();
    wire::send(socket.as_fd(), &first, &fds).unwrap();
    (child, socket)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_is_seen_exactly_once_however_often_brigd_is_killed() {
    if std::env::var_os(CHILD).is_some() {
        return be_brigd(std::io::stdin().as_fd().try_clone_to_owned().unwrap()).await;
    }
    tokio::task::spawn_blocking(kill_again_and_again).await.unwrap();
}

fn kill_again_and_again() {
    let (mut guest, pipes) = pipes();
    let Pipes {
        stdin,
        stdout,
        stderr,
        request,
        frames,
        ..
    } = pipes;
    // What the jailer holds.
    let mut held: Vec<OwnedFd> = [stdin, stdout, stderr, request, frames].into_iter().flatten().collect();
    let files = Files::new();
    held.extend(files.fds());
    let over = Arc::new(AtomicBool::new(false));
    let program = run_program(&mut guest, &over);

    // Which events were told, by sequence: the same number must always be the same event.
    let mut seen: BTreeMap<u64, ExecutionEvent> = BTreeMap::new();
    let (mut first, mut kills, mut random) = (true, 0_u32, 0x9e37_79b9_7f4a_7c15_u64);
    loop {
        let (mut child, socket) = start_brigd(first, &held);
        // Once there is a journal, it goes on; a brigd that dies before is a start that failed.
        first = false;
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        // A brigd is killed after so many events, and then a little later.
        let enough = usize::try_from(1 + random % 60).unwrap();
        let last = over.load(Ordering::SeqCst);
        let mut count = 0;
        while let Ok(Some((event, _))) = wire::receive::<Vec<u8>>(socket.as_fd()) {
            note(&mut seen, ExecutionEvent::decode(event.as_slice()).unwrap());
            count += 1;
            if count == seen.len().max(enough) && !last {
                thread::sleep(Duration::from_micros(random % 3000));
                child.kill().unwrap();
                kills += 1;
            }
        }
        let status = child.wait().unwrap();
        if status.success() {
            break;
        }
        assert!(
            std::os::unix::process::ExitStatusExt::signal(&status) == Some(9),
            "{status}"
        );
    }
    let read = program.join().unwrap();
    assert!(read == given(), "stdin was given exactly once: {} bytes", read.len());
    check(&seen, kills);
}

/// Writes, shows and reads like a program, until it was all given its input; then closes everything.
fn run_program(guest: &mut Guest, over: &Arc<AtomicBool>) -> thread::JoinHandle<Vec<u8>> {
    let writer = |mut pipe: File, bytes: Vec<u8>| {
        thread::spawn(move || {
            let mut size = 1;
            let mut left = bytes.as_slice();
            while !left.is_empty() {
                let (now, later) = left.split_at(size.min(left.len()));
                pipe.write_all(now).unwrap();
                left = later;
                // Slow enough to live through many a brigd.
                thread::sleep(Duration::from_millis(1));
                size = size * 7 % 9973 + 1;
            }
        })
    };
    let writers = [
        writer(guest.stdout.take().unwrap(), pattern(Stdout)),
        writer(guest.stderr.take().unwrap(), pattern(Stderr)),
    ];
    let mut frames = guest.frames.take().unwrap();
    let shower = thread::spawn(move || {
        for i in 0..RESULTS {
            frames
                .write_all(&result_frame(&format!("{i}:{}", "p".repeat(30_000))))
                .unwrap();
        }
        frames.write_all(&frame(r#"{"ev":"done"}"#)).unwrap();
    });
    let (mut stdin, request) = (guest.stdin.take().unwrap(), guest.request.take().unwrap());
    let over = Arc::clone(over);
    thread::spawn(move || {
        let mut asked = [0; 7];
        (&request).read_exact(&mut asked).unwrap();
        assert_eq!(&asked, b"request");
        let mut read = vec![0; STDIN];
        for part in read.chunks_mut(9000) {
            stdin.read_exact(part).unwrap();
        }
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        shower.join().unwrap();
        over.store(true, Ordering::SeqCst);
        // Nothing was given twice.
        for pipe in [&stdin, &request] {
            assert_eq!(rustix::io::ioctl_fionread(pipe).unwrap(), 0);
        }
        read
    })
}

fn note(seen: &mut BTreeMap<u64, ExecutionEvent>, event: ExecutionEvent) {
    let known = seen.entry(event.sequence).or_insert_with(|| event.clone());
    assert!(*known == event, "event {} was told as something else", event.sequence);
}

fn check(seen: &BTreeMap<u64, ExecutionEvent>, kills: u32) {
    assert!(kills >= 3, "only {kills} were killed");
    let events: Vec<_> = seen.values().cloned().collect();
    assert!(matches!(events.last().unwrap().event, Some(Event::Finished(_))));
    let cap = usize::try_from(CAP).unwrap();
    assert!(bytes_of(&events, OutputStream::Stdout) == pattern(Stdout)[..cap]);
    assert!(bytes_of(&events, OutputStream::Stderr) == pattern(Stderr)[..cap]);
    let results: Vec<_> = events
        .iter()
        .filter_map(|event| match &event.event {
            Some(Event::Result(result)) => Some(&result.data[0]),
            _ => None,
        })
        .collect();
    assert_eq!(results.len(), RESULTS);
    for (index, result) in results.into_iter().enumerate() {
        let Some(brig_proto::v1::rich_datum::Content::Text(text)) = &result.content else {
            panic!("{result:?}")
        };
        assert!(text.starts_with(&format!("{index}:")), "result {index}");
    }
    assert_eq!(notices(&events, NoticeKind::OutputDropped), 1);
}
