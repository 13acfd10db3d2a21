//! The configuration of brigd: `brigd.toml`. Every key has a default, unknown keys are errors.
//!
//! What a key takes is explained in systemd/brigd.toml, and checked in `check`.

mod check;
mod listen;

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};

pub use brig_jailer::service::log::LogFormat;
use brig_jailer::units::{ByteSize, Span};
use serde::{Deserialize, Serialize};

pub use listen::Listen;

use crate::options::{Options, StartError};

/// The file that is read when none is named.
pub const DEFAULT_FILE: &str = "/etc/brig/brigd.toml";

/// What brigd is configured to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// The socket that clients connect to.
    pub socket: PathBuf,
    /// Permissions of the socket, octal.
    pub socket_mode: Mode,
    /// Group of the socket; must exist, or be empty to leave the daemon's own.
    pub socket_group: String,
    /// The socket of brig-jailer.
    pub jailer_socket: PathBuf,
    /// Directory of the ledger, of artifacts and their spool, and of input records.
    pub state: PathBuf,
    /// Directories of policies; a file in a later one replaces the one of the same name in an earlier one.
    pub policies: Vec<PathBuf>,
    /// Directory of the template images.
    pub images: PathBuf,
    /// Where the log goes, and in which form.
    pub log: LogFormat,
    /// How much may go on at one time.
    pub limits: Limits,
    /// Sessions that are made before they are asked for.
    pub pool: PoolLimits,
    /// Files that clients keep here.
    pub inputs: InputLimits,
    /// What executions left, and where it is kept.
    pub artifacts: Artifacts,
    /// Addresses under which artifacts are handed out to whoever has one.
    pub links: Links,
    /// Who may ask for what; the first entry that fits a client counts.
    #[serde(rename = "client")]
    pub clients: Vec<Client>,
}

/// How much may go on at one time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Executions that run at one time; 1 to 10,000.
    pub running: usize,
    /// Executions that wait for their turn; further ones are refused. 1 to 100,000.
    pub queue: usize,
    /// Executions of one tenant that wait for approval; further ones are refused. 1 to 10,000.
    pub pending: usize,
    /// What came with the requests of these, together.
    pub pending_bytes: ByteSize,
    /// Kept sessions at one time; further ones are refused. 1 to 10,000.
    pub sessions: usize,
    /// Connections of clients; 1 to 100,000.
    pub connections: usize,
    /// How long running one-shot executions may go on once the daemon is told to stop; 0 to 1 hour.
    pub drain: Span,
}

/// Sessions that are made before they are asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PoolLimits {
    /// How many may wait at one time; 0 to 1,000.
    pub sessions: usize,
    /// How long some wait of a kind that nobody asks for; 1 s to 1 day.
    pub idle: Span,
    /// Who gets sessions that one zygote has forked.
    pub share: Share,
    /// How long a zygote is used; 1 minute to 7 days.
    pub rotate: Span,
    /// What is there from the start, and stays.
    pub ready: Vec<Ready>,
}

/// Sessions that wait before anybody has asked for one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ready {
    /// Its name.
    pub policy: String,
    /// Empty: that of the policy.
    #[serde(default)]
    pub template: String,
    /// Whether interpreters of contexts are ready to be forked, too.
    #[serde(default)]
    pub contexts: bool,
}

/// Who gets sessions of one zygote: who controls a zygote controls its sessions, and they have the layout of their memory
/// and the seed of their hashes in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Share {
    /// Each tenant has zygotes of its own.
    Tenant,
    /// Tenants of one class have zygotes in common.
    Class,
    /// All have.
    All,
}

/// How much clients may keep as input records, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct InputLimits {
    /// The largest file; 1 to 1024G.
    pub size: ByteSize,
    /// Files of one tenant; 1 to 1,000,000.
    pub tenant_files: usize,
    /// Bytes of one tenant; at least `size`.
    pub tenant_bytes: ByteSize,
    /// Files of all tenants; 1 to 1,000,000.
    pub files: usize,
    /// Bytes of all tenants; at least `size`.
    pub bytes: ByteSize,
    /// Uploads at one time, half of them (rounded up) of one tenant; 1 to 1,000.
    pub uploads: usize,
    /// How long a file is kept whose upload doesn't say; up to `retention_max`.
    pub retention: Span,
    /// The longest that an upload may ask for; up to 90 days.
    pub retention_max: Span,
    /// Space that uploads leave free on the file system, for the ledger and the spool.
    pub reserve: ByteSize,
}

