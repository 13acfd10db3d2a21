//! Where things are on this host, and what it can do.

use std::io::Write;
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

use serde_json::Value;

/// Where the programs, policies, kernel layer and images are.
#[derive(Debug, Clone)]
pub struct Places {
    pub programs: PathBuf,
    pub policies: PathBuf,
    pub kernel: PathBuf,
    pub images: PathBuf,
}

impl Places {
    /// As the environment says, else as `make stage` puts them.
    pub fn find() -> Self {
        let place = |name, default: &str| std::env::var_os(name).map_or_else(|| PathBuf::from(default), PathBuf::from);
        Self {
            programs: place("BRIG_PROGRAMS", "/var/lib/brig/stage/programs"),
            policies: place("BRIG_POLICIES", "/var/lib/brig/stage/policies"),
            kernel: place("BRIG_KERNEL", "/var/lib/brig/stage/kernel"),
            images: place("BRIG_IMAGES", "/var/lib/brig/images"),
        }
    }

    /// A program of Brig; it must have been built.
    pub fn program(&self, name: &str) -> PathBuf {
        let program = self.programs.join(name);
        assert!(program.is_file(), "{} is not there: run make stage", program.display());
        program
    }
}

/// Whether jails can be made here. Says why not, or fails where the environment promises that they can.
pub fn can_run() -> bool {
    static MISSING: OnceLock<Vec<String>> = OnceLock::new();
    let missing = MISSING.get_or_init(look);
    if missing.is_empty() {
        return true;
    }
    let name = std::thread::current().name().unwrap_or("?").to_owned();
    let promised = promised();
    assert!(
        promised.is_empty(),
        "BRIG_TEST_HAS promises {promised}, but: {}",
        missing.join("; ")
    );
    // Not by eprintln: the harness would keep it to itself, as the test counts as passed.
    let line = format!("SKIPPED {name}: {}\n", missing.join("; "));
    std::io::stderr().write_all(line.as_bytes()).unwrap();
    false
}

/// What the environment says that this host has.
fn promised() -> String {
    let default = if std::env::var("CI").is_ok_and(|ci| !ci.is_empty() && ci != "false") {
        "root,cgroups,landlock"
    } else {
        ""
    };
    std::env::var("BRIG_TEST_HAS").unwrap_or_else(|_| default.to_owned())
}

fn look() -> Vec<String> {
    if !rustix::process::geteuid().is_root() {
        return vec!["needs root".to_owned()];
    }
    let places = Places::find();
    for image in ["base", "data"] {
        let document = places.images.join(image).join("image.json");
        assert!(
            document.is_file(),
            "{} is not there: run make image-{image}",
            document.display()
        );
    }
    let mut doctor = Command::new(places.program("brig-jailer"));
    doctor.arg("--doctor").arg("--policies").arg(&places.policies);
    doctor
        .arg("--images")
        .arg(&places.images)
        .arg("--programs")
        .arg(&places.programs);
    doctor.arg("--kernel").arg(&places.kernel);
    let output = doctor.output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
        panic!(
            "brig-jailer --doctor: {error}: {}",
            String::from_utf8_lossy(&output.stderr)
        )
    });
    let checks = report["checks"].as_array().unwrap();
    let missing = checks.iter().filter(|check| check["verdict"] == "Missing");
    missing
        .map(|check| format!("{} is {}", check["what"], check["found"]))
        .collect()
}
