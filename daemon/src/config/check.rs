//! What the values of the configuration must be, beyond their types.
//!
//! Each problem is a line of its own that names the key, its value, and what would be accepted.

mod links;

use std::path::Path;

use nix::unistd::Group;

use super::{Artifacts, Bucket, Client, Config, InputLimits, Ready, Role, Share};

/// The longest path of a socket, in bytes. Source: unix(7), `sun_path` with its NUL.
const SOCKET_PATH_MAX: usize = 107;
/// The longest drain, in milliseconds.
const DRAIN_MAX_MS: u64 = 3_600_000;
/// The most that may wait for approval, in bytes: half of the spool.
const PENDING_BYTES_MAX: u64 = 4 << 30;
/// The largest input that can be configured, in bytes.
const INPUT_MAX: u64 = 1 << 40;
/// The longest that a reviewer may take, in milliseconds.
const REVIEW_MAX_MS: u64 = 30 * 86_400_000;
/// The most sessions that can wait.
const POOL_MAX: usize = 1_000;
/// How long a kind of them can be kept that nobody asks for, in milliseconds.
const POOL_IDLE_MS: std::ops::RangeInclusive<u64> = 1_000..=86_400_000;
/// How long a zygote may be used, in milliseconds.
const POOL_ROTATE_MS: std::ops::RangeInclusive<u64> = 60_000..=604_800_000;
/// The longest that an input can be kept, in milliseconds: what the API promises at most.
const RETENTION_MAX_MS: u64 = 90 * 86_400_000;

impl Config {
    /// Who each kind of what is kept ready is for: tenants, classes of tenants, or everybody, which is nobody by name.
    pub fn pool_owners(&self) -> Vec<String> {
        let runners = || {
            self.clients
                .iter()
                .filter(|client| client.roles.contains(&Role::Runner))
        };
        let mut owners: Vec<String> = match self.pool.share {
            Share::Tenant => runners().map(|client| client.tenant.clone()).collect(),
            Share::Class => runners().map(|client| client.class.clone()).collect(),
            Share::All => vec![String::new()],
        };
        owners.sort();
        owners.dedup();
        owners
    }

    fn ready_problems(&self) -> Vec<String> {
        let ready = &self.pool.ready;
        let named = |ready: &Ready| (ready.policy.clone(), ready.template.clone());
        let twice = ready.iter().enumerate().filter_map(|(index, one)| {
            let earlier = ready[..index].iter().position(|other| named(other) == named(one))?;
            Some(format!("pool.ready[{index}]: is what pool.ready[{earlier}] is"))
        });
        let (owners, sessions) = (self.pool_owners().len(), self.pool.sessions);
        let wanted = ready.len() * owners;
        let too_many = (wanted > sessions).then(|| {
            let whose = match self.pool.share {
                Share::Tenant => "tenants",
                Share::Class => "classes",
                Share::All => "owners",
            };
            format!(
                "pool.ready: takes {wanted} sessions (kinds: {}, {whose}: {owners}), more than pool.sessions, {sessions}",
                ready.len()
            )
        });
        twice.chain(too_many).collect()
    }

    /// Checks what can be checked without looking at the host.
    pub fn check(&self) -> Result<(), String> {
        let limits = &self.limits;
        let mut problems: Vec<String> = [
            range("limits.running", limits.running, 10_000),
            range("limits.queue", limits.queue, 100_000),
            range("limits.pending", limits.pending, 10_000),
            range("limits.sessions", limits.sessions, 10_000),
            range("limits.connections", limits.connections, 100_000),
            socket("socket", &self.socket),
            socket("jailer_socket", &self.jailer_socket),
            absolute("state", &self.state),
            absolute("images", &self.images),
        ]
        .into_iter()
        .flatten()
        .collect();
        if !(1..=PENDING_BYTES_MAX).contains(&limits.pending_bytes.bytes()) {
            problems.push(format!(
                "limits.pending_bytes: {} is not in 1 to 4G",
                limits.pending_bytes
            ));
        }
        if limits.drain.millis() > DRAIN_MAX_MS {
            problems.push(format!("limits.drain: {} is not in 0 to 1h", limits.drain));
        }
        if self.pool.sessions > POOL_MAX {
            problems.push(format!(
                "pool.sessions: {} is not in 0 to {POOL_MAX}",
                self.pool.sessions
            ));
        }
        if !POOL_IDLE_MS.contains(&self.pool.idle.millis()) {
            problems.push(format!("pool.idle: {} is not in 1s to 1d", self.pool.idle));
        }
        if !POOL_ROTATE_MS.contains(&self.pool.rotate.millis()) {
            problems.push(format!("pool.rotate: {} is not in 1m to 7d", self.pool.rotate));
        }
        problems.extend(self.ready_problems());
        problems.extend(self.inputs.problems());
        problems.extend(self.artifacts.problems());
        problems.extend(self.links.problems());
        if self.policies.is_empty() {
            problems.push("policies: names no directory; at least one is needed".to_owned());
        }
        problems.extend(self.policies.iter().filter_map(|folder| absolute("policies", folder)));
        for (index, client) in self.clients.iter().enumerate() {
            problems.extend(client.problem().map(|problem| format!("client[{index}]{problem}")));
        }
        joined(problems)
    }

    /// Checks the names of groups, which are the host's.
    ///
    /// Asks the host's databases, which can block. The shipped entries for clients may name groups that are not there:
    /// nobody is in them.
    pub fn check_host(&self) -> Result<(), String> {
        let mut problems = Vec::new();
        if !self.socket_group.is_empty() {
            problems.extend(group("socket_group", &self.socket_group, "empty for the daemon's own"));
        }
        if self.clients != Self::default().clients {
            for (index, client) in self.clients.iter().enumerate() {
                if let Some(name) = &client.group {
                    problems.extend(group(&format!("client[{index}].group"), name, "uid instead"));
                }
            }
        }
        joined(problems)
    }
}

