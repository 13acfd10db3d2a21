//! How an entry gets into the tables.

use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension, Transaction, params};
use serde::Serialize;
use serde_json::{Map, Value, json};

use brig_jailer::ids::Id;

use super::chain::{Head, Link};
use super::names::part;
use super::record::{
    Accept, ArtifactReviewed, Body, Downloaded, Erased, Finish, Keep, Made, Refused, Requested, Reviewed,
    SessionClosed, SessionOpened, to_millis,
};
use super::requests::{self, New};
use crate::output::cut_text;

/// The longest message of a refusal, in bytes: the requests it quotes were never checked.
const MESSAGE_MAX: usize = 1024;
/// The longest other text of a refusal, in bytes.
const WORD_MAX: usize = 256;

/// An execution that has not ended, as [`Begun`] has it.
const RUNNING: &str = "SELECT tenant, session, keep_names_ms, keep_outputs_ms,
                              coalesce(user, ''), coalesce(origin_user, '')
                       FROM executions LEFT JOIN names ON number = accept_number
                       WHERE execution = ?1 AND finish_number IS NULL";

/// Something to be written.
#[derive(Debug)]
pub(super) enum Entry {
    Accept(Box<Accept>),
    Finish(Arc<Finish>),
    Refused(Box<Refused>),
    Opened(Box<SessionOpened>),
    Closed(Arc<SessionClosed>),
    Erased(Box<Erased>),
    Reviewed(Box<Reviewed>),
    ArtifactReviewed(Arc<ArtifactReviewed>),
    Downloaded(Box<Downloaded>),
}

/// Why one entry of a group was not written.
#[derive(Debug, Clone)]
pub(super) enum Problem {
    Exists(Id),
    Repeated(Requested),
    NotRunning(Id),
    NoSpace(u64, u64),
}

/// What entries are written with: a transaction, and the head of the chain within it.
#[derive(Debug)]
pub(super) struct Pen<'t> {
    pub(super) transaction: &'t Transaction<'t>,
    pub(super) head: Head,
    /// Bytes of content that were written.
    pub(super) written: usize,
}

/// The columns of an entry beside the data.
struct Columns<'a> {
    kind: &'static str,
    execution: Option<&'a str>,
    session: Option<&'a str>,
    tenant: &'a str,
    time_ms: i64,
    keep_names_ms: i64,
}

/// What is known of an execution or session that began.
struct Begun {
    tenant: String,
    session: String,
    keep_names_ms: i64,
    keep_outputs_ms: i64,
    /// Empty where they were erased.
    user: String,
    origin_user: String,
}

impl Entry {
    /// Writes the entry, its bodies and the index; the outer error is the database's and ends the transaction.
    pub(super) fn insert(&self, pen: &mut Pen<'_>) -> rusqlite::Result<Result<(), Problem>> {
        match self {
            Self::Accept(accept) => pen.accept(accept),
            Self::Finish(finish) => pen.finish(finish),
            Self::Refused(refused) => pen.refused(refused).map(Ok),
            Self::Opened(opened) => pen.opened(opened),
            Self::Closed(closed) => pen.closed(closed),
            Self::Erased(erased) => pen.erased(erased).map(Ok),
            Self::Reviewed(reviewed) => pen.reviewed(reviewed),
            Self::ArtifactReviewed(reviewed) => pen.artifact_reviewed(reviewed).map(Ok),
            Self::Downloaded(downloaded) => pen.downloaded(downloaded).map(Ok),
        }
    }

    /// Whether it is left out where there is little space: nothing that runs depends on it.
    pub(super) fn needs_room(&self) -> bool {
        matches!(
            self,
            Self::Accept(_)
                | Self::Refused(_)
                | Self::Opened(_)
                | Self::Reviewed(_)
                | Self::ArtifactReviewed(_)
                | Self::Downloaded(_)
        )
    }
}

