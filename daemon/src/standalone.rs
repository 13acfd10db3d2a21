//! A private daemon: brigd starts its own brig-jailer, while it is still root and has one thread.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::unistd::Uid;
use rustix::io::FdFlags;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use crate::config::Config;
use crate::options::{Options, StartError};
use crate::privileges::Identity;

/// What the service manager has for brigd alone.
const MANAGER: [&str; 7] = [
    "NOTIFY_SOCKET",
    "WATCHDOG_USEC",
    "WATCHDOG_PID",
    "LISTEN_PID",
    "LISTEN_FDS",
    "LISTEN_FDNAMES",
    "LISTEN_PIDFDID",
];

/// The places where brig-jailer, brig-init and brig-files are installed if they don't lie beside brigd.
const INSTALLED: &str = "/usr/lib/brig";

/// A jailer that this process started.
#[derive(Debug)]
pub struct PrivateJailer {
    child: Child,
}

impl PrivateJailer {
    /// Starts the jailer and gives the socket to talk to it.
    ///
    /// The jailer ends by itself when the socket is closed.
    pub fn start(options: &Options, config: &Config) -> Result<(Self, OwnedFd), StartError> {
        if !Uid::effective().is_root() {
            return Err(StartError::NotPermitted(
                "a private daemon makes its own jails and must be started by root; \
                 without root, talk to the daemon of this host: start it with systemctl start brigd"
                    .to_owned(),
            ));
        }
        let programs = programs(options.programs.as_deref())?;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .map_err(|errno| StartError::Failed(format!("socketpair for brig-jailer: {errno}")))?;
        // The one descriptor that outlives the exec; the jailer is told its number.
        rustix::io::fcntl_setfd(&theirs, FdFlags::empty())
            .map_err(|errno| StartError::Failed(format!("fcntl(F_SETFD): {errno}")))?;
        let program = programs.join("brig-jailer");
        let mut command = Command::new(&program);
        command.arg("--fd").arg(theirs.as_raw_fd().to_string());
        for directory in &config.policies {
            command.arg("--policies").arg(directory);
        }
        command.arg("--images").arg(&config.images);
        command.arg("--programs").arg(&programs);
        command.arg("--log").arg(config.log.to_string());
        for name in MANAGER {
            command.env_remove(name);
        }
        if let Some(kernel) = &options.kernel {
            command.arg("--kernel").arg(kernel);
        }
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .map_err(|error| StartError::Configuration(format!("{}: {error}", program.display())))?;
        Ok((Self { child }, ours))
    }

    /// Waits until the jailer is gone; it goes when its socket was closed and its last jail is down.
    pub fn wait(mut self, deadline: Duration) -> io::Result<Option<ExitStatus>> {
        let end = Instant::now() + deadline;
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(Some(status));
            }
            if Instant::now() >= end {
                return Ok(None);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Makes the directory of a private daemon and hands it over to who brigd will be.
pub fn prepare_directory(directory: &Path, identity: Identity) -> Result<(), StartError> {
    let failed = |error: io::Error| StartError::Configuration(format!("--standalone {}: {error}", directory.display()));
    std::fs::create_dir_all(directory).map_err(failed)?;
    std::fs::set_permissions(directory, std::fs::Permissions::from_mode(0o700)).map_err(failed)?;
    identity.own(directory).map_err(failed)
}

/// Where the programs lie: as told, else beside brigd, else where packages put them.
fn programs(told: Option<&Path>) -> Result<PathBuf, StartError> {
    let beside = std::env::current_exe()
        .ok()
        .and_then(|exe| exe.parent().map(Path::to_path_buf));
    let places: Vec<PathBuf> = match told {
        Some(told) => vec![told.to_path_buf()],
        None => beside.into_iter().chain([PathBuf::from(INSTALLED)]).collect(),
    };
    let found = places.iter().find(|place| place.join("brig-jailer").is_file()).cloned();
    found.ok_or_else(|| {
        let looked: Vec<_> = places.iter().map(|place| place.display().to_string()).collect();
        StartError::Configuration(format!(
            "brig-jailer is not in {}; name its directory by --programs",
            looked.join(" or ")
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_jailer_names_the_places_looked_at() {
        let error = programs(Some(Path::new("/nonexistent"))).unwrap_err();
        assert_eq!(
            error.to_string(),
            "brig-jailer is not in /nonexistent; name its directory by --programs"
        );
    }
}
