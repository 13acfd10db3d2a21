//! Input records with real jails: uploaded once, attached to many sessions.
#![allow(clippy::unwrap_used, reason = "a test that can't go on should stop")]

mod attach;
mod command;
mod crash;
mod keep;

use brig_proto::v1::inputs_create_request::Part;
use brig_proto::v1::{Input, InputSpec, InputsCreateRequest, InputsDeleteRequest, InputsGetRequest};
use brig_tests::{Client, Refused};
use sha2::{Digest, Sha256};

/// A spec with this id, which is the name too.
fn spec(id: &str) -> InputSpec {
    InputSpec {
        input_id: id.to_owned(),
        name: format!("{id}.bin"),
        ..InputSpec::default()
    }
}

/// The messages of an upload.
fn messages(spec: InputSpec, bytes: &[u8]) -> Vec<InputsCreateRequest> {
    let chunks = bytes.chunks(256 * 1024).map(|chunk| Part::Data(chunk.to_vec().into()));
    let parts = std::iter::once(Part::Spec(spec)).chain(chunks);
    parts.map(|part| InputsCreateRequest { part: Some(part) }).collect()
}

fn put(client: &Client, spec: InputSpec, bytes: &[u8]) -> Result<Input, Refused> {
    let mut inputs = client.inputs();
    let call = inputs.create(tokio_stream::iter(messages(spec, bytes)));
    Ok(client.ask(call)?.input.unwrap())
}

fn get(client: &Client, id: &str) -> Result<Input, Refused> {
    let request = InputsGetRequest {
        input_id: id.to_owned(),
    };
    Ok(client.ask(client.inputs().get(request))?.input.unwrap())
}

fn delete(client: &Client, id: &str) -> Result<(), Refused> {
    let request = InputsDeleteRequest {
        input_id: id.to_owned(),
        ..InputsDeleteRequest::default()
    };
    client.ask(client.inputs().delete(request)).map(|_| ())
}

fn hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Bytes that don't repeat.
fn bytes(length: u32) -> Vec<u8> {
    (0..length / 4).flat_map(u32::to_le_bytes).collect()
}
