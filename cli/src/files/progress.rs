//! A bar for transfers that take long, on a terminal only.

use std::io::{IsTerminal, stderr};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// The bar of one transfer; gone when this is dropped.
#[derive(Debug)]
pub(crate) struct Progress(ProgressBar);

impl Progress {
    /// `size` is what will come, if that is known.
    pub(crate) fn new(name: &str, size: Option<u64>, quiet: bool) -> Self {
        let bar = match size {
            Some(size) => ProgressBar::new(size),
            None => ProgressBar::new_spinner(),
        };
        if quiet || !stderr().is_terminal() {
            bar.set_draw_target(ProgressDrawTarget::hidden());
            return Self(bar);
        }
        let template = match size {
            Some(_) => "{prefix} {wide_bar} {bytes}/{total_bytes} {binary_bytes_per_sec} {eta}",
            None => "{spinner} {prefix} {bytes} {binary_bytes_per_sec}",
        };
        let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
        bar.set_style(style);
        bar.set_prefix(crate::output::escape::line(name));
        bar.enable_steady_tick(Duration::from_millis(200));
        Self(bar)
    }

    pub(crate) fn add(&self, bytes: usize) {
        self.0.inc(bytes as u64);
    }

    pub(crate) fn bar(&self) -> ProgressBar {
        self.0.clone()
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
