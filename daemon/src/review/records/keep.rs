//! What the keeper asks of the records: what has expired, what goes into the store, what is left over.

use std::time::SystemTime;

use brig_jailer::ids::Id;
use rusqlite::params;

use super::{Amount, Files, Record, Records, STEP, all, amount, drop_bytes, leave};
use crate::database::{digest, id, size, to_millis};
use crate::run::inputs::hex;

impl Records {
    /// Some of those that nobody decided about in time.
    pub(in crate::review) fn overdue(&self, now: SystemTime) -> rusqlite::Result<Vec<Record>> {
        let sql = "SELECT * FROM artifacts WHERE review = 'pending' AND deciding IS NULL AND expire_ms <= ?1
                   ORDER BY expire_ms LIMIT ?2";
        all(&self.0, sql, params![to_millis(now), STEP])
    }

    /// Notes that the bytes of some whose time has run out are gone; gives them as they were, and their files.
    pub(in crate::review) fn expire(&mut self, now: SystemTime) -> rusqlite::Result<(Vec<Record>, Files)> {
        let transaction = self.0.transaction()?;
        let sql = "SELECT * FROM artifacts WHERE place <> 'gone' AND expire_ms <= ?1 AND review <> 'pending'
                   ORDER BY expire_ms LIMIT ?2";
        let expired = all(&transaction, sql, params![to_millis(now), STEP])?;
        let mut files = Files::new();
        for record in &expired {
            files.extend(drop_bytes(&transaction, record)?);
        }
        transaction
            .prepare_cached(
                "DELETE FROM artifacts WHERE artifact IN (SELECT artifact FROM artifacts \
                 WHERE place = 'gone' AND forget_ms <= ?1 AND review <> 'pending' LIMIT ?2)",
            )?
            .execute(params![to_millis(now), STEP])?;
        transaction.commit()?;
        Ok((expired, files))
    }

    /// What would expire at this time: that nobody decided about, and that was kept.
    pub(in crate::review) fn due(&self, now: SystemTime) -> rusqlite::Result<[Amount; 2]> {
        let of = |condition: &str| {
            let sql = format!(
                "SELECT count(*), coalesce(sum(size_bytes), 0) FROM artifacts
                 WHERE expire_ms <= ?1 AND place <> 'gone' AND review {condition} 'pending'"
            );
            self.0.query_row(&sql, [to_millis(now)], amount)
        };
        Ok([of("=")?, of("<>")?])
    }

    /// Some that are held and have their place in the store.
    pub(in crate::review) fn to_store(&self) -> rusqlite::Result<Vec<Record>> {
        let sql = "SELECT * FROM artifacts WHERE place = 'held' AND review IN ('not_needed', 'approved')
                   ORDER BY create_ms LIMIT ?1";
        all(&self.0, sql, [STEP])
    }

    /// Notes that an object may be in the store, before it is.
    pub(in crate::review) fn announce(&self, record: &Record) -> rusqlite::Result<()> {
        leave(&self.0, record)
    }

    /// Notes that the bytes of an artifact are in the store; whether it still wants them.
    pub(in crate::review) fn stored(&mut self, record: &Record) -> rusqlite::Result<bool> {
        let transaction = self.0.transaction()?;
        let changed = transaction
            .prepare_cached("UPDATE artifacts SET place = 'store' WHERE artifact = ?1 AND place = 'held'")?
            .execute([record.id.as_str()])?;
        if changed == 1 {
            transaction
                .prepare_cached("DELETE FROM leftovers WHERE tenant = ?1 AND sha256 = ?2")?
                .execute(params![record.source.tenant, hex(&record.sha256)])?;
        }
        transaction.commit()?;
        Ok(changed == 1)
    }

    /// Notes that the bytes of an artifact are lost.
    pub(in crate::review) fn lost(&self, id: &Id) -> rusqlite::Result<()> {
        self.0
            .prepare_cached("UPDATE artifacts SET place = 'gone' WHERE artifact = ?1")?
            .execute([id.as_str()])
            .map(|_| ())
    }

    /// Some objects that perhaps no artifact has, with whether one does.
    pub(in crate::review) fn leftovers(&self) -> rusqlite::Result<Vec<(String, [u8; 32], bool)>> {
        let mut statement = self.0.prepare_cached(
            "SELECT tenant, sha256, EXISTS (SELECT 1 FROM artifacts WHERE artifacts.tenant = leftovers.tenant \
             AND artifacts.sha256 = leftovers.sha256 AND place = 'store') AS named FROM leftovers LIMIT ?1",
        )?;
        let rows = statement.query_map([STEP], |row| {
            Ok((row.get(0)?, digest(row, "sha256")?, row.get("named")?))
        })?;
        rows.collect()
    }

    /// Forgets an object that was removed, or that an artifact has.
    pub(in crate::review) fn cleaned(&self, tenant: &str, sha256: [u8; 32]) -> rusqlite::Result<()> {
        self.0
            .prepare_cached("DELETE FROM leftovers WHERE tenant = ?1 AND sha256 = ?2")?
            .execute(params![tenant, hex(&sha256)])
            .map(|_| ())
    }

    /// The files that the quarantine must have, and their sizes.
    pub(in crate::review) fn held(&self) -> rusqlite::Result<Vec<(Id, u64)>> {
        let mut statement = self
            .0
            .prepare("SELECT artifact, size_bytes FROM artifacts WHERE place = 'held'")?;
        let rows = statement.query_map([], |row| Ok((id(row, "artifact")?, size(row.get("size_bytes")?))))?;
        rows.collect()
    }
}
