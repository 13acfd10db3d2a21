//! The database of artifacts. It is not the ledger's: records come and go; the ledger has what came out of an execution,
//! and every decision.
//!
//! Everything here can block.

mod keep;

use std::path::Path;

use brig_jailer::ids::Id;
use prost::Message;
use rusqlite::types::{ToSql, Value};
use rusqlite::{Connection, OptionalExtension, Params, Row, Transaction, params, params_from_iter};

use super::record::{Decision, Place, Record, download_name, raw_path};
use super::{ArtifactsError, Which};
use crate::artifacts::Review;
use crate::database::{self, json, size, to_millis, to_signed};
use crate::run::inputs::hex;

/// The form of the tables, in `user_version`.
const SCHEMA: i64 = 1;
/// Records that are looked at in one step of something that may be about many.
pub(super) const STEP: i64 = 100;

const TABLES: &str = "
    CREATE TABLE artifacts (
        artifact TEXT PRIMARY KEY,
        tenant TEXT NOT NULL,
        execution TEXT NOT NULL,
        session TEXT NOT NULL,
        user TEXT NOT NULL,
        origin_user TEXT NOT NULL,
        origin_conversation TEXT NOT NULL,
        origin_request TEXT NOT NULL,
        labels TEXT NOT NULL,
        policy TEXT NOT NULL,
        download TEXT NOT NULL,
        -- As it was collected, in the form of the API.
        shown BLOB NOT NULL,
        path BLOB NOT NULL,
        size_bytes INTEGER NOT NULL,
        sha256 TEXT NOT NULL,
        review TEXT NOT NULL CHECK (review IN ('not_needed', 'pending', 'approved', 'rejected', 'expired')),
        reviewer TEXT NOT NULL DEFAULT '',
        comment TEXT NOT NULL DEFAULT '',
        review_ms INTEGER,
        -- A decision that is on its way to the ledger.
        deciding TEXT,
        place TEXT NOT NULL CHECK (place IN ('gone', 'held', 'store')),
        create_ms INTEGER NOT NULL,
        expire_ms INTEGER NOT NULL,
        retention_ms INTEGER NOT NULL,
        forget_ms INTEGER NOT NULL
    ) STRICT;
    CREATE INDEX artifacts_of_tenant ON artifacts (tenant, create_ms, artifact);
    CREATE INDEX artifacts_of_execution ON artifacts (execution);
    CREATE INDEX artifacts_of_file ON artifacts (session, path, sha256);
    CREATE INDEX artifacts_kept ON artifacts (tenant, review, size_bytes) WHERE place <> 'gone';
    CREATE INDEX artifacts_held ON artifacts (create_ms) WHERE place = 'held';
    CREATE INDEX artifacts_stored ON artifacts (tenant, sha256) WHERE place = 'store';
    CREATE INDEX artifacts_pending ON artifacts (expire_ms) WHERE review = 'pending';
    CREATE INDEX artifacts_by_expiry ON artifacts (expire_ms) WHERE place <> 'gone';
    CREATE INDEX artifacts_deciding ON artifacts (artifact) WHERE deciding IS NOT NULL;
    CREATE INDEX artifacts_gone ON artifacts (forget_ms) WHERE place = 'gone';

    -- Objects of the store that perhaps no artifact has any more.
    CREATE TABLE leftovers (
        tenant TEXT NOT NULL,
        sha256 TEXT NOT NULL,
        PRIMARY KEY (tenant, sha256)
    ) STRICT;
";

/// The database.
#[derive(Debug)]
pub(super) struct Records(Connection);

/// Whose artifacts are wanted.
#[derive(Debug, Clone, Default)]
pub(super) struct Of {
    pub(super) tenant: String,
    pub(super) execution: Option<String>,
    pub(super) session: Option<String>,
}

/// When an artifact was collected, and its id.
pub(super) type Behind = (i64, String);

/// Files of the quarantine that no record has any more.
pub(super) type Files = Vec<Id>;

/// How many artifacts a tenant has, and their bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Amount {
    pub(super) files: u64,
    pub(super) bytes: u64,
}

