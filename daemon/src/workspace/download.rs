//! Download: bytes leave through the gate. Where only artifacts may, the whole file is stored here and compared first,
//! so that what is handed out is what was looked at.

use std::sync::Arc;

use brig_jailer::files::wire::{self, Get, Info};
use brig_proto::Bytes;
use brig_proto::v1::files_download_response::Part;
use brig_proto::v1::{ContentDigest, FilesDownloadRequest, FilesDownloadResponse};
use sha2::{Digest, Sha256};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;
use tonic::codegen::BoxStream;

use super::paths::{self, Target};
use super::{MESSAGES, PATIENCE, begin, out_of_step, problem, show};
use crate::artifacts::{Review, Stored};
use crate::files::{Channel, Part as FilePart};
use crate::host::Host;
use crate::run::gate::{self, Shut, Way};
use crate::run::inputs::hex;
use crate::run::kept::{FileUse, Session};
use crate::status::Problem;

type Sender = mpsc::Sender<Result<FilesDownloadResponse, Status>>;

/// Where the bytes come from.
#[derive(Debug)]
enum Source {
    /// From the helper, as they are sent.
    Helper(Channel),
    /// From a part of what was stored.
    Stored(Stored, std::ops::Range<u64>),
}

/// A download that has begun.
#[derive(Debug)]
struct Transfer {
    used: FileUse,
    target: Target,
    source: Source,
    hash: Sha256,
    sent: u64,
}

/// Begins a download: what is refused is refused here.
pub(super) async fn download(
    host: &Host,
    session: &Arc<Session>,
    asked: FilesDownloadRequest,
) -> Result<BoxStream<FilesDownloadResponse>, Problem> {
    let target = paths::one("path", &asked.path, &asked.raw_path, false)?;
    let may_leave = |review| {
        let shut = |shut: Shut| shut.problem(target.asked.escape_ascii().to_string());
        gate::may_leave(session.policy.files.download, Way::File(review)).map_err(shut)
    };
    // Where the best review would not let it out, nothing has to be looked at.
    may_leave(Some(Review::NotNeeded))?;
    let (used, mut channel) = begin(session, &target).await?;
    let checked = may_leave(None).is_err();
    let get = Get {
        path: target.path.clone(),
        offset: if checked { 0 } else { asked.offset },
        length: if checked { None } else { asked.length },
        max_bytes: if checked {
            session.artifacts.bytes_each
        } else {
            u64::MAX
        },
    };
    let max_bytes = get.max_bytes;
    let info = ask(session, &mut channel, &target, get).await?;
    if info.size > max_bytes {
        may_leave(None)?;
    }
    if asked.offset > info.size {
        return Err(Problem::OutOfRange {
            field: "offset",
            asked: asked.offset,
            there: info.size,
        });
    }
    let source = if checked {
        let stored = store(host, session, &mut channel, &target, max_bytes).await?;
        may_leave(review(host, session, &target, stored.sha256()).await?)?;
        let left = stored.size().saturating_sub(asked.offset);
        let end = asked.offset + asked.length.map_or(left, |length| length.min(left));
        Source::Stored(stored, asked.offset..end)
    } else {
        Source::Helper(channel)
    };
    let (sender, receiver) = mpsc::channel(MESSAGES);
    let transfer = Transfer {
        used,
        source,
        hash: Sha256::new(),
        sent: 0,
        target,
    };
    tokio::spawn(transfer.run(info, sender));
    Ok(Box::pin(ReceiverStream::new(receiver)))
}

/// The review of the artifact that is this file, if one is.
async fn review(host: &Host, session: &Session, target: &Target, sha256: [u8; 32]) -> Result<Option<Review>, Problem> {
    match target.place {
        wire::Place::Home => Ok(host.artifacts.review_of(&session.id, &target.path, sha256).await?),
        _ => Ok(None),
    }
}

async fn ask(session: &Session, channel: &mut Channel, target: &Target, get: Get) -> Result<Info, Problem> {
    match channel.ask(wire::Request::Read(get)).await {
        Ok(wire::Response::Info(info)) => Ok(info),
        Ok(_) => Err(out_of_step(session, target, "path")),
        Err(error) => Err(problem(session, target, "path", error)),
    }
}

/// Stores a whole file.
async fn store(
    host: &Host,
    session: &Session,
    channel: &mut Channel,
    target: &Target,
    max_bytes: u64,
) -> Result<Stored, Problem> {
    let mut file = host.spool.create(max_bytes).await?;
    loop {
        match channel.receive_part().await {
            Ok(FilePart::Data(bytes)) => file.write(bytes).await?,
            Ok(FilePart::Other(wire::Response::End { .. })) => return Ok(file.finish()?),
            Ok(_) => return Err(out_of_step(session, target, "path")),
            Err(error) => return Err(problem(session, target, "path", error)),
        }
    }
}

impl Transfer {
    /// Sends everything, at the pace of the client, unless the session ends.
    async fn run(mut self, info: Info, to: Sender) {
        let session = Arc::clone(self.used.session());
        let end = tokio::select! {
            end = self.send(&info, &to) => end,
            _reason = session.told_to_end() => Err(session.closed_problem()),
        };
        if let Err(problem) = end {
            // Nobody may be there to hear it.
            let _ = tokio::time::timeout(PATIENCE, to.send(Err(problem.into()))).await;
        }
    }

    async fn send(&mut self, info: &Info, to: &Sender) -> Result<(), Problem> {
        let file = show::info(&self.target.asked, info);
        pass(to, Part::File(file)).await?;
        while let Some(bytes) = self.next().await? {
            self.hash.update(&bytes);
            self.sent += bytes.len() as u64;
            pass(to, Part::Data(bytes)).await?;
        }
        let digest = ContentDigest {
            size_bytes: self.sent,
            sha256: hex(&std::mem::take(&mut self.hash).finalize()),
        };
        pass(to, Part::Digest(digest)).await
    }

    async fn next(&mut self) -> Result<Option<Bytes>, Problem> {
        match &mut self.source {
            Source::Stored(_, left) if left.is_empty() => Ok(None),
            Source::Stored(stored, left) => {
                let mut bytes = stored.read(left.start).await?;
                bytes.truncate(usize::try_from(left.end - left.start).unwrap_or(usize::MAX));
                left.start += bytes.len() as u64;
                Ok(Some(bytes.into()))
            }
            Source::Helper(channel) => match channel.receive_part().await {
                Ok(FilePart::Data(bytes)) => Ok(Some(bytes)),
                Ok(FilePart::Other(wire::Response::End { .. })) => Ok(None),
                Ok(_) => Err(out_of_step(self.used.session(), &self.target, "path")),
                Err(error) => Err(problem(self.used.session(), &self.target, "path", error)),
            },
        }
    }
}

async fn pass(to: &Sender, part: Part) -> Result<(), Problem> {
    let message = FilesDownloadResponse { part: Some(part) };
    match tokio::time::timeout(PATIENCE, to.send(Ok(message))).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(_)) => Err(Problem::CallerGone),
        Err(_) => Err(Problem::Stream("nothing was read for 60 s".to_owned())),
    }
}
