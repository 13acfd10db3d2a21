//! Messages between Brig's processes: one packet each, with descriptors beside it.
//!
//! A message is postcard bytes on a `SOCK_SEQPACKET` socket, behind one byte that says where the body is: in the
//! packet, or, for bodies that a socket buffer may not hold, in a sealed memfd that travels as the first descriptor.
//! Sizes are capped on receipt, before anything is parsed.
//!
//! The jailer takes no descriptors from `brigd`: the last close of one can take as long as whoever made it wants. Its
//! requests are [`packets`], the long ones in several, put together again by a [`Receiver`].
//!
//! Source: unix(7), memfd_create(2), fcntl(2) `F_ADD_SEALS`.
#![forbid(unsafe_code)]

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The largest body that travels in the packet itself, in bytes.
pub const INLINE_MAX: usize = 60 * 1024;
/// The largest body at all, in bytes: argument lists and plans with filters fit many times.
pub const BODY_MAX: usize = 4 * 1024 * 1024;
/// The most descriptors in one message.
pub const FDS_MAX: usize = 24;

const INLINE: u8 = 0;
const MEMFD: u8 = 1;
/// More of the body follows in the next packet.
const PART: u8 = 2;

/// Puts messages together that come without descriptors, in one packet or several.
#[derive(Debug, Default)]
pub struct Receiver {
    body: Vec<u8>,
}

/// Cuts a message into packets for [`send_bytes`]; all of them must be sent, in order.
pub fn packets<T: Serialize>(message: &T) -> io::Result<Vec<Vec<u8>>> {
    let body = postcard::to_stdvec(message).map_err(io::Error::other)?;
    if body.len() > BODY_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "message too large"));
    }
    let last = body.len().saturating_sub(1) / INLINE_MAX;
    let packet = |(index, part): (usize, &[u8])| {
        let kind = if index == last { INLINE } else { PART };
        [&[kind], part].concat()
    };
    Ok(body.chunks(INLINE_MAX).enumerate().map(packet).collect())
}

/// Sends one of [`packets`]; `WouldBlock` when the socket is non-blocking and full, and then nothing was sent.
pub fn send_bytes(socket: BorrowedFd<'_>, packet: &[u8]) -> io::Result<()> {
    rustix::net::send(socket, packet, SendFlags::NOSIGNAL)?;
    Ok(())
}

impl Receiver {
    /// Receives until a message is whole; `None` when the other end is gone. Descriptors are not taken.
    pub fn receive<T: DeserializeOwned>(&mut self, socket: BorrowedFd<'_>) -> io::Result<Option<T>> {
        let mut packet = vec![0; INLINE_MAX + 1];
        loop {
            let mut again = true;
            let length = loop {
                match rustix::net::recv(socket, &mut packet, RecvFlags::TRUNC) {
                    // As in `receive`.
                    Err(rustix::io::Errno::CONNRESET) if again => again = false,
                    other => break other?.1,
                }
            };
            if length == 0 {
                return Ok(None);
            }
            if length > packet.len() || self.body.len() + length > BODY_MAX {
                return Err(invalid("message larger than the protocol allows"));
            }
            self.body.extend_from_slice(&packet[1..length]);
            match packet[0] {
                PART => {}
                INLINE => {
                    let body = std::mem::take(&mut self.body);
                    let message = postcard::from_bytes(&body).map_err(|error| invalid(&error.to_string()))?;
                    return Ok(Some(message));
                }
                _ => return Err(invalid("message of an unknown kind")),
            }
        }
    }
}

/// Sends one message; `WouldBlock` when the socket is non-blocking and full, and then nothing was sent.
pub fn send<T: Serialize>(socket: BorrowedFd<'_>, message: &T, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let body = postcard::to_stdvec(message).map_err(io::Error::other)?;
    if body.len() > BODY_MAX || fds.len() >= FDS_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "message too large"));
    }
    if body.len() <= INLINE_MAX {
        return send_packet(socket, &[INLINE], &body, fds);
    }
    let memfd = sealed_memfd("brig-message", &body)?;
    let mut all = vec![memfd.as_fd()];
    all.extend_from_slice(fds);
    send_packet(socket, &[MEMFD], &[], &all)
}

