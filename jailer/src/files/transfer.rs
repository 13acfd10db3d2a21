//! Files in and out: bytes are copied, names are only made when all of them are there.
#![forbid(unsafe_code)]

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags, Timespec, Timestamps, UTIME_OMIT};
use rustix::io::Errno;
use sha2::{Digest, Sha256};

use super::connection::{Broken, Connection};
use super::root::{Root, failure, open_in};
use super::tree::info;
use super::wire::{self, Arrived, CHUNK_MAX, Failure, Get, Op, Put, Response, Sum, Time};

/// The start of the names under which files are written before they get their own.
pub(super) const PARTIAL: &[u8] = b".brig-put-";

/// Why a request got no answer of its own.
#[derive(Debug)]
pub(super) enum Trouble {
    /// It failed, which is an answer.
    Failed(Failure),
    /// The connection can't be used any more.
    Broken(Broken),
}

impl From<Failure> for Trouble {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl<E: Into<Broken>> From<E> for Trouble {
    fn from(broken: E) -> Self {
        Self::Broken(broken.into())
    }
}

/// A file that is being written. Dropped before its end it leaves nothing behind, unless it can be gone on with.
#[derive(Debug)]
pub(super) struct Upload<'p> {
    ask: &'p wire::Upload,
    put: &'p Put,
    parent: OwnedFd,
    name: &'p [u8],
    /// The name it has until it is whole; empty when there is nothing to remove.
    partial: Vec<u8>,
    file: OwnedFd,
    left: u64,
    hash: Sha256,
}

impl<'p> Upload<'p> {
    pub(super) fn begin(root: &Root, ask: &'p wire::Upload) -> Result<Self, Failure> {
        let put = &ask.put;
        if put.make_parents {
            root.make_parents(&put.path)?;
        }
        let (parent, name) = root.parent(&put.path)?;
        let mut hash = Sha256::new();
        let opened = open_partial(root, &parent, ask.partial, &mut hash);
        let (file, partial) = opened.map_err(|errno| failure(Op::Create, errno, &put.path))?;
        let arrived = ask.partial.map_or(0, |partial| partial.offset);
        let too_many = || failure(Op::Write, Errno::FBIG, &put.path);
        Ok(Self {
            ask,
            put,
            parent,
            name,
            partial,
            file,
            left: put.size.checked_sub(arrived).ok_or_else(too_many)?,
            hash,
        })
    }

    /// The connection broke: what has arrived stays, if it can be found again.
    pub(super) fn break_off(mut self) {
        if self.ask.partial.is_some() {
            self.partial.clear();
        }
    }

    pub(super) fn write(mut self, bytes: &[u8]) -> Result<Self, Failure> {
        let too_many = || failure(Op::Write, Errno::FBIG, &self.put.path);
        self.left = self.left.checked_sub(bytes.len() as u64).ok_or_else(too_many)?;
        let mut rest = bytes;
        while !rest.is_empty() {
            match rustix::io::write(&self.file, rest) {
                Ok(written) => rest = &rest[written..],
                Err(Errno::INTR) => {}
                Err(errno) => return Err(failure(Op::Write, errno, &self.put.path)),
            }
        }
        self.hash.update(bytes);
        Ok(self)
    }

    pub(super) fn finish(mut self) -> Result<Sum, Failure> {
        if self.ask.exact && self.left > 0 {
            return Err(failure(Op::Write, Errno::CANCELED, &self.put.path));
        }
        let sha256: [u8; 32] = std::mem::take(&mut self.hash).finalize().into();
        if self.ask.sha256.is_some_and(|announced| announced != sha256) {
            return Err(failure(Op::Write, Errno::BADMSG, &self.put.path));
        }
        self.set_attributes()
            .map_err(|errno| failure(Op::Write, errno, &self.put.path))?;
        self.move_into_place()
            .map_err(|errno| failure(Op::Rename, errno, &self.put.path))?;
        Ok(Sum {
            size: self.put.size - self.left,
            sha256,
        })
    }

    fn set_attributes(&self) -> Result<(), Errno> {
        rustix::fs::fchmod(&self.file, Mode::from_raw_mode(self.put.mode & 0o777))?;
        let Some(Time { seconds, nanoseconds }) = self.put.mtime else {
            return Ok(());
        };
        let times = Timestamps {
            last_access: Timespec {
                tv_sec: 0,
                tv_nsec: UTIME_OMIT,
            },
            last_modification: Timespec {
                tv_sec: seconds,
                tv_nsec: nanoseconds.into(),
            },
        };
        rustix::fs::futimens(&self.file, &times)
    }

