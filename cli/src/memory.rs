//! Memory that the program has to have beside a model's.
//!
//! What is large the library asks for with an error where there is none. Small things are asked for everywhere, and where
//! even those fail Rust ends a program without a word to its user. So that is looked for where it would begin.

use std::error::Error;
use std::fmt;

use memmap2::MmapMut;
use smolrun::Session;

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

/// An error unless some memory is left beside the keys and values that this sequence begins with. Else small things
/// would be asked for when these have taken almost all of it.
pub(crate) fn check_for_sequence(session: &Session) -> Result<(), NoMemory> {
    let bytes_per_token = session.kv_dtype().bytes_per_token(session.model().config());
    let keys_and_values = bytes_per_token.saturating_mul(POSITIONS);
    check_bytes(RESERVE.saturating_add(keys_and_values))
}

/// Asks the system, not the allocator. glibc's keeps what it is given back, and clears it page by page when the keys and
/// values take it, which costs a start a millisecond.
fn check_bytes(bytes: usize) -> Result<(), NoMemory> {
    MmapMut::map_anon(bytes).map(drop).map_err(|_| NoMemory(bytes))
}

impl Error for NoMemory {}

impl fmt::Display for NoMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no memory: {} KB are needed beside the model's", self.0 >> 10)
    }
}