impl InputLimits {
    fn problems(&self) -> Vec<String> {
        let mut problems: Vec<String> = [
            range("inputs.tenant_files", self.tenant_files, 1_000_000),
            range("inputs.files", self.files, 1_000_000),
            range("inputs.uploads", self.uploads, 1_000),
        ]
        .into_iter()
        .flatten()
        .collect();
        if !(1..=INPUT_MAX).contains(&self.size.bytes()) {
            problems.push(format!("inputs.size: {} is not in 1 to 1024G", self.size));
        }
        for (key, value) in [("tenant_bytes", self.tenant_bytes), ("bytes", self.bytes)] {
            if value < self.size {
                let size = self.size;
                problems.push(format!(
                    "inputs.{key}: {value} has no place for a file of inputs.size, {size}"
                ));
            }
        }
        if !(1..=RETENTION_MAX_MS).contains(&self.retention_max.millis()) {
            problems.push(format!(
                "inputs.retention_max: {} is not in 1ms to 90d",
                self.retention_max
            ));
        }
        if !(1..=self.retention_max.millis()).contains(&self.retention.millis()) {
            problems.push(format!(
                "inputs.retention: {} is not in 1ms to {}, inputs.retention_max",
                self.retention, self.retention_max
            ));
        }
        problems
    }
}

impl Artifacts {
    fn problems(&self) -> Vec<String> {
        let mut problems: Vec<String> = [
            range("artifacts.pending_files", self.pending_files, 1_000_000),
            range("artifacts.tenant_files", self.tenant_files, 10_000_000),
        ]
        .into_iter()
        .flatten()
        .collect();
        if !(1_000..=REVIEW_MAX_MS).contains(&self.review.millis()) {
            problems.push(format!("artifacts.review: {} is not in 1s to 30d", self.review));
        }
        for (key, value) in [
            ("pending_bytes", self.pending_bytes),
            ("tenant_bytes", self.tenant_bytes),
        ] {
            if value.bytes() == 0 {
                problems.push(format!(
                    "artifacts.{key}: {value} has no place for anything; at least 1 is needed"
                ));
            }
        }
        problems.extend(self.s3.problems());
        problems
    }
}

impl Bucket {
    fn problems(&self) -> Vec<String> {
        if self.bucket.is_empty() {
            let others = [&self.endpoint, &self.region, &self.prefix]
                .iter()
                .any(|text| !text.is_empty());
            let lost = others || !self.credentials.as_os_str().is_empty();
            let problem = "artifacts.s3.bucket: names no bucket, though other keys of artifacts.s3 are set; \
                           name it, or leave them out";
            return lost.then(|| problem.to_owned()).into_iter().collect();
        }
        let mut problems = Vec::new();
        let is_url = ["http://", "https://"]
            .iter()
            .any(|scheme| self.endpoint.starts_with(scheme));
        if !self.endpoint.is_empty() && !is_url {
            problems.push(format!(
                "artifacts.s3.endpoint: {:?} is no URL that begins with https:// or http://",
                self.endpoint
            ));
        }
        if self.region.is_empty() {
            problems.push("artifacts.s3.region: is empty; where the service has none, us-east-1 is usual".to_owned());
        }
        problems.extend(absolute("artifacts.s3.credentials", &self.credentials));
        problems
    }
}

impl Client {
    fn problem(&self) -> Option<String> {
        match (self.uid, &self.group) {
            (Some(uid), Some(group)) => Some(format!(": both uid = {uid} and group = {group:?}; give one of them")),
            (None, None) => Some(": neither uid nor group; give one of them".to_owned()),
            _ if self.tenant.is_empty() => Some(".tenant: must not be empty; left out it is \"default\"".to_owned()),
            _ if self.class.is_empty() => Some(".class: must not be empty; left out it is \"default\"".to_owned()),
            _ if self.roles.is_empty() => {
                Some(".roles: names none of runner, reviewer, auditor, operator; leave the entry out".to_owned())
            }
            _ => None,
        }
    }
}

fn joined(problems: Vec<String>) -> Result<(), String> {
    if problems.is_empty() {
        Ok(())
    } else {
        Err(problems.join("\n"))
    }
}

fn range(key: &str, value: usize, max: usize) -> Option<String> {
    let good = (1..=max).contains(&value);
    (!good).then(|| format!("{key}: {value} is not in 1 to {max}"))
}

fn absolute(key: &str, path: &Path) -> Option<String> {
    let problem = || format!("{key}: {:?} is not an absolute path", path.display().to_string());
    (!path.is_absolute()).then(problem)
}

fn socket(key: &str, path: &Path) -> Option<String> {
    // It is made under another name first.
    let length = path.as_os_str().len().max(path.with_extension("new").as_os_str().len());
    let long = || {
        let path = path.display();
        format!("{key}: {path} is too long: a socket and its draft .new may have {SOCKET_PATH_MAX} bytes, not {length}")
    };
    absolute(key, path).or_else(|| (length > SOCKET_PATH_MAX).then(long))
}

fn group(key: &str, name: &str, or: &str) -> Option<String> {
    match Group::from_name(name) {
        Ok(Some(_)) => None,
        Ok(None) => Some(format!(
            "{key}: there is no group {name:?} on this host; name one of getent group, or {or}"
        )),
        Err(errno) => Some(format!("{key}: the group {name:?} can't be looked up: {errno}")),
    }
}
