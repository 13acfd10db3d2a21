//! The ledger: what is recorded, who may read it, what is found when somebody changed it.
#![cfg(test)]
#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

mod command;
mod full;
mod killed;
mod recorded;
mod served;

use std::path::Path;

use brig_tests::Daemon;
use rusqlite::{Connection, OpenFlags};
use serde_json::{Map, Value};

/// The entries of a kind with their names, oldest first. Opened read-only beside the running daemon.
fn entries(daemon: &Daemon, kind: &str) -> Vec<Value> {
    let ledger = open(daemon);
    let mut select = ledger
        .prepare(
            "SELECT data, coalesce(content, '{}') FROM entries LEFT JOIN names ON names.number = entries.number
             WHERE kind = ?1 ORDER BY entries.number",
        )
        .unwrap();
    let rows = select.query_map([kind], |row| Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?)));
    rows.unwrap().map(|row| whole(&row.unwrap())).collect()
}

/// Puts the two parts of an entry together.
fn whole((data, names): &(String, String)) -> Value {
    let mut data: Map<String, Value> = serde_json::from_str(data).unwrap();
    let names: Map<String, Value> = serde_json::from_str(names).unwrap();
    data.remove("names_sha256");
    for (key, value) in names {
        match (data.get_mut(&key), value) {
            (Some(Value::Array(things)), Value::Array(names)) => {
                for (thing, names) in things.iter_mut().zip(names) {
                    let names = names.as_object().unwrap().clone();
                    thing.as_object_mut().unwrap().extend(names);
                }
            }
            (None, value) if key != "salt" => drop(data.insert(key, value)),
            (None, _) => {}
            (there, value) => panic!("{key}: {there:?} {value:?}"),
        }
    }
    Value::Object(data)
}

fn open(daemon: &Daemon) -> Connection {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    Connection::open_with_flags(daemon.directory().join("ledger.db"), flags).unwrap()
}

/// Whether a text lies anywhere in the files of a ledger.
fn holds(directory: &Path, needle: &str) -> bool {
    let files = std::fs::read_dir(directory).unwrap().map(|file| file.unwrap().path());
    let mut ledger = files.filter(|path| path.file_name().unwrap().to_string_lossy().starts_with("ledger.db"));
    ledger.any(|path| {
        let bytes = std::fs::read(path).unwrap();
        bytes.windows(needle.len()).any(|part| part == needle.as_bytes())
    })
}
