use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::thread;

use brig_jailer::ids::Id;
use brig_proto::v1::execution_event::Event;
use brig_proto::v1::{ExecutionEvent, ExecutionOutput, NoticeKind, OutputStream};
use rustix::pipe::{PipeFlags, SpliceFlags, pipe_with, splice};

use super::*;
use crate::output::testing::memory_file;
use crate::output::{CHUNK_MAX, Count, Output};
use crate::run::journal::Kept;
use crate::run::stdin::Stdin;
use crate::run::stdin::testing::input_file;

use Stream::{Stderr, Stdout};

mod input;
mod line;
mod restart;
mod terminal;
mod window;

/// How long anything may take on a busy machine.
pub(super) const PATIENCE: Duration = Duration::from_secs(120);

/// The guest's ends of the pipes.
#[derive(Default)]
pub(super) struct Guest {
    pub stdout: Option<File>,
    pub stderr: Option<File>,
    pub frames: Option<File>,
    pub stdin: Option<File>,
    pub request: Option<File>,
}

/// The files of an execution, as brig-jailer holds them; the last one is that of stdin.
pub(super) struct Files([File; 5]);

impl Files {
    pub(super) fn new() -> Self {
        Self(std::array::from_fn(|place| {
            if place == 4 { input_file() } else { memory_file() }
        }))
    }

    /// Takes what stdin is given.
    pub(super) fn input(&self, given: &[u8], is_open: bool) -> Arc<Stdin> {
        let stdin = Stdin::new(is_open);
        stdin.begin(self.0[4].try_clone().unwrap().into(), given).unwrap();
        Arc::new(stdin)
    }

    pub(super) fn fds(&self) -> Vec<OwnedFd> {
        self.0.iter().map(|file| file.try_clone().unwrap().into()).collect()
    }

    pub(super) fn kept(&self) -> Kept {
        let mut fds = self.fds().into_iter();
        let mut next = || fds.next().unwrap();
        Kept {
            stdin: None,
            stdout: Some(next()),
            stderr: Some(next()),
            frames: Some(next()),
            journal: next(),
        }
    }
}

pub(super) fn new_log(cap: u64) -> Arc<Log> {
    let id = Id::parse("e1").unwrap();
    Arc::new(Log::new(id.clone(), id, Output::new(cap)))
}

pub(super) fn policy() -> Arc<Policy> {
    let text = "template = \"data\"\n[syscalls]\ngroups = [\"base\"]\n[artifacts.chart]\nhandling = \"preview\"";
    Arc::new(Policy::parse("p", text).unwrap())
}

/// All pipes of an execution.
pub(super) fn pipes() -> (Guest, Pipes) {
    let pipe = || pipe_with(PipeFlags::CLOEXEC).unwrap();
    let [
        (stdin, stdin_in),
        (stdout_out, stdout),
        (stderr_out, stderr),
        (request, request_in),
        (frames_out, frames),
    ] = std::array::from_fn(|_| pipe());
    let some = |fd: OwnedFd| Some(File::from(fd));
    let guest = Guest {
        stdout: some(stdout),
        stderr: some(stderr),
        frames: some(frames),
        stdin: some(stdin),
        request: some(request),
    };
    let pipes = Pipes {
        stdin: Some(stdin_in),
        stdout: Some(stdout_out),
        stderr: Some(stderr_out),
        request: Some(request_in),
        frames: Some(frames_out),
        ..Pipes::default()
    };
    (guest, pipes)
}

/// A pump that runs over all five pipes.
struct Running {
    guest: Guest,
    log: Arc<Log>,
    pumps: Arc<Pumps>,
    handle: Handle,
    files: Files,
}

fn start_with(cap: u64, stdin: &[u8], request: &[u8]) -> Running {
    let (log, pumps, files) = (new_log(cap), Arc::<Pumps>::default(), Files::new());
    log.keep(files.kept(), request, Vec::new()).unwrap();
    let (guest, mut pipes) = pipes();
    pipes.input = Some(files.input(stdin, false));
    let handle = pumps.start(&log, &policy(), pipes, PATIENCE).unwrap();
    Running {
        guest,
        log,
        pumps,
        handle,
        files,
    }
}

