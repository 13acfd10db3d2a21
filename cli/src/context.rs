//! `brig context`: interpreters in a session whose state stays.

use std::collections::BTreeMap;

use brig_proto::sizes::PAGE_MAX;
use brig_proto::v1::contexts_client::ContextsClient;
use brig_proto::v1::{
    Context, ContextState, ContextsCloseRequest, ContextsCreateRequest, ContextsListRequest, ContextsResetRequest,
};
use clap::{Args, Subcommand};
use serde::Serialize;
use tonic::transport::Channel;

use crate::connect;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::identity::random_id;
use crate::options::{Format, FormatOptions, parse_id, parse_pair};
use crate::output::escape;
use crate::output::screen::Screen;
use crate::output::style::Style;
use crate::output::table::{self, Cell};

/// Makes interpreters whose state stays from one job to the next, shows them, and ends them.
///
/// Code runs in one by brig run --session ID --context ID.
#[derive(Debug, Clone, Subcommand)]
pub(crate) enum ContextCommand {
    Create(CreateOptions),
    List(ListOptions),
    Reset(OneOptions),
    Close(CloseOptions),
}

/// Starts an interpreter in a session, and prints its id when it takes work.
#[derive(Debug, Clone, Args)]
pub(crate) struct CreateOptions {
    /// The session.
    #[arg(value_name = "SESSION")]
    session: String,

    /// Its id: lower-case letters and digits, not used before in the session. A new one if absent.
    #[arg(long, value_name = "ID", value_parser = parse_id)]
    id: Option<String>,

    /// python or bash.
    #[arg(long, value_name = "NAME", default_value = "python")]
    language: String,

    /// Where it starts, absolute or below /home/user.
    #[arg(long, value_name = "DIR")]
    directory: Option<String>,

    /// Variable beside the session's; the policy says which are allowed. Can be repeated.
    #[arg(long, value_name = "NAME=VALUE", value_parser = parse_pair)]
    env: Vec<(String, String)>,

    /// Mark of your own. Can be repeated.
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_pair)]
    label: Vec<(String, String)>,

    #[command(flatten)]
    format: FormatOptions,
}

/// Lists the contexts of a session, newest first.
#[derive(Debug, Clone, Args)]
pub(crate) struct ListOptions {
    /// The session.
    #[arg(value_name = "SESSION")]
    session: String,

    #[command(flatten)]
    format: FormatOptions,
}

/// Gives a context a new interpreter; what runs or waits in it is cancelled.
#[derive(Debug, Clone, Args)]
pub(crate) struct OneOptions {
    /// The session.
    #[arg(value_name = "SESSION")]
    session: String,

    /// The context.
    #[arg(value_name = "CONTEXT")]
    context: String,

    #[command(flatten)]
    format: FormatOptions,
}

/// Ends a context; what runs or waits in it is cancelled. One that is closed already is no error.
#[derive(Debug, Clone, Args)]
pub(crate) struct CloseOptions {
    #[command(flatten)]
    which: OneOptions,
}

/// A context as a JSON document. Every key is always present.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct ContextDocument {
    session_id: String,
    context_id: String,
    language: String,
    directory: String,
    state: String,
    create_time: Option<String>,
    last_active_time: Option<String>,
    execution_count: u64,
    queue_length: u32,
    generation: u32,
    labels: BTreeMap<String, String>,
}

/// All of a list as one document.
#[derive(Serialize)]
struct ListDocument {
    contexts: Vec<ContextDocument>,
}

impl ContextDocument {
    fn from_proto(context: &Context) -> Self {
        let name = context.state().as_str_name();
        Self {
            session_id: context.session_id.clone(),
            context_id: context.context_id.clone(),
            language: context.language.clone(),
            directory: context.directory.clone(),
            state: name.trim_start_matches("CONTEXT_STATE_").to_lowercase(),
            create_time: context.create_time.map(|time| time.to_string()),
            last_active_time: context.last_active_time.map(|time| time.to_string()),
            execution_count: context.execution_count,
            queue_length: context.queue_length,
            generation: context.generation,
            labels: context.labels.clone(),
        }
    }
}

impl ContextCommand {
    /// What stdout is.
    pub(crate) fn format(&self) -> Format {
        let options = match self {
            Self::Create(options) => options.format,
            Self::List(options) => options.format,
            Self::Reset(options) => options.format,
            Self::Close(options) => options.which.format,
        };
        options.format()
    }
}

/// Runs a command about contexts.
pub(crate) fn context(command: &ContextCommand, screen: &mut Screen) -> Result<Exit, Failure> {
    let format = command.format();
    connect::runtime()?.block_on(async {
        let client = ContextsClient::new(connect::connect(&connect::socket()?).await?);
        match command {
            ContextCommand::Create(options) => create(client, options, format, screen).await,
            ContextCommand::List(options) => list(client, options, format, screen).await,
            ContextCommand::Reset(options) => reset(client, options, format, screen).await,
            ContextCommand::Close(options) => close(client, &options.which, format, screen).await,
        }
    })
}

