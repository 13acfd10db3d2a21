//! The command `brig` as people and programs meet it.
#![cfg(test)]
#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

mod contexts;
mod files;
mod refusals;
mod running;
mod tools;

use std::path::Path;

use brig_tests::document::violations;
use brig_tests::{Brig, Daemon};
use serde_json::Value;

/// What runs in the small image, which starts faster.
const SMALL: [&str; 3] = ["run", "--template", "base"];

/// `brig run` in the small image.
fn run(daemon: &Daemon, arguments: &[&str]) -> Brig {
    daemon.brig(&[&SMALL[..], arguments].concat())
}

/// The schema that `brig schema` prints.
fn schema(which: &str) -> Value {
    Brig::alone(&["schema", which]).run().expect(0).json()
}

/// The document of a refusal: the code, and what was refused, with the message apart.
fn refusal(brig: &Brig) -> (i32, Value, String) {
    let mut document = brig.json();
    assert_eq!(violations(&schema("refusal"), &document), Vec::<String>::new());
    assert_eq!(document["status"], Value::Null);
    let message = document["refused"].as_object_mut().unwrap().remove("message").unwrap();
    (
        brig.code.unwrap(),
        document["refused"].clone(),
        message.as_str().unwrap().to_owned(),
    )
}

fn folder() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("brig-cli-").tempdir().unwrap()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}