/// How much is kept of what executions left, and where.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Artifacts {
    /// How long a reviewer may take; then it is a no. 1 second to 30 days.
    pub review: Span,
    /// Artifacts of one tenant that wait for review; 1 to 1,000,000.
    pub pending_files: usize,
    /// Bytes of them; at least 1.
    pub pending_bytes: ByteSize,
    /// Artifacts of one tenant that are kept because they may leave; 1 to 10,000,000.
    pub tenant_files: usize,
    /// Bytes of them; at least 1.
    pub tenant_bytes: ByteSize,
    /// Space that is left free on the file system, for the ledger and the spool.
    pub reserve: ByteSize,
    /// A bucket to keep artifacts in, in the place of a directory.
    pub s3: Bucket,
}

/// A bucket of an S3-compatible store.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Bucket {
    /// Its name; empty: artifacts are kept in a directory.
    pub bucket: String,
    /// The URL of the service; empty: Amazon's.
    pub endpoint: String,
    pub region: String,
    /// What all names in it begin with.
    pub prefix: String,
    /// The file with the credentials.
    pub credentials: PathBuf,
}

/// Addresses under which artifacts are handed out for a short time, to whoever has one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Links {
    /// Where they are served.
    pub listen: Listen,
    /// Lets `listen` be another address than loopback.
    pub unsafe_any_address: bool,
    /// The URL that links begin with; empty: that of `listen`.
    pub public: String,
    /// How long one holds that is asked for without a time; up to `lifetime_max`.
    pub lifetime: Span,
    /// The longest that may be asked for; 1 second to 7 days.
    pub lifetime_max: Span,
    /// Connections of those who follow links; 1 to 10,000.
    pub connections: usize,
}

/// A class of clients and what they are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Client {
    /// The uid of the client. Exactly one of `uid` and `group` is given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<u32>,
    /// A group that the client's user belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// The tenant that its sessions belong to.
    #[serde(default = "default_word")]
    pub tenant: String,
    /// The tenant class.
    #[serde(default = "default_word")]
    pub class: String,
    /// The user that is recorded beside the one that a request names; empty: `uid N`, the number of the host's user.
    #[serde(default)]
    pub user: String,
    /// What the client may do.
    #[serde(default = "runner")]
    pub roles: BTreeSet<Role>,
}

/// What a client may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Runs code.
    Runner,
    /// Decides about executions and artifacts that need it.
    Reviewer,
    /// Reads the ledger.
    Auditor,
    /// Looks after the host.
    Operator,
}

/// Permissions of a file, written in octal.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Mode(pub u32);

impl Default for Config {
    fn default() -> Self {
        Self {
            socket: "/run/brig/brigd.sock".into(),
            socket_mode: Mode(0o660),
            socket_group: "brig-clients".to_owned(),
            jailer_socket: "/run/brig/jailer.sock".into(),
            state: "/var/lib/brig/daemon".into(),
            policies: vec!["/usr/share/brig/policies".into(), "/etc/brig/policies".into()],
            images: "/var/lib/brig/images".into(),
            log: LogFormat::Auto,
            limits: Limits::default(),
            pool: PoolLimits::default(),
            inputs: InputLimits::default(),
            artifacts: Artifacts::default(),
            links: Links::default(),
            clients: vec![
                Client::uid(0),
                Client::group("brig-admin", Role::ALL),
                Client::group("brig-clients", &[Role::Runner]),
            ],
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            running: 16,
            queue: 64,
            pending: 16,
            pending_bytes: ByteSize::from_mib(1024),
            sessions: 256,
            connections: 256,
            drain: Span::from_millis(30_000),
        }
    }
}

impl Default for PoolLimits {
    fn default() -> Self {
        Self {
            sessions: 2,
            idle: Span::from_secs(600),
            share: Share::Tenant,
            rotate: Span::from_secs(3600),
            ready: Vec::new(),
        }
    }
}

impl Default for InputLimits {
    fn default() -> Self {
        Self {
            size: ByteSize::from_mib(1024),
            tenant_files: 1000,
            tenant_bytes: ByteSize::from_mib(16 * 1024),
            files: 10_000,
            bytes: ByteSize::from_mib(64 * 1024),
            uploads: 16,
            retention: Span::from_secs(24 * 3600),
            retention_max: Span::from_secs(90 * 24 * 3600),
            reserve: ByteSize::from_mib(256),
        }
    }
}

