//! The database of records. It is not the ledger's: records come and go, and nothing of them is chained.
//!
//! A record that is gone stays as a row for a day, so that its request is still known and its id is not given away.
//! Everything here can block.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, SystemTime};

use brig_jailer::ids::Id;
use brig_proto::v1;
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::InputsError;
use crate::database::{self, OpenError, digest, id, json, size, to_millis, to_signed, to_time};
use crate::run::inputs::hex;

/// How long a record that is gone is remembered.
const GONE: Duration = Duration::from_secs(24 * 60 * 60);
/// The most of them that a tenant has; older ones are forgotten first.
const GONE_MAX: i64 = 4096;
/// The form of the tables, in `user_version`.
const SCHEMA: i64 = 1;

const TABLES: &str = "
    CREATE TABLE inputs (
        tenant TEXT NOT NULL,
        input TEXT NOT NULL,
        request TEXT,
        -- Of the spec: the same request must come with the same one.
        digest TEXT NOT NULL,
        -- Name of the file that has the bytes.
        file TEXT NOT NULL UNIQUE,
        name TEXT NOT NULL,
        type TEXT NOT NULL,
        size_bytes INTEGER NOT NULL,
        sha256 TEXT NOT NULL,
        user TEXT NOT NULL,
        origin_user TEXT NOT NULL,
        origin_conversation TEXT NOT NULL,
        origin_request TEXT NOT NULL,
        labels TEXT NOT NULL,
        create_ms INTEGER NOT NULL,
        expire_ms INTEGER NOT NULL,
        -- When it was removed, or found to have expired.
        gone_ms INTEGER,
        PRIMARY KEY (tenant, input)
    ) STRICT;
    CREATE UNIQUE INDEX inputs_by_request ON inputs (tenant, request) WHERE request IS NOT NULL;
    CREATE INDEX inputs_of_tenant ON inputs (tenant, create_ms, input) WHERE gone_ms IS NULL;
    CREATE INDEX inputs_by_expiry ON inputs (expire_ms) WHERE gone_ms IS NULL;
    CREATE INDEX inputs_gone ON inputs (tenant, gone_ms) WHERE gone_ms IS NOT NULL;
";

/// A stored input, without its bytes. What is in it never changes.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    pub id: Id,
    pub tenant: String,
    pub user: String,
    pub name: String,
    pub media_type: String,
    /// Size in bytes.
    pub size: u64,
    pub sha256: [u8; 32],
    pub origin: v1::Origin,
    pub labels: BTreeMap<String, String>,
    pub create_time: SystemTime,
    pub expire_time: SystemTime,
    /// Name of the file with the bytes.
    pub(super) file: String,
}

/// What asked for a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Asked {
    pub(super) request: Option<Id>,
    pub(super) digest: [u8; 32],
}

/// A file that no record has any more.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Left {
    pub(super) tenant: String,
    pub(super) file: String,
    pub(super) size: u64,
}

/// What is known by an id.
#[derive(Debug, PartialEq)]
pub(super) enum Known {
    Here(Box<Record>),
    Gone,
    Never,
}

/// The database.
#[derive(Debug)]
pub(super) struct Records(Connection);

impl Records {
    /// Opens the database, or makes it.
    pub(super) fn open(path: &Path) -> Result<Self, InputsError> {
        let opened = database::open(path, SCHEMA, TABLES);
        let connection = opened.map_err(|error| match error {
            OpenError::File(source) => InputsError::file(path, source),
            OpenError::Database(source) => InputsError::Open {
                path: path.to_owned(),
                source,
            },
            OpenError::Newer { found, known } => InputsError::Newer {
                path: path.to_owned(),
                found,
                known,
            },
        })?;
        Ok(Self(connection))
    }

