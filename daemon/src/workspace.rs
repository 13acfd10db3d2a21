//! The service Files: the files of kept sessions, all of it done by the file helper inside the jail.
//!
//! Each call has a conversation of its own with the helper. What changes something and has a request_id is done once;
//! bytes leave through the gate only ([`crate::run::gate`]).

mod download;
mod paths;
mod show;
mod upload;
mod watch;

use std::sync::Arc;
use std::time::Duration;

use brig_jailer::files::wire::{self, MakeDir, Move, Remove, Stat};
use brig_jailer::ids::Id;
use brig_proto::sizes::{PAGE_DEFAULT, PAGE_MAX};
use brig_proto::v1;
use brig_proto::v1::Reason;
use brig_proto::v1::files_server::Files;
use prost::Message;
use sha2::{Digest, Sha256};
use tokio::time::{Instant, timeout};
use tonic::codegen::BoxStream;
use tonic::{Request, Response, Status, Streaming};

use crate::calls::{note_refusal, with_role};
use crate::config::Role;
use crate::files::{Channel, FilesError};
use crate::host::Host;
use crate::pages;
use crate::run::fields::Fields;
use crate::run::kept::files::{self, Answer, Begun, Turn};
use crate::run::kept::{FileUse, Session};
use crate::status::Problem;

use paths::Target;

/// How long a conversation with the helper may take to begin.
const BEGIN: Duration = Duration::from_secs(15);
/// How long the helper may read one file for its digest, or walk, in milliseconds.
const LOOK_MS: u32 = 20_000;
/// How long one step of a removal takes, in milliseconds, and all of them.
const REMOVE_MS: u32 = 1_000;
const REMOVE: Duration = Duration::from_secs(60);
/// How long the call that was given up for this one may take to end.
const REPLACED: Duration = Duration::from_secs(10);
/// How long a client may think between two messages.
const PATIENCE: Duration = Duration::from_secs(60);
/// Messages on their way to one client.
const MESSAGES: usize = 4;

/// Serves Files.
#[derive(Debug, Clone)]
pub struct FilesService(pub Arc<Host>);

#[tonic::async_trait]
impl Files for FilesService {
    type DownloadStream = BoxStream<v1::FilesDownloadResponse>;
    type WatchStream = BoxStream<v1::FilesWatchResponse>;

    async fn upload(
        &self,
        request: Request<Streaming<v1::FilesUploadRequest>>,
    ) -> Result<Response<v1::FilesUploadResponse>, Status> {
        let principal = with_role(&request, Role::Runner)?;
        let mut stream = request.into_inner();
        let spec = upload::first_message(&mut stream).await?;
        let session = self.0.registry.session(&principal, &spec.session_id)?;
        // A task of its own sees to its end, also when the caller goes away.
        let task = tokio::spawn(async move { upload::upload(&session, spec, &mut stream).await });
        let file = task.await.map_err(|error| internal(&error.to_string()))??;
        Ok(Response::new(v1::FilesUploadResponse { file: Some(file) }))
    }

    async fn download(
        &self,
        request: Request<v1::FilesDownloadRequest>,
    ) -> Result<Response<Self::DownloadStream>, Status> {
        let principal = with_role(&request, Role::Runner)?;
        let asked = request.into_inner();
        let session = self.0.registry.session(&principal, &asked.session_id)?;
        let begun = download::download(&self.0, &session, asked).await;
        let begun = begun.inspect_err(|problem| {
            if matches!(
                problem,
                Problem::DownloadForbidden(_) | Problem::ReviewRequired(_) | Problem::ReviewRefused(_)
            ) {
                note_refusal(&self.0.ledger, problem, &principal);
            }
        });
        Ok(Response::new(begun?))
    }

    async fn stat(&self, request: Request<v1::FilesStatRequest>) -> Result<Response<v1::FilesStatResponse>, Status> {
        let principal = with_role(&request, Role::Runner)?;
        let asked = request.into_inner();
        let session = self.0.registry.session(&principal, &asked.session_id)?;
        let target = paths::one("path", &asked.path, &asked.raw_path, true)?;
        let (_used, mut channel) = begin(&session, &target).await?;
        let file = stat(&session, &mut channel, &target, asked.want_sha256).await?;
        Ok(Response::new(v1::FilesStatResponse { file: Some(file) }))
    }

