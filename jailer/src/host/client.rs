//! The connection to `brigd`.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::epoll::EventFlags;

use super::events::{Events, Source, Token};
use crate::api::{Event, Request};
use crate::step::SysError;
use crate::wire;

/// Events that wait for a client that does not read; more, and it counts as gone.
const QUEUE_MAX: usize = 8192;

#[derive(Debug)]
pub(super) struct Client {
    socket: OwnedFd,
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
        let token = events.watch(socket.as_fd(), Source::Client, EventFlags::IN)?;
        Ok(Self {
            socket,
            token,
            waiting: VecDeque::new(),
        })
    }

    /// Takes one request, if there is one.
    pub(super) fn receive(&self) -> Result<Option<Request>, Gone> {
        match wire::receive::<Request>(self.socket.as_fd()) {
            // The protocol gives the jailer no descriptors; should there be some, they are closed here.
            Ok(Some((request, _))) => Ok(Some(request)),
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