async fn create(
    mut client: ContextsClient<Channel>,
    options: &CreateOptions,
    format: Format,
    screen: &mut Screen,
) -> Result<Exit, Failure> {
    let request = ContextsCreateRequest {
        request_id: random_id(),
        session_id: options.session.clone(),
        context_id: options.id.clone().unwrap_or_default(),
        language: options.language.clone(),
        directory: options.directory.clone().unwrap_or_default(),
        environment: options.env.iter().cloned().collect(),
        labels: options.label.iter().cloned().collect(),
    };
    let answer = client.create(request).await;
    let answer = answer.map_err(|status| Failure::from_status(&status))?.into_inner();
    print(&present(answer.context)?, format, screen);
    Ok(Exit::Success)
}

async fn list(
    mut client: ContextsClient<Channel>,
    options: &ListOptions,
    format: Format,
    screen: &mut Screen,
) -> Result<Exit, Failure> {
    let request = ContextsListRequest {
        page_size: PAGE_MAX,
        session_id: options.session.clone(),
        ..ContextsListRequest::default()
    };
    // A session has fewer than a page.
    let answer = client.list(request).await;
    let contexts = answer
        .map_err(|status| Failure::from_status(&status))?
        .into_inner()
        .contexts;
    let documents: Vec<_> = contexts.iter().map(ContextDocument::from_proto).collect();
    match format {
        Format::Text => {
            let text = render(&contexts, screen.out.style());
            screen.out.text(&text);
        }
        Format::Json => screen.out.json(&ListDocument { contexts: documents }),
        Format::Jsonl => documents.iter().for_each(|document| screen.out.json_line(document)),
    }
    Ok(Exit::Success)
}

async fn reset(
    mut client: ContextsClient<Channel>,
    options: &OneOptions,
    format: Format,
    screen: &mut Screen,
) -> Result<Exit, Failure> {
    let request = ContextsResetRequest {
        request_id: random_id(),
        session_id: options.session.clone(),
        context_id: options.context.clone(),
    };
    let answer = client.reset(request).await;
    let answer = answer.map_err(|status| Failure::from_status(&status))?.into_inner();
    print(&present(answer.context)?, format, screen);
    Ok(Exit::Success)
}

async fn close(
    mut client: ContextsClient<Channel>,
    options: &OneOptions,
    format: Format,
    screen: &mut Screen,
) -> Result<Exit, Failure> {
    let request = ContextsCloseRequest {
        request_id: random_id(),
        session_id: options.session.clone(),
        context_id: options.context.clone(),
    };
    let answer = client.close(request).await;
    answer.map_err(|status| Failure::from_status(&status))?;
    let document = serde_json::json!({"session_id": options.session, "context_id": options.context});
    match format {
        Format::Text => screen.out.text(&format!("{}\n", escape::line(&options.context))),
        Format::Json => screen.out.json(&document),
        Format::Jsonl => screen.out.json_line(&document),
    }
    Ok(Exit::Success)
}

fn print(context: &Context, format: Format, screen: &mut Screen) {
    let document = ContextDocument::from_proto(context);
    match format {
        Format::Text => screen.out.text(&format!("{}\n", escape::line(&document.context_id))),
        Format::Json => screen.out.json(&document),
        Format::Jsonl => screen.out.json_line(&document),
    }
}

fn render(contexts: &[Context], style: Style) -> String {
    let rows: Vec<Vec<Cell>> = contexts.iter().map(row).collect();
    let heading = [
        "context",
        "state",
        "language",
        "executions",
        "waiting",
        "generation",
        "directory",
    ];
    table::render(&heading, &rows, style)
}

fn row(context: &Context) -> Vec<Cell> {
    let document = ContextDocument::from_proto(context);
    let paint = match context.state() {
        ContextState::Idle => Style::green,
        ContextState::Closed => Style::dim,
        _ => Style::yellow,
    };
    let rest = [
        document.language,
        document.execution_count.to_string(),
        document.queue_length.to_string(),
        document.generation.to_string(),
        document.directory,
    ];
    [
        Cell::new(escape::line(&document.context_id)),
        Cell::painted(document.state, paint),
    ]
    .into_iter()
    .chain(rest.iter().map(|text| Cell::new(escape::line(text))))
    .collect()
}

/// Takes the context out of an answer.
fn present(context: Option<Context>) -> Result<Context, Failure> {
    context.ok_or_else(|| Failure::new(Exit::Failed, "the daemon answered without a context"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_tells_what_each_context_is_at() {
        let context = Context {
            context_id: "main".to_owned(),
            language: "bash".to_owned(),
            state: ContextState::Busy.into(),
            queue_length: 2,
            generation: 1,
            directory: "/home/user".to_owned(),
            ..Context::default()
        };
        let text = render(&[context], Style::PLAIN);
        let words: Vec<_> = text.lines().nth(1).unwrap().split_whitespace().collect();
        assert_eq!(words, ["main", "busy", "bash", "0", "2", "1", "/home/user"]);
    }
}
