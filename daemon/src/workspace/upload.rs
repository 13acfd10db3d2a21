//! Upload: bytes go from the client to the helper as they come, and nothing of them is kept here.

use std::sync::Arc;

use brig_jailer::files::wire::{self, Arrived, Partial, Put};
use brig_proto::sizes::FILE_CHUNK_MAX;
use brig_proto::v1::files_upload_request::Part;
use brig_proto::v1::{FileInfo, FilesUploadRequest, Reason, UploadSpec};
use prost::Message;
use sha2::{Digest, Sha256};
use tokio_stream::{Stream, StreamExt};
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::paths::{self, Target};
use super::{PATIENCE, begin, lost, out_of_step, problem, show, stat, turn};
use crate::files::Channel;
use crate::run::fields::Fields;
use crate::run::inputs::hex;
use crate::run::kept::Session;
use crate::run::kept::files::Answer;
use crate::status::Problem;

/// A checked request.
#[derive(Debug)]
struct Asked {
    target: Target,
    put: Put,
    exact: bool,
    sha256: Option<[u8; 32]>,
    offset: u64,
}

/// Takes the first message, which has the spec.
pub(super) async fn first_message(
    stream: &mut (impl Stream<Item = Result<FilesUploadRequest, Status>> + Unpin),
) -> Result<UploadSpec, Problem> {
    match next(stream).await? {
        Some(Part::Spec(spec)) => Ok(spec),
        _ => Err(Problem::Stream("spec: comes first".to_owned())),
    }
}

/// Writes a file, or gives the answer that the same request got before.
pub(super) async fn upload(
    session: &Arc<Session>,
    spec: UploadSpec,
    stream: &mut (impl Stream<Item = Result<FilesUploadRequest, Status>> + Unpin),
) -> Result<FileInfo, Problem> {
    let mut fields = Fields::default();
    let id = fields.id("request_id", &spec.request_id);
    let asked = check(session, &spec, &mut fields);
    if asked.as_ref().is_some_and(|asked| asked.offset > 0) && spec.request_id.is_empty() {
        let message = "must be that of the first try, since resume_offset is given";
        fields.wrong("request_id", Reason::MissingValue, message);
    }
    fields.done()?;
    let asked = asked.ok_or_else(lost)?;
    let Some(id) = id else {
        return transfer(session, &asked, None, &CancellationToken::new(), stream).await;
    };
    // Another try of the same upload may start elsewhere.
    let first = UploadSpec {
        resume_offset: None,
        ..spec
    };
    match turn(session, &id, Sha256::digest(first.encode_to_vec()).into(), true).await? {
        Ok((turn, partial)) => {
            let replaced = turn.replaced.clone();
            let file = transfer(session, &asked, Some(partial), &replaced, stream).await?;
            turn.done(&Answer {
                file: Some(file.clone()),
                removed: 0,
            });
            Ok(file)
        }
        Err(answer) => answer.file.ok_or_else(lost),
    }
}

fn check(session: &Session, spec: &UploadSpec, fields: &mut Fields) -> Option<Asked> {
    let target = fields.keep(paths::target("path", &spec.path, &spec.raw_path, false));
    let mode = paths::mode(spec.mode.unwrap_or(0o644), fields);
    let sha256 = fields.sha256("sha256", &spec.sha256);
    let mtime = spec.modify_time.map(show::time);
    if mtime == Some(None) {
        fields.wrong("modify_time", Reason::InvalidValue, "is no time");
    }
    let most = session.policy.limits.upload_bytes.bytes();
    if let Some(size) = spec.size_bytes.filter(|size| *size > most) {
        let message = format!("{size} is above {most}, the policy's upload_bytes");
        fields.wrong("size_bytes", Reason::TooLarge, message);
    }
    let target = target?;
    let put = Put {
        path: target.path.clone(),
        size: spec.size_bytes.unwrap_or(most),
        mode,
        mtime: mtime.flatten(),
        make_parents: spec.make_parents,
        overwrite: spec.overwrite,
    };
    Some(Asked {
        target,
        put,
        exact: spec.size_bytes.is_some(),
        sha256,
        offset: spec.resume_offset.unwrap_or(0),
    })
}

