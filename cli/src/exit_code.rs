//! What the program ends with, besides a signal's number.

pub(crate) const SUCCESS: u8 = 0;
pub(crate) const FAILURE: u8 = 1;
/// The exit code of a command line that asks for what cannot be.
pub(crate) const WRONG_USAGE: u8 = 2;
