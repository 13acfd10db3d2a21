//! `brig session list`.

use brig_proto::sizes::PAGE_MAX;
use brig_proto::v1::{Session, SessionState, SessionsListRequest};
use clap::{Args, ValueEnum};
use serde::Serialize;

use super::document::SessionDocument;
use super::show;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::options::{Format, FormatOptions, parse_pair};
use crate::output::escape;
use crate::output::screen::Screen;
use crate::output::style::Style;
use crate::output::table::{self, Cell};

/// Lists sessions, newest first: those that are not closed, unless asked for others.
#[derive(Debug, Clone, Args)]
pub(crate) struct ListOptions {
    /// With this label. Can be repeated.
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_pair)]
    label: Vec<(String, String)>,

    /// In this state. Can be repeated.
    #[arg(long, value_name = "STATE", conflicts_with = "all")]
    state: Vec<State>,

    /// Closed ones too, which the daemon knows for 10 minutes.
    #[arg(long)]
    all: bool,

    #[command(flatten)]
    pub(super) format: FormatOptions,
}

/// Where a session is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum State {
    Creating,
    Running,
    Paused,
    Closing,
    Closed,
}

/// All of a list as one document.
#[derive(Serialize)]
struct ListDocument {
    sessions: Vec<SessionDocument>,
}

/// Lists sessions; lines of JSON are printed as the pages come.
pub(super) async fn list(options: &ListOptions, format: Format, screen: &mut Screen) -> Result<Exit, Failure> {
    let mut request = request(options);
    let mut client = super::client().await?;
    let mut sessions = Vec::new();
    loop {
        let answer = client.list(request.clone()).await;
        let page = answer.map_err(|status| Failure::from_status(&status))?.into_inner();
        let is_last = page.next_page_token.is_empty() || page.sessions.is_empty();
        if format == Format::Jsonl {
            for session in &page.sessions {
                screen.out.json_line(&SessionDocument::from_proto(session));
            }
        } else {
            sessions.extend(page.sessions);
        }
        if is_last || screen.out.failed() {
            break;
        }
        request.page_token = page.next_page_token;
    }
    match format {
        Format::Text => {
            let text = render(&sessions, screen.out.style());
            screen.out.text(&text);
        }
        Format::Json => {
            let sessions = sessions.iter().map(SessionDocument::from_proto).collect();
            screen.out.json(&ListDocument { sessions });
        }
        Format::Jsonl => {}
    }
    Ok(Exit::Success)
}

fn request(options: &ListOptions) -> SessionsListRequest {
    let states = if options.all {
        State::value_variants()
    } else {
        &options.state
    };
    SessionsListRequest {
        page_size: PAGE_MAX,
        states: states.iter().map(|state| SessionState::from(*state).into()).collect(),
        labels: options.label.iter().cloned().collect(),
        ..SessionsListRequest::default()
    }
}

impl From<State> for SessionState {
    fn from(state: State) -> Self {
        match state {
            State::Creating => Self::Creating,
            State::Running => Self::Running,
            State::Paused => Self::Paused,
            State::Closing => Self::Closing,
            State::Closed => Self::Closed,
        }
    }
}

fn render(sessions: &[Session], style: Style) -> String {
    let rows: Vec<Vec<Cell>> = sessions.iter().map(row).collect();
    let heading = ["session", "state", "created", "expires", "policy", "user", "labels"];
    table::render(&heading, &rows, style)
}

fn row(session: &Session) -> Vec<Cell> {
    let document = SessionDocument::from_proto(session);
    let state = escape::line(&show::state(&document));
    let paint = match session.state() {
        SessionState::Running => Style::green,
        SessionState::Closed => Style::dim,
        _ => Style::yellow,
    };
    let labels = show::labels(&document);
    let rest = [
        document.create_time.unwrap_or_default(),
        document.expire_time.unwrap_or_default(),
        document.policy,
        document.user,
        labels,
    ];
    [
        Cell::new(escape::line(&document.session_id)),
        Cell::painted(state, paint),
    ]
    .into_iter()
    .chain(rest.iter().map(|text| Cell::new(escape::line(text))))
    .collect()
}

#[cfg(test)]
mod tests {
    use super::super::document;
    use super::*;

    #[test]
    fn each_state_of_the_api_can_be_asked_for() {
        for state in State::value_variants() {
            let name = state.to_possible_value().unwrap().get_name().to_owned();
            assert_eq!(document::state((*state).into()), name);
        }
        // All but UNSPECIFIED.
        let states = (1..).map_while(|number| SessionState::try_from(number).ok());
        assert_eq!(states.count(), State::value_variants().len());
    }

    #[test]
    fn the_list_tells_kept_sessions_from_one_shot_ones() {
        let one_shot = Session {
            session_id: "s1".into(),
            state: SessionState::Running.into(),
            one_shot: true,
            ..Session::default()
        };
        let kept = Session {
            session_id: "sales".into(),
            state: SessionState::Running.into(),
            labels: [("a".to_owned(), "b".to_owned())].into(),
            ..Session::default()
        };
        assert_eq!(
            render(&[one_shot, kept], Style::PLAIN),
            "session  state              labels\n\
             s1       running, one-shot\n\
             sales    running            a=b\n"
        );
    }
}
