//! Finds the other programs of Brig, and tells them where things are.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::Args;

use crate::exit::Exit;
use crate::failure::Failure;

/// Where packages put programs that people don't start themselves.
const INSTALLED: &str = "/usr/lib/brig";

/// Where the parts of Brig are, if not where packages put them.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Places {
    /// Directories of policies, separated by colons; a later one overrides an earlier one.
    #[arg(
        long,
        value_name = "DIR",
        env = "BRIG_POLICIES",
        hide_env_values = true,
        value_delimiter = ':'
    )]
    pub(crate) policies: Vec<PathBuf>,

    /// Directory of template images.
    #[arg(long, value_name = "DIR", env = "BRIG_IMAGES", hide_env_values = true)]
    pub(crate) images: Option<PathBuf>,

    /// Directory of the Python kernel layer.
    #[arg(long, value_name = "DIR", env = "BRIG_KERNEL", hide_env_values = true)]
    pub(crate) kernel: Option<PathBuf>,

    /// Directory of brigd and of the programs it needs.
    #[arg(long, value_name = "DIR", env = "BRIG_PROGRAMS", hide_env_values = true)]
    pub(crate) programs: Option<PathBuf>,
}

impl Places {
    /// Gives what is told here as arguments for brigd and brig-jailer, which have the same options.
    pub(crate) fn arguments(&self) -> Vec<OsString> {
        let policies = self
            .policies
            .iter()
            .filter(|directory| !directory.as_os_str().is_empty());
        let policies = policies.map(|directory| ("--policies", directory));
        let single = [
            ("--images", &self.images),
            ("--kernel", &self.kernel),
            ("--programs", &self.programs),
        ];
        let single = single
            .into_iter()
            .filter_map(|(name, value)| Some((name, value.as_ref()?)));
        policies
            .chain(single)
            .flat_map(|(name, value)| [name.into(), value.into()])
            .collect()
    }
}

/// Looks for a program: in the directory told, else beside this program, in `PATH`, in the place of packages.
pub(crate) fn find(name: &str, told: Option<&Path>) -> Result<PathBuf, Failure> {
    let beside = std::env::current_exe()
        .ok()
        .and_then(|exe| exe.parent().map(Path::to_path_buf));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places: Vec<PathBuf> = match told {
        Some(told) => vec![told.to_path_buf()],
        None => beside
            .into_iter()
            .chain(std::env::split_paths(&path))
            .chain([PathBuf::from(INSTALLED)])
            .collect(),
    };
    let found = places
        .iter()
        .map(|place| place.join(name))
        .find(|program| program.is_file());
    found.ok_or_else(|| {
        let message = match told {
            Some(told) => format!("{name} is not in {}", told.display()),
            None => format!("{name} is neither beside brig nor in PATH nor in {INSTALLED}"),
        };
        Failure::new(Exit::Configuration, message).hint("name its directory by --programs")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_program_names_the_place_looked_at() {
        let failure = find("brigd", Some(Path::new("/nonexistent"))).unwrap_err();
        assert_eq!(
            (failure.exit, failure.message.as_str()),
            (Exit::Configuration, "brigd is not in /nonexistent")
        );
    }

    #[test]
    fn what_is_told_is_passed_on_and_nothing_else() {
        let places = Places {
            policies: vec!["a".into(), "".into(), "b".into()],
            images: Some("i".into()),
            kernel: Some("k".into()),
            programs: None,
        };
        assert_eq!(
            places.arguments(),
            ["--policies", "a", "--policies", "b", "--images", "i", "--kernel", "k"]
        );
        assert!(Places::default().arguments().is_empty());
    }
}