    async fn list(&self, request: Request<v1::FilesListRequest>) -> Result<Response<v1::FilesListResponse>, Status> {
        let principal = with_role(&request, Role::Runner)?;
        let asked = request.into_inner();
        let session = self.0.registry.session(&principal, &asked.session_id)?;
        Ok(Response::new(list(&session, &asked).await?))
    }

    async fn make_dir(
        &self,
        request: Request<v1::FilesMakeDirRequest>,
    ) -> Result<Response<v1::FilesMakeDirResponse>, Status> {
        let principal = with_role(&request, Role::Runner)?;
        let asked = request.into_inner();
        let session = self.0.registry.session(&principal, &asked.session_id)?;
        let mut fields = Fields::default();
        let id = fields.id("request_id", &asked.request_id);
        let target = fields.keep(paths::target("path", &asked.path, &asked.raw_path, false));
        let mode = paths::mode(asked.mode.unwrap_or(0o755), &mut fields);
        fields.done()?;
        let target = target.ok_or_else(lost)?;
        let digest = Sha256::digest(asked.encode_to_vec()).into();
        let answer = once(&session, id, digest, async || {
            let (_used, mut channel) = begin(&session, &target).await?;
            let make = wire::Request::MakeDir(MakeDir {
                path: target.path.clone(),
                mode,
                make_parents: asked.make_parents,
            });
            let file = one(&session, &mut channel, make, &target, "path").await?;
            Ok(Answer {
                file: Some(file),
                removed: 0,
            })
        })
        .await?;
        Ok(Response::new(v1::FilesMakeDirResponse { file: answer.file }))
    }

    async fn r#move(&self, request: Request<v1::FilesMoveRequest>) -> Result<Response<v1::FilesMoveResponse>, Status> {
        let principal = with_role(&request, Role::Runner)?;
        let asked = request.into_inner();
        let session = self.0.registry.session(&principal, &asked.session_id)?;
        let mut fields = Fields::default();
        let id = fields.id("request_id", &asked.request_id);
        let from = fields.keep(paths::target("source", &asked.source, &asked.raw_source, false));
        let to = fields.keep(paths::target(
            "destination",
            &asked.destination,
            &asked.raw_destination,
            false,
        ));
        if let (Some(from), Some(to)) = (&from, &to)
            && from.place != to.place
        {
            let message = "nothing is moved between /home/user and /tmp, which are two file systems for programs too";
            fields.wrong("destination", Reason::InvalidPath, message);
        }
        fields.done()?;
        let (from, to) = (from.ok_or_else(lost)?, to.ok_or_else(lost)?);
        let digest = Sha256::digest(asked.encode_to_vec()).into();
        let answer = once(&session, id, digest, async || {
            let (_used, mut channel) = begin(&session, &to).await?;
            let rename = wire::Request::Move(Move {
                from: from.path.clone(),
                to: to.path.clone(),
                make_parents: asked.make_parents,
                overwrite: asked.overwrite,
            });
            let file = match one(&session, &mut channel, rename, &to, "destination").await {
                Err(Problem::File { failure, .. }) if failure.path == from.placed(&from.path) => Err(Problem::File {
                    field: "source",
                    failure,
                }),
                moved => moved,
            };
            Ok(Answer {
                file: Some(file?),
                removed: 0,
            })
        })
        .await?;
        Ok(Response::new(v1::FilesMoveResponse { file: answer.file }))
    }

    async fn remove(
        &self,
        request: Request<v1::FilesRemoveRequest>,
    ) -> Result<Response<v1::FilesRemoveResponse>, Status> {
        let principal = with_role(&request, Role::Runner)?;
        let asked = request.into_inner();
        let session = self.0.registry.session(&principal, &asked.session_id)?;
        let mut fields = Fields::default();
        let id = fields.id("request_id", &asked.request_id);
        let target = fields.keep(paths::target("path", &asked.path, &asked.raw_path, false));
        fields.done()?;
        let target = target.ok_or_else(lost)?;
        let digest = Sha256::digest(asked.encode_to_vec()).into();
        let answer = once(&session, id, digest, async || {
            let removed = remove(&session, &target, &asked).await?;
            Ok(Answer { file: None, removed })
        })
        .await?;
        Ok(Response::new(v1::FilesRemoveResponse {
            removed: answer.removed,
        }))
    }

    async fn watch(&self, request: Request<v1::FilesWatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let principal = with_role(&request, Role::Runner)?;
        let asked = request.into_inner();
        let session = self.0.registry.session(&principal, &asked.session_id)?;
        Ok(Response::new(watch::watch(&session, &asked).await?))
    }
}

