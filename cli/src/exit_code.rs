//! What the program ends with, besides a signal's number.

use std::error::Error;
use std::fmt;

pub(crate) const SUCCESS: u8 = 0;
pub(crate) const FAILURE: u8 = 1;
/// The exit code of a command line that asks for what cannot be.
pub(crate) const WRONG_USAGE: u8 = 2;

/// What is wrong with a command line whose parts are right.
#[derive(Debug)]
pub(crate) struct WrongUsage(pub(crate) String);

impl fmt::Display for WrongUsage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for WrongUsage {}

/// That of an error: clap's for options whose values are wrong, whoever found that.
pub(crate) fn of(error: &(dyn Error + 'static)) -> u8 {
    if error.is::<WrongUsage>() {
        return WRONG_USAGE;
    }
    match error.downcast_ref() {
        Some(smolrun::Error::Argument { name, .. }) if NO_OPTIONS.contains(name) => FAILURE,
        Some(smolrun::Error::Argument { .. } | smolrun::Error::TokenId { .. }) => WRONG_USAGE,
        _ => FAILURE,
    }
}

/// What the library calls arguments that come from no option: from a text, a model or the environment.
const NO_OPTIONS: [&str; 6] = ["SMOLRUN_ISA", "continuations", "logits", "prompt", "reference", "tokens"];
