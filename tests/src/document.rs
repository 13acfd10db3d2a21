//! Result documents: compared whole, and held against their schema.

use serde_json::{Map, Value};

/// Replaces what differs from run to run by its kind, so that the rest can be compared as a whole.
pub fn mask(document: &mut Value) {
    const IDS: [&str; 3] = ["execution_id", "artifact_id", "session_id"];
    const TIMES: [&str; 2] = ["create_time", "end_time"];
    const NUMBERS: [&str; 8] = [
        "duration_ms",
        "cpu_ms",
        "memory_peak_bytes",
        "processes_peak",
        "queued_ms",
        "startup_ms",
        "collect_ms",
        "landlock_abi",
    ];
    match document {
        Value::Object(object) => {
            for (key, value) in object.iter_mut() {
                let kind = match value {
                    Value::String(text) if IDS.contains(&key.as_str()) && !text.is_empty() => "<id>",
                    Value::String(_) if TIMES.contains(&key.as_str()) => "<time>",
                    Value::Number(_) | Value::Null if NUMBERS.contains(&key.as_str()) => "<number>",
                    Value::String(text) if text.contains('@') => {
                        *value = Value::String(text.split('@').next().unwrap_or_default().to_owned() + "@<hash>");
                        continue;
                    }
                    other => {
                        mask(other);
                        continue;
                    }
                };
                *value = Value::String(kind.to_owned());
            }
        }
        Value::Array(items) => items.iter_mut().for_each(mask),
        _ => {}
    }
}

/// Lists where a document is not as its schema says. Knows the words that the committed schemas use, and fails on
/// others, so that none is passed over.
pub fn violations(schema: &Value, document: &Value) -> Vec<String> {
    let mut found = Vec::new();
    check(schema, schema, document, "$", &mut found);
    found
}

fn check(root: &Value, schema: &Value, value: &Value, place: &str, found: &mut Vec<String>) {
    let Value::Object(words) = schema else {
        assert_eq!(schema, &Value::Bool(true), "a schema is an object or true");
        return;
    };
    for (word, argument) in words {
        match word.as_str() {
            "$defs" | "$schema" | "title" | "description" | "format" => {}
            "$ref" => {
                let pointer = argument.as_str().and_then(|text| text.strip_prefix('#')).unwrap();
                check(root, root.pointer(pointer).unwrap(), value, place, found);
            }
            "type" => check_type(argument, value, place, found),
            "const" | "enum" => {
                let allowed = argument
                    .as_array()
                    .map_or(std::slice::from_ref(argument), Vec::as_slice);
                if !allowed.contains(value) {
                    found.push(format!("{place}: {value} is none of {argument}"));
                }
            }
            "minimum" if value.as_f64() < argument.as_f64() && value.is_number() => {
                found.push(format!("{place}: {value} is below {argument}"));
            }
            "minimum" => {}
            "oneOf" | "anyOf" => check_choices(root, argument, value, place, found),
            "required" => check_required(argument, value, place, found),
            "properties" | "additionalProperties" => {}
            "items" => {
                for (index, item) in value.as_array().into_iter().flatten().enumerate() {
                    check(root, argument, item, &format!("{place}[{index}]"), found);
                }
            }
            other => panic!("the schema uses {other}, which this walk does not know"),
        }
    }
    if let Value::Object(object) = value {
        check_members(root, words, object, place, found);
    }
}

fn check_type(argument: &Value, value: &Value, place: &str, found: &mut Vec<String>) {
    let names = argument
        .as_array()
        .map_or(std::slice::from_ref(argument), Vec::as_slice);
    let fits = |name: &Value| match name.as_str().unwrap() {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        "integer" => value.is_u64() || value.is_i64(),
        "number" => value.is_number(),
        other => panic!("unknown type {other}"),
    };
    if !names.iter().any(fits) {
        found.push(format!("{place}: {value} is no {argument}"));
    }
}

fn check_choices(root: &Value, choices: &Value, value: &Value, place: &str, found: &mut Vec<String>) {
    let fits = |choice: &Value| {
        let mut problems = Vec::new();
        check(root, choice, value, place, &mut problems);
        problems.is_empty()
    };
    if !choices.as_array().unwrap().iter().any(fits) {
        found.push(format!("{place}: {value} fits none of the choices"));
    }
}

fn check_required(argument: &Value, value: &Value, place: &str, found: &mut Vec<String>) {
    let names = argument.as_array().unwrap().iter().filter_map(Value::as_str);
    found.extend(
        names
            .filter(|name| value.get(name).is_none())
            .map(|name| format!("{place}.{name} is missing")),
    );
}

fn check_members(
    root: &Value,
    words: &Map<String, Value>,
    object: &Map<String, Value>,
    place: &str,
    found: &mut Vec<String>,
) {
    let Some(known) = words.get("properties").or(words.get("additionalProperties")) else {
        return;
    };
    let open = words.get("additionalProperties");
    for (key, member) in object {
        let place = format!("{place}.{key}");
        match (words.get("properties").and_then(|known| known.get(key)), open) {
            (Some(schema), _) | (None, Some(schema)) if !schema.is_boolean() => {
                check(root, schema, member, &place, found)
            }
            (None, Some(Value::Bool(true))) => {}
            // The schema of a document that this version writes has a place for every key.
            _ => found.push(format!(
                "{place} is in no schema ({} keys are)",
                known.as_object().map_or(0, Map::len)
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_kind_of_fault_is_found() {
        let schema = json!({"type": "object", "required": ["a", "b"], "properties": {
            "a": {"type": "integer", "minimum": 0}, "b": {"oneOf": [{"const": "x"}, {"enum": ["y"]}]},
            "c": {"type": "array", "items": {"$ref": "#/$defs/t"}}}, "$defs": {"t": {"type": ["string", "null"]}}});
        assert_eq!(
            violations(&schema, &json!({"a": 1, "b": "y", "c": ["s", null]})),
            Vec::<String>::new()
        );
        for bad in [
            json!({"a": -1, "b": "x"}),
            json!({"a": "1", "b": "x"}),
            json!({"a": 1}),
            json!({"a": 1, "b": "z"}),
            json!({"a": 1, "b": "x", "c": [1]}),
            json!({"a": 1, "b": "x", "d": 1}),
        ] {
            assert_eq!(violations(&schema, &bad).len(), 1, "{bad}");
        }
    }
}
