//! Computes the chain again and compares: entries, and the names and bodies that are still there.

use rusqlite::{Connection, OptionalExtension, Row, params};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::chain::{Hash, Head, Link, used};
use super::names::{self, HASH};
use super::record::hex;

/// Entries of one read.
const BATCH: i64 = 500;

/// What is to be verified.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    pub first: i64,
    /// None is the newest at the beginning.
    pub last: Option<i64>,
    /// The hash that the last entry must have.
    pub expected: Option<Hash>,
}

/// What was found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Entries that were looked at and found intact.
    pub entries: u64,
    /// The last of them.
    pub head: Head,
    /// The first that is missing or changed, and what is wrong with it.
    pub broken: Option<(i64, String)>,
}

/// A verification, which goes on batch by batch.
#[derive(Debug)]
pub(super) struct Verification {
    range: Range,
    last: i64,
    verdict: Verdict,
    /// Whether nothing is left to look at.
    pub(super) done: bool,
}

/// An entry as it lies in the table.
struct Entry {
    number: i64,
    kind: String,
    execution: Option<String>,
    session: Option<String>,
    tenant: String,
    time_ms: i64,
    data: String,
    hash: Vec<u8>,
    /// The names: users and content.
    names: Option<(String, String, String)>,
}

impl Verification {
    /// Begins one. The entry before the first is taken as it is.
    pub(super) fn begin(connection: &Connection, range: Range) -> rusqlite::Result<Self> {
        let newest: i64 = connection.query_row("SELECT coalesce(max(number), 0) FROM entries", [], |row| row.get(0))?;
        let mut this = Self {
            range,
            last: range.last.unwrap_or(newest.max(used(connection)?)),
            verdict: Verdict::default(),
            done: false,
        };
        let before = range.first - 1;
        if before > 0 {
            let hash: Option<Hash> = connection
                .query_row("SELECT hash FROM entries WHERE number = ?1", [before], |row| row.get(0))
                .optional()?;
            match hash {
                Some(hash) => this.verdict.head = Head { number: before, hash },
                None => this.broken(before, "is missing"),
            }
        }
        Ok(this)
    }

    /// Looks at some more.
    pub(super) fn go_on(&mut self, connection: &Connection) -> rusqlite::Result<()> {
        if self.done {
            return Ok(());
        }
        let sql = "SELECT entries.number, kind, execution, session, tenant, time_ms, data, hash,
                          user, origin_user, content
                   FROM entries LEFT JOIN names ON names.number = entries.number
                   WHERE entries.number > ?1 AND entries.number <= ?2 ORDER BY entries.number LIMIT ?3";
        let mut statement = connection.prepare_cached(sql)?;
        let mut rows = statement.query(params![self.verdict.head.number, self.last, BATCH])?;
        let mut seen = 0;
        while let Some(row) = rows.next()? {
            seen += 1;
            let entry = Entry::read(row)?;
            if !self.take(connection, &entry)? {
                return Ok(());
            }
        }
        if seen < BATCH {
            self.end();
        }
        Ok(())
    }

    pub(super) fn verdict(self) -> Verdict {
        self.verdict
    }

    /// Takes the next entry; false if the chain ends here.
    fn take(&mut self, connection: &Connection, entry: &Entry) -> rusqlite::Result<bool> {
        let expected = self.verdict.head.number + 1;
        if entry.number != expected {
            self.broken(expected, "is missing");
            return Ok(false);
        }
        let hash = entry.link().hash(&self.verdict.head.hash);
        if entry.hash != hash {
            self.broken(
                expected,
                "was changed: its hash does not follow from it and the one before",
            );
            return Ok(false);
        }
        if let Some(what) = entry.wrong_beside(connection)? {
            self.broken(expected, &format!("is intact, but its {what} was changed"));
            return Ok(false);
        }
        self.verdict.head = Head { number: expected, hash };
        self.verdict.entries += 1;
        Ok(true)
    }

    fn end(&mut self) {
        self.done = true;
        let head = self.verdict.head;
        if head.number < self.last {
            self.broken(head.number + 1, "is missing");
        } else if let Some(expected) = self.range.expected
            && expected != head.hash
        {
            let message = "has another hash than was noted: the chain was written anew up to here, or before";
            self.broken(head.number, message);
        }
    }

    fn broken(&mut self, number: i64, what: &str) {
        self.done = true;
        self.verdict.broken = Some((number, format!("entry {number} {what}")));
    }
}

impl Entry {
    fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        let user: Option<String> = row.get(8)?;
        Ok(Self {
            number: row.get(0)?,
            kind: row.get(1)?,
            execution: row.get(2)?,
            session: row.get(3)?,
            tenant: row.get(4)?,
            time_ms: row.get(5)?,
            data: row.get(6)?,
            hash: row.get(7)?,
            names: user
                .map(|user| Ok::<_, rusqlite::Error>((user, row.get(9)?, row.get(10)?)))
                .transpose()?,
        })
    }

    fn link(&self) -> Link<'_> {
        Link {
            number: self.number,
            kind: &self.kind,
            execution: self.execution.as_deref(),
            session: self.session.as_deref(),
            tenant: &self.tenant,
            time_ms: self.time_ms,
            data: &self.data,
        }
    }

    /// Names a part beside the entry that is there and is not what the entry says.
    fn wrong_beside(&self, connection: &Connection) -> rusqlite::Result<Option<&'static str>> {
        let data: Value = serde_json::from_str(&self.data).unwrap_or_default();
        if let Some((user, origin_user, content)) = &self.names {
            let told = data.get(HASH).and_then(Value::as_str);
            let users = serde_json::from_str(content).map(|content| names::users(&content));
            let is_same = told == Some(names::hash(content).as_str());
            if !is_same || users.ok().as_ref() != Some(&(user.clone(), origin_user.clone())) {
                return Ok(Some("names"));
            }
        }
        let parts: &[(&str, &'static str)] = match self.kind.as_str() {
            "accept" => &[("/work/body", "code"), ("/work/body", "command")],
            "finish" => &[("/stdout", "stdout"), ("/stderr", "stderr")],
            _ => &[],
        };
        let select = "SELECT sha256, content FROM bodies WHERE execution = ?1 AND part = ?2";
        let mut statement = connection.prepare_cached(select)?;
        for (place, part) in parts {
            let read = |row: &Row<'_>| Ok((row.get(0)?, row.get(1)?));
            let there: Option<(String, Vec<u8>)> =
                statement.query_row(params![self.execution, part], read).optional()?;
            let told = data.pointer(place).and_then(|body| body.get("sha256")?.as_str());
            if let Some((noted, content)) = there
                && (told != Some(noted.as_str()) || noted != hex(&Sha256::digest(&content)))
            {
                return Ok(Some(part));
            }
        }
        Ok(None)
    }
}
