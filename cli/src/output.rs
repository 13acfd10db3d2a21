//! What people and programs get to see.

pub(crate) mod amount;
pub(crate) mod escape;
pub(crate) mod screen;
pub(crate) mod style;
pub(crate) mod summary;
pub(crate) mod table;
