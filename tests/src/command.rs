//! The command `brig`, run as people and programs run it.

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::DEADLINE;
use crate::host::Places;

/// How a command ended.
#[derive(Debug)]
pub struct Brig {
    pub code: Option<i32>,
    pub stdout: Vec<u8>,
    pub stderr: String,
}

/// A command to be run.
#[derive(Debug)]
pub struct Line {
    pub command: Command,
    stdin: Option<Vec<u8>>,
}

impl Brig {
    /// A command that asks the daemon at this socket.
    pub fn command(socket: &Path, arguments: &[&str]) -> Line {
        let places = Places::find();
        let mut command = Command::new(places.program("brig"));
        command.args(arguments);
        command.env("BRIG_ENDPOINT", format!("unix://{}", socket.display()));
        command
            .env("BRIG_PROGRAMS", &places.programs)
            .env("BRIG_POLICIES", &places.policies);
        command
            .env("BRIG_KERNEL", &places.kernel)
            .env("BRIG_IMAGES", &places.images);
        Line { command, stdin: None }
    }

    /// A command on a host without a daemon.
    pub fn alone(arguments: &[&str]) -> Line {
        Self::command(Path::new("/nonexistent/brigd.sock"), arguments)
    }

    /// What it wrote to stdout, as text.
    pub fn text(&self) -> String {
        String::from_utf8(self.stdout.clone()).unwrap()
    }

    /// What it wrote to stdout, which must be one JSON document and nothing else.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.stdout)
            .unwrap_or_else(|error| panic!("{error}: {:?} {}", self.text(), self.stderr))
    }

    /// Fails with what it said if it ended otherwise.
    pub fn expect(self, code: i32) -> Self {
        assert_eq!(
            self.code,
            Some(code),
            "stdout: {} stderr: {}",
            String::from_utf8_lossy(&self.stdout),
            self.stderr
        );
        self
    }
}

impl Line {
    /// What it reads from its standard input.
    pub fn stdin(mut self, bytes: &[u8]) -> Self {
        self.stdin = Some(bytes.to_vec());
        self
    }

    /// Starts it and lets it run; its stdout and stderr are pipes.
    pub fn spawn(mut self) -> Child {
        self.command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        self.command.spawn().unwrap()
    }

    /// Runs it to its end.
    pub fn run(mut self) -> Brig {
        let stdin = if self.stdin.is_some() {
            Stdio::piped()
        } else {
            Stdio::null()
        };
        self.command.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = self.command.spawn().unwrap();
        if let Some(bytes) = self.stdin {
            let mut pipe = child.stdin.take().unwrap();
            std::thread::spawn(move || pipe.write_all(&bytes));
        }
        let stdout = read_all(child.stdout.take().unwrap());
        let stderr = read_all(child.stderr.take().unwrap());
        let deadline = Instant::now() + *DEADLINE * 2;
        let status = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break status;
            }
            if Instant::now() > deadline {
                let _ended_already = child.kill();
                let _reaped_already = child.wait();
                panic!("{:?} did not end", self.command);
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        Brig {
            code: status.code(),
            stdout: stdout.join().unwrap(),
            stderr: String::from_utf8_lossy(&stderr.join().unwrap()).into_owned(),
        }
    }
}

fn read_all(mut pipe: impl Read + Send + 'static) -> std::thread::JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        pipe.read_to_end(&mut bytes).unwrap();
        bytes
    })
}
