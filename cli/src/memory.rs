//! Memory that the program has to have beside a model's.
//!
//! What is large the library asks for with an error where there is none. Small things are asked for everywhere, and where
//! even those fail Rust ends a program without a word to its user. So that is looked for where it would begin.

use std::error::Error;
use std::fmt;

/// What all the small things together stay below.
const RESERVE: usize = 2 << 20;

/// There is too little. It takes none itself.
#[derive(Debug)]
pub(crate) struct NoMemory;

/// An error unless some memory is left.
pub(crate) fn check() -> Result<(), NoMemory> {
    let mut reserve: Vec<u8> = Vec::new();
    reserve.try_reserve_exact(RESERVE).map_err(|_| NoMemory)
}

impl Error for NoMemory {}

impl fmt::Display for NoMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no memory: {} KB are needed beside the model's", RESERVE >> 10)
    }
}
