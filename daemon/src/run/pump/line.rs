//! The thread of a context: its process lives through many executions, whose logs follow one another.
//!
//! What comes between the `run` of an execution and its `done` is its own; at `done` what lies in the pipes belongs to
//! it, and nothing more. What threads of the guest write and show between two executions is kept, within bounds, for
//! the next one, which is told so.
//!
//! Nothing here outlives brigd: the files of the output are its own, and frames are read from the pipe.

use std::collections::VecDeque;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use brig_jailer::policy::Policy;
use brig_proto::v1::NoticeKind;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, OFlags, fcntl_getfl, fcntl_setfl, memfd_create};
use rustix::io::{Errno, ioctl_fionread};
use tokio::sync::mpsc;

use super::tap::{Flow, Tap};
use super::thread::{Finish, Handle, Moves, Orders};
use super::{Fault, TURN};
use crate::kernel::context::{Claim, Reader};
use crate::kernel::{Broken, DoneClaim, Mark, RESULT_BYTES_MAX, RESULTS_MAX, RichResult};
use crate::output::{Chunks, Count, Stream};
use crate::run::listen::{left_out, show};
use crate::run::log::Log;
use crate::run::watch::Pipes;

/// How much of each stream is kept of what comes between executions, in bytes.
const BETWEEN_MAX: u64 = 256 * 1024;
/// What one call reads of the frames, in bytes.
const CALL: usize = 64 * 1024;
/// What a context can have said before it is heard: that it is ready, that an execution is done, that its frames ended.
const TOLD: usize = 8;

/// A context's thread, for whoever has the context. Dropping it tells the thread to end.
#[derive(Debug)]
pub struct Line {
    handle: Handle,
    desk: Arc<Desk>,
    told: mpsc::Receiver<Told>,
}

/// What a context said, beside what the logs have. Claims, but for the last two.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Told {
    Ready,
    Refused(String),
    /// The execution is at its end, and its log is sealed.
    Done(DoneClaim),
    /// Its frames can't be followed any more.
    Broken(Broken),
    /// It has closed its pipe, which it also does when it ends.
    Closed,
}

/// An execution of a context.
#[derive(Debug)]
pub struct Part {
    pub id: String,
    pub log: Arc<Log>,
    pub policy: Arc<Policy>,
    /// The frame that it begins with.
    pub request: Vec<u8>,
}

/// What the thread is to do.
#[derive(Debug)]
enum Order {
    Send(Vec<u8>),
    Begin(Part),
}

#[derive(Debug, Default)]
pub(super) struct Desk(Mutex<VecDeque<Order>>);

impl Line {
    pub(super) fn new(handle: Handle, desk: Arc<Desk>, told: mpsc::Receiver<Told>) -> Self {
        Self { handle, desk, told }
    }

    /// Sends a frame.
    pub fn send(&self, frame: Vec<u8>) {
        self.order(Order::Send(frame));
    }

    /// Begins an execution. The last one is done.
    pub fn begin(&self, part: Part) {
        self.order(Order::Begin(part));
    }

    /// What the context says next; nothing once the thread has ended.
    pub async fn told(&mut self) -> Option<Told> {
        self.told.recv().await
    }

    /// Tells the thread to end at the end of the pipes, or at `end` at the latest, and waits for that.
    pub async fn finish(self, end: Instant) -> Finish {
        self.handle.finish(end).await
    }

    fn order(&self, order: Order) {
        self.desk
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push_back(order);
        self.handle.wake();
    }
}

/// What the thread owns.
#[derive(Debug)]
pub(super) struct Mover {
    outputs: [Option<Tap>; 2],
    frames: Option<OwnedFd>,
    request: Option<OwnedFd>,
    /// Bytes for the request pipe, from `sent` on.
    outbox: Vec<u8>,
    sent: usize,
    reader: Reader,
    scratch: Vec<u8>,
    is_broken: bool,
    part: Option<Open>,
    between: Between,
    desk: Arc<Desk>,
    told: mpsc::Sender<Told>,
}

/// The execution that runs.
#[derive(Debug)]
struct Open {
    part: Part,
    chunks: Chunks,
    shown: Shown,
}

