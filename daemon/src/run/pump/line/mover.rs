//! What the thread of a context does.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use brig_proto::v1::NoticeKind;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, OFlags, fcntl_getfl, fcntl_setfl, memfd_create};
use rustix::io::{Errno, ioctl_fionread};
use tokio::sync::mpsc;

use super::frames::Frames;
use super::{Desk, Order, Part, Store, TOLD, Told};
use crate::kernel::context::Claim;
use crate::kernel::{DoneClaim, Mark, RESULT_BYTES_MAX, RESULTS_MAX, RichResult};
use crate::output::{Chunks, Count, Stream};
use crate::run::listen::{left_out, show};
use crate::run::pump::tap::{Flow, Tap};
use crate::run::pump::thread::{Moves, Orders};
use crate::run::pump::{Fault, TURN};
use crate::run::watch::Pipes;

/// How much of each stream is kept of what comes between executions, in bytes.
const BETWEEN_MAX: u64 = 256 * 1024;

/// What the thread owns.
#[derive(Debug)]
pub(in crate::run::pump) struct Mover {
    outputs: [Option<Tap>; 2],
    frames: Option<Frames>,
    store: Store,
    request: Option<OwnedFd>,
    /// Bytes for the request pipe, from `sent` on.
    outbox: Vec<u8>,
    sent: usize,
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

/// What was shown since the last execution.
#[derive(Debug, Default)]
struct Between {
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
    pub(in crate::run::pump) fn new(
        pipes: Pipes,
        store: Store,
    ) -> Result<(Self, Arc<Desk>, mpsc::Receiver<Told>), Fault> {
        if let Some(pipe) = &pipes.request {
            let flags = fcntl_getfl(pipe).map_err(Fault::of("fcntl"))?;
            fcntl_setfl(pipe, flags | OFlags::NONBLOCK).map_err(Fault::of("fcntl"))?;
        }
        let counts = store.counts().map_err(Fault::file)?;
        let tap = |pipe: Option<OwnedFd>, stream: Stream| {
            let tapped = pipe.zip(store.output(stream));
            let kept = counts[stream.index()].kept();
            tapped
                .map(|(pipe, file)| Tap::new(pipe, file, kept, BETWEEN_MAX))
                .transpose()
        };
        let outputs = [tap(pipes.stdout, Stream::Stdout)?, tap(pipes.stderr, Stream::Stderr)?];
        let frames = pipes.frames.map(|pipe| Frames::new(pipe, store.frames())).transpose()?;
        let desk = Arc::new(Desk::default());
        let (told, inbox) = mpsc::channel(TOLD);
        let mover = Self {
            outputs,
            frames,
            store,
            request: pipes.request,
            outbox: Vec::new(),
            sent: 0,
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
        // What an earlier brigd left in the file.
        self.hear_frames()?;
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
        let reads = taps.chain(self.frames.iter().map(Frames::pipe));
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
        let Between { results, mut shown } = std::mem::take(&mut self.between);
        let counts = self.store.counts().map_err(Fault::file)?.map(|count| Count {
            bytes: count.bytes,
            dropped: count.bytes - count.kept().min(cap),
        });
        let came = counts.iter().any(|count| count.bytes > 0) || shown.results > 0 || shown.left_out > 0;
        if came {
            let message = "what follows first was written or shown before this execution began, by threads or processes \
                           of earlier ones";
            part.log.notice(NoticeKind::EarlierOutput, message);
        }
        let mut files = [None, None];
        for stream in Stream::BOTH {
            let file = file()?;
            self.store.give(stream, cap, &file).map_err(Fault::file)?;
            if let Some(tap) = &mut self.outputs[stream.index()] {
                tap.move_to(Arc::clone(&file), counts[stream.index()].kept(), cap);
            }
            files[stream.index()] = Some(file);
        }
        part.log.keep_here(files, counts);
        let events: Vec<_> = results
            .into_iter()
            .flat_map(|result| show(&part.policy, result))
            .collect();
        if !events.is_empty() {
            part.log.heard(events, None, Mark::default());
        }
        shown.results = 0;
        if let Some(frames) = &mut self.frames {
            frames.begin();
            frames.settle()?;
        }
        self.outbox.extend_from_slice(&part.request);
        let chunks = Chunks::new(part.log.chunks(), counts.map(|count| count.kept()));
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

    /// Takes frames, and hears them after the output that was written before.
    fn hear(&mut self) -> Result<bool, Fault> {
        let mut turn = 0;
        while let Some(frames) = &mut self.frames
            && turn < TURN
        {
            let taken = frames.take()?;
            if taken.kept > 0 {
                self.take_what_is_there()?;
                if let Some(open) = &mut self.part {
                    open.part.log.output().touch();
                    open.chunks.close_all(Instant::now());
                    open.tell();
                }
                self.hear_frames()?;
            }
            match taken.flow {
                Flow::More => turn += taken.kept + taken.dropped,
                Flow::Empty => return Ok(false),
                Flow::End => {
                    self.frames = None;
                    // Whoever listens may be gone.
                    let _ = self.told.try_send(Told::Closed);
                }
            }
        }
        Ok(self.frames.is_some())
    }

    fn hear_frames(&mut self) -> Result<(), Fault> {
        while let Some(frames) = &mut self.frames {
            match frames.next() {
                Ok(Some(claim)) => self.accept(claim)?,
                // Of what came between two executions the next one has not been told.
                Ok(None) if self.part.is_none() => return frames.settle_if_much(),
                Ok(None) => return frames.settle(),
                Err(broken) => drop(self.told.try_send(Told::Broken(broken))),
            }
        }
        Ok(())
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
        for stream in Stream::BOTH {
            if let (Some(tap), Some(file)) = (&mut self.outputs[stream.index()], self.store.output(stream)) {
                tap.move_to(file, 0, BETWEEN_MAX);
            }
        }
        if let Some(frames) = &mut self.frames {
            frames.settle()?;
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
            self.count(stream, taken.kept, taken.dropped)?;
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

    fn count(&mut self, stream: Stream, kept: u64, dropped: u64) -> Result<(), Fault> {
        let Some(open) = &mut self.part else {
            if dropped == 0 {
                return Ok(());
            }
            return self.store.dropped(stream, dropped).map_err(Fault::file);
        };
        if kept + dropped == 0 {
            return Ok(());
        }
        // One that is sealed was ended meanwhile, and its interpreter is about to be.
        if open.part.log.output().took(stream, kept, dropped) {
            let len = usize::try_from(kept).unwrap_or(usize::MAX);
            open.chunks.record(stream, len, Instant::now(), SystemTime::now());
            if dropped > 0 {
                open.part.log.limit_reached();
            }
        }
        Ok(())
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