/// What became of the beginning of a decision.
pub(super) enum Begun {
    /// It is on its way.
    Deciding(Box<Record>),
    /// It is not for anybody to decide any more, or somebody does already.
    Not(Box<Record>),
    Unknown,
}

impl Records {
    /// Opens the database, or makes it.
    pub(super) fn open(path: &Path) -> Result<Self, ArtifactsError> {
        let opened = database::open(path, SCHEMA, TABLES);
        opened.map(Self).map_err(|error| ArtifactsError::open(path, error))
    }

    /// What an earlier brigd had collected of an execution and told nobody of.
    pub(super) fn untold(&self, execution: &Id, told: &[Id]) -> rusqlite::Result<Vec<Record>> {
        let sql = "SELECT * FROM artifacts WHERE execution = ?1";
        let mut found = all(&self.0, sql, [execution.as_str()])?;
        found.retain(|record| !told.contains(&record.id));
        Ok(found)
    }

    /// Adds what an execution left, all of it or nothing, in the place of what an earlier brigd had collected. What
    /// somebody has decided about, or decides about now, stays: the ledger has it. Gives the files of what goes.
    pub(super) fn insert(&mut self, new: &[&Record], replaced: &[Id]) -> rusqlite::Result<Files> {
        let transaction = self.0.transaction()?;
        let mut files = Files::new();
        for id in replaced {
            let sql = "SELECT * FROM artifacts WHERE artifact = ?1 AND review_ms IS NULL AND deciding IS NULL";
            for record in all(&transaction, sql, [id.as_str()])? {
                files.extend(drop_bytes(&transaction, &record)?);
                transaction
                    .prepare_cached("DELETE FROM artifacts WHERE artifact = ?1")?
                    .execute([id.as_str()])?;
            }
        }
        new.iter().try_for_each(|record| insert(&transaction, record))?;
        transaction.commit()?;
        Ok(files)
    }

    /// Looks an artifact of a tenant up.
    pub(super) fn find(&self, tenant: &str, id: &Id) -> rusqlite::Result<Option<Record>> {
        let mut statement = self
            .0
            .prepare_cached("SELECT * FROM artifacts WHERE tenant = ?1 AND artifact = ?2")?;
        let found = statement.query_row(params![tenant, id.as_str()], Record::read);
        found.optional()
    }

    /// Looks an artifact up, whoever it belongs to.
    pub(super) fn find_any(&self, id: &Id) -> rusqlite::Result<Option<Record>> {
        let mut statement = self.0.prepare_cached("SELECT * FROM artifacts WHERE artifact = ?1")?;
        statement.query_row([id.as_str()], Record::read).optional()
    }

    /// Some artifacts of a tenant, newest first, behind that which was made at a time under an id. Fewer than [`STEP`] are
    /// the last.
    pub(super) fn newest(&self, of: &Of, behind: Option<&Behind>) -> rusqlite::Result<Vec<Record>> {
        let first = (i64::MAX, String::new());
        let (time, id) = behind.unwrap_or(&first);
        let sql = "SELECT * FROM artifacts WHERE tenant = ?1 AND (create_ms, artifact) < (?2, ?3)
                   AND (?4 IS NULL OR execution = ?4) AND (?5 IS NULL OR session = ?5)
                   ORDER BY create_ms DESC, artifact DESC LIMIT ?6";
        all(
            &self.0,
            sql,
            params![of.tenant, time, id, of.execution, of.session, STEP],
        )
    }

    /// The review of the artifact of a session that has this path and content. Of several that one counts which was
    /// decided last.
    pub(super) fn review_of(&self, session: &Id, path: &[u8], sha256: [u8; 32]) -> rusqlite::Result<Option<Review>> {
        let found: Option<String> = self
            .0
            .prepare_cached(
                "SELECT review FROM artifacts WHERE session = ?1 AND path = ?2 AND sha256 = ?3 \
                 ORDER BY review = 'pending', coalesce(review_ms, create_ms) DESC LIMIT 1",
            )?
            .query_row(params![session.as_str(), path, hex(&sha256)], |row| row.get(0))
            .optional()?;
        Ok(found.map(|name| Review::from_name(&name).unwrap_or(Review::Rejected)))
    }

