//! Runs the parts of a workflow.

use std::path::{Path, PathBuf};
use std::process::Command;

use brig_tests::Daemon;
use serde_json::Value;
use tempfile::TempDir;

/// A workflow with its uploads made.
#[derive(Debug)]
pub(crate) struct Workflow<'d> {
    daemon: &'d Daemon,
    folder: PathBuf,
    uploads: TempDir,
    /// The answers that must come out.
    truth: Value,
}

/// A job that ended.
#[derive(Debug)]
pub(crate) struct Done {
    /// What `brig run --json` printed.
    pub(crate) document: Value,
    pub(crate) exit: Option<i32>,
    pub(crate) out: TempDir,
}

impl<'d> Workflow<'d> {
    /// Makes the uploads.
    pub(crate) fn start(daemon: &'d Daemon, name: &str) -> Self {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("workflows").join(name);
        let uploads = tempfile::tempdir().unwrap();
        let mut python = Command::new("python3");
        let made = python
            .arg("-B")
            .arg(folder.join("input.py"))
            .arg(uploads.path())
            .output()
            .unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        Self {
            daemon,
            folder,
            uploads,
            truth: serde_json::from_slice(&made.stdout).unwrap(),
        }
    }

    /// Runs a script of the workflow with the uploads.
    pub(crate) fn run(&self, script: &str) -> Done {
        self.run_with(script, &files(self.uploads.path()))
    }

    /// Runs a script of the workflow with these files.
    pub(crate) fn run_with(&self, script: &str, inputs: &[PathBuf]) -> Done {
        job(self.daemon, &self.folder.join(script), inputs)
    }

    /// Opens what came out in another jail; the answers found must be the true ones.
    pub(crate) fn check(&self, done: &Done) {
        self.check_files(&files(done.out.path()));
    }

    /// The same for files of several jobs.
    pub(crate) fn check_files(&self, artifacts: &[PathBuf]) {
        let checked = self.run_with("check.py", artifacts);
        checked.expect_success();
        let answers: Value = serde_json::from_str(checked.text("stdout")).unwrap();
        assert_eq!(answers, self.truth);
    }
}

impl Done {
    /// A text of the result.
    pub(crate) fn text(&self, key: &str) -> &str {
        self.document[key].as_str().unwrap_or_default()
    }

    /// Fails with the job's own words unless it succeeded without a word on stderr.
    pub(crate) fn expect_success(&self) {
        let end = (self.text("status"), self.exit, self.text("stderr"));
        assert_eq!(end, ("success", Some(0), ""), "{:#}", self.document);
    }

    /// Path, type, class and handling of each artifact, with its review if one is needed.
    pub(crate) fn artifacts(&self) -> Vec<String> {
        let describe = |artifact: &Value| {
            let word = |key: &str| artifact[key].as_str().unwrap_or_default();
            let review = if word("review") == "not_needed" {
                ""
            } else {
                word("review")
            };
            let words = [word("path"), word("type"), word("class"), word("handling"), review];
            words.join(" ").trim_end().to_owned()
        };
        self.document["artifacts"]
            .as_array()
            .unwrap()
            .iter()
            .map(describe)
            .collect()
    }

    /// A file that was saved.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.out.path().join(name)
    }
}

/// Runs a script with files.
pub(crate) fn job(daemon: &Daemon, script: &Path, inputs: &[PathBuf]) -> Done {
    let out = tempfile::tempdir().unwrap();
    let mut words: Vec<&str> = vec!["run", "--json", "-q", "--out", out.path().to_str().unwrap()];
    for input in inputs {
        words.extend(["--input", input.to_str().unwrap()]);
    }
    words.push(script.to_str().unwrap());
    let brig = daemon.brig(&words);
    Done {
        document: brig.json(),
        exit: brig.code,
        out,
    }
}

/// The files of a folder, in the order of their names.
pub(crate) fn files(folder: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = folder.read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}
