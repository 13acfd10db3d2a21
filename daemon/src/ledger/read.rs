//! From the tables back to records.

use rusqlite::{Connection, OptionalExtension, params};
use serde::de::DeserializeOwned;

use brig_jailer::ids::Id;

use super::query::parse;
use super::record::{Accept, Finish, Record};
use super::requests;

/// Reads an execution with its bodies, as far as these were not erased.
pub(super) fn record(connection: &Connection, execution: &Id) -> rusqlite::Result<Option<Record>> {
    let Some(mut accept) = entry::<Accept>(connection, execution, "accept")? else {
        return Ok(None);
    };
    let id = execution.as_str();
    accept.work.body.content = body(connection, id, accept.work.kind.part())?;
    let mut finish = entry::<Finish>(connection, execution, "finish")?;
    if let Some(finish) = &mut finish {
        finish.stdout.content = body(connection, id, "stdout")?;
        finish.stderr.content = body(connection, id, "stderr")?;
        finish.told = requests::told(connection, id)?;
    }
    Ok(Some(Record { accept, finish }))
}

fn entry<T: DeserializeOwned>(connection: &Connection, execution: &Id, kind: &str) -> rusqlite::Result<Option<T>> {
    let row: Option<(String, Option<String>)> = connection
        .prepare_cached(
            "SELECT data, content FROM executions
             JOIN entries ON entries.number IN (accept_number, finish_number)
             LEFT JOIN names ON names.number = entries.number
             WHERE executions.execution = ?1 AND kind = ?2",
        )?
        .query_row(params![execution.as_str(), kind], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    row.map(|(data, names)| parse(&data, names.as_deref())).transpose()
}

/// A body; empty where it was erased.
pub(super) fn body(connection: &Connection, execution: &str, part: &str) -> rusqlite::Result<Vec<u8>> {
    let content = connection
        .prepare_cached("SELECT content FROM bodies WHERE execution = ?1 AND part = ?2")?
        .query_row(params![execution, part], |row| row.get(0))
        .optional()?;
    Ok(content.unwrap_or_default())
}