    /// What a tenant has waiting for review, or kept beyond that.
    pub(super) fn amount(&self, tenant: &str, pending: bool) -> rusqlite::Result<Amount> {
        let sql = if pending {
            "SELECT count(*), coalesce(sum(size_bytes), 0) FROM artifacts
             WHERE tenant = ?1 AND place <> 'gone' AND review = 'pending'"
        } else {
            "SELECT count(*), coalesce(sum(size_bytes), 0) FROM artifacts
             WHERE tenant = ?1 AND place <> 'gone' AND review IN ('not_needed', 'approved')"
        };
        self.0.prepare_cached(sql)?.query_row([tenant], amount)
    }

    /// Notes that a decision is on its way, unless there is or was one.
    pub(super) fn begin(&self, tenant: &str, id: &Id, decision: &Decision) -> rusqlite::Result<Begun> {
        let deciding = serde_json::to_string(decision).unwrap_or_default();
        let begun = self
            .0
            .prepare_cached(
                "UPDATE artifacts SET deciding = ?3
                 WHERE tenant = ?1 AND artifact = ?2 AND review = 'pending' AND deciding IS NULL",
            )?
            .execute(params![tenant, id.as_str(), deciding])?;
        Ok(match self.find(tenant, id)? {
            Some(record) if begun == 1 => Begun::Deciding(Box::new(record)),
            Some(record) => Begun::Not(Box::new(record)),
            None => Begun::Unknown,
        })
    }

    /// Forgets a decision that could not be recorded.
    pub(super) fn call_off(&self, id: &Id) -> rusqlite::Result<()> {
        self.0
            .prepare_cached("UPDATE artifacts SET deciding = NULL WHERE artifact = ?1")?
            .execute([id.as_str()])
            .map(|_| ())
    }

    /// Makes a decision count that the ledger has; gives the artifact as it is then, and its file if that is to go.
    pub(super) fn conclude(&mut self, id: &Id, decision: &Decision) -> rusqlite::Result<Option<(Record, Files)>> {
        let transaction = self.0.transaction()?;
        let update = "UPDATE artifacts SET review = ?2, reviewer = ?3, comment = ?4, review_ms = ?5, deciding = NULL,
                             expire_ms = ?5 + retention_ms
                      WHERE artifact = ?1 AND review = 'pending' RETURNING *";
        let decided = transaction
            .prepare_cached(update)?
            .query_row(
                params![
                    id.as_str(),
                    decision.review,
                    decision.reviewer,
                    decision.comment,
                    decision.time_ms
                ],
                Record::read,
            )
            .optional()?;
        let Some(mut record) = decided else { return Ok(None) };
        let mut files = Files::new();
        if record.review != Review::Approved {
            files = drop_bytes(&transaction, &record)?;
            record.place = Place::Gone;
        }
        transaction.commit()?;
        Ok(Some((record, files)))
    }

    /// The decisions that were on their way when brigd ended.
    pub(super) fn deciding(&self) -> rusqlite::Result<Vec<(Record, Decision)>> {
        let mut statement = self.0.prepare("SELECT * FROM artifacts WHERE deciding IS NOT NULL")?;
        let rows = statement.query_map([], |row| Ok((Record::read(row)?, json(row, "deciding")?)))?;
        rows.collect()
    }

    /// Keeps an artifact until a later time, with these labels.
    pub(super) fn save(&self, record: &Record) -> rusqlite::Result<()> {
        let labels = serde_json::to_string(&record.labels).unwrap_or_default();
        let sql =
            "UPDATE artifacts SET expire_ms = ?2, forget_ms = max(forget_ms, ?2), labels = ?3 WHERE artifact = ?1";
        self.0
            .prepare_cached(sql)?
            .execute(params![record.id.as_str(), to_millis(record.expire_time), labels])
            .map(|_| ())
    }

