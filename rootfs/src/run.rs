//! Programs that the build runs: each with its output in the log, and in mount namespaces of their own.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::error::{Doing, Error, Result};
use crate::progress::Progress;

/// Lines of output that an error repeats.
const SHOWN_LINES: usize = 8;

/// Characters of each that it repeats: apt names all packages in one line.
const SHOWN_WIDTH: usize = 160;

/// Everything that programs of one build wrote.
#[derive(Debug)]
pub(crate) struct Log {
    file: File,
    path: PathBuf,
}

impl Log {
    /// Starts an empty log, in a folder that is made if need be.
    pub(crate) fn create(path: &Path) -> Result<Self> {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).doing("make", folder)?;
        }
        let file = OpenOptions::new()
            .create(true)
            .write(true)
            .truncate(true)
            .open(path)
            .doing("create", path)?;
        Ok(Self {
            file,
            path: path.to_owned(),
        })
    }

    /// Runs a program to its end; its output goes to the log and, line by line, to the progress.
    ///
    /// Errors: [`Error::Step`] with the last lines of its output if it can't be started or does not exit with 0.
    pub(crate) fn run(&mut self, step: &str, command: &mut Command, progress: &Progress) -> Result<()> {
        let failed = |message: String| Error::Step {
            step: step.to_owned(),
            message,
            log: self.path.clone(),
        };
        let (reader, writer) = io::pipe().doing("make a pipe for", &self.path)?;
        let copy = writer.try_clone().doing("make a pipe for", &self.path)?;
        command.stdin(Stdio::null()).stdout(writer).stderr(copy);
        let mut child = command
            .spawn()
            .map_err(|e| failed(format!("{}: {e}", program(command))))?;
        // The command holds the write end of the pipe, which would never come to its end.
        command.stdout(Stdio::null()).stderr(Stdio::null());

        let mut last: Vec<String> = Vec::new();
        for line in BufReader::new(reader).split(b'\n') {
            let line = String::from_utf8_lossy(&line.doing("read what was written for", &self.path)?).into_owned();
            writeln!(self.file, "{line}").doing("write", &self.path)?;
            progress.detail(&line);
            if last.len() == SHOWN_LINES {
                last.remove(0);
            }
            last.push(line.chars().take(SHOWN_WIDTH).collect::<String>());
        }
        let status = child.wait().doing("wait for a program of", &self.path)?;
        if status.success() {
            return Ok(());
        }
        Err(failed(format!(
            "{} ended with {status}\n    {}",
            program(command),
            last.join("\n    ")
        )))
    }
}

/// A command in namespaces of its own: what it mounts and starts is gone when it ends, and when this process does.
pub(crate) fn private(program: impl AsRef<OsStr>) -> Command {
    let mut command = alone(&[]);
    command.arg(program);
    command
}

/// `unshare` with all of a command's processes in a namespace that dies with the caller: an interrupted build must not
/// go on writing to a folder that the next one removes.
fn alone(more: &[&str]) -> Command {
    let mut command = Command::new("setpriv");
    command.args([
        "--pdeathsig",
        "KILL",
        "unshare",
        "--mount",
        "--propagation",
        "private",
        "--pid",
        "--fork",
    ]);
    command.args(["--kill-child", "--mount-proc"]).args(more).arg("--");
    command
}

/// A program of the tree, run in it: no network, own processes, nothing of the caller's environment.
pub(crate) fn inside(tree: &Path, program: &[&str]) -> Command {
    inside_with(tree, Path::new("/dev"), "dev", program)
}

/// As [`inside`], with a folder of the host bound at a place of the tree.
pub(crate) fn inside_with(tree: &Path, folder: &Path, place: &str, program: &[&str]) -> Command {
    const MOUNT_AND_ENTER: &str = r#"mkdir -p "$0/$2" && mount -t proc proc "$0/proc" && mount -t tmpfs tmpfs "$0/tmp" &&
        mount --bind /dev "$0/dev" && mount --bind "$1" "$0/$2" && tree=$0 && shift 2 && exec chroot "$tree" "$@""#;
    let mut command = alone(&["--net", "--ipc"]);
    command
        .args(["sh", "-c", MOUNT_AND_ENTER])
        .arg(tree)
        .arg(folder)
        .arg(place)
        .args(program);
    command.env_clear();
    // The hash seed decides the order of sets, and with it bytes of what is compiled.
    let environment = [
        ("PATH", "/usr/sbin:/usr/bin:/sbin:/bin"),
        ("LANG", "C.UTF-8"),
        ("HOME", "/tmp"),
        ("PYTHONHASHSEED", "0"),
    ];
    command.envs(environment);
    command
}

/// As [`inside`], without any right: for programs that run code of packages.
pub(crate) fn inside_as_user(tree: &Path, program: &[&str]) -> Command {
    let shed = [
        "setpriv",
        "--reuid=1000",
        "--regid=1000",
        "--clear-groups",
        "--bounding-set=-all",
        "--inh-caps=-all",
        "--no-new-privs",
        "--",
    ];
    inside(tree, &[&shed, program].concat())
}

fn program(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let text = words.map(OsStr::to_string_lossy).collect::<Vec<_>>().join(" ");
    text.chars().take(120).collect()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::{Log, alone};
    use crate::progress::Progress;

    #[test]
    fn a_command_dies_with_its_caller_and_sees_only_itself() {
        let words = alone(&["--net"])
            .get_args()
            .map(|w| w.to_string_lossy().into_owned())
            .collect::<Vec<_>>()
            .join(" ");
        let expected =
            "--pdeathsig KILL unshare --mount --propagation private --pid --fork --kill-child --mount-proc --net --";
        assert_eq!(words, expected);
    }

    #[test]
    fn output_of_both_streams_is_in_the_log() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let mut log = Log::create(&path).unwrap();
        log.run(
            "try",
            Command::new("sh").args(["-c", "echo one; echo two >&2"]),
            &Progress::quiet(),
        )
        .unwrap();
        assert_eq!(std::fs::read_to_string(path).unwrap(), "one\ntwo\n");
    }

    #[test]
    fn a_failed_program_is_named_with_its_last_words_and_the_log() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let mut log = Log::create(&path).unwrap();
        let mut command = Command::new("sh");
        let error = log
            .run("try", command.args(["-c", "echo no luck; exit 3"]), &Progress::quiet())
            .unwrap_err();
        let expected = format!(
            "build step \"try\" failed: sh -c echo no luck; exit 3 ended with exit status: 3\n    no luck\nhint: the whole log is in {}",
            path.display()
        );
        assert_eq!(error.to_string(), expected);
    }
}
