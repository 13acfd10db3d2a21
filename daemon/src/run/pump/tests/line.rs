//! A context's process between two executions, over the end of a brigd.

use std::io::Seek;

use super::*;

/// A process and what the jailer holds of it.
struct Process {
    guest: Guest,
    pipes: Pipes,
    files: Files,
    pumps: Arc<Pumps>,
}

impl Process {
    fn new() -> Self {
        let (guest, pipes) = pipes();
        Self {
            guest,
            pipes,
            files: Files::new(),
            pumps: Arc::default(),
        }
    }

    fn start(&self, store: Store) -> Line {
        let copy = |pipe: &Option<OwnedFd>| pipe.as_ref().map(|pipe| pipe.try_clone().unwrap());
        let pipes = Pipes {
            stdin: None,
            stdout: copy(&self.pipes.stdout),
            stderr: copy(&self.pipes.stderr),
            request: copy(&self.pipes.request),
            frames: copy(&self.pipes.frames),
        };
        self.pumps.start_line(pipes, store).unwrap()
    }

    fn first(&self) -> Line {
        self.start(Store::begin(self.files.kept(), b"outline".to_vec()).unwrap())
    }

    fn next(&self) -> Line {
        assert_eq!(self.files.kept().outline().unwrap(), b"outline");
        self.start(Store::open(self.files.kept()).unwrap())
    }

    fn write(&mut self, stream: Stream, bytes: &[u8]) {
        let file = match stream {
            Stdout => &mut self.guest.stdout,
            Stderr => &mut self.guest.stderr,
        };
        file.as_mut().unwrap().write_all(bytes).unwrap();
    }

    fn say(&mut self, bytes: &[u8]) {
        self.guest.frames.as_mut().unwrap().write_all(bytes).unwrap();
    }

    /// How much is kept of stdout, of stderr and of the frames.
    fn kept(&self) -> [u64; 3] {
        [0, 1, 2].map(|index| self.files.0[index].metadata().unwrap().len())
    }

    fn await_kept(&self, kept: [u64; 3]) {
        let until = Instant::now() + PATIENCE;
        while self.kept() != kept {
            assert!(Instant::now() < until, "{:?}", self.kept());
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Where the next brigd begins with the frames.
    fn settled(&self) -> u64 {
        (&self.files.0[2]).stream_position().unwrap()
    }

    /// Runs an execution that says nothing of its own.
    async fn run(&mut self, line: &mut Line) -> Arc<Log> {
        let log = new_log(1 << 20);
        line.begin(Part {
            id: "e1".to_owned(),
            log: Arc::clone(&log),
            policy: policy(),
            request: b"run".to_vec(),
        });
        let mut request = [0; 3];
        self.guest.request.as_mut().unwrap().read_exact(&mut request).unwrap();
        assert_eq!(&request, b"run");
        self.say(&frame(r#"{"ev":"done","id":"e1","exit_code":0}"#));
        while !matches!(line.told().await.unwrap(), Told::Done(_)) {}
        log
    }
}

async fn end(line: Line) {
    assert_eq!(line.finish(Instant::now()).await, Finish::Early);
}

fn shown(events: &[ExecutionEvent]) -> Vec<String> {
    let text = |event: &ExecutionEvent| match &event.event {
        Some(Event::Result(result)) => match &result.data[0].content {
            Some(brig_proto::v1::rich_datum::Content::Text(text)) => Some(text.clone()),
            _ => None,
        },
        _ => None,
    };
    events.iter().filter_map(text).collect()
}

#[tokio::test]
async fn what_came_between_two_executions_is_there_for_another_brigd() {
    let mut process = Process::new();
    let line = process.first();
    let [one, two] = ["one", "two"].map(result_frame);
    let (begun, rest) = two.split_at(9);
    process.write(Stdout, b"out");
    process.write(Stderr, b"err");
    process.say(&[&one, begun].concat());
    process.await_kept([3, 3, one.len() as u64 + 9]);
    end(line).await;
    process.write(Stdout, b"put");
    process.say(rest);
    let mut line = process.next();
    process.await_kept([6, 3, (one.len() + two.len()) as u64]);
    assert_eq!(process.settled(), 0);
    let log = process.run(&mut line).await;
    let events = events(&log).await;
    assert_eq!(bytes_of(&events, OutputStream::Stdout), b"output");
    assert_eq!(bytes_of(&events, OutputStream::Stderr), b"err");
    assert_eq!(shown(&events), ["one", "two"]);
    assert_eq!(notices(&events, NoticeKind::EarlierOutput), 1);
    // Nobody is told again.
    let [stdout, stderr, frames] = process.kept();
    assert_eq!((stdout, stderr, process.settled()), (0, 0, frames));
    end(line).await;
    let mut line = process.next();
    let log = process.run(&mut line).await;
    assert_eq!(log.progress().last_sequence, 0);
    end(line).await;
}

#[tokio::test]
async fn what_is_dropped_between_two_executions_is_counted_over_a_restart() {
    let mut process = Process::new();
    let line = process.first();
    process.write(Stdout, &vec![b'x'; 300 * 1024]);
    process.write(Stderr, b"!");
    process.await_kept([256 * 1024, 1, 0]);
    end(line).await;
    let mut line = process.next();
    let log = process.run(&mut line).await;
    let count = Count {
        bytes: 300 * 1024,
        dropped: 44 * 1024,
    };
    assert_eq!(log.output().count(Stdout), count);
    let events = events(&log).await;
    assert_eq!(bytes_of(&events, OutputStream::Stdout).len(), 256 * 1024);
    assert_eq!(notices(&events, NoticeKind::OutputDropped), 1);
    end(line).await;
}

#[tokio::test]
async fn of_many_frames_between_two_executions_the_next_brigd_hears_the_last_from_where_one_begins() {
    let mut process = Process::new();
    let line = process.first();
    let one = result_frame(&"x".repeat(1000));
    let (each, count) = (one.len() as u64, 4000);
    for _ in 0..count {
        process.say(&one);
    }
    process.await_kept([0, 0, each * count]);
    end(line).await;
    let settled = process.settled();
    assert!(settled >= 1 << 20 && settled.is_multiple_of(each), "{settled}");
    let mut line = process.next();
    let log = process.run(&mut line).await;
    let events = events(&log).await;
    assert_eq!(shown(&events).len(), crate::kernel::RESULTS_MAX);
    assert_eq!(notices(&events, NoticeKind::ResultDropped), 1);
    end(line).await;
}