    /// Removes artifacts, or counts them; gives how many there were, and their files.
    pub(super) fn erase(&mut self, which: &Which, only_count: bool) -> rusqlite::Result<(u64, Files)> {
        let (conditions, parameters) = which.conditions();
        let parameters = || params_from_iter(parameters.iter().map(|value| value as &dyn ToSql));
        let transaction = self.0.transaction()?;
        if only_count {
            let sql = format!("SELECT count(*) FROM artifacts WHERE {conditions}");
            let count: i64 = transaction.query_row(&sql, parameters(), |row| row.get(0))?;
            return Ok((size(count), Files::new()));
        }
        let found = all(
            &transaction,
            &format!("SELECT * FROM artifacts WHERE {conditions}"),
            parameters(),
        )?;
        let mut files = Files::new();
        for record in &found {
            files.extend(drop_bytes(&transaction, record)?);
        }
        transaction.execute(&format!("DELETE FROM artifacts WHERE {conditions}"), parameters())?;
        transaction.commit()?;
        Ok((found.len() as u64, files))
    }
}

impl Which {
    /// The conditions in SQL, and their parameters. What is being decided is left to that.
    fn conditions(&self) -> (String, Vec<Value>) {
        let mut conditions = vec!["deciding IS NULL"];
        let mut parameters = Vec::new();
        if let Some(tenant) = &self.tenant {
            conditions.push("tenant = ?");
            parameters.push(Value::from(tenant.clone()));
        }
        if let Some(user) = &self.user {
            conditions.push("(user = ? OR origin_user = ?)");
            parameters.extend([Value::from(user.clone()), Value::from(user.clone())]);
        }
        if let Some(execution) = &self.execution {
            conditions.push("execution = ?");
            parameters.push(Value::from(execution.clone()));
        }
        if let Some(to_ms) = self.to_ms {
            conditions.push("create_ms < ?");
            parameters.push(Value::from(to_ms));
        }
        (conditions.join(" AND "), parameters)
    }
}

fn insert(transaction: &Transaction<'_>, record: &Record) -> rusqlite::Result<()> {
    let (source, shown) = (&record.source, &record.shown);
    let labels = serde_json::to_string(&record.labels).unwrap_or_default();
    let retention = to_signed(u64::try_from(record.retention.as_millis()).unwrap_or(u64::MAX));
    transaction
        .prepare_cached(
            "INSERT INTO artifacts (artifact, tenant, execution, session, user, origin_user, origin_conversation, \
             origin_request, labels, policy, download, shown, path, size_bytes, sha256, review, comment, place, \
             create_ms, expire_ms, retention_ms, forget_ms) \
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20, ?21, \
             ?22)",
        )?
        .execute(params![
            record.id.as_str(),
            source.tenant,
            source.execution.as_str(),
            source.session.as_str(),
            source.user,
            source.origin.user,
            source.origin.conversation,
            source.origin.request,
            labels,
            source.policy,
            download_name(record.download),
            shown.encode_to_vec(),
            raw_path(shown),
            to_signed(shown.size_bytes),
            hex(&record.sha256),
            record.review.name(),
            record.comment,
            record.place.name(),
            to_millis(record.create_time),
            to_millis(record.expire_time),
            retention,
            to_millis(record.forget_time),
        ])
        .map(|_| ())
}

/// Notes that the bytes of an artifact are wanted no more.
fn drop_bytes(connection: &Connection, record: &Record) -> rusqlite::Result<Files> {
    connection
        .prepare_cached("UPDATE artifacts SET place = 'gone' WHERE artifact = ?1")?
        .execute([record.id.as_str()])?;
    match record.place {
        Place::Held => Ok(vec![record.id.clone()]),
        Place::Store => leave(connection, record).map(|()| Files::new()),
        Place::Gone => Ok(Files::new()),
    }
}

fn leave(connection: &Connection, record: &Record) -> rusqlite::Result<()> {
    connection
        .prepare_cached("INSERT OR IGNORE INTO leftovers (tenant, sha256) VALUES (?1, ?2)")?
        .execute(params![record.source.tenant, hex(&record.sha256)])
        .map(|_| ())
}

fn all(connection: &Connection, sql: &str, parameters: impl Params) -> rusqlite::Result<Vec<Record>> {
    let mut statement = connection.prepare_cached(sql)?;
    let rows = statement.query_map(parameters, Record::read)?;
    rows.collect()
}

fn amount(row: &Row<'_>) -> rusqlite::Result<Amount> {
    Ok(Amount {
        files: size(row.get(0)?),
        bytes: size(row.get(1)?),
    })
}
