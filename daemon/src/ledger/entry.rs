//! How an entry gets into the tables.

use rusqlite::{OptionalExtension, Transaction, params};
use serde::Serialize;

use brig_jailer::ids::Id;

use super::record::{Accept, Body, Finish, Kind, Made, Refused, Requested, SessionClosed, SessionOpened, to_millis};
use super::requests::{self, New};
use crate::output::cut_text;

/// The longest text of a refusal, in bytes: the requests it quotes were never checked.
const REFUSED_TEXT_MAX: usize = 1024;

/// Something to be written.
#[derive(Debug)]
pub(super) enum Entry {
    Accept(Box<Accept>),
    Finish(Box<Finish>),
    Refused(Box<Refused>),
    Opened(Box<SessionOpened>),
    Closed(SessionClosed),
}

/// Why one entry of a group was not written.
#[derive(Debug)]
pub(super) enum Problem {
    Exists(Id),
    Repeated(Requested),
    NotRunning(Id),
    NoSpace(u64, u64),
}

/// The columns of `entries` beside the data.
struct Columns<'a> {
    kind: &'static str,
    execution: Option<&'a str>,
    session: Option<&'a str>,
    tenant: &'a str,
    time_ms: i64,
}

impl Entry {
    /// Writes the entry, its bodies and the index; the outer error is the database's and ends the transaction.
    pub(super) fn insert(
        &self,
        transaction: &Transaction<'_>,
        written: &mut usize,
    ) -> rusqlite::Result<Result<(), Problem>> {
        match self {
            Self::Accept(accept) => insert_accept(transaction, accept, written),
            Self::Finish(finish) => insert_finish(transaction, finish, written),
            Self::Refused(refused) => insert_refused(transaction, refused, written).map(Ok),
            Self::Opened(opened) => insert_opened(transaction, opened, written),
            Self::Closed(closed) => insert_closed(transaction, closed, written),
        }
    }
}

fn insert_accept(
    transaction: &Transaction<'_>,
    accept: &Accept,
    written: &mut usize,
) -> rusqlite::Result<Result<(), Problem>> {
    let execution = accept.execution.as_str();
    let time_ms = to_millis(accept.time);
    let new = New {
        tenant: &accept.tenant,
        request: accept.request.as_deref(),
        sha256: accept.request_sha256.as_deref(),
        made: Made::Execution(accept.execution.clone()),
        time_ms,
    };
    if let Some(problem) = check_new(transaction, &new, (!accept.kept).then_some(&accept.session))? {
        return Ok(Err(problem));
    }
    let columns = Columns {
        kind: "accept",
        execution: Some(execution),
        session: None,
        tenant: &accept.tenant,
        time_ms,
    };
    let number = insert_data(transaction, &columns, accept, written)?;
    let part = match accept.work.kind {
        Kind::Code => "code",
        Kind::Command => "command",
    };
    insert_body(transaction, execution, part, &accept.work.body, written)?;
    transaction
        .prepare_cached(
            "INSERT INTO executions (execution, session, tenant, user, request, accept_number, accept_time_ms)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
        )?
        .execute(params![
            execution,
            accept.session.as_str(),
            accept.tenant,
            accept.user,
            accept.request,
            number,
            time_ms
        ])?;
    Ok(Ok(()))
}

/// Remembers the request, unless it came before or one of the ids is not free. Session ids are names of hosts and
/// groups, also of sessions that are made for one execution.
fn check_new(transaction: &Transaction<'_>, new: &New<'_>, session: Option<&Id>) -> rusqlite::Result<Option<Problem>> {
    // What came before has its ids already: it counts first.
    if let Some(request) = new.request
        && let Some(known) = requests::find(transaction, new.tenant, request, new.time_ms)?
    {
        return Ok(Some(Problem::Repeated(known)));
    }
    let exists = |sql: &str, id: &Id| transaction.prepare_cached(sql)?.exists(params![id.as_str()]);
    if let Made::Execution(execution) = &new.made
        && exists("SELECT 1 FROM executions WHERE execution = ?1", execution)?
    {
        return Ok(Some(Problem::Exists(execution.clone())));
    }
    if let Some(session) = session
        && (exists("SELECT 1 FROM sessions WHERE session = ?1", session)?
            || exists("SELECT 1 FROM executions WHERE session = ?1", session)?)
    {
        return Ok(Some(Problem::Exists(session.clone())));
    }
    requests::remember(transaction, new)?;
    Ok(None)
}

