//! The thread of an execution that moves bytes between the guest's pipes and brigd.
//!
//! Whatever is done to a pipe takes its lock, and a call of the guest may hold that: reading, writing and closing can
//! take as long as the guest wants. So one thread for each execution does all of it and owns the descriptors; nothing
//! else of brigd ever waits for a pipe. One that does not end in time is abandoned: what it does later counts for
//! nothing, and while there are many of them no new work is taken ([`Pumps`]).
//!
//! Output goes from the pipe to its memory file by splice(2). The kernel takes out of the pipe exactly what it has put
//! into the file, in one call, so that the size of the file says how much was taken, whatever happens to brigd. It is
//! the same for what the program is given: the file's position says how much was put into the pipe.

mod ear;
mod feed;
mod line;
mod spare;
mod tap;
mod terminal;
mod thread;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use brig_jailer::api::Input;
use brig_jailer::policy::Policy;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::sync::mpsc;

use crate::output::{Chunks, Stream};
use crate::run::log::{Log, Past};
use crate::run::watch::Pipes;

use ear::Ear;
use feed::{Feed, Next, Patience, Way};
pub use line::{Line, Part, Store, Told};
use tap::{Flow, Tap};
use terminal::Frame;
use thread::Orders;
pub use thread::{ABANDONED_MAX, Finish, Handle, Pumps};

/// The most that is taken out of one pipe before the others have their turn, in bytes: as much as a guest's pipe holds.
const TURN: u64 = 1024 * 1024;
/// Dropped bytes that are counted before that is written down.
const UNWRITTEN: u64 = 64 * 1024;

/// Something that must not fail, failed; names the call.
#[derive(Debug, thiserror::Error)]
#[error("{call}: {source}")]
pub struct Fault {
    call: &'static str,
    source: std::io::Error,
}

impl Fault {
    fn of(call: &'static str) -> impl FnOnce(rustix::io::Errno) -> Self {
        move |source| Self {
            call,
            source: source.into(),
        }
    }

    fn file(source: std::io::Error) -> Self {
        Self {
            call: "memory file",
            source,
        }
    }
}

/// What the thread owns.
#[derive(Debug)]
pub struct Pump {
    log: Arc<Log>,
    chunks: Chunks,
    outputs: [Option<Tap>; 2],
    ear: Option<Ear>,
    stdin: Option<Feed>,
    request: Option<Feed>,
    terminal: Option<Frame>,
    /// Tells which ways into the program were closed.
    closed: mpsc::Sender<Input>,
    /// Nothing that comes counts.
    sealed: bool,
    /// What was dropped: of stdout, of stderr, of the kernel's frames; and how much of that is not written down.
    dropped: [u64; 3],
    unwritten: u64,
}

impl Pump {
    /// Takes over the pipes of an execution whose log has its files. `patience` is how long the kernel may take to read
    /// its request.
    pub(super) fn new(
        log: Arc<Log>,
        policy: Arc<Policy>,
        pipes: Pipes,
        past: &Past,
        patience: Duration,
    ) -> Result<(Self, mpsc::Receiver<Input>), Fault> {
        let output = log.output();
        let kept = Stream::BOTH.map(|stream| output.count(stream).kept());
        let tap = |pipe: Option<OwnedFd>, stream: Stream| {
            let tapped = pipe.zip(output.file(stream));
            tapped
                .map(|(pipe, file)| Tap::new(pipe, file, kept[stream.index()], output.cap()))
                .transpose()
        };
        let mut outputs = [tap(pipes.stdout, Stream::Stdout)?, tap(pipes.stderr, Stream::Stderr)?];
        let frames = past.frames.as_ref();
        let ear = pipes.frames.zip(frames.cloned());
        let ear = ear.map(|(pipe, file)| Ear::new(pipe, file, Arc::clone(&log), policy, past));
        let mut way_in = pipes.stdin.map(Way::Pipe);
        let mut terminal = None;
        if let Some(told) = pipes.terminal {
            let (screen, keyboard, frame) = terminal::parts(told, pipes.size.unwrap_or_default())?;
            let file = output.file(Stream::Stdout);
            outputs[0] = file.map(|file| Tap::screen(screen, file, kept[0], output.cap()));
            (way_in, terminal) = (Some(Way::Terminal(keyboard)), Some(frame));
        }
        let stdin = match (way_in, pipes.input) {
            (Some(way), Some(input)) => Feed::open(way, input),
            (_, input) => {
                // It was closed before.
                input.iter().for_each(|input| input.end());
                None
            }
        };
        let clock = output.clock().clone();
        let patience = Patience {
            from: clock.mark(),
            clock,
            span: patience,
        };
        let request = pipes.request.zip(frames.cloned());
        let request = request.map(|(pipe, file)| Feed::bounded(pipe, file, past.head.request, patience));
        // One message for each way in.
        let (closed, inputs) = mpsc::channel(2);
        let pump = Self {
            chunks: Chunks::new(past.chunks, kept),
            outputs,
            ear: ear.transpose()?,
            stdin,
            request,
            terminal,
            closed,
            sealed: past.sealed,
            dropped: past.counts.dropped,
            unwritten: 0,
            log,
        };
        Ok((pump, inputs))
    }