fn start(cap: u64) -> Running {
    start_with(cap, b"", b"")
}

impl Running {
    /// Ends the guest and waits for the end of the pump.
    async fn end(self) -> (Arc<Log>, Finish, Files) {
        drop(self.guest);
        let finish = self.handle.finish(Instant::now() + PATIENCE).await;
        self.log.seal();
        (self.log, finish, self.files)
    }
}

/// The events of a log that is at its end.
pub(super) async fn events(log: &Arc<Log>) -> Vec<ExecutionEvent> {
    let count = usize::try_from(log.progress().last_sequence).unwrap();
    let mut follower = log.follow(0, false);
    let mut events = Vec::new();
    while events.len() < count {
        let event = follower.next().await.unwrap().unwrap();
        events.extend((event.sequence > 0).then_some(event));
    }
    events
}

pub(super) fn outputs(events: &[ExecutionEvent]) -> Vec<&ExecutionOutput> {
    let output = |event: &'_ ExecutionEvent| matches!(event.event, Some(Event::Output(_)));
    let all = events.iter().filter(|event| output(event));
    all.map(|event| match &event.event {
        Some(Event::Output(output)) => output,
        _ => unreachable!(),
    })
    .collect()
}

/// The bytes of a stream, whose chunks must join.
pub(super) fn bytes_of(events: &[ExecutionEvent], stream: OutputStream) -> Vec<u8> {
    for (index, event) in events.iter().enumerate() {
        assert_eq!(event.sequence, index as u64 + 1, "sequence has no gap");
    }
    let mut bytes = Vec::new();
    for output in outputs(events).into_iter().filter(|output| output.stream() == stream) {
        assert_eq!(output.offset, bytes.len() as u64);
        assert!((1..=CHUNK_MAX).contains(&output.data.len()));
        bytes.extend_from_slice(&output.data);
    }
    bytes
}

fn notices(events: &[ExecutionEvent], kind: NoticeKind) -> usize {
    let is = |event: &&ExecutionEvent| matches!(&event.event, Some(Event::Notice(notice)) if notice.kind() == kind);
    events.iter().filter(is).count()
}

/// Resident memory of this process, in KiB.
fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

fn frame(body: &str) -> Vec<u8> {
    [&u32::try_from(body.len()).unwrap().to_le_bytes()[..], body.as_bytes()].concat()
}

