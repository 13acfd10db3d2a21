//! The stories that the README tells, of a session and of a review: their commands are run in their order, and say what it
//! shows.
#![cfg(test)]
#![allow(clippy::unwrap_used, reason = "a test that can't go on fails")]

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, sync_channel};

use brig_tests::host::Places;
use brig_tests::services::Setup;
use brig_tests::{DEADLINE, Service, Services};

const README: &str = include_str!("../../README.md");

/// A command that is not for a shell here, and what is done in its place: these daemons are not those of the host.
type Instead = (&'static str, fn(&mut Services));

const INSTEAD: [Instead; 1] = [("systemctl restart brigd", |services| {
    services.stop();
    services.launch(Service::Daemon);
})];

/// A command, and what the README shows below it.
#[derive(Debug, PartialEq, Eq)]
struct Shown {
    command: String,
    output: String,
}

/// The commands of a section's blocks: `$ ` begins one, what follows in the same block is its output.
fn shown(section: &str) -> Vec<Shown> {
    let mut found: Vec<Shown> = Vec::new();
    let mut in_output = false;
    for line in section.lines() {
        match (line.strip_prefix("    "), &mut found[..]) {
            (Some(text), _) if text.starts_with("$ ") => {
                found.push(Shown {
                    command: text["$ ".len()..].to_owned(),
                    output: String::new(),
                });
                in_output = true;
            }
            (Some(text), [.., last]) if in_output => last.output += &format!("{text}\n"),
            _ => in_output = false,
        }
    }
    found
}

/// A shell that is told one command at a time, as a reader does.
struct Shell {
    child: Child,
    stdin: ChildStdin,
    lines: Receiver<String>,
}

impl Shell {
    fn start(directory: &Path, socket: &Path) -> Self {
        let places = Places::find();
        let path = std::env::var("PATH").unwrap();
        let mut command = Command::new("bash");
        command.args(["--norc", "--noprofile"]).current_dir(directory);
        command.env("PATH", format!("{}:{path}", places.programs.display()));
        command.env("BRIG_ENDPOINT", format!("unix://{}", socket.display()));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (mut stdin, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        // A reader sees both streams.
        writeln!(stdin, "exec 2>&1").unwrap();
        let (sender, lines) = sync_channel(64);
        std::thread::spawn(move || {
            let read = BufReader::new(stdout).lines().map_while(Result::ok);
            read.map_while(|line| sender.send(line).ok()).for_each(drop);
        });
        Self { child, stdin, lines }
    }

    /// Runs a command; gives its output, and its status where that is not 0.
    fn run(&mut self, command: &str) -> String {
        const END: &str = "end of the command: ";
        writeln!(self.stdin, "{command}\necho \"{END}$?\"").unwrap();
        let mut output = String::new();
        loop {
            let line = self.lines.recv_timeout(*DEADLINE).unwrap();
            match line.strip_prefix(END) {
                Some("0") => return output,
                Some(status) => return format!("{output}exit status {status}"),
                None => output += &format!("{line}\n"),
            }
        }
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        let _ended_already = self.child.kill();
        let _reaped_already = self.child.wait();
    }
}

/// A section of the README: its commands with what they show.
fn story(heading: &str) -> Vec<Shown> {
    let (_, section) = README.split_once(&format!("## {heading}\n")).unwrap();
    let story = shown(section.split_once("\n## ").unwrap().0);
    let told = story.iter().filter(|shown| shown.command.contains("brig "));
    assert!(told.count() >= 8, "{story:#?}");
    story
}

/// Runs each command as it is told.
fn play(story: &[Shown]) {
    let setup = Setup {
        links: "127.0.0.1:0",
        ..Setup::default()
    };
    let Some(mut services) = Services::start(setup) else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let mut shell = Shell::start(folder.path(), &services.socket());
    for expected in story {
        let output = match INSTEAD.iter().find(|(command, _)| *command == expected.command) {
            Some((_, instead)) => {
                instead(&mut services);
                String::new()
            }
            None => shell.run(&expected.command),
        };
        let command = expected.command.clone();
        assert_eq!(&Shown { command, output }, expected);
    }
}

#[test]
fn the_session_of_the_readme_goes_as_it_is_told() {
    let story = story("Keep a session");
    let told = |text: &str| story.iter().any(|shown| shown.command.contains(text));
    assert!(INSTEAD.iter().all(|(command, _)| told(command)), "{story:#?}");
    play(&story);
}

#[test]
fn the_review_of_the_readme_goes_as_it_is_told() {
    play(&story("Review what comes out"));
}

#[test]
fn commands_and_their_output_are_told_from_the_text_around_them() {
    let section = "Text.\n\n    no command\n\n    $ one $x\n    $ two\n    a\n      b\n\nText.\n\n    not output\n";
    let pair = |command: &str, output: &str| Shown {
        command: command.to_owned(),
        output: output.to_owned(),
    };
    assert_eq!(shown(section), [pair("one $x", ""), pair("two", "a\n  b\n")]);
}
