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
        Progress { bar }
    }

    /// Begins a step of `bytes` bytes.
    pub fn start(&self, step: &'static str, bytes: u64) {
        self.start_with("{msg:11} {wide_bar} {bytes:>10}/{total_bytes:10} {bytes_per_sec}", step, bytes);
    }

    /// Begins a long step over so many tokens.
    pub fn start_tokens(&self, step: &'static str, tokens: u64) {
        self.start_with("{msg:11} {wide_bar} {pos:>7}/{len:7} tokens, {eta} left", step, tokens);
    }

    /// Begins a long step over so many requests, of which some are done already.
    pub fn start_requests(&self, step: &'static str, requests: u64, done: u64) {
        let template = "{prefix:11} {wide_bar} {pos:>7}/{len:7} requests, {msg}, {eta} left";
        self.start_with(template, step, requests);
        self.bar.set_prefix(step);
        self.bar.set_message("- tok/s");
        self.bar.set_position(done);
        self.bar.reset_eta();
    }

    /// Says something beside the bar.
    pub fn say(&self, text: String) {
        self.bar.set_message(text);
    }

    fn start_with(&self, template: &str, step: &'static str, length: u64) {
        let style = ProgressStyle::with_template(template);
        self.bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        self.bar.reset();
        self.bar.set_message(step);
        self.bar.set_length(length);
    }

    /// So many bytes or tokens more are done.
    pub fn add(&self, amount: u64) {
        self.bar.inc(amount);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
