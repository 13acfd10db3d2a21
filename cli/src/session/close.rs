//! `brig session close`.

use brig_proto::refusal::RefusalDocument;
use brig_proto::v1::sessions_client::SessionsClient;
use brig_proto::v1::{Session, SessionsCloseRequest};
use clap::Args;
use serde::Serialize;
use tonic::transport::Channel;

use super::document::SessionDocument;
use super::present;
use crate::connect;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::identity::random_id;
use crate::options::{Format, FormatOptions};
use crate::output::escape;
use crate::output::screen::Screen;

/// Ends sessions and everything in them, and prints the id of each. One that is closed already is no error.
#[derive(Debug, Clone, Args)]
pub(crate) struct CloseOptions {
    #[arg(value_name = "ID", required = true)]
    ids: Vec<String>,

    #[command(flatten)]
    pub(super) format: FormatOptions,
}

/// What was closed; beside a refusal, in the form that it has everywhere.
#[derive(Serialize)]
struct ClosedDocument {
    #[serde(flatten)]
    refusal: Option<RefusalDocument>,
    sessions: Vec<SessionDocument>,
}

/// Closes a session.
pub(crate) async fn ask(channel: Channel, id: &str) -> Result<Session, Failure> {
    let request = SessionsCloseRequest {
        request_id: random_id(),
        session_id: id.to_owned(),
    };
    let answer = SessionsClient::new(channel).close(request).await;
    let answer = answer.map_err(|status| Failure::from_status(&status))?.into_inner();
    present(answer.session)
}

/// Closes each session, also behind one that is refused; the first refusal decides about the exit code.
pub(super) async fn close(options: &CloseOptions, format: Format, screen: &mut Screen) -> Result<Exit, Failure> {
    let channel = connect::connect(&connect::socket()?).await?;
    let mut closed = Vec::new();
    let mut refusal: Option<Failure> = None;
    for id in &options.ids {
        match ask(channel.clone(), id).await {
            Ok(session) => {
                print_one(&session, format, screen);
                closed.push(SessionDocument::from_proto(&session));
            }
            Err(failure) => {
                let text = failure.render(screen.err.style());
                screen.err.text(&text);
                if format == Format::Jsonl {
                    screen.out.json_line(&failure.event());
                }
                refusal.get_or_insert(failure);
            }
        }
    }
    if format == Format::Json {
        let document = ClosedDocument {
            refusal: refusal.as_ref().map(Failure::document),
            sessions: closed,
        };
        screen.out.json(&document);
    }
    Ok(refusal.map_or(Exit::Success, |failure| failure.exit))
}

fn print_one(session: &Session, format: Format, screen: &mut Screen) {
    match format {
        Format::Text => screen.out.text(&format!("{}\n", escape::line(&session.session_id))),
        Format::Jsonl => screen.out.json_line(&SessionDocument::from_proto(session)),
        Format::Json => {}
    }
}
