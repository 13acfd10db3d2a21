//! Entries for people: found by filters, with their bodies, batch by batch.

use rusqlite::types::{ToSql, Type, Value as Sql};
use rusqlite::{Connection, OptionalExtension, Row, params, params_from_iter};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::chain::Hash;
use super::names::join;
use super::read::body;
use super::record::{
    Accept, ArtifactReviewed, Downloaded, Erased, Finish, Origin, Refused, Reviewed, SessionClosed, SessionOpened,
};

/// Which entries are wanted: those that match everything that is set.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    pub tenant: Option<String>,
    /// Of the connection or of the origin.
    pub user: Option<String>,
    pub execution: Option<String>,
    pub session: Option<String>,
    /// As the entries have them; empty is every kind.
    pub kinds: Vec<&'static str>,
    /// At this time or later, in milliseconds since 1970.
    pub from_ms: Option<i64>,
    /// Before this time.
    pub to_ms: Option<i64>,
}

/// Where a batch begins, and which way it goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// The oldest after this number, and on.
    After(i64),
    /// The newest before this number, and back.
    Before(i64),
}

/// How much a batch has at most; one entry it has always, if there is any.
#[derive(Debug, Clone, Copy)]
pub struct Most {
    pub entries: usize,
    /// Bytes of data and bodies.
    pub bytes: usize,
}

/// Some entries.
#[derive(Debug, Default)]
pub struct Batch {
    pub entries: Vec<Found>,
    /// Whether more of them were there.
    pub more: bool,
}

/// One entry.
#[derive(Debug)]
pub struct Found {
    pub number: i64,
    pub kind: String,
    pub execution: Option<String>,
    pub session: Option<String>,
    pub tenant: String,
    pub time_ms: i64,
    pub previous: Hash,
    pub hash: Hash,
    pub content: Content,
}

/// What an entry says. Names and bodies that were erased are empty.
#[derive(Debug)]
pub enum Content {
    Accept(Box<Accept>),
    /// With what was accepted.
    Finish(Box<Finish>, Option<Box<Accept>>),
    Refused(Box<Refused>),
    Opened(Box<SessionOpened>),
    Closed(SessionClosed),
    Erased(Box<Erased>),
    /// With who had asked.
    Reviewed(Box<Reviewed>, Origin),
    ArtifactReviewed(Box<ArtifactReviewed>),
    Downloaded(Box<Downloaded>),
    /// Of a kind that this version does not write.
    Other,
}

impl Filter {
    /// The conditions in SQL on the table `entries`, and their parameters.
    pub(super) fn conditions(&self) -> (String, Vec<Sql>) {
        let mut conditions = Vec::new();
        let mut parameters: Vec<Sql> = Vec::new();
        let texts = [
            ("entries.tenant = ?", &self.tenant),
            ("entries.execution = ?", &self.execution),
            ("entries.session = ?", &self.session),
        ];
        for (condition, text) in texts {
            if let Some(text) = text {
                conditions.push(condition.to_owned());
                parameters.push(text.clone().into());
            }
        }
        if let Some(user) = &self.user {
            // Said twice so that the index is used.
            let found = "entries.number IN (SELECT number FROM names WHERE user = ? AND user <> ''
                         UNION ALL SELECT number FROM names WHERE origin_user = ? AND origin_user <> '')";
            conditions.push(found.to_owned());
            parameters.extend([user.clone().into(), user.clone().into()]);
        }
        if !self.kinds.is_empty() {
            let places = vec!["?"; self.kinds.len()].join(", ");
            conditions.push(format!("entries.kind IN ({places})"));
            parameters.extend(self.kinds.iter().map(|kind| Sql::from((*kind).to_owned())));
        }
        for (condition, time) in [
            ("entries.time_ms >= ?", self.from_ms),
            ("entries.time_ms < ?", self.to_ms),
        ] {
            if let Some(time) = time {
                conditions.push(condition.to_owned());
                parameters.push(time.into());
            }
        }
        if conditions.is_empty() {
            conditions.push("TRUE".to_owned());
        }
        (conditions.join(" AND "), parameters)
    }
}

