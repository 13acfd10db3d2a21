//! Commands that are talked to while they run: input, terminals, output that streams, signals; with real jails.
#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

mod exec;
mod input;
mod restart;
mod stream;
mod terminal;

use brig_proto::v1::execution_spec::Work;
use brig_proto::v1::{
    ExecutionSpec, ExecutionsCloseInputRequest, ExecutionsInputRequest, ExecutionsResizeRequest,
    ExecutionsSignalRequest, OutputMode, SessionsCreateRequest, TerminalSize,
};
use brig_tests::spec::{long, sh};
use brig_tests::{Client, Live, Refused};

/// Makes a kept session.
fn session(client: &Client, id: &str) {
    client.create(SessionsCreateRequest {
        session_id: id.to_owned(),
        template: "base".to_owned(),
        ..SessionsCreateRequest::default()
    });
}

/// A script for a session, whose standard input stays open.
fn open(script: &str) -> ExecutionSpec {
    ExecutionSpec {
        template: String::new(),
        stdin_open: true,
        limits: long(),
        ..sh(script)
    }
}

/// The same at a terminal.
fn at_terminal(script: &str, columns: u32, rows: u32) -> ExecutionSpec {
    let mut spec = open(script);
    if let Some(Work::Command(command)) = &mut spec.work {
        command.terminal = Some(TerminalSize { columns, rows });
    }
    spec
}

/// The same with output that streams.
fn streaming(mut spec: ExecutionSpec) -> ExecutionSpec {
    if let Some(Work::Command(command)) = &mut spec.work {
        command.output_mode = OutputMode::Stream.into();
    }
    spec
}

/// Starts something in a new session of the same name.
fn start(client: &Client, name: &str, spec: ExecutionSpec) -> Live {
    session(client, name);
    start_in(client, name, name, spec)
}

/// Starts something in a session.
fn start_in(client: &Client, session: &str, name: &str, spec: ExecutionSpec) -> Live {
    let spec = ExecutionSpec {
        execution_id: name.to_owned(),
        ..spec
    };
    let mut live = client.execute(session, spec).unwrap();
    live.until_started();
    live
}

fn piece(name: &str, data: &[u8], offset: Option<u64>) -> ExecutionsInputRequest {
    ExecutionsInputRequest {
        execution_id: name.to_owned(),
        data: data.to_vec().into(),
        offset,
        close: false,
    }
}

/// Gives input by one call; how much there is in all.
fn give(client: &Client, pieces: Vec<ExecutionsInputRequest>) -> Result<u64, Refused> {
    let answer = client.ask(client.client().input(tokio_stream::iter(pieces)))?;
    Ok(answer.total_bytes)
}

/// Types, or gives a line.
fn say(client: &Client, name: &str, text: &str) {
    give(client, vec![piece(name, text.as_bytes(), None)]).unwrap();
}

fn close_input(client: &Client, name: &str) -> Result<(), Refused> {
    let request = ExecutionsCloseInputRequest {
        execution_id: name.to_owned(),
        ..ExecutionsCloseInputRequest::default()
    };
    client.ask(client.client().close_input(request)).map(drop)
}

fn resize(client: &Client, name: &str, columns: u32, rows: u32) -> Result<(), Refused> {
    let request = ExecutionsResizeRequest {
        execution_id: name.to_owned(),
        size: Some(TerminalSize { columns, rows }),
        ..ExecutionsResizeRequest::default()
    };
    client.ask(client.client().resize(request)).map(drop)
}

fn signal(client: &Client, name: &str, signal: u32, group: bool) {
    let request = ExecutionsSignalRequest {
        execution_id: name.to_owned(),
        signal,
        group,
        ..ExecutionsSignalRequest::default()
    };
    client.ask(client.client().signal(request)).unwrap();
}
