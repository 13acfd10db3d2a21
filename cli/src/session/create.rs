//! `brig session create`.

use brig_jailer::units::Span;
use brig_proto::v1::sessions_client::SessionsClient;
use brig_proto::v1::{Limits, OnTimeout, Session, SessionsCreateRequest};
use clap::{Args, ValueEnum};
use serde::Serialize;
use tonic::transport::Channel;

use super::document::SessionDocument;
use super::present;
use crate::connect;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::options::{Format, FormatOptions, RecordOptions, SandboxOptions, parse_id};
use crate::output::screen::Screen;
use crate::output::{escape, summary};
use crate::spec;

/// Makes a session, and prints its id when it is ready.
///
/// It ends when it is closed, when it was idle too long or has expired (unless it is paused then), and at its greatest
/// age.
#[derive(Debug, Clone, Args)]
pub(crate) struct CreateOptions {
    /// Its id: lower-case letters and digits, not used before. A new one if absent.
    #[arg(long, value_name = "ID", value_parser = parse_id)]
    id: Option<String>,

    /// Ends it when nothing has used it for so long; the policy's if absent, which is also the most.
    #[arg(long, value_name = "TIME")]
    idle: Option<Span>,

    /// Ends it so long after it was made, used or not; its greatest age if absent, which is also the most.
    #[arg(long, value_name = "TIME")]
    expire: Option<Span>,

    /// What happens when it was idle too long or has expired: it ends, or it is paused.
    #[arg(long, value_name = "WHAT", default_value = "close")]
    on_timeout: Timeout,

    /// Ends it at this age, used or not; the policy's if absent, which is also the most.
    #[arg(long, value_name = "TIME")]
    max_age: Option<Span>,

    #[command(flatten)]
    record: RecordOptions,

    #[command(flatten)]
    pub(super) format: FormatOptions,

    #[command(flatten, next_help_heading = "Sandbox")]
    sandbox: SandboxOptions,
}

/// What happens to a session whose time is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Timeout {
    Close,
    Pause,
}

impl From<Timeout> for OnTimeout {
    fn from(timeout: Timeout) -> Self {
        match timeout {
            Timeout::Close => Self::Close,
            Timeout::Pause => Self::Pause,
        }
    }
}

/// A session that was made.
#[derive(Debug)]
pub(crate) struct Created {
    pub(crate) session: Session,
    /// Lets its holder use this session and nothing else; absent if the daemon gives none.
    access_token: Option<String>,
}

/// The same as a document: the session, and what is shown this once.
#[derive(Serialize)]
struct CreatedDocument {
    #[serde(flatten)]
    session: SessionDocument,
    access_token: Option<String>,
}

/// Builds a request for a session of this kind.
pub(crate) fn request(sandbox: &SandboxOptions, record: &RecordOptions) -> SessionsCreateRequest {
    SessionsCreateRequest {
        request_id: spec::request_id(record),
        origin: spec::origin(record),
        labels: record.label.iter().cloned().collect(),
        policy: sandbox.policy.clone().unwrap_or_default(),
        template: sandbox.template.clone().unwrap_or_default(),
        limits: Some(spec::bound(sandbox, Limits::default())),
        ..SessionsCreateRequest::default()
    }
}

/// Makes a session.
pub(crate) async fn ask(channel: Channel, request: SessionsCreateRequest) -> Result<Created, Failure> {
    let answer = SessionsClient::new(channel).create(request).await;
    let answer = answer.map_err(|status| Failure::from_status(&status))?.into_inner();
    Ok(Created {
        session: present(answer.session)?,
        access_token: Some(answer.access_token).filter(|token| !token.is_empty()),
    })
}

/// Makes a session and prints its id.
pub(super) async fn create(options: &CreateOptions, format: Format, screen: &mut Screen) -> Result<Exit, Failure> {
    let request = SessionsCreateRequest {
        session_id: options.id.clone().unwrap_or_default(),
        idle_timeout: options.idle.map(spec::duration),
        max_age: options.max_age.map(spec::duration),
        expire_after: options.expire.map(spec::duration),
        on_timeout: OnTimeout::from(options.on_timeout).into(),
        ..request(&options.sandbox, &options.record)
    };
    let channel = connect::connect(&connect::socket()?).await?;
    let created = ask(channel, request).await?;
    let document = CreatedDocument {
        session: SessionDocument::from_proto(&created.session),
        access_token: created.access_token,
    };
    let notes = summary::clamped(&document.session.clamped, screen.err.style());
    screen.err.text(&notes);
    match format {
        Format::Text => {
            let id = escape::line(&document.session.session_id);
            screen.out.text(&format!("{id}\n"));
        }
        Format::Json => screen.out.json(&document),
        Format::Jsonl => screen.out.json_line(&document),
    }
    Ok(Exit::Success)
}