impl Default for Artifacts {
    fn default() -> Self {
        Self {
            review: Span::from_secs(24 * 3600),
            pending_files: 1000,
            pending_bytes: ByteSize::from_mib(4 * 1024),
            tenant_files: 10_000,
            tenant_bytes: ByteSize::from_mib(16 * 1024),
            reserve: ByteSize::from_mib(256),
            s3: Bucket::default(),
        }
    }
}

impl Default for Links {
    fn default() -> Self {
        Self {
            listen: Listen::Nowhere,
            unsafe_any_address: false,
            public: String::new(),
            lifetime: Span::from_secs(300),
            lifetime_max: Span::from_secs(3600),
            connections: 64,
        }
    }
}

impl Role {
    /// All roles.
    pub const ALL: &[Role] = &[Role::Runner, Role::Reviewer, Role::Auditor, Role::Operator];
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Runner => "runner",
            Self::Reviewer => "reviewer",
            Self::Auditor => "auditor",
            Self::Operator => "operator",
        })
    }
}

impl Client {
    fn uid(uid: u32) -> Self {
        Self {
            uid: Some(uid),
            group: None,
            ..Self::group("", Role::ALL)
        }
    }

    fn group(group: &str, roles: &[Role]) -> Self {
        Self {
            uid: None,
            group: Some(group.to_owned()),
            tenant: default_word(),
            class: default_word(),
            user: String::new(),
            roles: roles.iter().copied().collect(),
        }
    }
}

impl Config {
    /// Reads the configuration that the options ask for and lays the options over it.
    pub fn load(options: &Options) -> Result<Self, StartError> {
        let mut config = match &options.config {
            Some(file) => Self::read(file)?,
            None if Path::new(DEFAULT_FILE).exists() && options.standalone.is_none() => {
                Self::read(Path::new(DEFAULT_FILE))?
            }
            None => Self::default(),
        };
        if let Some(directory) = &options.standalone {
            config.socket = directory.join("brigd.sock");
            config.socket_group = String::new();
            config.state = directory.clone();
            if options.config.is_none() {
                // A private daemon lives for one call, as a rule.
                config.pool.sessions = 0;
            }
        }
        if !options.policies.is_empty() {
            config.policies.clone_from(&options.policies);
        }
        if let Some(images) = &options.images {
            config.images.clone_from(images);
        }
        Ok(config)
    }

    /// Where the ledger lies.
    pub fn ledger(&self) -> PathBuf {
        self.state.join("ledger.db")
    }

    /// Where bytes lie that come in or go out.
    pub fn spool(&self) -> PathBuf {
        self.state.join("spool")
    }

    /// Where artifacts and what is known of them lie.
    pub fn artifact_records(&self) -> PathBuf {
        self.state.join("artifacts")
    }

    /// Where the key lies that links are signed with.
    pub fn link_key(&self) -> PathBuf {
        self.state.join("links.key")
    }

    /// Where input records and their files lie.
    pub fn input_records(&self) -> PathBuf {
        self.state.join("inputs")
    }

    fn read(file: &Path) -> Result<Self, StartError> {
        let wrong = |what: &dyn fmt::Display| StartError::Configuration(format!("{}: {what}", file.display()));
        let text = std::fs::read_to_string(file).map_err(|error| wrong(&error))?;
        Self::parse(&text).map_err(|what| wrong(&what))
    }

    fn parse(text: &str) -> Result<Self, String> {
        let config: Self = toml::from_str(text).map_err(|error| error.to_string())?;
        config.check()?;
        Ok(config)
    }
}

fn default_word() -> String {
    "default".to_owned()
}

fn runner() -> BTreeSet<Role> {
    BTreeSet::from([Role::Runner])
}

impl TryFrom<String> for Mode {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let octal = text.strip_prefix("0o").unwrap_or(&text);
        match u32::from_str_radix(octal, 8) {
            Ok(mode) if mode <= 0o777 => Ok(Self(mode)),
            _ => Err(format!(
                "{text:?} are not permissions: an octal number such as \"0660\" is"
            )),
        }
    }
}

impl From<Mode> for String {
    fn from(mode: Mode) -> Self {
        format!("{:04o}", mode.0)
    }
}

impl fmt::Debug for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04o}", self.0)
    }
}

#[cfg(test)]
mod tests;
