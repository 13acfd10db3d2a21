//! Reads the configuration again while the daemon runs: all or nothing.
//!
//! Everything is read and checked before anything counts. Then brig-jailer reads its part, which it may refuse, and only
//! then the new values are taken. Executions and sessions keep the policy that they were made with.

use std::path::PathBuf;
use std::sync::Arc;

use brig_jailer::policy::{PolicySet, Trust};
use brig_jailer::seccomp::Groups;
use brig_jailer::template::Templates;
use tracing::warn;

use crate::config::Config;
use crate::host::Host;
use crate::links::Key;
use crate::options::{Options, StartError};
use crate::run::pool::check_ready;

/// A configuration with all that it names, read and found good.
#[derive(Debug)]
pub struct Prepared {
    pub config: Config,
    pub policies: PolicySet,
    pub templates: Templates,
    /// What links are signed with from then on; none where none are served.
    pub link_key: Option<Key>,
}

impl Prepared {
    /// Reads what a daemon would start with.
    pub fn read(options: &Options) -> Result<Self, StartError> {
        Self::of(Config::load(options)?)
    }

    /// Reads what a running daemon may take over.
    fn read_again(options: &Options, current: &Config) -> Result<Self, StartError> {
        let mut config = Config::load(options)?;
        for (key, wanted, has) in keep_fixed(&mut config, current) {
            warn!(key, wanted, has, "key needs a restart; its old value stays");
        }
        // An old value need not go with the new ones.
        config.check().map_err(StartError::Configuration)?;
        Self::of(config)
    }

    fn of(config: Config) -> Result<Self, StartError> {
        let wrong = |error: &dyn std::fmt::Display| StartError::Configuration(error.to_string());
        config.check_host().map_err(|error| wrong(&error))?;
        let policies = PolicySet::load(&config.policies, Trust::RootOwned).map_err(|error| wrong(&error))?;
        let folders: Vec<PathBuf> = config.policies.iter().map(|folder| folder.join("syscalls")).collect();
        let groups = Groups::load(&folders, Trust::RootOwned).map_err(|error| wrong(&error))?;
        for policy in policies.iter() {
            let filter = groups.compile(&policy.name, &policy.syscalls.groups);
            filter.map_err(|error| wrong(&format!("policy {}: {error}", policy.name)))?;
        }
        check_ready(&config, &policies).map_err(|problem| wrong(&problem))?;
        Ok(Self {
            templates: Templates::load(&config.images, Trust::RootOwned).map_err(|error| wrong(&error))?,
            config,
            policies,
            link_key: None,
        })
    }
}

/// Reads everything again. The error says why all stayed as it was.
pub async fn reload(host: &Arc<Host>, options: &Options) -> Result<(), String> {
    let (options, current) = (options.clone(), Arc::clone(host));
    // Files and the databases of the host can block.
    let read = tokio::task::spawn_blocking(move || {
        let prepared = Prepared::read_again(&options, &current.config()).map_err(|error| error.to_string())?;
        let link_key = current.links.read_key_again().map_err(|error| error.to_string())?;
        Ok::<_, String>(Prepared { link_key, ..prepared })
    });
    let prepared = read.await.map_err(|error| error.to_string())??;
    let answer = host.jailer.reload().await.map_err(|error| error.to_string())?;
    if let Some(refusal) = answer {
        return Err(format!("brig-jailer: {refusal}"));
    }
    let host = Arc::clone(host);
    let taken = tokio::task::spawn_blocking(move || host.take_over(prepared));
    taken.await.map_err(|error| error.to_string())
}

/// Puts the old values of those keys back that can't change while the daemon runs; gives key, new and old value.
fn keep_fixed(config: &mut Config, current: &Config) -> Vec<(&'static str, String, String)> {
    let mut kept = Vec::new();
    macro_rules! fixed {
        ($($key:ident),+) => {$(
            if config.$key != current.$key {
                kept.push((stringify!($key), format!("{:?}", config.$key), format!("{:?}", current.$key)));
                config.$key.clone_from(&current.$key);
            }
        )+};
    }
    fixed!(
        socket,
        socket_mode,
        socket_group,
        jailer_socket,
        state,
        policies,
        images,
        log
    );
    macro_rules! fixed_below {
        ($($table:ident.$key:ident),+) => {$(
            let (wanted, has) = (&mut config.$table.$key, &current.$table.$key);
            if wanted != has {
                let name = concat!(stringify!($table), ".", stringify!($key));
                kept.push((name, format!("{wanted:?}"), format!("{has:?}")));
                wanted.clone_from(has);
            }
        )+};
    }
    fixed_below!(artifacts.s3, links.listen);
    kept
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use brig_jailer::units::Span;

    use super::*;

    #[test]
    fn what_needs_a_restart_keeps_its_value_and_is_named() {
        let current = Config::default();
        let mut config = Config {
            socket: "/x".into(),
            state: "/y".into(),
            ..Config::default()
        };
        config.limits.drain = Span::from_millis(1);
        let kept = keep_fixed(&mut config, &current);
        let expected = [
            ("socket", "\"/x\"".to_owned(), "\"/run/brig/brigd.sock\"".to_owned()),
            ("state", "\"/y\"".to_owned(), "\"/var/lib/brig/daemon\"".to_owned()),
        ];
        assert_eq!(kept, expected);
        assert_eq!(config.socket, current.socket);
        assert_eq!(config.limits.drain, Span::from_millis(1));
    }

    fn refused(directory: &Path, policy: &str) -> String {
        let config = Config {
            socket_group: String::new(),
            policies: vec![directory.to_owned()],
            images: directory.join("images"),
            ..Config::default()
        };
        std::fs::create_dir_all(directory.join("syscalls")).unwrap();
        let group = "allow = [{ syscall = \"read\", why = \"a test\" }]\n";
        std::fs::write(directory.join("syscalls/base.toml"), group).unwrap();
        std::fs::write(directory.join("data.toml"), policy).unwrap();
        Prepared::of(config).map(|_| ()).unwrap_err().to_string()
    }

    #[test]
    fn a_policy_of_no_syscall_group_is_refused_before_it_counts() {
        if !nix::unistd::Uid::effective().is_root() {
            return assert!(!std::env::var("BRIG_TEST_HAS").unwrap_or_default().contains("root"));
        }
        let directory = tempfile::tempdir().unwrap();
        let policy = "template = \"base\"\n[syscalls]\ngroups = [\"bsae\"]\n";
        let error = refused(directory.path(), policy);
        assert!(error.contains("policy data") && error.contains("base"), "{error}");
        let error = refused(directory.path(), "tmplate = \"base\"\n");
        assert!(error.contains("data.toml") && error.contains("tmplate"), "{error}");
    }
}