/// What came since the last execution.
#[derive(Debug, Default)]
struct Between {
    counts: [Count; 2],
    results: Vec<RichResult>,
    shown: Shown,
}

/// Rich results that were let through, and how many were left out.
#[derive(Debug, Default, Clone, Copy)]
struct Shown {
    results: usize,
    bytes: usize,
    left_out: u64,
}

impl Shown {
    fn admit(&mut self, result: &RichResult) -> bool {
        let size = result.size();
        let fits = self.results < RESULTS_MAX && self.bytes + size <= RESULT_BYTES_MAX;
        if fits {
            self.results += 1;
            self.bytes += size;
        } else {
            self.left_out += 1;
        }
        fits
    }
}

impl Mover {
    pub(super) fn new(pipes: Pipes) -> Result<(Self, Arc<Desk>, mpsc::Receiver<Told>), Fault> {
        for pipe in pipes.frames.iter().chain(&pipes.request) {
            let flags = fcntl_getfl(pipe).map_err(Fault::of("fcntl"))?;
            fcntl_setfl(pipe, flags | OFlags::NONBLOCK).map_err(Fault::of("fcntl"))?;
        }
        let tap = |pipe: Option<OwnedFd>| pipe.map(|pipe| Tap::new(pipe, file()?, 0, BETWEEN_MAX)).transpose();
        let desk = Arc::new(Desk::default());
        let (told, inbox) = mpsc::channel(TOLD);
        let mover = Self {
            outputs: [tap(pipes.stdout)?, tap(pipes.stderr)?],
            frames: pipes.frames,
            request: pipes.request,
            outbox: Vec::new(),
            sent: 0,
            reader: Reader::default(),
            scratch: Vec::new(),
            is_broken: false,
            part: None,
            between: Between::default(),
            desk: Arc::clone(&desk),
            told,
        };
        Ok((mover, desk, inbox))
    }

    /// Moves bytes until nobody holds the pipes, or until it is told to end.
    fn go(&mut self, orders: &Orders) -> Result<bool, Fault> {
        let mut again = Some(Duration::ZERO);
        loop {
            self.wait(orders, again)?;
            let end = orders.end();
            if end.is_some() {
                // Nobody asks any more.
                self.request = None;
            }
            self.obey()?;
            self.send();
            let mut more = self.hear()?;
            for stream in Stream::BOTH {
                more |= self.take_output(stream, TURN)?;
            }
            let now = Instant::now();
            let delay = self.part.as_mut().and_then(|open| open.chunks.close_due(now));
            self.tell();
            let is_over = self.outputs.iter().all(Option::is_none) && self.frames.is_none();
            if end.is_some_and(|end| is_over || now >= end) {
                self.close_part();
                return Ok(is_over);
            }
            again = if more { Some(Duration::ZERO) } else { delay };
        }
    }

    fn wait(&self, orders: &Orders, most: Option<Duration>) -> Result<(), Fault> {
        let now = Instant::now();
        let due = [orders.end(), most.map(|most| now + most)].into_iter().flatten().min();
        let left = due.and_then(|due| Timespec::try_from(due.saturating_duration_since(now)).ok());
        let taps = self.outputs.iter().flatten().map(Tap::pipe);
        let reads = taps.chain(self.frames.iter().map(AsFd::as_fd));
        let writes = self.request.iter().filter(|_| self.sent < self.outbox.len());
        let mut fds = vec![PollFd::from_borrowed_fd(orders.wakes(), PollFlags::IN)];
        fds.extend(reads.map(|pipe| PollFd::from_borrowed_fd(pipe, PollFlags::IN)));
        fds.extend(writes.map(|pipe| PollFd::new(pipe, PollFlags::OUT)));
        match poll(&mut fds, left.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(Fault::of("poll")(error)),
        }
        orders.seen();
        Ok(())
    }

    fn obey(&mut self) -> Result<(), Fault> {
        loop {
            let order = self.desk.0.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
            match order {
                Some(Order::Send(frame)) => self.outbox.extend(frame),
                Some(Order::Begin(part)) => self.begin(part)?,
                None => return Ok(()),
            }
        }
    }

