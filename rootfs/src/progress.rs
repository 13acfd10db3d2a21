//! What a person sees of a build: a spinner with the last line of the log on a terminal, plain lines elsewhere.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// Where the progress of a build goes. Everything is written to stderr.
#[derive(Debug)]
pub struct Progress {
    bar: Option<ProgressBar>,
    quiet: bool,
}

impl Progress {
    /// A spinner if stderr is a terminal, else one line per step.
    pub fn new() -> Self {
        let bar = io::stderr().is_terminal().then(ProgressBar::new_spinner);
        if let Some(bar) = &bar {
            bar.set_style(
                ProgressStyle::with_template("{spinner} {prefix} {elapsed:.dim} {wide_msg:.dim}")
                    .unwrap_or_else(|_| ProgressStyle::default_spinner()),
            );
            bar.enable_steady_tick(Duration::from_millis(120));
        }
        Self { bar, quiet: false }
    }

    /// No output at all.
    pub fn quiet() -> Self {
        Self { bar: None, quiet: true }
    }

    /// Runs one step of the build under its name.
    pub(crate) fn step<T, E>(&self, name: &str, work: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
        let started = Instant::now();
        if let Some(bar) = &self.bar {
            bar.set_prefix(name.to_owned());
            bar.set_message("");
        }
        let result = work();
        let end = if result.is_ok() { "done" } else { "failed" };
        self.say(&format!("  {name}: {end}, {:.1} s", started.elapsed().as_secs_f64()));
        result
    }

    /// The last line that a running program wrote.
    pub(crate) fn detail(&self, line: &str) {
        if let Some(bar) = &self.bar {
            bar.set_message(
                line.trim()
                    .chars()
                    .filter(|c| !c.is_control())
                    .take(200)
                    .collect::<String>(),
            );
        }
    }

    /// A line that stays.
    pub(crate) fn say(&self, line: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| write_line(line)),
            None if self.quiet => {}
            None => write_line(line),
        }
    }
}

impl Default for Progress {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn write_line(line: &str) {
    // Nobody can be told that stderr is closed.
    let _ = writeln!(io::stderr(), "{line}");
}