/// Does what a request asks for, or gives the answer that it got before.
async fn once(
    session: &Arc<Session>,
    id: Option<Id>,
    digest: [u8; 32],
    work: impl AsyncFnOnce() -> Result<Answer, Problem>,
) -> Result<Answer, Problem> {
    let Some(id) = id else { return work().await };
    match turn(session, &id, digest, false).await? {
        Ok((turn, _)) => {
            let answer = work().await?;
            turn.done(&answer);
            Ok(answer)
        }
        Err(answer) => Ok(answer),
    }
}

/// Waits for the turn of a request; gives the answer in its place if there is one.
async fn turn(
    session: &Arc<Session>,
    id: &Id,
    digest: [u8; 32],
    replaces: bool,
) -> Result<Result<(Turn, u64), Answer>, Problem> {
    let deadline = Instant::now() + REPLACED;
    loop {
        let number = u64::from_ne_bytes(random());
        let (replaced, mut over) = match files::begin(session, id, digest, number)? {
            Begun::New(turn, partial) => return Ok(Ok((turn, partial))),
            Begun::Done(answer) => return Ok(Err(answer)),
            Begun::Running(replaced, over) => (replaced, over),
        };
        if replaces {
            replaced.cancel();
        }
        let waited = tokio::time::timeout_at(deadline, over.changed()).await;
        if waited.is_err() {
            let what = "calls of this request_id go on already";
            return Err(Problem::FileQuota(session.id.to_string(), 1, what));
        }
    }
}

fn random() -> [u8; 8] {
    let mut random = [0; 8];
    // It never blocks once the host is up, and a read of 8 bytes is never cut.
    let _all = rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty());
    random
}

/// Begins a conversation about a path.
async fn begin(session: &Arc<Session>, target: &Target) -> Result<(FileUse, Channel), Problem> {
    let used = session.enter_files()?;
    let channel = open(session, target).await?;
    Ok((used, channel))
}

async fn open(session: &Session, target: &Target) -> Result<Channel, Problem> {
    let opened = timeout(BEGIN, session.helper.open(target.place)).await;
    opened
        .unwrap_or(Err(FilesError::Silent))
        .map_err(|error| problem(session, target, "path", error))
}

/// Asks for one thing about one path.
async fn one(
    session: &Session,
    channel: &mut Channel,
    request: wire::Request,
    target: &Target,
    field: &'static str,
) -> Result<v1::FileInfo, Problem> {
    match channel.ask(request).await {
        Ok(wire::Response::Info(info)) => Ok(show::info(&target.shown(&info.path), &info)),
        Ok(_) => Err(out_of_step(session, target, field)),
        Err(error) => Err(problem(session, target, field, error)),
    }
}

async fn stat(
    session: &Session,
    channel: &mut Channel,
    target: &Target,
    sha256: bool,
) -> Result<v1::FileInfo, Problem> {
    let stat = wire::Request::Stat(Stat {
        path: target.path.clone(),
        sha256,
        time_ms: LOOK_MS,
    });
    one(session, channel, stat, target, "path").await
}