    /// Moves bytes until all that is written was read, or until it is told to end. Whether everything was read.
    fn run(&mut self, orders: &Orders) -> Result<bool, Fault> {
        let mut again = Some(Duration::ZERO);
        if self.sealed {
            return Ok(true);
        }
        loop {
            self.wait(orders, again)?;
            let end = orders.end();
            if end.is_some() {
                // Nobody reads any more.
                (self.stdin, self.request) = (None, None);
            }
            if let Some(terminal) = &self.terminal {
                terminal.fit();
            }
            self.open_window(end.is_some());
            let mut more = self.feed();
            more |= self.hear()?;
            more |= self.take_outputs()?;
            let delay = self.chunks.close_due(Instant::now());
            self.tell();
            if self.outputs.iter().all(Option::is_none) && self.ear.is_none() && self.is_fed() {
                self.write_down();
                return Ok(true);
            }
            if end.is_some_and(|end| Instant::now() >= end) {
                self.chunks.close_all(Instant::now());
                self.tell();
                self.write_down();
                return Ok(false);
            }
            again = if more { Some(Duration::ZERO) } else { delay };
        }
    }

    fn is_fed(&self) -> bool {
        self.stdin.is_none() && self.request.is_none()
    }

    /// Waits until a pipe can be read or written, until it is told something, or for so long at most.
    fn wait(&mut self, orders: &Orders, most: Option<Duration>) -> Result<(), Fault> {
        if most != Some(Duration::ZERO) {
            self.write_down();
        }
        let now = Instant::now();
        let dues = [
            orders.end(),
            most.map(|most| now + most),
            self.request.as_ref().and_then(Feed::until),
        ];
        let due = dues.into_iter().flatten().min();
        let left = due.and_then(|due| Timespec::try_from(due.saturating_duration_since(now)).ok());
        let waits = self.log.output().is_window();
        let taps = self.outputs.iter().flatten().filter(|tap| !(waits && tap.is_full()));
        let taps = taps.map(Tap::ready).chain(self.ear.iter().map(Ear::pipe));
        let mut fds = vec![PollFd::from_borrowed_fd(orders.wakes(), PollFlags::IN)];
        fds.extend(taps.map(|pipe| PollFd::from_borrowed_fd(pipe, PollFlags::IN)));
        fds.extend([&self.stdin, &self.request].into_iter().flatten().map(Feed::poll));
        match poll(&mut fds, left.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(Fault::of("poll")(error)),
        }
        orders.seen();
        Ok(())
    }

