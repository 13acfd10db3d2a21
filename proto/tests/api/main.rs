//! The API as a whole: it only grows, keeps its own rules, and its documents and pages match it.

mod baseline;
mod descriptors;
mod errors;
mod result;
mod rules;
mod schema;
