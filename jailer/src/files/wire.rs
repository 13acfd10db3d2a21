//! Messages between `brigd` and `brig-files`: postcard in frames on a stream socket.
//!
//! A frame is the length of its body, a `u32` in little-endian order, and the body. `brigd` sends [`Request`]s, the
//! helper [`Response`]s; both ends check the length before they read the body. Every request but `Data` and `End`
//! (which belong to `Put`) is answered by exactly one last response:
//!
//! | request | responses |
//! |---|---|
//! | `Put`, `Data`..., `End` | `Stored` |
//! | `Get` | `Data`..., `End` |
//! | `Snapshot` | `Snapshotted` |
//! | `Now` | `Now` |
//! | `Collect` | `Found` and `Skipped`..., `Collected` |
//! | `Inspect` | `Inspected` |
//! | `Open` | `Opened` |
//! | `Upload`, `Data`..., `End` | `Stored` |
//! | `Read` | `Info`, `Data`..., `End` |
//! | `Arrived` | `Arrived` |
//! | `Stat`, `MakeDir`, `Move` | `Info` |
//! | `List` | `Info`..., `Listed` |
//! | `Remove` | `Removed` |
//! | `Space` | `Space` |
//! | `Watch` | `Watching`, `Changed` and `Overflow`..., until the client hangs up |
//!
//! or, in place of the last one, `Failed`. A `Put` that fails takes the rest of its data and throws it away: its one
//! answer comes after `End` always. Bytes that are not a frame of a request, or a request in the middle of a `Put`, end
//! the conversation; the end of the first one ends the helper.
//!
//! `Open` brings one end of a stream socket along, on which another conversation begins: what lasts, such as a transfer
//! at a client's pace or a watch, has one of its own.
//!
//! Paths are bytes, relative to the directory of the conversation, without empty, `.` and `..` parts. What the helper says about
//! files comes from a place where hostile code ran: a client checks sizes and counts against what it asked for.

mod calls;

use std::fmt;
use std::io;

use serde::{Deserialize, Serialize};

use super::frame::bulk;
pub use calls::{
    Arrived, CHANNELS_MAX, Changed, Info, Kind, List, MakeDir, Move, PAGE_MAX, Partial, Place, Remove, Stat, Upload,
    WATCHED_MAX, Watch, What,
};

pub use super::frame::{FRAME_MAX, HEADER, WireError, body_length, data_head, data_start, decode, encode};

/// The most bytes of a file in one `Data`.
pub const CHUNK_MAX: usize = 256 * 1024;
/// The longest path, in bytes.
///
/// Source: path_resolution(7), `PATH_MAX` with its terminating byte.
pub const PATH_MAX: usize = 4095;

/// From `brigd` to the helper.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// Writes a file. `Data` follows, `size` bytes in all, then `End`.
    Put(Put),
    /// The next bytes of the file that is being written.
    Data(#[serde(with = "bulk")] Vec<u8>),
    /// The end of the file that is being written. Before all of its bytes came it takes the file back (`ECANCELED`).
    End,
    /// Reads a file.
    Get(Get),
    /// Remembers what is there, for `Collect` to tell what is new.
    Snapshot(Walk),
    /// Asks for a time that divides what was put in and collected before from what will change afterwards.
    Now,
    /// Tells what is new or changed since a time, or since the last `Snapshot`; without either, everything is new.
    Collect(Collect),
    /// Looks into a file.
    Inspect(Inspect),
    /// Begins another conversation, on the socket that comes along.
    Open(Place),
    /// As `Put`, for a client that sends at its own pace.
    Upload(Upload),
    /// As `Get`, with what the file is before its bytes.
    Read(Get),
    /// Asks how much of an upload that broke off is there.
    Arrived(Arrived),
    /// Looks at a path.
    Stat(Stat),
    /// Lists a page of a directory.
    List(List),
    /// Makes a directory.
    MakeDir(MakeDir),
    /// Changes a name.
    Move(Move),
    /// Removes a name.
    Remove(Remove),
    /// Tells of changes.
    Watch(Watch),
    /// Asks how full the file system is.
    Space,
}

/// A file to be written: under a name of its own first, moved to its place when all bytes are there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Put {
    pub path: Vec<u8>,
    /// Bytes that will come; one more is `EFBIG`.
    pub size: u64,
    /// Permissions; only the bits 0777 count.
    pub mode: u32,
    /// Time of last change; absent is now.
    pub mtime: Option<Time>,
    /// Whether directories on the way are made (mode 0755).
    pub make_parents: bool,
    /// Whether a file of that name is replaced; else it is `EEXIST`.
    pub overwrite: bool,
}

/// A file to be read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Get {
    pub path: Vec<u8>,
    /// First byte; past the end of the file is no error, and nothing comes.
    pub offset: u64,
    /// Bytes wanted; absent is all up to the end.
    pub length: Option<u64>,
    /// The largest answer; a longer one is `EFBIG` before any byte, and one that grows meanwhile is cut.
    pub max_bytes: u64,
}