async fn list(session: &Arc<Session>, asked: &v1::FilesListRequest) -> Result<v1::FilesListResponse, Problem> {
    let mut fields = Fields::default();
    let target = fields.keep(paths::directory("path", &asked.path, &asked.raw_path));
    let after = fields.keep(paths::after(&asked.page_token));
    if asked.depth > 32 {
        let message = format!("{} is above 32", asked.depth);
        fields.wrong("depth", Reason::InvalidValue, message);
    }
    fields.done()?;
    let (target, after) = (target.ok_or_else(lost)?, after.ok_or_else(lost)?);
    let (_used, mut channel) = begin(session, &target).await?;
    let size = match asked.page_size {
        0 => PAGE_DEFAULT,
        size => size.min(PAGE_MAX),
    };
    let request = wire::Request::List(wire::List {
        path: target.path.clone(),
        depth: asked.depth.max(1),
        after,
        max: size,
        time_ms: LOOK_MS,
    });
    let failed = |error| problem(session, &target, "path", error);
    channel.send(request).await.map_err(failed)?;
    let mut page = v1::FilesListResponse::default();
    let (mut bytes, mut last) = (0, Vec::new());
    loop {
        match channel.receive().await.map_err(failed)? {
            wire::Response::Info(info) if page.files.len() < usize::try_from(size).unwrap_or(0) => {
                let file = show::info(&target.below(&info.path), &info);
                bytes += file.encoded_len() + 8;
                if bytes > pages::BYTES {
                    page.next_page_token = crate::run::inputs::hex(&last);
                    return Ok(page);
                }
                last = info.path;
                page.files.push(file);
            }
            wire::Response::Listed { more } => {
                if more && !last.is_empty() {
                    page.next_page_token = crate::run::inputs::hex(&last);
                }
                return Ok(page);
            }
            _ => return Err(out_of_step(session, &target, "path")),
        }
    }
}

async fn remove(session: &Arc<Session>, target: &Target, asked: &v1::FilesRemoveRequest) -> Result<u64, Problem> {
    let (_used, mut channel) = begin(session, target).await?;
    let deadline = Instant::now() + REMOVE;
    let mut removed = 0_u64;
    loop {
        let request = wire::Request::Remove(Remove {
            path: target.path.clone(),
            recursive: asked.recursive,
            time_ms: REMOVE_MS,
        });
        match channel.ask(request).await {
            Ok(wire::Response::Removed { count, done }) => {
                removed = removed.saturating_add(count);
                if done {
                    return Ok(removed);
                }
            }
            Ok(_) => return Err(out_of_step(session, target, "path")),
            Err(FilesError::Refused(failure))
                if failure.errno == rustix::io::Errno::NOENT.raw_os_error() && (asked.missing_ok || removed > 0) =>
            {
                return Ok(removed);
            }
            Err(error) => return Err(problem(session, target, "path", error)),
        }
        if Instant::now() >= deadline {
            let failure = paths::failure(target, rustix::io::Errno::TIMEDOUT);
            return Err(Problem::File { field: "path", failure });
        }
    }
}

/// What a call is told when its conversation failed.
fn problem(session: &Session, target: &Target, field: &'static str, error: FilesError) -> Problem {
    match error {
        FilesError::Refused(failure) if failure.path.is_empty() => Problem::File {
            field,
            failure: wire::Failure {
                path: target.asked.clone(),
                ..failure
            },
        },
        FilesError::Refused(failure) => Problem::File {
            field,
            failure: wire::Failure {
                path: target.placed(&failure.path),
                ..failure
            },
        },
        FilesError::Spool(error) => Problem::Spool(error),
        _ if !session.is_up() => session.closed_problem(),
        error => Problem::Step {
            step: "files-helper",
            message: error.to_string(),
        },
    }
}

fn out_of_step(session: &Session, target: &Target, field: &'static str) -> Problem {
    problem(
        session,
        target,
        field,
        FilesError::Protocol("an answer to something else"),
    )
}

fn lost() -> Problem {
    internal("a checked request lost a part")
}

fn internal(message: &str) -> Problem {
    Problem::Step {
        step: "files-helper",
        message: message.to_owned(),
    }
}
