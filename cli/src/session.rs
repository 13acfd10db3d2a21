//! `brig session`: jails that stay.

pub(crate) mod close;
pub(crate) mod create;
mod document;
mod list;
mod pause;
mod show;
mod update;
mod watch;

use brig_proto::v1::sessions_client::SessionsClient;
use brig_proto::v1::{Session, SessionsGetRequest};
use clap::{Args, Subcommand};
use tonic::transport::Channel;

use self::close::CloseOptions;
use self::create::CreateOptions;
use self::document::SessionDocument;
use self::list::ListOptions;
use self::pause::{PauseOptions, ResumeOptions};
use self::update::UpdateOptions;
use self::watch::WatchOptions;
use crate::connect;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::options::{Format, FormatOptions};
use crate::output::screen::Screen;

/// Makes sessions that stay, shows them, and ends them.
///
/// A session is a jail with a working directory. What one job leaves in it the next one finds: brig run --session ID,
/// brig exec ID -- PROGRAM.
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum SessionCommand {
    Create(CreateOptions),
    List(ListOptions),
    Show(ShowOptions),
    Update(UpdateOptions),
    Pause(PauseOptions),
    Resume(ResumeOptions),
    Watch(WatchOptions),
    Close(CloseOptions),
}

/// Shows a session: its state, its limits, what it uses.
#[derive(Debug, Clone, Args)]
pub(crate) struct ShowOptions {
    #[arg(value_name = "ID")]
    id: String,

    #[command(flatten)]
    format: FormatOptions,
}

impl SessionCommand {
    /// What stdout is.
    pub(crate) fn format(&self) -> Format {
        let options = match self {
            Self::Create(options) => options.format,
            Self::List(options) => options.format,
            Self::Show(options) => options.format,
            Self::Update(options) => options.format,
            Self::Pause(options) => options.format,
            Self::Resume(options) => options.format,
            Self::Watch(options) => options.format,
            Self::Close(options) => options.format,
        };
        options.format()
    }
}

/// Runs a command about sessions.
pub(crate) fn session(command: &SessionCommand, screen: &mut Screen) -> Result<Exit, Failure> {
    let format = command.format();
    connect::runtime()?.block_on(async {
        match command {
            SessionCommand::Create(options) => create::create(options, format, screen).await,
            SessionCommand::List(options) => list::list(options, format, screen).await,
            SessionCommand::Show(options) => show_one(options, format, screen).await,
            SessionCommand::Update(options) => update::update(options, format, screen).await,
            SessionCommand::Pause(options) => pause::pause(options, format, screen).await,
            SessionCommand::Resume(options) => pause::resume(options, format, screen).await,
            SessionCommand::Watch(options) => watch::watch(options, format, screen).await,
            SessionCommand::Close(options) => close::close(options, format, screen).await,
        }
    })
}

async fn show_one(options: &ShowOptions, format: Format, screen: &mut Screen) -> Result<Exit, Failure> {
    let request = SessionsGetRequest {
        session_id: options.id.clone(),
    };
    let answer = client().await?.get(request).await;
    let answer = answer.map_err(|status| Failure::from_status(&status))?.into_inner();
    print(&present(answer.session)?, format, screen);
    Ok(Exit::Success)
}

/// Prints a session as it is now.
fn print(session: &Session, format: Format, screen: &mut Screen) {
    match format {
        Format::Text => {
            let text = show::render(session, screen.out.style());
            screen.out.text(&text);
        }
        Format::Json => screen.out.json(&SessionDocument::from_proto(session)),
        Format::Jsonl => screen.out.json_line(&SessionDocument::from_proto(session)),
    }
}

async fn client() -> Result<SessionsClient<Channel>, Failure> {
    Ok(SessionsClient::new(connect::connect(&connect::socket()?).await?))
}

/// Takes the session out of an answer.
fn present(session: Option<Session>) -> Result<Session, Failure> {
    session.ok_or_else(|| Failure::new(Exit::Failed, "the daemon answered without a session"))
}
