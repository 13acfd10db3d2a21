//! Brig's gRPC API, the JSON documents of an execution's result and of an entry of the ledger, and the tool for models.
//!
//! [`v1`] is generated from `proto/brig/v1/*.proto`; `proto/README.md` has its rules.
#![forbid(unsafe_code)]

pub mod display;
pub mod ledger;
pub mod reason;
pub mod refusal;
pub mod result;
pub mod schema;
pub mod sizes;
pub mod tool;

pub use prost::bytes::Bytes;

#[allow(clippy::all, clippy::allow_attributes_without_reason, reason = "generated code")]
pub mod v1 {
    //! Messages, clients and servers of the package `brig.v1`.
    tonic::include_proto!("brig.v1");
}

/// All files of the API as an encoded `google.protobuf.FileDescriptorSet`, with their comments.
pub const FILE_DESCRIPTOR_SET: &[u8] = tonic::include_file_descriptor_set!("brig.v1");