async fn transfer(
    session: &Arc<Session>,
    asked: &Asked,
    partial: Option<u64>,
    replaced: &CancellationToken,
    stream: &mut (impl Stream<Item = Result<FilesUploadRequest, Status>> + Unpin),
) -> Result<FileInfo, Problem> {
    let target = &asked.target;
    let (_used, mut channel) = begin(session, target).await?;
    if let Some(name) = partial.filter(|_| asked.offset > 0) {
        check_offset(session, asked, name, &mut channel).await?;
    }
    let request = wire::Request::Upload(wire::Upload {
        put: asked.put.clone(),
        exact: asked.exact,
        sha256: asked.sha256,
        partial: partial.map(|name| Partial {
            name,
            offset: asked.offset,
        }),
    });
    let failed = |error| problem(session, target, "path", error);
    channel.send(request).await.map_err(failed)?;
    let sent = tokio::select! {
        sent = pass_on(session, asked, stream, &mut channel) => sent,
        () = replaced.cancelled() => Err(Problem::Replaced),
        _reason = session.told_to_end() => Err(session.closed_problem()),
    };
    if let Err(problem) = sent {
        channel.close().await;
        return Err(problem);
    }
    channel.send(wire::Request::End).await.map_err(failed)?;
    match channel.receive().await.map_err(failed)? {
        wire::Response::Stored(sum) => {
            let file = stat(session, &mut channel, target, false).await?;
            Ok(FileInfo {
                sha256: hex(&sum.sha256),
                ..file
            })
        }
        _ => Err(out_of_step(session, target, "path")),
    }
}

/// Passes the content on; a client that stops without an end breaks the upload off.
async fn pass_on(
    session: &Session,
    asked: &Asked,
    stream: &mut (impl Stream<Item = Result<FilesUploadRequest, Status>> + Unpin),
    channel: &mut Channel,
) -> Result<(), Problem> {
    let mut left = asked.put.size.saturating_sub(asked.offset);
    loop {
        let data = match next(stream).await? {
            None => return Ok(()),
            Some(Part::Data(data)) => data,
            Some(Part::Spec(_)) => return Err(Problem::Stream("spec: comes once, and first".to_owned())),
        };
        if data.len() > FILE_CHUNK_MAX {
            return Err(Problem::Stream("data: has more than 256 KiB".to_owned()));
        }
        left = left.checked_sub(data.len() as u64).ok_or_else(|| {
            let failure = paths::failure(&asked.target, rustix::io::Errno::FBIG);
            Problem::File { field: "data", failure }
        })?;
        let sent = channel.send_data(data).await;
        sent.map_err(|error| problem(session, &asked.target, "path", error))?;
    }
}

async fn next(
    stream: &mut (impl Stream<Item = Result<FilesUploadRequest, Status>> + Unpin),
) -> Result<Option<Part>, Problem> {
    let next = tokio::time::timeout(PATIENCE, stream.next()).await;
    let next = next.map_err(|_elapsed| Problem::Stream("nothing came for 60 s".to_owned()))?;
    match next {
        None => Ok(None),
        Some(Ok(FilesUploadRequest { part: Some(part) })) => Ok(Some(part)),
        Some(Ok(_)) => Err(Problem::Stream("a message has neither spec nor data".to_owned())),
        Some(Err(status)) => Err(Problem::Stream(status.message().to_owned())),
    }
}

async fn check_offset(session: &Session, asked: &Asked, name: u64, channel: &mut Channel) -> Result<(), Problem> {
    let path = asked.target.path.clone();
    match channel.ask(wire::Request::Arrived(Arrived { path, name })).await {
        Ok(wire::Response::Arrived { size }) if asked.offset <= size => Ok(()),
        Ok(wire::Response::Arrived { size }) => Err(Problem::OutOfRange {
            field: "resume_offset",
            asked: asked.offset,
            there: size,
        }),
        Ok(_) => Err(out_of_step(session, &asked.target, "path")),
        Err(error) => Err(problem(session, &asked.target, "path", error)),
    }
}
