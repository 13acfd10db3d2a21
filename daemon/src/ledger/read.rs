//! From the tables back to records.

use rusqlite::types::Type;
use rusqlite::{Connection, OptionalExtension, params};
use serde::de::DeserializeOwned;

use brig_jailer::ids::Id;

use super::record::{Accept, Artifact, Finish, Kind, Record};
use super::requests;

/// How many of a session's executions are looked through for artifacts, the newest ones.
const LOOKED_THROUGH: i64 = 4096;

/// Reads an execution with its bodies, as far as these were not erased.
pub(super) fn record(connection: &Connection, execution: &Id) -> rusqlite::Result<Option<Record>> {
    let Some(mut accept) = entry::<Accept>(connection, execution, "accept")? else {
        return Ok(None);
    };
    let part = match accept.work.kind {
        Kind::Code => "code",
        Kind::Command => "command",
    };
    accept.work.body.content = body(connection, execution, part)?;
    let mut finish = entry::<Finish>(connection, execution, "finish")?;
    if let Some(finish) = &mut finish {
        finish.stdout.content = body(connection, execution, "stdout")?;
        finish.stderr.content = body(connection, execution, "stderr")?;
        finish.told = requests::told(connection, execution.as_str())?;
    }
    Ok(Some(Record { accept, finish }))
}

/// The artifacts of a session's executions, newest execution first, at most so many.
pub(super) fn artifacts(connection: &Connection, session: &Id, most: usize) -> rusqlite::Result<Vec<Artifact>> {
    let mut select = connection.prepare_cached(
        "SELECT json_extract(data, '$.artifacts')
         FROM (SELECT accept_number, finish_number FROM executions WHERE session = ?1
               ORDER BY accept_number DESC LIMIT ?2) AS newest
         JOIN entries ON number = newest.finish_number
         WHERE json_array_length(data, '$.artifacts') > 0
         ORDER BY newest.accept_number DESC",
    )?;
    let mut rows = select.query(params![session.as_str(), LOOKED_THROUGH])?;
    let mut found: Vec<Artifact> = Vec::new();
    while let Some(row) = rows.next()? {
        let parsed: Vec<Artifact> = parse(&row.get::<_, String>(0)?)?;
        found.extend(parsed);
        if found.len() >= most {
            break;
        }
    }
    found.truncate(most);
    Ok(found)
}

fn entry<T: DeserializeOwned>(connection: &Connection, execution: &Id, kind: &str) -> rusqlite::Result<Option<T>> {
    let data: Option<String> = connection
        .prepare_cached(
            "SELECT data FROM executions JOIN entries ON number IN (accept_number, finish_number)
             WHERE executions.execution = ?1 AND kind = ?2",
        )?
        .query_row(params![execution.as_str(), kind], |row| row.get(0))
        .optional()?;
    data.map(|data| parse(&data)).transpose()
}

fn parse<T: DeserializeOwned>(data: &str) -> rusqlite::Result<T> {
    serde_json::from_str(data)
        .map_err(|error| rusqlite::Error::FromSqlConversionFailure(0, Type::Text, Box::new(error)))
}

fn body(connection: &Connection, execution: &Id, part: &str) -> rusqlite::Result<Vec<u8>> {
    let content = connection
        .prepare_cached("SELECT content FROM bodies WHERE execution = ?1 AND part = ?2")?
        .query_row(params![execution.as_str(), part], |row| row.get(0))
        .optional()?;
    Ok(content.unwrap_or_default())
}