    /// Puts as much into the request pipe as it holds.
    fn send(&mut self) {
        while let Some(pipe) = &self.request
            && self.sent < self.outbox.len()
        {
            match rustix::io::write(pipe, &self.outbox[self.sent..]) {
                Ok(bytes) => self.sent += bytes,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                // It reads no more; how it ended is told by the jailer.
                Err(_) => self.request = None,
            }
        }
        (self.outbox, self.sent) = (Vec::new(), 0);
    }

    /// Gives an execution what came since the last one, and asks for it.
    fn begin(&mut self, part: Part) -> Result<(), Fault> {
        self.close_part();
        self.take_what_is_there()?;
        let cap = part.log.output().cap();
        let Between {
            counts,
            results,
            mut shown,
        } = std::mem::take(&mut self.between);
        let counts = counts.map(|count| Count {
            bytes: count.bytes,
            dropped: count.bytes - count.kept().min(cap),
        });
        let came = counts.iter().any(|count| count.bytes > 0) || shown.results > 0 || shown.left_out > 0;
        if came {
            let message = "what follows first was written or shown before this execution began, by threads or processes \
                           of earlier ones";
            part.log.notice(NoticeKind::EarlierOutput, message);
        }
        let files = [0, 1].map(|index| self.outputs[index].as_ref().map(Tap::shared));
        part.log.keep_here(files, counts);
        let kept = counts.map(|count| count.kept());
        for (tap, kept) in self.outputs.iter_mut().zip(kept) {
            if let Some(tap) = tap {
                tap.move_to(tap.shared(), kept, cap);
            }
        }
        let events: Vec<_> = results
            .into_iter()
            .flat_map(|result| show(&part.policy, result))
            .collect();
        if !events.is_empty() {
            part.log.heard(events, None, Mark::default());
        }
        shown.results = 0;
        self.reader.begin();
        self.outbox.extend_from_slice(&part.request);
        let chunks = Chunks::new(part.log.chunks(), kept);
        self.part = Some(Open { part, chunks, shown });
        Ok(())
    }

    /// Ends the execution's part; what comes from here on is not its own.
    fn close_part(&mut self) {
        let Some(mut open) = self.part.take() else { return };
        open.chunks.close_all(Instant::now());
        open.tell();
        let events = left_out(open.shown.left_out);
        if !events.is_empty() {
            open.part.log.heard(events, None, Mark::default());
        }
        open.part.log.seal();
    }

    /// Reads frames, and hears them after the output that was written before.
    fn hear(&mut self) -> Result<bool, Fault> {
        let mut turn = 0;
        while let Some(pipe) = &self.frames
            && turn < TURN
        {
            self.scratch.resize(CALL, 0);
            let bytes = match rustix::io::read(pipe, &mut self.scratch) {
                Ok(0) => {
                    self.frames = None;
                    // Whoever listens may be gone.
                    let _ = self.told.try_send(Told::Closed);
                    return Ok(false);
                }
                Ok(bytes) => bytes,
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => return Ok(false),
                Err(error) => return Err(Fault::of("read")(error)),
            };
            turn += bytes as u64;
            if self.is_broken {
                continue;
            }
            self.reader.add(&self.scratch[..bytes]);
            self.take_what_is_there()?;
            if let Some(open) = &mut self.part {
                open.part.log.output().touch();
                open.chunks.close_all(Instant::now());
                open.tell();
            }
            self.hear_frames()?;
        }
        Ok(self.frames.is_some())
    }

    fn hear_frames(&mut self) -> Result<(), Fault> {
        loop {
            match self.reader.take() {
                Ok(Some(claim)) => self.accept(claim)?,
                Ok(None) => return Ok(()),
                Err(broken) => {
                    self.is_broken = true;
                    self.reader = Reader::default();
                    let _ = self.told.try_send(Told::Broken(broken));
                    return Ok(());
                }
            }
        }
    }

