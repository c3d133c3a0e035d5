//! How far a long work is: a bar on standard error where somebody watches, and a look from another thread.

use std::io::{self, IsTerminal, stderr};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use smolrun::CancelToken;

/// Says how far a long step is, silent unless standard error is a terminal, and hears whether it is to end.
pub struct Progress {
    bar: ProgressBar,
    cancel: CancelToken,
}

/// What another thread sees of a work, and ends it by. Clones are of the same work.
#[derive(Clone)]
pub struct Watch {
    bar: ProgressBar,
    cancel: CancelToken,
}

/// The work is to end: see [`Watch::cancel`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cancelled;

impl Progress {
    /// A bar, silent if `quiet` or if standard error is not a terminal.
    pub fn new(quiet: bool) -> Progress {
        let shown = !quiet && stderr().is_terminal();
        let target = if shown { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(None, target);
        Progress { bar, cancel: CancelToken::default() }
    }

    /// For another thread to look on.
    pub fn watch(&self) -> Watch {
        Watch { bar: self.bar.clone(), cancel: self.cancel.clone() }
    }

    /// The handle by which a watch ends the work, for sessions that are part of it.
    pub fn cancel_token(&self) -> &CancelToken {
        &self.cancel
    }

    /// For a part of a step, which says nothing of its own and ends when the work does.
    pub fn silent(&self) -> Progress {
        Progress { bar: ProgressBar::hidden(), cancel: self.cancel.clone() }
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

    /// So many bytes or tokens more are done. An error if the work is to end.
    pub fn add(&self, amount: u64) -> Result<(), Cancelled> {
        self.bar.inc(amount);
        if self.cancel.is_cancelled() { Err(Cancelled) } else { Ok(()) }
    }
}

impl Watch {
    /// What is being done, such as `packing`; empty before the first step.
    pub fn step(&self) -> String {
        self.bar.message()
    }

    /// Bytes or tokens of this step that are done.
    pub fn done(&self) -> u64 {
        self.bar.position()
    }

    /// Bytes or tokens of this step, as far as that is known.
    pub fn total(&self) -> Option<u64> {
        self.bar.length()
    }

    /// Ends the work soon, with an error that says so.
    pub fn cancel(&self) {
        self.cancel.cancel();
    }
}

impl From<Cancelled> for io::Error {
    fn from(_: Cancelled) -> io::Error {
        io::Error::other("it was cancelled")
    }
}

impl From<Cancelled> for smolrun::Error {
    fn from(_: Cancelled) -> smolrun::Error {
        smolrun::Error::Cancelled
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
