//! Watch: the helper tells of changes as fast as the client takes them; the kernel keeps some more, and says when it
//! could not.

use std::sync::Arc;
use std::time::SystemTime;

use brig_jailer::files::wire::{self, Response};
use brig_proto::v1::files_watch_response::Event;
use brig_proto::v1::{FilesWatchRequest, FilesWatchResponse, WatchOverflow, WatchReady};
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;
use tonic::codegen::BoxStream;

use super::paths::{self, Target};
use super::{MESSAGES, open, out_of_step, problem, show};
use crate::files::Channel;
use crate::run::kept::Session;
use crate::run::kept::files::WATCHES_MAX;
use crate::status::Problem;

type Sender = mpsc::Sender<Result<FilesWatchResponse, Status>>;

/// Begins to watch. That does not keep the session from being idle.
pub(super) async fn watch(
    session: &Arc<Session>,
    asked: &FilesWatchRequest,
) -> Result<BoxStream<FilesWatchResponse>, Problem> {
    let target = paths::directory("path", &asked.path, &asked.raw_path);
    let target = target.map_err(|problem| Problem::Fields(vec![problem]))?;
    if !session.is_up() {
        return Err(session.closed_problem());
    }
    session.looked_at();
    let place = session.files.watch().ok_or_else(|| {
        let what = "watches of its files are there already";
        Problem::FileQuota(session.id.to_string(), WATCHES_MAX, what)
    })?;
    let mut channel = open(session, &target).await?;
    let request = wire::Request::Watch(wire::Watch {
        path: target.path.clone(),
        recursive: asked.recursive,
        info: asked.want_file,
    });
    match channel.ask(request).await {
        Ok(Response::Watching) => {}
        Ok(_) => return Err(out_of_step(session, &target, "path")),
        Err(error) => return Err(problem(session, &target, "path", error)),
    }
    let (sender, receiver) = mpsc::channel(MESSAGES);
    tokio::spawn(run(Arc::clone(session), target, channel, place, sender));
    Ok(Box::pin(ReceiverStream::new(receiver)))
}

/// Tells of changes until the client, the session or the directory goes away.
async fn run(session: Arc<Session>, target: Target, mut channel: Channel, _place: OwnedSemaphorePermit, to: Sender) {
    let end = tokio::select! {
        end = tell(&session, &target, &mut channel, &to) => end,
        () = to.closed() => return,
        _reason = session.told_to_end() => session.closed_problem(),
    };
    // A client that does not read holds nothing but its own stream.
    let _ = to.try_send(Err(end.into()));
}

async fn tell(session: &Session, target: &Target, channel: &mut Channel, to: &Sender) -> Problem {
    let mut event = Event::Ready(WatchReady {});
    loop {
        if to.send(Ok(FilesWatchResponse { event: Some(event) })).await.is_err() {
            return Problem::CallerGone;
        }
        event = match channel.next().await {
            Ok(Response::Changed(changed)) => {
                let info = changed.info.as_ref();
                let file = info.map(|info| show::info(&target.below(&changed.path), info));
                Event::Change(show::change(&changed, file, SystemTime::now()))
            }
            Ok(Response::Overflow) => Event::Overflow(WatchOverflow {}),
            Ok(_) => return out_of_step(session, target, "path"),
            Err(error) => return problem(session, target, "path", error),
        };
    }
}
