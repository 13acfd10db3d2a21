//! The connection to `brigd`.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::epoll::EventFlags;

use super::events::{Events, Source, Token};
use crate::api::{Event, Request};
use crate::step::SysError;
use crate::{sys, wire};

/// Events that wait for a client that does not read; more, and it counts as gone.
const QUEUE_MAX: usize = 8192;

#[derive(Debug)]
pub(super) struct Client {
    socket: OwnedFd,
    receiver: wire::Receiver,
    /// Whether it has said hello; before that it is told nothing.
    pub(super) greeted: bool,
    token: Token,
    waiting: VecDeque<(Event, Vec<OwnedFd>)>,
}

/// The client can't be talked to any more.
#[derive(Debug)]
pub(super) struct Gone;

impl Client {
    pub(super) fn new(socket: OwnedFd, events: &mut Events) -> Result<Self, SysError> {
        rustix::io::ioctl_fionbio(&socket, true)
            .map_err(|error| SysError::new("ioctl(FIONBIO)", error.raw_os_error()))?;
        // Where the kernel is older than 6.16, descriptors that come along are closed by it on receipt.
        let _older_kernel = sys::refuse_descriptors(socket.as_fd());
        let token = events.watch(socket.as_fd(), Source::Client, EventFlags::IN)?;
        Ok(Self {
            socket,
            receiver: wire::Receiver::default(),
            greeted: false,
            token,
            waiting: VecDeque::new(),
        })
    }

    /// Takes one request, if there is one.
    pub(super) fn receive(&mut self) -> Result<Option<Request>, Gone> {
        match self.receiver.receive::<Request>(self.socket.as_fd()) {
            Ok(Some(request)) => Ok(Some(request)),
            Ok(None) => Err(Gone),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => {
                tracing::warn!(%error, "client message refused");
                Err(Gone)
            }
        }
    }

    /// Tells the client something, now or when it reads again.
    pub(super) fn send(&mut self, events: &Events, event: Event, fds: Vec<OwnedFd>) -> Result<(), Gone> {
        if self.waiting.len() >= QUEUE_MAX {
            return Err(Gone);
        }
        self.waiting.push_back((event, fds));
        self.flush(events)
    }

    /// Tells a new client what was held for it, however much that is.
    pub(super) fn send_all(&mut self, events: &Events, all: Vec<(Event, Vec<OwnedFd>)>) -> Result<(), Gone> {
        self.waiting.extend(all);
        self.flush(events)
    }

    /// Sends what waits, as far as the socket takes it.
    pub(super) fn flush(&mut self, events: &Events) -> Result<(), Gone> {
        while let Some((event, fds)) = self.waiting.front() {
            let fds: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
            match wire::send(self.socket.as_fd(), event, &fds) {
                Ok(()) => drop(self.waiting.pop_front()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    events.change(self.socket.as_fd(), self.token, EventFlags::IN | EventFlags::OUT);
                    return Ok(());
                }
                Err(error) => {
                    tracing::warn!(%error, "client can't be told");
                    return Err(Gone);
                }
            }
        }
        events.change(self.socket.as_fd(), self.token, EventFlags::IN);
        Ok(())
    }

    pub(super) fn disconnect(self, events: &mut Events) {
        events.forget(self.socket.as_fd(), self.token);
    }
}