impl Pen<'_> {
    pub(super) fn accept(&mut self, accept: &Accept) -> rusqlite::Result<Result<(), Problem>> {
        let execution = accept.execution.as_str();
        let new = new_execution(accept);
        let time_ms = new.time_ms;
        if let Some(problem) = self.check_new(&new, made_session(accept))? {
            return Ok(Err(problem));
        }
        let columns = Columns {
            kind: "accept",
            execution: Some(execution),
            session: Some(accept.session.as_str()),
            tenant: &accept.tenant,
            time_ms,
            keep_names_ms: span(accept.keep.names_ms),
        };
        let number = self.append(&columns, fields(accept)?)?;
        let part = accept.work.kind.part();
        let keep_until_ms = time_ms.saturating_add(span(accept.keep.work_ms));
        self.body(execution, part, &accept.work.body, keep_until_ms)?;
        self.transaction
            .prepare_cached(
                "INSERT INTO executions
                     (execution, session, tenant, request, accept_number, accept_time_ms, keep_names_ms, keep_outputs_ms)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
            )?
            .execute(params![
                execution,
                accept.session.as_str(),
                accept.tenant,
                accept.request,
                number,
                time_ms,
                columns.keep_names_ms,
                span(accept.keep.outputs_ms)
            ])?;
        Ok(Ok(()))
    }

    /// Remembers the request, unless there is a problem with it.
    fn check_new(&self, new: &New<'_>, session: Option<&Id>) -> rusqlite::Result<Option<Problem>> {
        let problem = problem(self.transaction, new, session)?;
        if problem.is_none() {
            requests::remember(self.transaction, new)?;
        }
        Ok(problem)
    }

    fn finish(&mut self, finish: &Finish) -> rusqlite::Result<Result<(), Problem>> {
        let execution = finish.execution.as_str();
        let Some(begun) = self.begun(RUNNING, execution)? else {
            return Ok(Err(Problem::NotRunning(finish.execution.clone())));
        };
        let time_ms = to_millis(finish.time);
        let columns = Columns {
            kind: "finish",
            execution: Some(execution),
            session: Some(&begun.session),
            tenant: &begun.tenant,
            time_ms,
            keep_names_ms: begun.keep_names_ms,
        };
        let number = self.append(&columns, begun.with_users(fields(finish)?))?;
        let keep_until_ms = time_ms.saturating_add(begun.keep_outputs_ms);
        self.body(execution, "stdout", &finish.stdout, keep_until_ms)?;
        self.body(execution, "stderr", &finish.stderr, keep_until_ms)?;
        requests::tell(self.transaction, execution, &finish.told, time_ms, &mut self.written)?;
        self.transaction
            .prepare_cached(
                "UPDATE executions SET finish_number = ?2, status = ?3, finish_time_ms = ?4 WHERE execution = ?1",
            )?
            .execute(params![execution, number, finish.status, time_ms])?;
        Ok(Ok(()))
    }

    fn opened(&mut self, opened: &SessionOpened) -> rusqlite::Result<Result<(), Problem>> {
        let session = opened.session.as_str();
        let time_ms = to_millis(opened.time);
        let new = New {
            tenant: &opened.tenant,
            request: opened.request.as_deref(),
            sha256: opened.request_sha256.as_deref(),
            made: Made::Session(opened.session.clone()),
            time_ms,
        };
        if let Some(problem) = self.check_new(&new, Some(&opened.session))? {
            return Ok(Err(problem));
        }
        let columns = Columns {
            kind: "open",
            execution: None,
            session: Some(session),
            tenant: &opened.tenant,
            time_ms,
            keep_names_ms: span(opened.keep.names_ms),
        };
        let number = self.append(&columns, fields(opened)?)?;
        self.transaction
            .prepare_cached(
                "INSERT INTO sessions (session, tenant, request, open_number, open_time_ms, keep_names_ms)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
            )?
            .execute(params![
                session,
                opened.tenant,
                opened.request,
                number,
                time_ms,
                columns.keep_names_ms
            ])?;
        Ok(Ok(()))
    }

    fn closed(&mut self, closed: &SessionClosed) -> rusqlite::Result<Result<(), Problem>> {
        let session = closed.session.as_str();
        let select = "SELECT tenant, session, keep_names_ms, 0, coalesce(user, ''), coalesce(origin_user, '')
                      FROM sessions LEFT JOIN names ON number = open_number
                      WHERE session = ?1 AND close_number IS NULL";
        let Some(begun) = self.begun(select, session)? else {
            return Ok(Err(Problem::NotRunning(closed.session.clone())));
        };
        let time_ms = to_millis(closed.time);
        let columns = Columns {
            kind: "close",
            execution: None,
            session: Some(session),
            tenant: &begun.tenant,
            time_ms,
            keep_names_ms: begun.keep_names_ms,
        };
        let number = self.append(&columns, begun.with_users(fields(closed)?))?;
        self.transaction
            .prepare_cached(
                "UPDATE sessions SET close_number = ?2, reason = ?3, close_time_ms = ?4 WHERE session = ?1",
            )?
            .execute(params![session, number, closed.reason, time_ms])?;
        Ok(Ok(()))
    }

    fn refused(&mut self, refused: &Refused) -> rusqlite::Result<()> {
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
        ] {
            *text = cut_text(text, WORD_MAX).to_owned();
        }
        bounded.message = cut_text(&bounded.message, MESSAGE_MAX).to_owned();
        bounded.request = bounded.request.map(|id| cut_text(&id, WORD_MAX).to_owned());
        let columns = Columns {
            kind: "refused",
            execution: None,
            session: None,
            tenant: &bounded.tenant,
            time_ms: to_millis(refused.time),
            keep_names_ms: span(Keep::default().names_ms),
        };
        self.append(&columns, fields(&bounded)?).map(|_| ())
    }

    fn erased(&mut self, erased: &Erased) -> rusqlite::Result<()> {
        let columns = Columns {
            kind: "erased",
            execution: erased.execution.as_deref(),
            session: None,
            tenant: &erased.tenant,
            time_ms: to_millis(erased.time),
            keep_names_ms: span(Keep::default().names_ms),
        };
        self.append(&columns, fields(erased)?).map(|_| ())
    }

    fn reviewed(&mut self, reviewed: &Reviewed) -> rusqlite::Result<Result<(), Problem>> {
        let execution = reviewed.execution.as_str();
        let Some(begun) = self.begun(RUNNING, execution)? else {
            return Ok(Err(Problem::NotRunning(reviewed.execution.clone())));
        };
        let columns = Columns {
            kind: "reviewed",
            execution: Some(execution),
            session: Some(&begun.session),
            tenant: &begun.tenant,
            time_ms: to_millis(reviewed.time),
            keep_names_ms: begun.keep_names_ms,
        };
        let mut data = fields(reviewed)?;
        data.insert("origin".to_owned(), json!({"user": begun.asker()}));
        self.append(&columns, data).map(|_| Ok(()))
    }

    /// Whoever does not know whether a decision was written, writes it again: only the first one about an artifact counts.
    fn artifact_reviewed(&mut self, reviewed: &ArtifactReviewed) -> rusqlite::Result<()> {
        let artifact = reviewed.artifact.as_str();
        let known = "SELECT 1 FROM reviews WHERE artifact = ?1";
        if self.transaction.prepare_cached(known)?.exists(params![artifact])? {
            return Ok(());
        }
        let columns = Columns {
            kind: "reviewed",
            execution: Some(reviewed.execution.as_str()),
            session: Some(reviewed.session.as_str()),
            tenant: &reviewed.tenant,
            time_ms: to_millis(reviewed.time),
            keep_names_ms: span(Keep::default().names_ms),
        };
        let number = self.append(&columns, fields(reviewed)?)?;
        self.transaction
            .prepare_cached("INSERT INTO reviews (artifact, number) VALUES (?1, ?2)")?
            .execute(params![artifact, number])
            .map(|_| ())
    }

    fn downloaded(&mut self, downloaded: &Downloaded) -> rusqlite::Result<()> {
        let columns = Columns {
            kind: "downloaded",
            execution: Some(downloaded.execution.as_str()),
            session: Some(downloaded.session.as_str()),
            tenant: &downloaded.tenant,
            time_ms: to_millis(downloaded.time),
            keep_names_ms: span(Keep::default().names_ms),
        };
        self.append(&columns, fields(downloaded)?).map(|_| ())
    }

    /// Appends an entry to the chain and gives its number.
    fn append(&mut self, columns: &Columns<'_>, data: Map<String, Value>) -> rusqlite::Result<i64> {
        let parts = part(columns.kind, data);
        let link = Link {
            number: self.head.number + 1,
            kind: columns.kind,
            execution: columns.execution,
            session: columns.session,
            tenant: columns.tenant,
            time_ms: columns.time_ms,
            data: &parts.data,
        };
        let hash = link.hash(&self.head.hash);
        self.transaction
            .prepare_cached(
                "INSERT INTO entries (number, kind, execution, session, tenant, time_ms, data, hash)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
            )?
            .execute(params![
                link.number,
                link.kind,
                link.execution,
                link.session,
                link.tenant,
                link.time_ms,
                link.data,
                hash
            ])?;
        self.head = Head {
            number: link.number,
            hash,
        };
        self.written += parts.data.len();
        if let Some(names) = parts.names {
            self.written += names.text.len();
            self.transaction
                .prepare_cached(
                    "INSERT INTO names (number, user, origin_user, keep_until_ms, content)
                     VALUES (?1, ?2, ?3, ?4, ?5)",
                )?
                .execute(params![
                    self.head.number,
                    names.user,
                    names.origin_user,
                    columns.time_ms.saturating_add(columns.keep_names_ms),
                    names.text
                ])?;
        }
        Ok(self.head.number)
    }

    fn body(&mut self, execution: &str, part: &str, body: &Body, keep_until_ms: i64) -> rusqlite::Result<()> {
        self.written += body.content.len();
        self.transaction
            .prepare_cached(
                "INSERT INTO bodies (execution, part, sha256, content, keep_until_ms) VALUES (?1, ?2, ?3, ?4, ?5)",
            )?
            .execute(params![execution, part, body.sha256, body.content, keep_until_ms])
            .map(|_| ())
    }

    fn begun(&self, select: &str, id: &str) -> rusqlite::Result<Option<Begun>> {
        self.transaction
            .prepare_cached(select)?
            .query_row(params![id], |row| {
                Ok(Begun {
                    tenant: row.get(0)?,
                    session: row.get(1)?,
                    keep_names_ms: row.get(2)?,
                    keep_outputs_ms: row.get(3)?,
                    user: row.get(4)?,
                    origin_user: row.get(5)?,
                })
            })
            .optional()
    }
}

