//! The chain of hashes that runs through the entries.
//!
//! The hash of an entry is the SHA-256 of the line `brig ledger entry 1`, the hash of the entry before (32 bytes of zero
//! before the first), the entry's number and its time (8 bytes each, big-endian), and then its kind, tenant, execution,
//! session and data: each as its length in bytes (8 bytes, big-endian; all ones where there is none) and its bytes as
//! they lie in the table. Nothing is written anew to be hashed, so that there is only one form.
//!
//! Whoever can write the file can also write the chain anew. Its head is therefore told to the journal now and then:
//! who has one of these notes can tell whether the entries up to it are still the same.

use rusqlite::{Connection, OptionalExtension};
use sha2::{Digest, Sha256};

/// What the hash of an entry begins with. Another form of hashing needs another line.
const FORM: &[u8] = b"brig ledger entry 1\n";

/// The hash of an entry.
pub type Hash = [u8; 32];

/// The newest entry. Before the first one its number is 0 and its hash zero.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Head {
    pub number: i64,
    pub hash: Hash,
}

/// What is hashed of an entry.
#[derive(Debug, Clone, Copy)]
pub(super) struct Link<'a> {
    pub(super) number: i64,
    pub(super) kind: &'a str,
    pub(super) execution: Option<&'a str>,
    pub(super) session: Option<&'a str>,
    pub(super) tenant: &'a str,
    pub(super) time_ms: i64,
    pub(super) data: &'a str,
}

impl Link<'_> {
    /// The hash of the entry that follows the one with the hash `previous`.
    pub(super) fn hash(&self, previous: &Hash) -> Hash {
        let mut hash = Sha256::new();
        hash.update(FORM);
        hash.update(previous);
        hash.update(self.number.to_be_bytes());
        hash.update(self.time_ms.to_be_bytes());
        let texts = [
            Some(self.kind),
            Some(self.tenant),
            self.execution,
            self.session,
            Some(self.data),
        ];
        for text in texts {
            let length = text.map_or(u64::MAX, |text| text.len() as u64);
            hash.update(length.to_be_bytes());
            hash.update(text.unwrap_or_default());
        }
        hash.finalize().into()
    }
}

/// Finds the head. Its number is the largest that was ever used: where the newest entries are gone, a gap stays.
pub(super) fn head(connection: &Connection) -> rusqlite::Result<Head> {
    let last: Option<(i64, Hash)> = connection
        .query_row(
            "SELECT number, hash FROM entries ORDER BY number DESC LIMIT 1",
            [],
            |row| Ok((row.get(0)?, row.get(1)?)),
        )
        .optional()?;
    let (number, hash) = last.unwrap_or_default();
    Ok(Head {
        number: number.max(used(connection)?),
        hash,
    })
}

/// The largest number that was ever used, as SQLite itself remembers it.
pub(super) fn used(connection: &Connection) -> rusqlite::Result<i64> {
    let used = connection
        .query_row("SELECT seq FROM sqlite_sequence WHERE name = 'entries'", [], |row| {
            row.get(0)
        })
        .optional()?;
    Ok(used.unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::super::record::hex;
    use super::*;

    const FIRST: Link<'_> = Link {
        number: 1,
        kind: "accept",
        execution: Some("e1"),
        session: Some("s1"),
        tenant: "default",
        time_ms: 1_700_000_000_123,
        data: "{}",
    };

    #[test]
    fn the_form_of_hashing_stays_what_it_is() {
        // Computed with Python's hashlib from the description above.
        assert_eq!(
            hex(&FIRST.hash(&Hash::default())),
            "4c3195f1b4160083edccbe43623008e356c4dc3ecee0abac00de65ac7aecb48d"
        );
    }

    #[test]
    fn text_cannot_move_from_one_column_to_the_next() {
        let moved = Link {
            execution: Some("e1s"),
            session: Some("1"),
            ..FIRST
        };
        let absent = Link { session: None, ..FIRST };
        let empty = Link {
            session: Some(""),
            ..FIRST
        };
        let previous = Hash::default();
        assert_ne!(moved.hash(&previous), FIRST.hash(&previous));
        assert_ne!(absent.hash(&previous), empty.hash(&previous));
        assert_ne!(FIRST.hash(&[1; 32]), FIRST.hash(&previous));
    }
}