    fn move_into_place(&mut self) -> Result<(), Errno> {
        let flags = if self.put.overwrite {
            RenameFlags::empty()
        } else {
            RenameFlags::NOREPLACE
        };
        rustix::fs::renameat_with(&self.parent, &*self.partial, &self.parent, self.name, flags)?;
        self.partial.clear();
        // The directory is the guest's: it may have put something else in the place of the partial file.
        let ours = rustix::fs::fstat(&self.file)?;
        let there = rustix::fs::statat(&self.parent, self.name, AtFlags::SYMLINK_NOFOLLOW)?;
        if (there.st_dev, there.st_ino, there.st_nlink) == (ours.st_dev, ours.st_ino, 1) {
            Ok(())
        } else {
            Err(Errno::STALE)
        }
    }
}

impl Drop for Upload<'_> {
    fn drop(&mut self) {
        if !self.partial.is_empty() {
            // A failure leaves a file that the walk ignores and that ends with the session.
            let _ = rustix::fs::unlinkat(&self.parent, &*self.partial, AtFlags::empty());
        }
    }
}

/// Opens the file that takes the bytes, at the end of those that have arrived; they are hashed again.
fn open_partial(
    root: &Root,
    parent: &OwnedFd,
    partial: Option<wire::Partial>,
    hash: &mut Sha256,
) -> Result<(OwnedFd, Vec<u8>), Errno> {
    let name = match partial {
        Some(partial) => name_of_partial(partial.name),
        None => name_of_partial(random()?),
    };
    let offset = partial.map_or(0, |partial| partial.offset);
    if offset == 0 {
        if partial.is_some() {
            let _not_there = rustix::fs::unlinkat(parent, &*name, AtFlags::empty());
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
        let file = open_in(parent.as_fd(), &name, flags, Mode::from_raw_mode(0o600))?;
        return Ok((file, name));
    }
    let (file, _) = root.open_file_in(parent.as_fd(), &name, OFlags::RDWR)?;
    hash_up_to(&file, offset, hash)?;
    rustix::fs::ftruncate(&file, offset)?;
    rustix::fs::seek(&file, rustix::fs::SeekFrom::Start(offset))?;
    Ok((file, name))
}

fn hash_up_to(file: &OwnedFd, end: u64, hash: &mut Sha256) -> Result<(), Errno> {
    let mut bytes = vec![0; CHUNK_MAX];
    let mut at = 0;
    while at < end {
        let wanted = usize::try_from(end - at).unwrap_or(CHUNK_MAX).min(CHUNK_MAX);
        match rustix::io::pread(file, &mut bytes[..wanted], at) {
            Ok(0) => return Err(Errno::RANGE),
            Ok(read) => {
                hash.update(&bytes[..read]);
                at += read as u64;
            }
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Tells how much of an upload that broke off is there.
pub(super) fn arrived(root: &Root, ask: &Arrived) -> Result<Response, Failure> {
    let (parent, _) = match root.parent(&ask.path) {
        Err(failure) if failure.errno == Errno::NOENT.raw_os_error() => return Ok(Response::Arrived { size: 0 }),
        found => found?,
    };
    let size = match root.open_regular_in(parent.as_fd(), &name_of_partial(ask.name)) {
        Ok((_, stat)) => u64::try_from(stat.st_size).unwrap_or(0),
        Err(Errno::NOENT) => 0,
        Err(errno) => return Err(failure(Op::Open, errno, &ask.path)),
    };
    Ok(Response::Arrived { size })
}

/// Sends a file, or a part of it; what it is goes ahead where that was asked for.
pub(super) fn send_file(root: &Root, get: &Get, tell: bool, to: &mut Connection) -> Result<Response, Trouble> {
    let (file, stat) = root.open_regular(&get.path)?;
    if tell {
        to.send(&Response::Info(info(&get.path, &stat)))?;
    }
    let there = u64::try_from(stat.st_size).unwrap_or(0).saturating_sub(get.offset);
    let wanted = get.length.map_or(there, |length| length.min(there));
    if wanted > get.max_bytes {
        return Err(failure(Op::Read, Errno::FBIG, &get.path).into());
    }
    let mut sent = 0;
    let mut bytes = vec![0; CHUNK_MAX];
    while sent < wanted {
        // The file may have shrunk since; it can't make this longer than what was agreed on.
        let chunk = usize::try_from(wanted - sent).unwrap_or(CHUNK_MAX).min(CHUNK_MAX);
        let read = match rustix::io::pread(&file, &mut bytes[..chunk], get.offset + sent) {
            Ok(0) => break,
            Ok(read) => read,
            Err(Errno::INTR) => continue,
            Err(errno) => return Err(failure(Op::Read, errno, &get.path).into()),
        };
        sent += read as u64;
        to.send_data(&bytes[..read])?;
    }
    Ok(Response::End { size: sent })
}

/// A number that the guest can't have guessed.
pub(super) fn random() -> Result<u64, Errno> {
    let mut random = [0_u8; 8];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
    Ok(u64::from_ne_bytes(random))
}

fn name_of_partial(number: u64) -> Vec<u8> {
    [PARTIAL, format!("{number:016x}").as_bytes()].concat()
}