/// Why an execution may not be accepted.
pub(super) fn accept_problem(connection: &Connection, accept: &Accept) -> rusqlite::Result<Option<Problem>> {
    problem(connection, &new_execution(accept), made_session(accept))
}

fn new_execution(accept: &Accept) -> New<'_> {
    New {
        tenant: &accept.tenant,
        request: accept.request.as_deref(),
        sha256: accept.request_sha256.as_deref(),
        made: Made::Execution(accept.execution.clone()),
        time_ms: to_millis(accept.time),
    }
}

/// The session that is made for an execution, if it is not a kept one.
fn made_session(accept: &Accept) -> Option<&Id> {
    (!accept.kept).then_some(&accept.session)
}

/// Whether a request came before, or one of the ids is not free. Session ids are names of hosts and groups, also of
/// sessions that are made for one execution.
fn problem(connection: &Connection, new: &New<'_>, session: Option<&Id>) -> rusqlite::Result<Option<Problem>> {
    // What came before has its ids already: it counts first.
    if let Some(request) = new.request
        && let Some(known) = requests::find(connection, new.tenant, request, new.time_ms)?
    {
        return Ok(Some(Problem::Repeated(known)));
    }
    let exists = |sql: &str, id: &Id| connection.prepare_cached(sql)?.exists(params![id.as_str()]);
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
    Ok(None)
}

impl Begun {
    /// Who asked, by whom what is decided about it is found and erased too.
    fn asker(&self) -> &str {
        if self.origin_user.is_empty() {
            &self.user
        } else {
            &self.origin_user
        }
    }

    /// Who asked for the beginning is found by the end too.
    fn with_users(&self, mut data: Map<String, Value>) -> Map<String, Value> {
        data.insert("user".to_owned(), json!(self.user));
        data.insert("origin".to_owned(), json!({"user": self.origin_user}));
        data
    }
}

fn fields(record: &impl Serialize) -> rusqlite::Result<Map<String, Value>> {
    match serde_json::to_value(record) {
        Ok(Value::Object(fields)) => Ok(fields),
        Ok(_) => Err(rusqlite::Error::ToSqlConversionFailure("a record is no object".into())),
        Err(error) => Err(rusqlite::Error::ToSqlConversionFailure(Box::new(error))),
    }
}

/// A span in milliseconds as SQLite has numbers.
pub(super) fn span(millis: u64) -> i64 {
    i64::try_from(millis).unwrap_or(i64::MAX)
}
