//! Templates: the root file systems that jails run on, and how they are built.
//!
//! A template file names Debian packages, pinned Python packages, an environment and what sessions made ahead import
//! ([`Template`]). [`build`] turns it into an image in the store ([`Store`]): a folder `<name>-<hash12>` that holds
//! `tree/` (the root, owned by root, never written again), `image.json` (what it is, [`Image`]), `build.json` (what it
//! was made from) and `debs.lock` (the Debian packages with their hashes). `<name>` is a symbolic link to the current
//! one. Two builds from the same locks give the same tree, byte for byte; the hash in the name is over that tree.
//!
//! Building needs root and the programs of [`HOST_PACKAGES`], and no daemon.
#![forbid(unsafe_code)]

mod build;
mod compile;
mod debian;
mod error;
mod hash;
mod host;
mod layer;
mod progress;
mod run;
mod seal;
mod settle;
mod store;
mod suggest;
mod template;
mod wheels;

pub use crate::build::{BuildOptions, Built, build, lock};
pub use crate::compile::compile_kernel;
pub use crate::error::{Error, Result};
pub use crate::host::HOST_PACKAGES;
pub use crate::layer::{LayerOptions, build_layer, lock_layer};
pub use crate::progress::Progress;
pub use crate::store::{Image, Package, Store, Stored};
pub use crate::template::{Python, Template, shipped};

/// Where images are kept unless told otherwise.
pub const DEFAULT_IMAGES: &str = "/var/lib/brig/images";

/// Where wheels of the kernel layer are kept unless told otherwise.
pub const DEFAULT_WHEELS: &str = "/var/cache/brig/wheels";