    /// Adds a record, durably.
    pub(super) fn insert(&self, record: &Record, asked: &Asked) -> Result<(), InputsError> {
        let labels = serde_json::to_string(&record.labels).unwrap_or_default();
        let inserted = self.0.execute(
            "INSERT INTO inputs (tenant, input, request, digest, file, name, type, size_bytes, sha256, user, \
             origin_user, origin_conversation, origin_request, labels, create_ms, expire_ms) \
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16)",
            params![
                record.tenant,
                record.id.as_str(),
                asked.request.as_ref().map(Id::as_str),
                hex(&asked.digest),
                record.file,
                record.name,
                record.media_type,
                to_signed(record.size),
                hex(&record.sha256),
                record.user,
                record.origin.user,
                record.origin.conversation,
                record.origin.request,
                labels,
                to_millis(record.create_time),
                to_millis(record.expire_time),
            ],
        );
        match inserted {
            Ok(_) => Ok(()),
            Err(error) if error.sqlite_error_code() == Some(rusqlite::ErrorCode::ConstraintViolation) => {
                Err(InputsError::Taken)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Looks a record up.
    pub(super) fn find(&self, tenant: &str, id: &Id, now: SystemTime) -> Result<Known, InputsError> {
        let mut statement = self.0.prepare_cached(
            "SELECT *, gone_ms IS NULL AND expire_ms > ?3 FROM inputs WHERE tenant = ?1 AND input = ?2",
        )?;
        let found = statement.query_row(params![tenant, id.as_str(), to_millis(now)], |row| {
            Ok((record(row)?, row.get::<_, bool>(17)?))
        });
        Ok(match found.optional()? {
            Some((record, true)) => Known::Here(Box::new(record)),
            Some((_, false)) => Known::Gone,
            None => Known::Never,
        })
    }

    /// What a request made, be it gone or not, and the digest that it came with.
    pub(super) fn made_by(&self, tenant: &str, request: &Id) -> Result<Option<(Record, [u8; 32])>, InputsError> {
        let mut statement = self
            .0
            .prepare_cached("SELECT * FROM inputs WHERE tenant = ?1 AND request = ?2")?;
        let found = statement.query_row(params![tenant, request.as_str()], |row| {
            Ok((record(row)?, digest(row, "digest")?))
        });
        Ok(found.optional()?)
    }

    /// Goes through the records of a tenant, newest first, behind that which was made at a time under an id; until
    /// `take` says that it is enough.
    pub(super) fn each(
        &self,
        tenant: &str,
        now: SystemTime,
        behind: Option<&(i64, String)>,
        mut take: impl FnMut(Record) -> bool,
    ) -> Result<(), InputsError> {
        let first = (i64::MAX, String::new());
        let (time, id) = behind.unwrap_or(&first);
        let mut statement = self.0.prepare_cached(
            "SELECT * FROM inputs WHERE tenant = ?1 AND gone_ms IS NULL AND expire_ms > ?2 \
             AND (create_ms, input) < (?3, ?4) ORDER BY create_ms DESC, input DESC",
        )?;
        let mut rows = statement.query(params![tenant, to_millis(now), time, id])?;
        while let Some(row) = rows.next()? {
            if !take(record(row)?) {
                break;
            }
        }
        Ok(())
    }

    /// Notes, durably, that a record is gone; gives its file unless it was gone before.
    pub(super) fn remove(&self, tenant: &str, id: &Id, now: SystemTime) -> Result<Option<Left>, InputsError> {
        let mut statement = self.0.prepare_cached(
            "UPDATE inputs SET gone_ms = ?3 WHERE tenant = ?1 AND input = ?2 AND gone_ms IS NULL \
             RETURNING tenant, file, size_bytes",
        )?;
        let left = statement.query_row(params![tenant, id.as_str(), to_millis(now)], left);
        Ok(left.optional()?)
    }

    /// Notes that all that have expired are gone, and forgets those that are gone for long; gives the files of the
    /// first.
    pub(super) fn expire(&mut self, now: SystemTime) -> Result<Vec<Left>, InputsError> {
        let millis = to_millis(now);
        let transaction = self.0.transaction()?;
        let lefts = {
            let mut statement = transaction.prepare_cached(
                "UPDATE inputs SET gone_ms = ?1 WHERE gone_ms IS NULL AND expire_ms <= ?1 \
                 RETURNING tenant, file, size_bytes",
            )?;
            statement.query_map([millis], left)?.collect::<Result<Vec<_>, _>>()?
        };
        let old = millis.saturating_sub(i64::try_from(GONE.as_millis()).unwrap_or(i64::MAX));
        transaction
            .prepare_cached("DELETE FROM inputs WHERE gone_ms IS NOT NULL AND gone_ms <= ?1")?
            .execute([old])?;
        transaction
            .prepare_cached(
                "DELETE FROM inputs WHERE rowid IN (SELECT number FROM (SELECT rowid AS number, row_number() OVER \
                 (PARTITION BY tenant ORDER BY gone_ms DESC) AS place FROM inputs WHERE gone_ms IS NOT NULL) \
                 WHERE place > ?1)",
            )?
            .execute([GONE_MAX])?;
        transaction.commit()?;
        Ok(lefts)
    }

    /// All that are not gone, with the names of their files.
    pub(super) fn here(&self) -> Result<Vec<(Id, Left)>, InputsError> {
        let mut statement = self
            .0
            .prepare("SELECT tenant, file, size_bytes, input FROM inputs WHERE gone_ms IS NULL")?;
        let rows = statement.query_map([], |row| Ok((id(row, "input")?, left(row)?)))?;
        Ok(rows.collect::<Result<_, _>>()?)
    }
}

fn record(row: &Row<'_>) -> rusqlite::Result<Record> {
    Ok(Record {
        id: id(row, "input")?,
        tenant: row.get("tenant")?,
        user: row.get("user")?,
        name: row.get("name")?,
        media_type: row.get("type")?,
        size: size(row.get("size_bytes")?),
        sha256: digest(row, "sha256")?,
        origin: v1::Origin {
            user: row.get("origin_user")?,
            conversation: row.get("origin_conversation")?,
            request: row.get("origin_request")?,
        },
        labels: json(row, "labels")?,
        create_time: to_time(row.get("create_ms")?),
        expire_time: to_time(row.get("expire_ms")?),
        file: row.get("file")?,
    })
}

fn left(row: &Row<'_>) -> rusqlite::Result<Left> {
    Ok(Left {
        tenant: row.get(0)?,
        file: row.get(1)?,
        size: size(row.get(2)?),
    })
}
