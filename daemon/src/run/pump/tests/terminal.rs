//! A terminal in the place of pipes.

use rustix::pty::OpenptFlags;
use rustix::termios::{OptionalActions, tcgetattr, tcgetwinsize, tcsetattr};

use super::*;
use crate::run::terminal::{Size, Terminal};

/// A terminal as brig-init makes it, with its pipes as brig-jailer makes them.
struct Tty {
    ours: OwnedFd,
    pipes: [(OwnedFd, OwnedFd); 2],
    files: Files,
}

fn tty() -> (Tty, File) {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let ours = rustix::pty::openpt(flags).unwrap();
    rustix::pty::unlockpt(&ours).unwrap();
    let theirs = rustix::pty::ioctl_tiocgptpeer(&ours, flags).unwrap();
    let pipe = || pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).unwrap();
    let tty = Tty {
        ours,
        pipes: [pipe(), pipe()],
        files: Files::new(),
    };
    (tty, theirs.into())
}

impl Tty {
    fn pipes(&self, input: &Arc<Stdin>, size: &Arc<Size>) -> Pipes {
        let copy = |fd: &OwnedFd| fd.try_clone().unwrap();
        let [out, into] = &self.pipes;
        let terminal = Terminal {
            ours: copy(&self.ours),
            out: (copy(&out.0), copy(&out.1)),
            input: (copy(&into.0), copy(&into.1)),
        };
        Pipes {
            terminal: Some(terminal),
            input: Some(Arc::clone(input)),
            size: Some(Arc::clone(size)),
            ..Pipes::default()
        }
    }

    fn kept(&self) -> Kept {
        let mut kept = self.files.kept();
        (kept.stderr, kept.frames) = (None, None);
        kept
    }
}

async fn within<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, work).await.unwrap()
}

/// Follows a log until this was written in all.
async fn until_written(log: &Arc<Log>, text: &str) {
    let mut follower = log.follow(0, false);
    let mut written = Vec::new();
    let reading = async {
        while !String::from_utf8_lossy(&written).contains(text) {
            if let Some(Event::Output(output)) = follower.next().await.unwrap().unwrap().event {
                written.extend_from_slice(&output.data);
            }
        }
    };
    within(reading).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_terminal_is_drawn_typed_into_resized_and_ends() {
    let (tty, mut theirs) = tty();
    let (log, pumps) = (new_log(1 << 20), Arc::<Pumps>::default());
    log.keep(tty.kept(), b"", Vec::new()).unwrap();
    let (input, size) = (tty.files.input(b"one\n", true), Arc::<Size>::default());
    let handle = pumps
        .start(&log, &policy(), tty.pipes(&input, &size), PATIENCE)
        .unwrap();
    let mut line = [0; 64];
    // Echo, and a line end as terminals have it.
    until_written(&log, "one\r\n").await;
    assert_eq!(theirs.read(&mut line).unwrap(), 4);
    theirs.write_all(b"drawn\n").unwrap();
    until_written(&log, "drawn\r\n").await;
    assert_eq!(within(input.add(Some(4), b"two\n")).await, Ok(8));
    assert_eq!(theirs.read(&mut line).unwrap(), 4);
    assert_eq!(&line[..4], b"two\n");
    within(size.set(91, 33)).await.unwrap();
    let now = tcgetwinsize(&theirs).unwrap();
    assert_eq!((now.ws_col, now.ws_row), (91, 33));
    // The end of what is typed.
    input.close().unwrap();
    let reader = tokio::task::spawn_blocking(move || {
        assert_eq!(theirs.read(&mut [0; 8]).unwrap(), 0);
        theirs.write_all(b"last").unwrap();
    });
    within(reader).await.unwrap();
    until_written(&log, "last").await;
    assert_eq!(handle.finish(Instant::now() + PATIENCE).await, Finish::Whole);
    assert_eq!(
        within(input.add(Some(0), b"one\ntwo\n")).await,
        Ok(8),
        "the end does not count"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_pump_goes_on_with_a_terminal_and_its_pipes() {
    let (tty, mut theirs) = tty();
    let mut raw = tcgetattr(&theirs).unwrap();
    raw.make_raw();
    tcsetattr(&theirs, OptionalActions::Now, &raw).unwrap();
    let (log, pumps) = (new_log(1 << 20), Arc::<Pumps>::default());
    log.keep(tty.kept(), b"", Vec::new()).unwrap();
    let (input, size) = (tty.files.input(b"", true), Arc::<Size>::default());
    let handle = pumps
        .start(&log, &policy(), tty.pipes(&input, &size), PATIENCE)
        .unwrap();
    // More than the terminal and its pipe hold: some of it is in each of the three places.
    let typed: Vec<u8> = (0..150_000_u32).map(|i| b'a' + (i % 23).to_le_bytes()[0]).collect();
    assert_eq!(within(input.add(None, &typed)).await, Ok(150_000));
    theirs.write_all(b"before").unwrap();
    until_written(&log, "before").await;
    drop(handle);
    while Arc::strong_count(&log) > 1 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    theirs.write_all(b" between").unwrap();
    let id = Id::parse("e1").unwrap();
    let log = Arc::new(Log::restore(id.clone(), id, Output::new(1 << 20), tty.kept()).unwrap());
    let input = Stdin::new(true);
    input.restore(tty.files.0[4].try_clone().unwrap().into());
    let input = Arc::new(input);
    let handle = pumps
        .start(&log, &policy(), tty.pipes(&input, &size), PATIENCE)
        .unwrap();
    until_written(&log, "before between").await;
    let reader = tokio::task::spawn_blocking(move || {
        let mut read = vec![0; 150_000];
        theirs.read_exact(&mut read).unwrap();
        (read, theirs)
    });
    let (read, theirs) = within(reader).await.unwrap();
    assert!(read == typed, "each byte once");
    drop(theirs);
    assert_eq!(handle.finish(Instant::now() + PATIENCE).await, Finish::Whole);
}
