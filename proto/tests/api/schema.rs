//! The schemas are committed and true, and the result's has a place for every field of the message.

use brig_proto::refusal::RefusalDocument;
use brig_proto::result::ResultDocument;
use brig_proto::{schema, v1};
use prost_types::FieldDescriptorProto;
use prost_types::field_descriptor_proto::Type;
use serde_json::Value;

use crate::descriptors::{message, read_committed};

/// Compares as JSON, not as text: the order of keys depends on features that other crates of a build ask for.
fn assert_schema(name: &str, schema: &Value) {
    let text = serde_json::to_string_pretty(schema).expect("a schema is JSON") + "\n";
    let committed: Value = serde_json::from_str(&read_committed(name, &text)).unwrap_or_default();
    assert!(
        committed == *schema,
        "proto/{name} is out of date; BRIG_UPDATE=1 cargo test -p brig-proto writes it"
    );
}

#[test]
fn the_committed_schemas_are_those_of_the_structs() {
    assert_schema("schema/result.schema.json", &schema::of::<ResultDocument>().to_value());
    assert_schema(
        "schema/refusal.schema.json",
        &schema::of::<RefusalDocument>().to_value(),
    );
}

/// Fields that have another key in the document, or none.
fn key_of(message: &str, field: &FieldDescriptorProto) -> Option<String> {
    match (message, field.name()) {
        // `path` stands for it, and the document has no bytes.
        ("Artifact", "raw_path") => None,
        ("StreamSummary", name) => Some(
            name.trim_start_matches("written_")
                .trim_end_matches("_bytes")
                .to_owned(),
        ),
        ("Usage", "cpu_time") => Some("cpu_ms".to_owned()),
        (_, name) if field.type_name() == ".google.protobuf.Duration" => Some(format!("{name}_ms")),
        (_, name) => Some(name.to_owned()),
    }
}

/// Looks up a key in the schema of an object, through references, lists and null.
fn property<'a>(root: &'a Value, object: &'a Value, key: &str) -> Option<&'a Value> {
    let mut object = object;
    loop {
        if let Some(reference) = object["$ref"].as_str() {
            object = root.pointer(reference.trim_start_matches('#'))?;
        } else if let Some(choices) = object["anyOf"].as_array() {
            object = choices.first()?;
        } else if object.get("items").is_some() {
            object = &object["items"];
        } else {
            return object["properties"].get(key);
        }
    }
}

/// Walks a message and lists what has no place in the schema.
fn unplaced(root: &Value, schema: &Value, name: &str, missing: &mut Vec<String>) {
    for field in message(name).field {
        let Some(key) = key_of(name, &field) else { continue };
        // A list of media types is an object in JSON, keyed by them.
        let walked = field.r#type() == Type::Message && field.type_name() != ".brig.v1.RichDatum";
        match property(root, schema, &key) {
            None => missing.push(format!("{name}.{} (as {key})", field.name())),
            Some(inner) if walked => {
                let nested = field
                    .type_name()
                    .strip_prefix(".brig.v1.")
                    .filter(|nested| !nested.contains('.'));
                if let Some(nested) = nested {
                    unplaced(root, inner, nested, missing);
                }
            }
            Some(_) => {}
        }
    }
}

#[test]
fn every_field_of_the_message_has_a_place_in_the_document() {
    let root = schema::of::<ResultDocument>().to_value();
    let mut missing = Vec::new();
    unplaced(&root, &root, "ExecutionResult", &mut missing);
    assert_eq!(missing, Vec::<String>::new());
}

#[test]
fn a_field_without_a_place_is_noticed() {
    let mut root = schema::of::<ResultDocument>().to_value();
    let properties = root["$defs"]["Usage"]["properties"].as_object_mut().unwrap();
    properties.remove("cpu_ms");
    let mut missing = Vec::new();
    unplaced(&root, &root, "ExecutionResult", &mut missing);
    assert_eq!(missing, ["Usage.cpu_time (as cpu_ms)"]);
}

fn required(schema: &Value) -> Vec<&str> {
    schema["required"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect()
}

#[test]
fn every_key_is_present_in_the_document_of_an_empty_message() {
    let document = serde_json::to_value(ResultDocument::from_proto(&v1::ExecutionResult::default())).unwrap();
    let root = schema::of::<ResultDocument>().to_value();
    let keys: Vec<&str> = root["properties"]
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect();
    let mut demanded = required(&root);
    demanded.sort_unstable();
    assert_eq!(demanded, {
        let mut sorted = keys.clone();
        sorted.sort_unstable();
        sorted
    });
    for key in keys {
        assert!(document.get(key).is_some(), "{key}");
    }
    for (name, definition) in root["$defs"].as_object().unwrap() {
        let count = definition["properties"].as_object().map_or(0, serde_json::Map::len);
        let expected = if name == "ArtifactDetails" { 0 } else { count };
        assert_eq!(required(definition).len(), expected, "{name}");
    }
}