    fn accept(&mut self, claim: Claim) -> Result<(), Fault> {
        // Of one that is over, or that never was: nothing.
        let of_another = |id: &Option<String>, open: &Option<Open>| match (id, open) {
            (None, _) => false,
            (Some(id), Some(open)) => *id != open.part.id,
            (Some(_), None) => true,
        };
        match claim {
            Claim::Ready => drop(self.told.try_send(Told::Ready)),
            Claim::Refused(message) => drop(self.told.try_send(Told::Refused(message))),
            Claim::LeftOut(count) => match &mut self.part {
                Some(open) => open.shown.left_out += count,
                None => self.between.shown.left_out += count,
            },
            Claim::Result(id, _) | Claim::Error(id, _) | Claim::Done(id, _) if of_another(&id, &self.part) => {}
            Claim::Result(_, result) => match &mut self.part {
                Some(open) => {
                    if open.shown.admit(&result) {
                        let events = show(&open.part.policy, result);
                        open.part.log.heard(events, None, Mark::default());
                    }
                }
                None => {
                    if self.between.shown.admit(&result) {
                        self.between.results.push(result);
                    }
                }
            },
            Claim::Error(None, _) | Claim::Done(None, _) => {}
            Claim::Error(Some(_), error) => {
                if let Some(open) = &self.part {
                    open.part.log.heard(Vec::new(), Some(error), Mark::default());
                }
            }
            Claim::Done(Some(_), done) => self.done(done)?,
        }
        Ok(())
    }

    fn done(&mut self, done: DoneClaim) -> Result<(), Fault> {
        self.take_what_is_there()?;
        self.close_part();
        for tap in self.outputs.iter_mut().flatten() {
            tap.move_to(file()?, 0, BETWEEN_MAX);
        }
        let _ = self.told.try_send(Told::Done(done));
        Ok(())
    }

    /// Takes as much as lies in the pipes at this moment.
    fn take_what_is_there(&mut self) -> Result<(), Fault> {
        for stream in Stream::BOTH {
            if let Some(tap) = &self.outputs[stream.index()] {
                let there = ioctl_fionread(tap.pipe()).map_err(Fault::of("ioctl"))?;
                self.take_output(stream, there)?;
            }
        }
        Ok(())
    }

    /// Takes what is in the pipe of a stream, up to so many bytes; whether there may be more.
    fn take_output(&mut self, stream: Stream, most: u64) -> Result<bool, Fault> {
        let mut left = most;
        while left > 0 {
            let Some(tap) = &mut self.outputs[stream.index()] else {
                return Ok(false);
            };
            let taken = tap.take_at_most(usize::try_from(left).unwrap_or(usize::MAX))?;
            self.count(stream, taken.kept, taken.dropped);
            match taken.flow {
                Flow::More => left = left.saturating_sub(taken.kept + taken.dropped),
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

    fn count(&mut self, stream: Stream, kept: u64, dropped: u64) {
        if kept + dropped == 0 {
            return;
        }
        let Some(open) = &mut self.part else {
            let count = &mut self.between.counts[stream.index()];
            count.bytes += kept + dropped;
            count.dropped += dropped;
            return;
        };
        // One that is sealed was ended meanwhile, and its interpreter is about to be.
        if open.part.log.output().took(stream, kept, dropped) {
            let len = usize::try_from(kept).unwrap_or(usize::MAX);
            open.chunks.record(stream, len, Instant::now(), SystemTime::now());
            if dropped > 0 {
                open.part.log.limit_reached();
            }
        }
    }

    fn tell(&mut self) {
        if let Some(open) = &mut self.part {
            open.tell();
        }
    }
}

impl Open {
    fn tell(&mut self) {
        let chunks = self.chunks.take();
        if !chunks.is_empty() {
            self.part.log.output_came(chunks);
        }
    }
}

impl Moves for Mover {
    fn run(&mut self, orders: &Orders) -> Result<bool, Fault> {
        let ran = self.go(orders);
        if let (Err(fault), Some(open)) = (&ran, &self.part) {
            open.part.log.fail(fault.to_string());
        }
        ran
    }
}

fn file() -> Result<Arc<File>, Fault> {
    let file = memfd_create("output", MemfdFlags::CLOEXEC).map_err(Fault::of("memfd_create"))?;
    Ok(Arc::new(file.into()))
}