/// How far a walk over the tree may go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Walk {
    /// Names looked at; at most [`ENTRIES_MAX`].
    pub max_entries: u32,
    /// Parts of a path: 1 is files in the working directory itself; at most [`DEPTH_MAX`].
    pub max_depth: u32,
    /// Time, in milliseconds.
    pub time_ms: u32,
}

/// The most names one walk looks at; a snapshot of as many takes the helper some 20 MiB.
pub const ENTRIES_MAX: u32 = 200_000;
/// The most parts of a path that a walk goes down.
pub const DEPTH_MAX: u32 = 64;

/// What to look for after an execution.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Collect {
    pub walk: Walk,
    /// A time that `Now` gave: what has a status change of then or later is new or changed, whoever changed it. It
    /// counts in place of a `Snapshot`, and several looks can have times of their own.
    pub since: Option<Time>,
    /// Files told as found; those beyond are only counted.
    pub max_files: u32,
    /// Size above which a file is skipped; absent is any size.
    pub max_bytes_each: Option<u64>,
    /// Paths that are looked at first, and told even where they are unchanged or in an ignored directory. One that is
    /// not there is not told. They count among `max_files`.
    pub expected: Vec<Vec<u8>>,
}

/// A file to be looked into.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inspect {
    pub path: Vec<u8>,
    /// What the file is taken for, as `image/png`.
    pub media_type: String,
    /// The bytes that are meant; if the file has others by now, it is `EBADMSG`.
    pub size: u64,
    pub sha256: [u8; 32],
    /// Bytes read at most, of a copy of them.
    pub max_bytes: u64,
    /// Time, in milliseconds.
    pub time_ms: u32,
}

/// From the helper to `brigd`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Response {
    /// The file is in its place.
    Stored(Sum),
    /// The next bytes of the file that is being read.
    Data(#[serde(with = "bulk")] Vec<u8>),
    /// All bytes that were asked for came. Who takes them hashes what has arrived.
    End {
        /// Bytes that were sent.
        size: u64,
    },
    /// The time, as files get it for a change from here on.
    Now(Time),
    Snapshotted {
        /// Files remembered.
        files: u64,
        /// What ended the walk early.
        truncated: Option<Limit>,
    },
    Found(Found),
    Skipped {
        path: Vec<u8>,
        why: Skip,
    },
    /// The end of what `Collect` tells.
    Collected(Collected),
    Inspected(Inspected),
    /// The other conversation can begin.
    Opened,
    /// What is at a path.
    Info(Info),
    Listed {
        /// Whether there are further pages.
        more: bool,
    },
    Removed {
        /// Names removed.
        count: u64,
        /// Whether nothing is left.
        done: bool,
    },
    Arrived {
        /// Bytes that have arrived.
        size: u64,
    },
    /// Nothing is missed from here on.
    Watching,
    Changed(Changed),
    /// Changes were lost.
    Overflow,
    /// The request failed.
    Failed(Failure),
    /// How full the file system of the directory is, with all else that lies on it.
    Space(Space),
}

/// Size and SHA-256 of the bytes that came over the socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sum {
    pub size: u64,
    pub sha256: [u8; 32],
}

/// A new or changed regular file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found {
    pub path: Vec<u8>,
    /// Length, in bytes.
    pub size: u64,
    /// Bytes that it takes up; far less than `size` in a sparse file.
    pub allocated: u64,
    /// Permissions, bits 07777.
    pub mode: u32,
    /// Time of last change as the guest left it: it can be any.
    pub mtime: Time,
    pub change: Change,
}

/// What became of a file since the snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Change {
    Created,
    Modified,
    /// Only for files of `expected`.
    Unchanged,
}

/// Why something is not told as found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Skip {
    Symlink,
    Fifo,
    Socket,
    Device,
    /// Only for paths of `expected`.
    Directory,
    /// A regular file with more than one name.
    HardLink,
    /// A directory at `max_depth`, or a path longer than [`PATH_MAX`].
    TooDeep,
    /// Beyond `max_files`.
    TooMany,
    /// Above `max_bytes_each`.
    TooLarge,
    OtherFileSystem,
    Unreadable,
}

/// What ended a walk or a look before its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Limit {
    Entries,
    Time,
}

/// What a `Collect` did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Collected {
    /// Names looked at.
    pub examined: u64,
    /// New or changed files, told or not.
    pub changed: u64,
    /// Names that were skipped, told or not (the first [`SKIPPED_MAX`] are).
    pub skipped: u64,
    /// Files and directories of programs' own making that were not looked at.
    pub ignored: u64,
    /// What ended the walk early.
    pub truncated: Option<Limit>,
    /// How full the file system was then: the working directory and all else that lies on it.
    pub space: Space,
}

/// How full a file system is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Space {
    pub used_bytes: u64,
    /// 0 if there is no limit.
    pub total_bytes: u64,
    pub used_inodes: u64,
    /// 0 if there is no limit.
    pub total_inodes: u64,
}

/// The most `Skipped` of one `Collect`.
pub const SKIPPED_MAX: u64 = 256;

