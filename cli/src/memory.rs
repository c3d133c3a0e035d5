//! Memory that the program has to have beside a model's.
//!
//! What is large the library asks for with an error where there is none. Small things are asked for everywhere, and where
//! even those fail Rust ends a program without a word to its user. So that is looked for where it would begin.

use std::error::Error;
use std::fmt;

use memmap2::MmapMut;
use smolrun::format::Config;

/// What all the small things together stay below.
const RESERVE: usize = 2 << 20;

/// Positions whose keys and values a sequence begins with.
const POSITIONS: usize = 256;

/// There is too little: so many bytes. It takes none itself.
#[derive(Debug)]
pub(crate) struct NoMemory(usize);

/// An error unless some memory is left.
pub(crate) fn check() -> Result<(), NoMemory> {
    check_bytes(RESERVE)
}

/// An error unless some memory is left beside the keys and values that a sequence begins with: else small things would
/// be asked for when these have taken almost all of it.
pub(crate) fn check_for_sequence(config: &Config) -> Result<(), NoMemory> {
    let numbers = [2, config.num_hidden_layers, config.num_key_value_heads, config.head_dim, POSITIONS];
    let keys_and_values = numbers.into_iter().fold(size_of::<f32>(), usize::saturating_mul);
    check_bytes(RESERVE.saturating_add(keys_and_values))
}

/// The system is asked, not the allocator: glibc's would keep what it was given back, and clear it when the keys and values
/// take it, page by page: a millisecond of a start.
fn check_bytes(bytes: usize) -> Result<(), NoMemory> {
    MmapMut::map_anon(bytes).map(drop).map_err(|_| NoMemory(bytes))
}

impl Error for NoMemory {}

impl fmt::Display for NoMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no memory: {} KB are needed beside the model's", self.0 >> 10)
    }
}
