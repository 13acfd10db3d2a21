//! One test per use of a code interpreter: real code, real uploads, and the files that come out opened and checked.
//!
//! See tests/workflows/README.md for the parts of each.

#[cfg(test)]
mod analysis;
#[cfg(test)]
mod demo;
#[cfg(test)]
mod making;
#[cfg(test)]
mod workflow;
