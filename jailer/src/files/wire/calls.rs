//! What clients of a session ask about its files, one by one.

use serde::{Deserialize, Serialize};

use super::{Put, Time};

/// The most conversations of one helper at one time, beside the first.
pub const CHANNELS_MAX: usize = 16;
/// The most names of one page.
pub const PAGE_MAX: u32 = 1000;
/// The most directories that one watch looks at.
pub const WATCHED_MAX: usize = 1024;

/// Which of the session's directories a conversation is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Place {
    /// The working directory.
    Home,
    /// `/tmp`.
    Tmp,
}

/// A `Put` whose size may be unknown, and that may be gone on with when its connection breaks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Upload {
    /// With `exact` unset its size is the most that may come.
    pub put: Put,
    /// Whether fewer bytes than announced are `ECANCELED`.
    pub exact: bool,
    /// SHA-256 of the whole file: with another one it is taken back (`EBADMSG`).
    pub sha256: Option<[u8; 32]>,
    /// Where bytes stay when the connection ends within the file.
    pub partial: Option<Partial>,
}

/// The part of a file that has arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Partial {
    /// Its name, which no guest should be able to guess.
    pub name: u64,
    /// From where on the rest comes; what lies beyond is thrown away. More than there is: `ERANGE`.
    pub offset: u64,
}

/// Asks how much of a file has arrived.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Arrived {
    /// The path that the whole file is to have.
    pub path: Vec<u8>,
    pub name: u64,
}

/// Asks what is at a path; the empty path is the directory of the conversation itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stat {
    pub path: Vec<u8>,
    /// Whether a regular file is read for its SHA-256.
    pub sha256: bool,
    /// How long that may take, in milliseconds; then it is `ETIMEDOUT`.
    pub time_ms: u32,
}

/// Asks for a page of what is in a directory, in the order of the bytes of the paths.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct List {
    /// May be empty.
    pub path: Vec<u8>,
    /// Levels; 1 is the directory's own names; at most [`super::DEPTH_MAX`].
    pub depth: u32,
    /// The last path of the page before, below `path`.
    pub after: Option<Vec<u8>>,
    /// Names of the page; at most [`PAGE_MAX`].
    pub max: u32,
    /// How long the walk may take, in milliseconds; then it is `ETIMEDOUT`.
    pub time_ms: u32,
}

/// A directory to be made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MakeDir {
    pub path: Vec<u8>,
    /// Permissions; only the bits 0777 count.
    pub mode: u32,
    pub make_parents: bool,
}

/// A name to be changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Move {
    pub from: Vec<u8>,
    pub to: Vec<u8>,
    pub make_parents: bool,
    /// Whether something that is no directory is replaced.
    pub overwrite: bool,
}

/// A name to be removed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Remove {
    pub path: Vec<u8>,
    /// Whether a directory goes with all that is in it.
    pub recursive: bool,
    /// After this time the answer says that not all is done, in milliseconds. Asking again goes on.
    pub time_ms: u32,
}

/// A directory to be watched, until the connection ends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Watch {
    /// May be empty.
    pub path: Vec<u8>,
    pub recursive: bool,
    /// Whether changes come with what is there then.
    pub info: bool,
}

/// What is at a path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Info {
    pub path: Vec<u8>,
    pub kind: Kind,
    /// Length, in bytes.
    pub size: u64,
    /// Permissions, bits 07777.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    /// Time of last change as the guest left it: it can be any.
    pub mtime: Time,
    /// What a symbolic link says.
    pub target: Option<Vec<u8>>,
    pub sha256: Option<[u8; 32]>,
}

/// Kinds of files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    Regular,
    Directory,
    Symlink,
    Other,
}

/// Something changed below a watched directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Changed {
    pub what: What,
    /// Relative to the watched directory.
    pub path: Vec<u8>,
    pub info: Option<Info>,
}

/// What changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum What {
    /// It is new, or was moved here.
    Created,
    Written,
    Removed,
    /// It was moved away.
    Renamed,
    Attributes,
}