/// Receives one message with its descriptors; `None` when the other end is gone.
pub fn receive<T: DeserializeOwned>(socket: BorrowedFd<'_>) -> io::Result<Option<(T, Vec<OwnedFd>)>> {
    let mut packet = vec![0; INLINE_MAX + 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut again = true;
    let received = loop {
        let mut parts = [IoSliceMut::new(&mut packet)];
        match rustix::net::recvmsg(socket, &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
            // The other end closed with messages of ours unread. That is told once, before what it sent last.
            Err(rustix::io::Errno::CONNRESET) if again => again = false,
            other => break other?,
        }
    };
    let mut fds = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    if received.bytes == 0 {
        return Ok(None);
    }
    if received.flags.contains(ReturnFlags::TRUNC) {
        return Err(invalid("message larger than the protocol allows"));
    }
    if received.flags.contains(ReturnFlags::CTRUNC) {
        // This process has no descriptor left. What the message is about fails by itself, and nothing else does.
        fds.clear();
    }
    let body = match packet[0] {
        INLINE => packet[1..received.bytes].to_vec(),
        MEMFD if !fds.is_empty() => read_memfd(fds.remove(0))?,
        _ => return Err(invalid("message of an unknown kind")),
    };
    let message = postcard::from_bytes(&body).map_err(|error| invalid(&error.to_string()))?;
    Ok(Some((message, fds)))
}

/// Makes a memory file with these bytes that nobody can change any more.
pub fn sealed_memfd(name: &str, bytes: &[u8]) -> io::Result<OwnedFd> {
    let memfd = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    let mut rest = bytes;
    while !rest.is_empty() {
        let written = rustix::io::write(&memfd, rest)?;
        rest = &rest[written..];
    }
    let seals = SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE;
    rustix::fs::fcntl_add_seals(&memfd, seals)?;
    Ok(memfd)
}

/// Sends a packet as it is.
pub fn send_packet(socket: BorrowedFd<'_>, head: &[u8], body: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "too many descriptors"));
    }
    let parts = [IoSlice::new(head), IoSlice::new(body)];
    rustix::net::sendmsg(socket, &parts, &mut ancillary, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Reads a memfd of the other side; it must be sealed, so that its size holds while it is read.
fn read_memfd(memfd: OwnedFd) -> io::Result<Vec<u8>> {
    let seals = rustix::fs::fcntl_get_seals(&memfd)?;
    let needed = SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE;
    if !seals.contains(needed) {
        return Err(invalid("message body that is not sealed"));
    }
    let size = usize::try_from(rustix::fs::fstat(&memfd)?.st_size).unwrap_or(usize::MAX);
    if size > BODY_MAX {
        return Err(invalid("message larger than the protocol allows"));
    }
    let mut body = vec![0; size];
    let mut at = 0;
    while at < size {
        match rustix::io::pread(&memfd, &mut body[at..], at as u64)? {
            0 => return Err(invalid("message body cut short")),
            read => at += read,
        }
    }
    Ok(body)
}

fn invalid(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;

    fn pair() -> (OwnedFd, OwnedFd) {
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
    }

    #[test]
    fn small_and_large_messages_arrive_whole_with_their_descriptors() {
        let (a, b) = pair();
        for size in [0, 10, INLINE_MAX - 8, INLINE_MAX, INLINE_MAX * 4] {
            let file = sealed_memfd("beside", b"hello").unwrap();
            let sent = vec![7_u8; size];
            send(a.as_fd(), &sent, &[file.as_fd()]).unwrap();
            let (got, mut fds) = receive::<Vec<u8>>(b.as_fd()).unwrap().unwrap();
            assert_eq!(got, sent);
            assert_eq!(fds.len(), 1);
            let mut text = String::new();
            let mut file = std::fs::File::from(fds.remove(0));
            std::io::Seek::rewind(&mut file).unwrap();
            file.read_to_string(&mut text).unwrap();
            assert_eq!(text, "hello");
        }
    }

    #[test]
    fn messages_without_descriptors_arrive_whole_in_one_packet_or_several() {
        let (a, b) = pair();
        let mut receiver = Receiver::default();
        for size in [0, 1, INLINE_MAX - 8, INLINE_MAX - 3, INLINE_MAX, INLINE_MAX * 2 + 5] {
            let sent = vec![7_u8; size];
            let packets = packets(&sent).unwrap();
            assert_eq!(
                packets.len(),
                postcard::to_stdvec(&sent).unwrap().len().div_ceil(INLINE_MAX)
            );
            for packet in packets {
                send_bytes(a.as_fd(), &packet).unwrap();
            }
            assert_eq!(receiver.receive::<Vec<u8>>(b.as_fd()).unwrap(), Some(sent));
        }
        drop(a);
        assert_eq!(receiver.receive::<Vec<u8>>(b.as_fd()).unwrap(), None);
    }

    #[test]
    fn parts_are_bounded_together() {
        let (a, b) = pair();
        rustix::net::sockopt::set_socket_recv_buffer_size(&b, 1 << 20).unwrap();
        let part = [&[PART][..], &vec![0; INLINE_MAX]].concat();
        let mut receiver = Receiver::default();
        let sender = std::thread::spawn(move || while send_bytes(a.as_fd(), &part).is_ok() {});
        let error = receiver.receive::<Vec<u8>>(b.as_fd()).unwrap_err();
        assert_eq!(error.to_string(), "message larger than the protocol allows");
        drop(b);
        sender.join().unwrap();
    }

    #[test]
    fn oversized_messages_are_refused_by_both_ends() {
        let (a, b) = pair();
        let error = send(a.as_fd(), &vec![0_u8; BODY_MAX + 1], &[]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        rustix::net::send(&a, &vec![0_u8; INLINE_MAX + 2], SendFlags::empty()).unwrap();
        let error = receive::<Vec<u8>>(b.as_fd()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn a_body_that_can_still_change_is_refused() {
        let (a, b) = pair();
        let memfd = rustix::fs::memfd_create("open", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        send_packet(a.as_fd(), &[MEMFD], &[], &[memfd.as_fd()]).unwrap();
        assert_eq!(
            receive::<Vec<u8>>(b.as_fd()).unwrap_err().to_string(),
            "message body that is not sealed"
        );
    }

    #[test]
    fn last_words_are_heard_though_the_other_side_left_messages_unread() {
        let (a, b) = pair();
        send(b.as_fd(), &1_u8, &[]).unwrap();
        send(a.as_fd(), &2_u8, &[]).unwrap();
        drop(a);
        assert!(matches!(receive::<u8>(b.as_fd()), Ok(Some((2, _)))));
        assert!(matches!(receive::<u8>(b.as_fd()), Ok(None)));
    }

    #[test]
    fn the_end_of_the_other_side_is_none() {
        let (a, b) = pair();
        drop(a);
        assert!(receive::<Vec<u8>>(b.as_fd()).unwrap().is_none());
    }
}