fn result_frame(text: &str) -> Vec<u8> {
    frame(&format!(r#"{{"ev":"result","data":{{"text/plain":"{text}"}}}}"#))
}

#[tokio::test]
async fn every_byte_arrives_and_the_cap_holds_for_each_stream_by_itself() {
    let mut running = start(7);
    let mut write = |stream: Stream, bytes: &[u8]| match stream {
        Stdout => running.guest.stdout.as_mut().unwrap().write_all(bytes).unwrap(),
        Stderr => running.guest.stderr.as_mut().unwrap().write_all(bytes).unwrap(),
    };
    write(Stdout, b"\0\xff34\n6");
    write(Stderr, b"abc");
    write(Stdout, b"789");
    write(Stderr, b"d");
    let (log, finish, files) = running.end().await;
    assert_eq!(finish, Finish::Whole);
    let events = events(&log).await;
    assert_eq!(bytes_of(&events, OutputStream::Stdout), b"\0\xff34\n67");
    assert_eq!(bytes_of(&events, OutputStream::Stderr), b"abcd");
    assert_eq!(log.output().count(Stdout), Count { bytes: 9, dropped: 2 });
    assert_eq!(log.output().count(Stderr), Count { bytes: 4, dropped: 0 });
    assert_eq!(notices(&events, NoticeKind::OutputDropped), 1);
    assert_eq!(files.0[0].metadata().unwrap().len(), 7, "no byte more is in the file");
}

#[tokio::test]
async fn exactly_the_cap_is_no_excess() {
    let mut running = start(4);
    running.guest.stdout.as_mut().unwrap().write_all(b"1234").unwrap();
    let (log, _, _) = running.end().await;
    assert_eq!(log.output().count(Stdout), Count { bytes: 4, dropped: 0 });
    assert_eq!(notices(&events(&log).await, NoticeKind::OutputDropped), 0);
}

#[tokio::test]
async fn single_bytes_and_the_order_of_two_streams_in_one_pipe_are_kept() {
    let mut running = start(1 << 20);
    // As `merge_stderr` makes them: two descriptors of one pipe.
    let mut merged = running.guest.stdout.as_ref().unwrap().try_clone().unwrap();
    let mut expected = Vec::new();
    for i in 0..2_000_u32 {
        let byte = [b'a' + u8::try_from(i % 26).unwrap()];
        let to = if i % 3 == 0 {
            &mut merged
        } else {
            running.guest.stdout.as_mut().unwrap()
        };
        to.write_all(&byte).unwrap();
        expected.extend(byte);
    }
    drop(merged);
    let (log, _, _) = running.end().await;
    assert_eq!(bytes_of(&events(&log).await, OutputStream::Stdout), expected);
}

#[tokio::test]
async fn a_follower_sees_a_write_while_the_program_runs() {
    let mut running = start(1 << 20);
    let mut follower = running.log.follow(0, false);
    for text in ["no newline", "and more"] {
        running
            .guest
            .stdout
            .as_mut()
            .unwrap()
            .write_all(text.as_bytes())
            .unwrap();
        let seen = async {
            loop {
                if let Some(Event::Output(output)) = follower.next().await.unwrap().unwrap().event {
                    return output.data;
                }
            }
        };
        let seen = tokio::time::timeout(PATIENCE, seen).await.unwrap();
        assert_eq!(&seen[..], text.as_bytes());
    }
    running.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_vanished_and_many_followers_hold_nothing_back_and_all_see_the_same() {
    let running = start(4 << 20);
    let (slow, vanished) = (running.log.follow(0, false), running.log.follow(0, false));
    let log = Arc::clone(&running.log);
    let quick: Vec<_> = (0..10)
        .map(|_| {
            let mut follower = log.follow(0, false);
            tokio::spawn(async move {
                let mut events = Vec::new();
                while let Some(event) = follower.next().await {
                    events.push(event.unwrap());
                }
                events
            })
        })
        .collect();
    let mut stdout = running.guest.stdout.as_ref().unwrap().try_clone().unwrap();
    let writer = thread::spawn(move || {
        let block: Vec<u8> = (0..8192_u32).map(|i| i.to_le_bytes()[0]).collect();
        (0..1024).for_each(|_| stdout.write_all(&block).unwrap());
    });
    drop(vanished);
    tokio::task::spawn_blocking(|| writer.join().unwrap()).await.unwrap();
    let (log, finish, _) = running.end().await;
    assert_eq!(finish, Finish::Whole);
    let dropped = 4 << 20;
    assert_eq!(
        log.output().count(Stdout),
        Count {
            bytes: 8 << 20,
            dropped
        }
    );
    let all = events(&log).await;
    let block: Vec<u8> = (0..8192_u32).map(|i| i.to_le_bytes()[0]).collect();
    assert!(bytes_of(&all, OutputStream::Stdout) == block.repeat(512));
    log.finish(brig_proto::v1::ExecutionResult::default(), std::time::SystemTime::now());
    let all = events(&log).await;
    let numbered = |events: Vec<ExecutionEvent>| {
        events
            .into_iter()
            .filter(|event| event.sequence > 0)
            .collect::<Vec<_>>()
    };
    for follower in quick {
        assert!(numbered(follower.await.unwrap()) == all);
    }
    for after in [0, 1, 17, all.len() as u64 - 1] {
        let mut follower = log.follow(after, false);
        let mut seen = Vec::new();
        while let Some(event) = follower.next().await {
            seen.push(event.unwrap());
        }
        assert!(numbered(seen) == all[usize::try_from(after).unwrap()..]);
    }
    let mut slow = slow;
    let mut seen = Vec::new();
    while let Some(event) = slow.next().await {
        seen.push(event.unwrap());
    }
    assert!(numbered(seen) == all);
}

/// In a process of its own: what other tests of this one hold meanwhile is not the pump's.
#[test]
fn a_flood_of_two_gib_leaves_memory_flat() {
    let name = "run::pump::tests::takes_two_gib";
    let run = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--ignored"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&run.stdout);
    assert!(run.status.success() && said.contains("1 passed"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "run by the test above, in a process of its own"]
async fn takes_two_gib() {
    const GIB: u64 = 1 << 30;
    let running = start(8 << 20);
    let before = resident_kib();
    let mut stdout = running.guest.stdout.as_ref().unwrap().try_clone().unwrap();
    let writer = thread::spawn(move || {
        let block = vec![b'x'; 1 << 20];
        let mut peak = 0;
        for _ in 0..2048 {
            stdout.write_all(&block).unwrap();
            peak = peak.max(resident_kib());
        }
        peak
    });
    let peak = tokio::task::spawn_blocking(|| writer.join().unwrap()).await.unwrap();
    let (log, finish, _) = running.end().await;
    assert_eq!(finish, Finish::Whole);
    let dropped = 2 * GIB - (8 << 20);
    assert_eq!(
        log.output().count(Stdout),
        Count {
            bytes: 2 * GIB,
            dropped
        }
    );
    assert_eq!(notices(&events(&log).await, NoticeKind::OutputDropped), 1);
    assert_eq!(log.holds().memory_bytes & !0xffff, 8 << 20);
    // The writer's block and a scratch buffer; what is kept lies in a file.
    assert!(peak < before + 16 * 1024, "{before} KiB before, {peak} KiB at most");
}

#[tokio::test]
async fn what_is_given_arrives_whole_though_pipes_hold_less_and_then_the_end_is_told() {
    let bytes: Vec<u8> = (0..300_000_u32).map(|i| i.to_le_bytes()[1]).collect();
    let mut running = start_with(100, &bytes, &bytes[1000..]);
    let (mut stdin, mut request) = (
        running.guest.stdin.take().unwrap(),
        running.guest.request.take().unwrap(),
    );
    let read = tokio::task::spawn_blocking(move || {
        let mut got = [Vec::new(), Vec::new()];
        request.read_to_end(&mut got[1]).unwrap();
        stdin.read_to_end(&mut got[0]).unwrap();
        got
    });
    let got = tokio::time::timeout(PATIENCE, read).await.unwrap().unwrap();
    assert!(got[0] == bytes && got[1] == bytes[1000..]);
    let mut told = Vec::new();
    while told.len() < 2 {
        told.push(running.handle.inputs.recv().await.unwrap());
    }
    assert_eq!(told, [Input::Request, Input::Stdin]);
    let (_, finish, _) = running.end().await;
    assert_eq!(finish, Finish::Whole);
}

#[tokio::test]
async fn nobody_has_to_read_what_is_given() {
    let (log, pumps, files) = (new_log(10), Arc::<Pumps>::default(), Files::new());
    let bytes = vec![7; 1 << 20];
    log.keep(files.kept(), &bytes, Vec::new()).unwrap();
    let (mut guest, mut pipes) = pipes();
    pipes.input = Some(files.input(&bytes, false));
    let mut handle = pumps.start(&log, &policy(), pipes, Duration::from_millis(50)).unwrap();
    // The request is given up in time, and the pipe closed; stdin may take as long as the program.
    let told = tokio::time::timeout(PATIENCE, handle.inputs.recv()).await.unwrap();
    assert_eq!(told, Some(Input::Request));
    let mut left = Vec::new();
    guest.request.take().unwrap().read_to_end(&mut left).unwrap();
    assert!(!left.is_empty() && left.len() < 1 << 20, "{}", left.len());
    drop(guest.stdin.take());
    let told = tokio::time::timeout(PATIENCE, handle.inputs.recv()).await.unwrap();
    assert_eq!(told, Some(Input::Stdin));
    drop(guest);
    assert_eq!(handle.finish(Instant::now() + PATIENCE).await, Finish::Whole);
}

#[tokio::test]
async fn a_result_is_told_after_the_output_before_it() {
    let mut running = start(1 << 20);
    for i in 0..50 {
        let text = format!("line {i}\n");
        running
            .guest
            .stdout
            .as_mut()
            .unwrap()
            .write_all(text.as_bytes())
            .unwrap();
        running
            .guest
            .frames
            .as_mut()
            .unwrap()
            .write_all(&result_frame(&i.to_string()))
            .unwrap();
    }
    running
        .guest
        .frames
        .as_mut()
        .unwrap()
        .write_all(&frame(r#"{"ev":"done"}"#))
        .unwrap();
    let (log, _, _) = running.end().await;
    let (mut lines, mut results) = (0, 0);
    for event in events(&log).await {
        match event.event.unwrap() {
            Event::Output(output) => lines += output.data.iter().filter(|byte| **byte == b'\n').count(),
            Event::Result(_) => {
                results += 1;
                assert!(lines >= results, "result {results} came before its line");
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((lines, results, log.claims().results.len()), (50, 50, 50));
}

#[tokio::test]
async fn frames_are_freed_when_they_were_heard_and_dropped_when_nobody_listens() {
    let mut running = start(1 << 20);
    let padding = format!(r#"{{"ev":"x","y":"{}"}}"#, "y".repeat(900_000));
    let mut frames = running.guest.frames.take().unwrap();
    let writer = thread::spawn(move || {
        for _ in 0..30 {
            frames.write_all(&frame(&padding)).unwrap();
        }
        frames.write_all(&result_frame("after")).unwrap();
        frames.write_all(&frame(r#"{"ev":"done"}"#)).unwrap();
        // Deep, so that it would be seen on a small stack; but nobody listens any more.
        for _ in 0..100 {
            frames.write_all(&frame(&"[".repeat(900_000))).unwrap();
        }
    });
    tokio::task::spawn_blocking(|| writer.join().unwrap()).await.unwrap();
    let (log, finish, files) = running.end().await;
    assert_eq!((finish, log.claims().results.len()), (Finish::Whole, 1));
    let dropped = files_dropped(&files);
    assert!(dropped > 85_000_000, "{dropped}");
    let data = files.0[2].metadata().unwrap();
    let held = std::os::unix::fs::MetadataExt::blocks(&data) * 512;
    assert!(held < 4 << 20, "{held} of {} bytes are held", data.len());
}

/// How many bytes of frames were dropped according to the journal.
fn files_dropped(files: &Files) -> u64 {
    let mut number = [0; 8];
    files.0[3].read_exact_at(&mut number, 40).unwrap();
    u64::from_le_bytes(number)
}

#[tokio::test]
async fn json_as_deep_as_a_frame_fits_the_stack() {
    let mut running = start(10);
    let deep = format!(
        r#"{{"ev":"result","z":{}{},"data":{{}}}}"#,
        "[".repeat(400_000),
        "]".repeat(400_000)
    );
    let mut frames = running.guest.frames.take().unwrap();
    let long = frame(&format!(
        r#"{{"ev":"error","name":"E","traceback":"{}"}}"#,
        "é".repeat(400_000)
    ));
    let writer = thread::spawn(move || {
        frames.write_all(&frame(&deep)).unwrap();
        frames.write_all(&long).unwrap();
    });
    tokio::task::spawn_blocking(|| writer.join().unwrap()).await.unwrap();
    let (log, finish, _) = running.end().await;
    assert_eq!(finish, Finish::Whole);
    assert!(log.claims().error.is_some());
}

#[tokio::test]
async fn a_pipe_that_somebody_else_holds_open_ends_in_time() {
    let running = start(100);
    let mut held = running.guest.stdout.as_ref().unwrap().try_clone().unwrap();
    held.write_all(b"kept").unwrap();
    drop(running.guest);
    let finish = running.handle.finish(Instant::now() + Duration::from_millis(50)).await;
    assert_eq!(finish, Finish::Early);
    running.log.seal();
    assert_eq!(bytes_of(&events(&running.log).await, OutputStream::Stdout), b"kept");
    assert!(held.write_all(b"x").is_err(), "nobody reads any more");
    assert_eq!(running.pumps.abandoned(), 0);
}

#[tokio::test]
async fn what_can_not_be_kept_is_a_fault() {
    let (log, pumps, files) = (new_log(100), Arc::<Pumps>::default(), Files::new());
    let mut kept = files.kept();
    kept.stdout = Some(File::open("/proc/self/status").unwrap().into());
    log.keep(kept, b"", Vec::new()).unwrap();
    let (mut guest, pipes) = pipes();
    let handle = pumps.start(&log, &policy(), pipes, PATIENCE).unwrap();
    // The pump may be gone already.
    let _ = guest.stdout.as_mut().unwrap().write_all(b"x");
    let fault = tokio::time::timeout(PATIENCE, log.failed()).await.unwrap();
    assert!(fault.starts_with("splice: "), "{fault}");
    assert_eq!(handle.finish(Instant::now() + PATIENCE).await, Finish::Failed);
}

/// Bytes in a pipe whose lock is held.
const HELD: usize = 500_000;

/// Holds the lock of a pipe, as a call of a guest could: splice(2) to a socket that nobody reads waits with it.
struct Lock {
    peer: UnixStream,
    holder: thread::JoinHandle<()>,
    /// Another end for writing, so that the pipe has one.
    _writer: OwnedFd,
}

fn locked_pipe() -> (OwnedFd, Lock) {
    let (read, write) = pipe_with(PipeFlags::CLOEXEC).unwrap();
    let (socket, peer) = UnixStream::pair().unwrap();
    rustix::net::sockopt::set_socket_send_buffer_size(&socket, 4096).unwrap();
    // One call sends more at once than the socket holds, and then waits.
    rustix::pipe::fcntl_setpipe_size(&write, 1 << 20).unwrap();
    let mut writer = File::from(write.try_clone().unwrap());
    writer.write_all(&[b'x'; HELD]).unwrap();
    let from = read.try_clone().unwrap();
    let holder = thread::spawn(move || {
        let mut left = HELD;
        while left > 0 {
            left -= splice(&from, None, &socket, None, left, SpliceFlags::empty()).unwrap();
        }
    });
    // It holds the lock from its first byte to its last.
    let mut pending = 0;
    while pending == 0 {
        pending = rustix::io::ioctl_fionread(&peer).unwrap();
        thread::yield_now();
    }
    let lock = Lock {
        peer,
        holder,
        _writer: write,
    };
    (read, lock)
}

impl Lock {
    fn release(mut self) {
        let mut bytes = vec![0; HELD];
        self.peer.read_exact(&mut bytes).unwrap();
        self.holder.join().unwrap();
    }
}

fn start_on(pumps: &Arc<Pumps>, stdout: OwnedFd) -> (Arc<Log>, Handle) {
    let (log, files) = (new_log(1 << 20), Files::new());
    log.keep(files.kept(), b"", Vec::new()).unwrap();
    let stdout = Some(stdout);
    let pipes = Pipes {
        stdout,
        ..Pipes::default()
    };
    let handle = pumps.start(&log, &policy(), pipes, PATIENCE).unwrap();
    (log, handle)
}

#[tokio::test]
async fn a_thread_that_a_guest_holds_is_abandoned_and_counts_for_nothing_later() {
    let (pipe, lock) = locked_pipe();
    let pumps = Arc::<Pumps>::default();
    let (log, handle) = start_on(&pumps, pipe);
    let start = Instant::now();
    assert_eq!(handle.finish(Instant::now()).await, Finish::Abandoned);
    assert!(start.elapsed() >= Duration::from_secs(1));
    log.seal();
    let sealed = (log.output().count(Stdout), log.progress().last_sequence);
    assert_eq!(pumps.abandoned(), 1);
    lock.release();
    let deadline = Instant::now() + PATIENCE;
    while pumps.abandoned() > 0 {
        assert!(Instant::now() < deadline);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!((log.output().count(Stdout), log.progress().last_sequence), sealed);
}

#[tokio::test]
async fn no_new_work_is_taken_while_guests_hold_too_many_threads() {
    let (pipe, lock) = locked_pipe();
    let pumps = Arc::<Pumps>::default();
    for _ in 0..ABANDONED_MAX {
        pumps.check().unwrap();
        // Dropping it abandons the thread, unless that ends at once.
        drop(start_on(&pumps, pipe.try_clone().unwrap()));
    }
    let deadline = Instant::now() + PATIENCE;
    let refused = pumps.check().unwrap_err();
    assert_eq!(refused.reason(), brig_proto::v1::Reason::HostBusy);
    assert_eq!(pumps.abandoned(), ABANDONED_MAX);
    lock.release();
    while pumps.check().is_err() {
        assert!(Instant::now() < deadline);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