fn insert_finish(
    transaction: &Transaction<'_>,
    finish: &Finish,
    written: &mut usize,
) -> rusqlite::Result<Result<(), Problem>> {
    let execution = finish.execution.as_str();
    let tenant: Option<String> = transaction
        .prepare_cached("SELECT tenant FROM executions WHERE execution = ?1 AND finish_number IS NULL")?
        .query_row(params![execution], |row| row.get(0))
        .optional()?;
    let Some(tenant) = tenant else {
        return Ok(Err(Problem::NotRunning(finish.execution.clone())));
    };
    let time_ms = to_millis(finish.time);
    let columns = Columns {
        kind: "finish",
        execution: Some(execution),
        session: None,
        tenant: &tenant,
        time_ms,
    };
    let number = insert_data(transaction, &columns, finish, written)?;
    insert_body(transaction, execution, "stdout", &finish.stdout, written)?;
    insert_body(transaction, execution, "stderr", &finish.stderr, written)?;
    requests::tell(transaction, execution, &finish.told, time_ms, written)?;
    transaction
        .prepare_cached(
            "UPDATE executions SET finish_number = ?2, status = ?3, finish_time_ms = ?4 WHERE execution = ?1",
        )?
        .execute(params![execution, number, finish.status, time_ms])?;
    Ok(Ok(()))
}

fn insert_opened(
    transaction: &Transaction<'_>,
    opened: &SessionOpened,
    written: &mut usize,
) -> rusqlite::Result<Result<(), Problem>> {
    let session = opened.session.as_str();
    let time_ms = to_millis(opened.time);
    let new = New {
        tenant: &opened.tenant,
        request: opened.request.as_deref(),
        sha256: opened.request_sha256.as_deref(),
        made: Made::Session(opened.session.clone()),
        time_ms,
    };
    if let Some(problem) = check_new(transaction, &new, Some(&opened.session))? {
        return Ok(Err(problem));
    }
    let columns = Columns {
        kind: "open",
        execution: None,
        session: Some(session),
        tenant: &opened.tenant,
        time_ms,
    };
    let number = insert_data(transaction, &columns, opened, written)?;
    transaction
        .prepare_cached(
            "INSERT INTO sessions (session, tenant, user, request, open_number, open_time_ms)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
        )?
        .execute(params![
            session,
            opened.tenant,
            opened.user,
            opened.request,
            number,
            time_ms
        ])?;
    Ok(Ok(()))
}

fn insert_closed(
    transaction: &Transaction<'_>,
    closed: &SessionClosed,
    written: &mut usize,
) -> rusqlite::Result<Result<(), Problem>> {
    let session = closed.session.as_str();
    let tenant: Option<String> = transaction
        .prepare_cached("SELECT tenant FROM sessions WHERE session = ?1 AND close_number IS NULL")?
        .query_row(params![session], |row| row.get(0))
        .optional()?;
    let Some(tenant) = tenant else {
        return Ok(Err(Problem::NotRunning(closed.session.clone())));
    };
    let time_ms = to_millis(closed.time);
    let columns = Columns {
        kind: "close",
        execution: None,
        session: Some(session),
        tenant: &tenant,
        time_ms,
    };
    let number = insert_data(transaction, &columns, closed, written)?;
    transaction
        .prepare_cached("UPDATE sessions SET close_number = ?2, reason = ?3, close_time_ms = ?4 WHERE session = ?1")?
        .execute(params![session, number, closed.reason, time_ms])?;
    Ok(Ok(()))
}

fn insert_refused(transaction: &Transaction<'_>, refused: &Refused, written: &mut usize) -> rusqlite::Result<()> {
    let cut = |text: &str| cut_text(text, REFUSED_TEXT_MAX).to_owned();
    let mut bounded = refused.clone();
    for text in [
        &mut bounded.tenant,
        &mut bounded.user,
        &mut bounded.origin.user,
        &mut bounded.origin.conversation,
        &mut bounded.origin.request,
        &mut bounded.policy,
        &mut bounded.reason,
        &mut bounded.field,
        &mut bounded.message,
    ] {
        *text = cut(text);
    }
    bounded.request = bounded.request.as_deref().map(cut);
    let time_ms = to_millis(refused.time);
    let columns = Columns {
        kind: "refused",
        execution: None,
        session: None,
        tenant: &bounded.tenant,
        time_ms,
    };
    insert_data(transaction, &columns, &bounded, written).map(|_| ())
}

/// Appends an entry and gives its number.
fn insert_data(
    transaction: &Transaction<'_>,
    columns: &Columns<'_>,
    data: &impl Serialize,
    written: &mut usize,
) -> rusqlite::Result<i64> {
    let data = serde_json::to_string(data).map_err(|error| rusqlite::Error::ToSqlConversionFailure(Box::new(error)))?;
    *written += data.len();
    transaction
        .prepare_cached(
            "INSERT INTO entries (kind, execution, session, tenant, time_ms, data) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
        )?
        .execute(params![
            columns.kind,
            columns.execution,
            columns.session,
            columns.tenant,
            columns.time_ms,
            data
        ])?;
    Ok(transaction.last_insert_rowid())
}

fn insert_body(
    transaction: &Transaction<'_>,
    execution: &str,
    part: &str,
    body: &Body,
    written: &mut usize,
) -> rusqlite::Result<()> {
    *written += body.content.len();
    transaction
        .prepare_cached("INSERT INTO bodies (execution, part, sha256, content) VALUES (?1, ?2, ?3, ?4)")?
        .execute(params![execution, part, body.sha256, body.content])
        .map(|_| ())
}
