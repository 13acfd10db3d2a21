//! The descriptors of the package, and files that are compared with them.

use std::{env, fs, path::Path};

use prost::Message;
use prost_types::{DescriptorProto, EnumDescriptorProto, FileDescriptorProto, FileDescriptorSet};

/// The files of the package `brig.v1`, by name.
pub(crate) fn files() -> Vec<FileDescriptorProto> {
    let set = FileDescriptorSet::decode(brig_proto::FILE_DESCRIPTOR_SET).expect("the build script wrote it");
    let mut files: Vec<_> = set
        .file
        .into_iter()
        .filter(|file| file.package() == "brig.v1")
        .collect();
    files.sort_by(|a, b| a.name().cmp(b.name()));
    files
}

/// All messages of the package, but the entries of maps.
pub(crate) fn messages() -> Vec<DescriptorProto> {
    files().into_iter().flat_map(|file| file.message_type).collect()
}

/// All enums of the package.
pub(crate) fn enums() -> Vec<EnumDescriptorProto> {
    files().into_iter().flat_map(|file| file.enum_type).collect()
}

/// A message by its name without the package.
pub(crate) fn message(name: &str) -> DescriptorProto {
    let found = messages().into_iter().find(|message| message.name() == name);
    found.unwrap_or_else(|| panic!("no message {name}"))
}

/// Whether committed files are to be written anew.
fn updating() -> bool {
    env::var_os("BRIG_UPDATE").is_some_and(|value| value == "1")
}

/// Reads a committed file, named from the crate's folder; writes `expected` to it first when asked to.
pub(crate) fn read_committed(name: &str, expected: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
    if updating() {
        fs::write(&path, expected).expect("the folder of the crate can be written");
    }
    fs::read_to_string(&path).unwrap_or_default()
}