/// What was seen in a file. Claims: the file is the guest's.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inspected {
    pub verdict: Verdict,
    /// Why it is invalid, for people; no guest bytes in it.
    pub problem: Option<String>,
    /// Numbers and words by name: `width`, `height` of pictures; `rows` (a line of headings counts) or `records` (there
    /// are no headings), `columns` of tables, for a workbook of its first sheet, and `sheets`; `lines` and `encoding` of
    /// text; `pages`; `kind` (`object`, `array`, `lines`, ...) and `entries` of JSON; `entries` of archives,
    /// `unpacked_bytes` and `ratio` of all that is packed.
    pub details: Vec<(String, Detail)>,
    /// What the file may do when it is opened.
    pub flags: Vec<Flag>,
    /// Whether a limit of bytes or time ended the look, or something could not be unpacked: numbers are then lower
    /// bounds, and flags may be missing.
    pub partial: bool,
}

/// Whether a file is what it is taken for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verdict {
    /// As far as it was looked at.
    Valid,
    Invalid,
    /// The helper can't look into this type.
    #[default]
    Unknown,
}

/// One value about a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Detail {
    Number(u64),
    /// A word of the helper's own, no guest bytes.
    Text(String),
}

/// Active content, and what else should not be opened unseen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Flag {
    /// A `script` element, a `javascript:` address, JavaScript or an open action in a PDF.
    Script,
    /// An attribute such as `onload`.
    EventHandler,
    /// HTML in an SVG, or an embedded frame, object or form.
    ForeignObject,
    /// An address outside the file.
    ExternalReference,
    /// Declarations of entities.
    Entity,
    /// A workbook with a program in it.
    Macro,
    /// A file within the file, or bytes after its end.
    EmbeddedFile,
    /// A field of a CSV that a spreadsheet would take for a formula.
    Formula,
    /// Far more bytes or pixels than the file has bytes for.
    Bomb,
    /// What it has can't be looked at without a password.
    Encrypted,
    /// An archive with a name that leads out of the folder that it is unpacked in.
    EscapingName,
}

impl Flag {
    /// The name as results show it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Script => "script",
            Self::EventHandler => "event_handler",
            Self::ForeignObject => "foreign_object",
            Self::ExternalReference => "external_reference",
            Self::Entity => "entity",
            Self::Macro => "macro",
            Self::EmbeddedFile => "embedded_file",
            Self::Formula => "formula",
            Self::Bomb => "bomb",
            Self::Encrypted => "encrypted",
            Self::EscapingName => "escaping_name",
        }
    }
}

impl Skip {
    /// The name as results show it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Symlink => "symlink",
            Self::Fifo => "fifo",
            Self::Socket => "socket",
            Self::Device => "device",
            Self::Directory => "directory",
            Self::HardLink => "hard_link",
            Self::TooDeep => "too_deep",
            Self::TooMany => "too_many",
            Self::TooLarge => "too_large",
            Self::OtherFileSystem => "other_file_system",
            Self::Unreadable => "unreadable",
        }
    }
}

/// A point in time since 1970.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Time {
    pub seconds: i64,
    /// Below 1,000,000,000.
    pub nanoseconds: u32,
}

/// A request that failed.
///
/// Beside the kernel's own error numbers: `EINVAL` a path that leaves the directory or is not one, `ELOOP` a symbolic
/// link on the way, `EMLINK` a file with several names, `EXDEV` another file system, `EISDIR` a directory,
/// `EOPNOTSUPP` a FIFO, socket or device, `EFBIG` more bytes than announced or wanted, `ESTALE` a file that was
/// replaced while it was written, `EBADMSG` another SHA-256 than announced, `ERANGE` an offset beyond what has arrived,
/// `ETIMEDOUT` more than can be looked at in time, `EUSERS` more conversations or watched directories than there may be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{op} \"{}\": {}", .path.escape_ascii(), io::Error::from_raw_os_error(*.errno))]
pub struct Failure {
    pub op: Op,
    pub errno: i32,
    pub path: Vec<u8>,
}

/// What was tried when a request failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Op {
    CheckPath,
    MakeDirectory,
    Open,
    Create,
    Write,
    Rename,
    Read,
    List,
    Remove,
    Watch,
    /// Another conversation.
    Begin,
    /// The helper could not give up its rights, so that it serves nothing; `path` names the step.
    Seal,
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::CheckPath => "check path",
            Self::MakeDirectory => "make directory",
            Self::Open => "open",
            Self::Create => "create",
            Self::Write => "write",
            Self::Rename => "rename",
            Self::Read => "read",
            Self::List => "list",
            Self::Remove => "remove",
            Self::Watch => "watch",
            Self::Begin => "begin",
            Self::Seal => "seal",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_name_the_operation_and_escape_the_path() {
        let failure = Failure {
            op: Op::Open,
            errno: 2,
            path: b"a\n\xff".to_vec(),
        };
        assert_eq!(
            failure.to_string(),
            "open \"a\\n\\xff\": No such file or directory (os error 2)"
        );
    }
}
