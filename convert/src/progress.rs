//! A progress bar on standard error, where somebody watches.

use std::io::{IsTerminal, stderr};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Says how far a long step is; silent unless standard error is a terminal.
pub struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// A bar, silent if `quiet` or if standard error is not a terminal.
    pub fn new(quiet: bool) -> Progress {
        let shown = !quiet && stderr().is_terminal();
        let target = if shown { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(None, target);
        let style =
            ProgressStyle::with_template("{msg:9} {wide_bar} {bytes:>10}/{total_bytes:10} {bytes_per_sec}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        Progress { bar }
    }

    /// Begins a step of `bytes` bytes.
    pub fn start(&self, step: &'static str, bytes: u64) {
        self.bar.reset();
        self.bar.set_message(step);
        self.bar.set_length(bytes);
    }

    /// `bytes` more are done.
    pub fn add(&self, bytes: u64) {
        self.bar.inc(bytes);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
