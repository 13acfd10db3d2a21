//! JSON Schemas of the documents that `brig run --json` prints.

use schemars::{JsonSchema, Schema, generate::SchemaSettings};

/// The committed schema of [`ResultDocument`](crate::result::ResultDocument), which `brig schema result` prints.
pub const RESULT: &str = include_str!("../schema/result.schema.json");

/// The committed schema of [`RefusalDocument`](crate::refusal::RefusalDocument).
pub const REFUSAL: &str = include_str!("../schema/refusal.schema.json");

/// Generates the schema of a document as this crate writes it: keys that are always written are required.
pub fn of<T: JsonSchema>() -> Schema {
    SchemaSettings::draft2020_12()
        .for_serialize()
        .into_generator()
        .into_root_schema_for::<T>()
}
