//! Talking to a program that runs: our standard input goes in as it comes, and its terminal is ours.

mod keys;
pub(crate) mod raw;
mod typing;

use std::io::{self, IsTerminal};

use brig_proto::result::ResultDocument;
use brig_proto::v1::execution_event::Event;
use brig_proto::v1::executions_client::ExecutionsClient;
use brig_proto::v1::{ExecutionEvent, ExecutionState, TerminalSize};
use tokio::sync::watch;
use tonic::transport::Channel;

use self::raw::RawMode;
use self::typing::Typing;
use crate::failure::Failure;
use crate::follow::{Begin, Call, Outcome, on_daemon};
use crate::show::Show;

/// The largest side of a terminal that the daemon accepts.
const SIDE_MAX: u16 = 1000;

/// What of ours the program gets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Wiring {
    /// Our standard input.
    pub(crate) input: bool,
    /// Our terminal: its size, and, with the input, its keys.
    pub(crate) terminal: bool,
}

/// How talking to a program came to its end.
#[derive(Debug)]
pub(crate) enum End {
    /// The program ended.
    Finished(Box<Outcome>),
    /// Somebody left it with the detach keys; its id.
    Left(String),
}

/// Whether we are at a terminal; else which of our streams is none.
pub(crate) fn at_terminal() -> Result<(), &'static str> {
    match (io::stdin().is_terminal(), io::stdout().is_terminal()) {
        (true, true) => Ok(()),
        (false, _) => Err("standard input"),
        (true, false) => Err("standard output"),
    }
}

/// The size of our terminal, as far as the daemon accepts it.
pub(crate) fn size() -> TerminalSize {
    let size = rustix::termios::tcgetwinsize(rustix::stdio::stdout());
    let (columns, rows) = size.map_or((0, 0), |size| (size.ws_col, size.ws_row));
    TerminalSize {
        columns: columns.min(SIDE_MAX).into(),
        rows: rows.min(SIDE_MAX).into(),
    }
}

/// Follows an execution and gives it what is ours.
pub(crate) fn follow(begin: &Begin, wiring: Wiring, show: &mut dyn Show) -> Result<End, Failure> {
    let (begun, begins) = watch::channel(None);
    let mut watched = Watched {
        show,
        is_attached: matches!(begin, Begin::Attach { .. }),
        id: String::new(),
        begun,
    };
    on_daemon(&mut watched, async |call| {
        let _raw = (wiring.input && wiring.terminal).then(RawMode::enter).transpose()?;
        talk(call, begin, wiring, begins).await
    })
}

async fn talk(
    call: &mut Call<'_>,
    begin: &Begin,
    wiring: Wiring,
    mut begins: watch::Receiver<Option<String>>,
) -> Result<End, Failure> {
    let client = call.client();
    let typing = async {
        // The sender lives as long as the call.
        let id = begins.wait_for(Option::is_some).await.ok().and_then(|id| id.clone());
        match id {
            Some(id) => type_until_left(client, id, begin, wiring).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        outcome = call.until_end(begin) => outcome.map(|outcome| End::Finished(Box::new(outcome))),
        id = typing => Ok(End::Left(id)),
    }
}

/// Gives a program what is ours until somebody leaves it; gives its id.
async fn type_until_left(client: ExecutionsClient<Channel>, id: String, begin: &Begin, wiring: Wiring) -> String {
    let is_attached = matches!(begin, Begin::Attach { .. });
    let typing = Typing::new(client, id.clone(), wiring.terminal);
    if wiring.terminal && is_attached {
        // Whoever had it before has another one. What is typed shall find it right.
        typing.fit().await;
    }
    let fitting = async {
        if wiring.terminal {
            typing.keep_fitting().await;
        }
        std::future::pending::<()>().await;
    };
    let giving = async {
        if wiring.input {
            typing.give(is_attached).await;
        } else {
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        () = fitting => {}
        () = giving => {}
    }
    id
}

/// Shows events, and tells when the program can be talked to.
struct Watched<'a> {
    show: &'a mut dyn Show,
    is_attached: bool,
    id: String,
    begun: watch::Sender<Option<String>>,
}

impl Show for Watched<'_> {
    fn event(&mut self, event: &ExecutionEvent) -> bool {
        let runs = match &event.event {
            Some(Event::Accepted(accepted)) => {
                self.id.clone_from(&accepted.execution_id);
                self.is_attached && accepted.state() == ExecutionState::Running
            }
            Some(Event::Started(_)) => true,
            _ => false,
        };
        if runs {
            self.begun.send_replace(Some(self.id.clone()));
        }
        self.show.event(event)
    }

    fn note(&mut self, text: &str) {
        self.show.note(text);
    }

    fn tell(&mut self, text: &str) {
        self.show.tell(text);
    }

    fn finished(&mut self, outcome: &Outcome) {
        self.show.finished(outcome);
    }

    fn refused(&mut self, failure: &Failure) {
        self.show.refused(failure);
    }
}

/// Shows how it ended; the document, unless it was left.
pub(crate) fn show_end(end: &End, show: &mut dyn Show) -> Option<ResultDocument> {
    match end {
        End::Finished(outcome) => {
            show.finished(outcome);
            Some(outcome.document.clone())
        }
        End::Left(id) => {
            show.tell(&format!("left it running; come back: brig execution attach {id}"));
            None
        }
    }
}
