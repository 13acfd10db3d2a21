//! From the tables back to records.

use rusqlite::types::Type;
use rusqlite::{Connection, OptionalExtension, params};
use serde::de::DeserializeOwned;

use brig_jailer::ids::Id;

use super::record::{Accept, Finish, Kind, Record};

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
    }
    Ok(Some(Record { accept, finish }))
}

fn entry<T: DeserializeOwned>(connection: &Connection, execution: &Id, kind: &str) -> rusqlite::Result<Option<T>> {
    let data: Option<String> = connection
        .prepare_cached(
            "SELECT data FROM executions JOIN entries ON number IN (accept_number, finish_number)
             WHERE executions.execution = ?1 AND kind = ?2",
        )?
        .query_row(params![execution.as_str(), kind], |row| row.get(0))
        .optional()?;
    let parse = |data: String| serde_json::from_str(&data);
    let parsed = data.map(parse).transpose();
    parsed.map_err(|error| rusqlite::Error::FromSqlConversionFailure(0, Type::Text, Box::new(error)))
}

fn body(connection: &Connection, execution: &Id, part: &str) -> rusqlite::Result<Vec<u8>> {
    let content = connection
        .prepare_cached("SELECT content FROM bodies WHERE execution = ?1 AND part = ?2")?
        .query_row(params![execution.as_str(), part], |row| row.get(0))
        .optional()?;
    Ok(content.unwrap_or_default())
}