    /// Gives the program what there is for it; whether there is more that could be given now.
    fn feed(&mut self) -> bool {
        let mut more = false;
        for (feed, input) in [(&mut self.stdin, Input::Stdin), (&mut self.request, Input::Request)] {
            match feed.as_mut().map(Feed::go_on) {
                Some(Next::Over) => {
                    if let Some(feed) = feed.take() {
                        feed.end();
                    }
                    // Has room for both.
                    let _ = self.closed.try_send(input);
                }
                Some(Next::More) => more = true,
                Some(Next::Waits) | None => {}
            }
        }
        more
    }

    /// Makes room in a window by what was read of it. At the end everything has room: no more comes than pipes hold.
    fn open_window(&mut self, is_ending: bool) {
        let output = self.log.output();
        if !output.is_window() {
            return;
        }
        let caps = if is_ending { [u64::MAX; 2] } else { self.log.window() };
        for (tap, cap) in self.outputs.iter_mut().zip(caps) {
            if let Some(tap) = tap {
                tap.keep_up_to(cap);
            }
        }
    }

    /// Takes frames, and tells what they say after the output that was written before them.
    fn hear(&mut self) -> Result<bool, Fault> {
        let Some(ear) = &mut self.ear else { return Ok(false) };
        let heard = ear.take(TURN)?;
        if heard.dropped > 0 {
            self.drop_bytes(2, heard.dropped);
        }
        if heard.taken > 0 || heard.flow == Flow::End {
            self.log.output().touch();
            self.take_outputs()?;
            self.chunks.close_all(Instant::now());
            self.tell();
        }
        if let Some(ear) = &mut self.ear {
            ear.hear(heard.flow == Flow::End)?;
        }
        if heard.flow == Flow::End {
            self.ear = None;
        }
        Ok(heard.flow == Flow::More)
    }

    fn take_outputs(&mut self) -> Result<bool, Fault> {
        let mut more = false;
        for stream in Stream::BOTH {
            more |= self.take_output(stream)?;
        }
        Ok(more)
    }

    /// Takes what is in the pipe of a stream, up to a turn's worth; whether there may be more.
    fn take_output(&mut self, stream: Stream) -> Result<bool, Fault> {
        let mut turn = 0;
        while turn < TURN {
            let Some(tap) = &mut self.outputs[stream.index()] else {
                return Ok(false);
            };
            if tap.is_full() && self.log.output().is_window() {
                // The program waits until somebody reads.
                return Ok(false);
            }
            let taken = tap.take()?;
            let bytes = taken.kept + taken.dropped;
            if bytes > 0 {
                if !self.log.output().took(stream, taken.kept, taken.dropped) {
                    // Sealed: nobody wants it any more.
                    self.outputs[stream.index()] = None;
                    return Ok(false);
                }
                let len = usize::try_from(taken.kept).unwrap_or(usize::MAX);
                self.chunks
                    .record(stream, len, Instant::now(), std::time::SystemTime::now());
                if taken.dropped > 0 {
                    self.first_drop();
                    self.drop_bytes(stream.index(), taken.dropped);
                }
            }
            match taken.flow {
                Flow::More => turn += bytes,
                Flow::Empty => return Ok(false),
                Flow::End => {
                    self.outputs[stream.index()] = None;
                    return Ok(false);
                }
            }
        }
        self.tell();
        Ok(true)
    }

    /// Tells that output is dropped, after what was kept of it.
    fn first_drop(&mut self) {
        if self.dropped[..2] == [0, 0] {
            self.chunks.close_all(Instant::now());
            self.tell();
            self.log.limit_reached();
        }
    }

    fn drop_bytes(&mut self, of: usize, bytes: u64) {
        self.dropped[of] += bytes;
        self.unwritten += bytes;
        if self.unwritten >= UNWRITTEN {
            self.write_down();
        }
    }

    fn write_down(&mut self) {
        if self.unwritten > 0 {
            self.unwritten = 0;
            self.log.dropped(self.dropped);
        }
    }

    fn tell(&mut self) {
        let chunks = self.chunks.take();
        if !chunks.is_empty() {
            self.log.output_came(chunks);
        }
    }
}

#[cfg(test)]
mod tests;
