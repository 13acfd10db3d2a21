//! `brig session pause` and `brig session resume`.

use brig_proto::v1::{SessionsPauseRequest, SessionsResumeRequest};
use clap::Args;

use super::{client, present, print};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::identity::random_id;
use crate::options::{Format, FormatOptions};
use crate::output::screen::Screen;

/// Stops all that runs in a session where it is, and shows it. Its limits of time stand still, but for its expiry and its
/// greatest age; files can be put and got.
#[derive(Debug, Clone, Args)]
pub(crate) struct PauseOptions {
    #[arg(value_name = "ID")]
    id: String,

    #[command(flatten)]
    pub(super) format: FormatOptions,
}

/// Lets a paused session run again, and shows it.
#[derive(Debug, Clone, Args)]
pub(crate) struct ResumeOptions {
    #[arg(value_name = "ID")]
    id: String,

    #[command(flatten)]
    pub(super) format: FormatOptions,
}

/// Pauses a session and shows it.
pub(super) async fn pause(options: &PauseOptions, format: Format, screen: &mut Screen) -> Result<Exit, Failure> {
    let request = SessionsPauseRequest {
        request_id: random_id(),
        session_id: options.id.clone(),
    };
    let answer = client().await?.pause(request).await;
    let answer = answer.map_err(|status| Failure::from_status(&status))?.into_inner();
    print(&present(answer.session)?, format, screen);
    Ok(Exit::Success)
}

/// Lets a session run again and shows it.
pub(super) async fn resume(options: &ResumeOptions, format: Format, screen: &mut Screen) -> Result<Exit, Failure> {
    let request = SessionsResumeRequest {
        request_id: random_id(),
        session_id: options.id.clone(),
    };
    let answer = client().await?.resume(request).await;
    let answer = answer.map_err(|status| Failure::from_status(&status))?.into_inner();
    print(&present(answer.session)?, format, screen);
    Ok(Exit::Success)
}