/// Reads a batch.
pub(super) fn batch(connection: &Connection, filter: &Filter, start: Start, most: Most) -> rusqlite::Result<Batch> {
    let (conditions, mut parameters) = filter.conditions();
    let (side, number, order) = match start {
        Start::After(number) => (">", number, "ASC"),
        Start::Before(number) => ("<", number, "DESC"),
    };
    let sql = format!(
        "SELECT number, kind, execution, session, tenant, time_ms, data, hash,
                (SELECT content FROM names WHERE names.number = entries.number),
                (SELECT before.hash FROM entries AS before WHERE before.number = entries.number - 1)
         FROM entries WHERE {conditions} AND number {side} ? ORDER BY number {order}"
    );
    parameters.push(number.into());
    let mut statement = connection.prepare_cached(&sql)?;
    let mut rows = statement.query(params_from_iter(parameters.iter().map(|value| value as &dyn ToSql)))?;
    let (mut batch, mut bytes) = (Batch::default(), 0);
    while let Some(row) = rows.next()? {
        if batch.entries.len() == most.entries || bytes >= most.bytes {
            batch.more = true;
            break;
        }
        let (found, size) = found(connection, row)?;
        bytes += size;
        batch.entries.push(found);
    }
    Ok(batch)
}

/// Reads an entry with its bodies, and says how many bytes it has.
fn found(connection: &Connection, row: &Row<'_>) -> rusqlite::Result<(Found, usize)> {
    let (data, names): (String, Option<String>) = (row.get(6)?, row.get(8)?);
    let mut size = data.len() + names.as_ref().map_or(0, String::len);
    let mut found = Found {
        number: row.get(0)?,
        kind: row.get(1)?,
        execution: row.get(2)?,
        session: row.get(3)?,
        tenant: row.get(4)?,
        time_ms: row.get(5)?,
        hash: row.get(7)?,
        previous: row.get::<_, Option<Hash>>(9)?.unwrap_or_default(),
        content: Content::Other,
    };
    let names = names.as_deref();
    found.content = match found.kind.as_str() {
        "accept" => {
            let mut accept: Accept = parse(&data, names)?;
            accept.work.body.content = body(connection, accept.execution.as_str(), accept.work.kind.part())?;
            size += accept.work.body.content.len();
            Content::Accept(Box::new(accept))
        }
        "finish" => {
            let mut finish: Finish = parse(&data, names)?;
            let execution = finish.execution.as_str();
            finish.stdout.content = body(connection, execution, "stdout")?;
            finish.stderr.content = body(connection, execution, "stderr")?;
            size += finish.stdout.content.len() + finish.stderr.content.len();
            let accept = accepted(connection, execution)?;
            Content::Finish(Box::new(finish), accept)
        }
        "refused" => Content::Refused(Box::new(parse(&data, names)?)),
        "open" => Content::Opened(Box::new(parse(&data, names)?)),
        "close" => Content::Closed(parse(&data, names)?),
        "erased" => Content::Erased(Box::new(parse(&data, names)?)),
        "reviewed" => {
            let About { artifact, origin } = parse(&data, names)?;
            match artifact {
                Some(_) => Content::ArtifactReviewed(Box::new(parse(&data, names)?)),
                None => Content::Reviewed(Box::new(parse(&data, names)?), origin),
            }
        }
        "downloaded" => Content::Downloaded(Box::new(parse(&data, names)?)),
        _ => Content::Other,
    };
    Ok((found, size))
}

/// What a decision is about: an artifact, else the execution, with who asked for it.
#[derive(Deserialize)]
struct About {
    artifact: Option<String>,
    #[serde(default)]
    origin: Origin,
}

/// What was accepted, without its bodies.
fn accepted(connection: &Connection, execution: &str) -> rusqlite::Result<Option<Box<Accept>>> {
    let sql = "SELECT data, content FROM executions JOIN entries ON entries.number = accept_number
               LEFT JOIN names ON names.number = accept_number WHERE executions.execution = ?1";
    let read = |row: &Row<'_>| Ok((row.get::<_, String>(0)?, row.get::<_, Option<String>>(1)?));
    let row = connection
        .prepare_cached(sql)?
        .query_row(params![execution], read)
        .optional()?;
    row.map(|(data, names)| parse(&data, names.as_deref())).transpose()
}

/// Reads an entry's JSON with its names.
pub(super) fn parse<T: DeserializeOwned>(data: &str, names: Option<&str>) -> rusqlite::Result<T> {
    let parsed = join(data, names).and_then(serde_json::from_value);
    parsed.map_err(|error| rusqlite::Error::FromSqlConversionFailure(6, Type::Text, Box::new(error)))
}
