//! What is asked for again: connections are cut anywhere, brigd is restarted, memory is lost; nothing is done twice and
//! nothing that was told is told otherwise.
#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

mod broken;
mod later;

use rusqlite::{Connection, OpenFlags};
use std::path::Path;

/// How many rows a table of a ledger has for a request.
fn rows(ledger: &Path, table: &str, request: &str) -> u32 {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let ledger = Connection::open_with_flags(ledger, flags).unwrap();
    let select = format!("SELECT count(*) FROM {table} WHERE request = ?1");
    ledger.query_row(&select, [request], |row| row.get(0)).unwrap()
}
