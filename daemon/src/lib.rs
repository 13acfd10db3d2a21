//! brigd: decides, streams and records; makes no jail itself and holds no privilege.
//!
//! Clients speak gRPC on a Unix socket ([`listener`], [`server`]). Each connection is named once, by the credentials
//! that the kernel took down ([`principal`]). A request is checked whole and becomes an execution with a task of its
//! own ([`run`]), which asks brig-jailer for a jail ([`jailer`]) and is handed, by descriptors, the ends of the
//! program's pipes, those of the Python kernel ([`kernel`]), and the socket of the jail's file helper ([`files`]).
//!
//! Bytes of the guest come by those descriptors only. Output is read as fast as it comes and kept up to a cap
//! ([`output`]); files are copied into the [`artifacts`] spool before anything looks at them; frames of the kernel are
//! claims. Clients follow the log of an execution at their own pace, so that no client and no guest can hold up
//! another. What was asked for and what came of it is in the [`ledger`] before the client hears of it. Files that
//! clients keep for many sessions are [`inputs`]; what executions left is kept, and reviewed, in [`review`], and handed out by [`links`].
//!
//! The process starts in [`daemon`]: a private jailer first, then root is given up ([`privileges`]), then threads. The
//! service manager is told how it is ([`report`], [`watchdog`]) and can have it read its configuration again ([`reload`]).
#![forbid(unsafe_code)]

pub mod artifacts;
pub mod audit;
pub mod calls;
pub mod clients;
pub mod config;
pub mod contexts;
pub mod daemon;
pub mod database;
pub mod disk;
pub mod executions;
pub mod files;
pub mod host;
pub mod inputs;
pub mod jailer;
pub mod kernel;
pub mod ledger;
pub mod links;
pub mod listener;
pub mod names;
pub mod options;
pub mod output;
pub mod pages;
pub mod principal;
pub mod privileges;
pub mod reload;
pub mod repeats;
pub mod report;
pub mod review;
pub mod run;
pub mod server;
pub mod sessions;
pub mod slots;
pub mod standalone;
pub mod status;
pub mod unbuilt;
pub mod watchdog;
pub mod workspace;
