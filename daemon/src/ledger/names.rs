//! What names people in an entry, kept apart from it: it can be erased, and the entry still proves what it was.
//!
//! Users, origins, labels, names of files and messages are taken out of the entry's JSON into a JSON of their own, with a
//! random salt. The entry has its hash; without the salt nobody can find out by guessing what was erased.

use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::record::hex;

/// The key in the entry under which the hash is.
pub(super) const HASH: &str = "names_sha256";
const SALT: &str = "salt";
/// What is taken out of every entry.
///
/// The hash of the request covers what was sent of all of these: it would tell who guesses them that they are right.
const NAMES: &[&str] = &["user", "origin", "labels", "message", "field", "request_sha256"];
/// What is taken out of the things in a list, such as the name of each input.
const NAMES_IN_LISTS: &[(&str, &[&str])] = &[("inputs", &["name", "path"]), ("artifacts", &["path"])];

/// An entry's JSON in its two parts.
#[derive(Debug)]
pub(super) struct Parts {
    /// What the chain covers.
    pub(super) data: String,
    /// What can be erased; none where the entry names nobody.
    pub(super) names: Option<Names>,
}

/// What names people.
#[derive(Debug)]
pub(super) struct Names {
    pub(super) user: String,
    pub(super) origin_user: String,
    pub(super) text: String,
}

/// Takes the names out of an entry. `refused` entries name a policy in the caller's words, which is taken out too.
pub(super) fn part(kind: &str, mut entry: Map<String, Value>) -> Parts {
    let mut names = Map::new();
    let asked_policy = (kind == "refused").then_some("policy");
    for key in NAMES.iter().copied().chain(asked_policy) {
        names.extend(entry.remove(key).map(|value| (key.to_owned(), value)));
    }
    for (list, keys) in NAMES_IN_LISTS {
        let Some(Value::Array(things)) = entry.get_mut(*list) else {
            continue;
        };
        let taken: Vec<Value> = things.iter_mut().map(|thing| take(thing, keys)).collect();
        names.insert((*list).to_owned(), Value::Array(taken));
    }
    let names = (!names.values().all(is_empty)).then(|| {
        let (user, origin_user) = users(&names);
        names.insert(SALT.to_owned(), json!(hex(&uuid::Uuid::new_v4().into_bytes())));
        let text = Value::Object(names).to_string();
        entry.insert(HASH.to_owned(), json!(hash(&text)));
        Names {
            user,
            origin_user,
            text,
        }
    });
    Parts {
        data: Value::Object(entry).to_string(),
        names,
    }
}

/// Puts the names back; what was erased is simply not there.
pub(super) fn join(data: &str, names: Option<&str>) -> serde_json::Result<Value> {
    let mut entry: Map<String, Value> = serde_json::from_str(data)?;
    entry.remove(HASH);
    let Some(names) = names else {
        return Ok(Value::Object(entry));
    };
    let mut names: Map<String, Value> = serde_json::from_str(names)?;
    names.remove(SALT);
    for (list, _) in NAMES_IN_LISTS {
        let taken = names.remove(*list);
        if let (Some(Value::Array(things)), Some(Value::Array(taken))) = (entry.get_mut(*list), taken) {
            things
                .iter_mut()
                .zip(taken)
                .for_each(|(thing, names)| put(thing, names));
        }
    }
    entry.extend(names);
    Ok(Value::Object(entry))
}

/// The hash of the names' text, as the entry has it.
pub(super) fn hash(text: &str) -> String {
    hex(&Sha256::digest(text))
}

/// The user of the connection, and that of the origin.
pub(super) fn users(names: &Map<String, Value>) -> (String, String) {
    let text = |value: Option<&Value>| value.and_then(Value::as_str).unwrap_or_default().to_owned();
    let origin = names.get("origin").and_then(|origin| origin.get("user"));
    (text(names.get("user")), text(origin))
}

fn take(thing: &mut Value, keys: &[&str]) -> Value {
    let mut taken = Map::new();
    if let Value::Object(thing) = thing {
        for key in keys {
            taken.extend(thing.remove(*key).map(|value| ((*key).to_owned(), value)));
        }
    }
    Value::Object(taken)
}

fn put(thing: &mut Value, names: Value) {
    if let (Value::Object(thing), Value::Object(names)) = (thing, names) {
        thing.extend(names);
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.iter().all(is_empty),
        Value::Object(fields) => fields.values().all(is_empty),
        Value::Bool(_) | Value::Number(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry() -> Map<String, Value> {
        let entry = json!({
            "execution": "e1", "user": "root", "origin": {"user": "ann", "request": ""}, "labels": {"team": "blue"},
            "policy": "data", "inputs": [{"name": "Q3 (1).csv", "path": "q3_1.csv", "sha256": "ab"}],
            "artifacts": [{"path": "chart.png", "sha256": "cd"}], "message": null
        });
        entry.as_object().unwrap().clone()
    }

    #[test]
    fn names_go_apart_and_come_back() {
        let parts = part("accept", entry());
        let names = parts.names.unwrap();
        assert_eq!((names.user.as_str(), names.origin_user.as_str()), ("root", "ann"));
        for word in ["root", "ann", "blue", "Q3", "q3", "chart"] {
            assert!(!parts.data.contains(word) && names.text.contains(word), "{word}");
        }
        assert!(parts.data.contains(&hash(&names.text)));
        assert_eq!(join(&parts.data, Some(&names.text)).unwrap(), Value::Object(entry()));
        let erased = join(&parts.data, None).unwrap();
        assert_eq!(
            (&erased["inputs"], &erased["policy"]),
            (&json!([{"sha256": "ab"}]), &json!("data"))
        );
    }

    #[test]
    fn equal_names_have_other_hashes_in_each_entry() {
        let [one, two] = [(); 2].map(|()| part("accept", entry()));
        assert_ne!(one.data, two.data);
    }

    #[test]
    fn an_entry_that_names_nobody_has_no_second_part() {
        let parts = part(
            "close",
            json!({"session": "s1", "user": "", "labels": {}})
                .as_object()
                .unwrap()
                .clone(),
        );
        assert!(parts.names.is_none());
        assert_eq!(parts.data, r#"{"session":"s1"}"#);
    }

    #[test]
    fn what_a_refused_request_called_its_policy_is_its_own_word() {
        let parts = part("refused", entry());
        assert!(!parts.data.contains("\"policy\""), "{}", parts.data);
    }
}
