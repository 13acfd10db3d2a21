//! Compiles the protos without protoc, and keeps their descriptors for reflection.

use std::{env, error::Error, fs, path::PathBuf};

use protox::prost::Message;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=brig");
    let mut files: Vec<PathBuf> = fs::read_dir("brig/v1")?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<_, _>>()?;
    files.retain(|path| path.extension().is_some_and(|extension| extension == "proto"));
    files.sort();

    let descriptors = protox::compile(&files, ["."])?;
    let out = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(out.join("brig.v1.bin"), descriptors.encode_to_vec())?;

    tonic_prost_build::configure()
        .bytes(".")
        .btree_map(".")
        .compile_fds(descriptors)?;
    Ok(())
}
