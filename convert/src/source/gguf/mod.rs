//! GGUF files: metadata and tensors, with which one file, or several parts of one, are a whole checkpoint.
//!
//! They come from anywhere, and no number in them is believed: counts, lengths and dimensions are compared with what the
//! file has room for before memory is taken, and tensors may neither overlap nor leave the file.

mod cursor;
mod metadata;
pub(super) mod split;
mod tensors;

use std::io::Read;
use std::path::Path;

pub use self::cursor::MAX_HEADER_LEN;
pub use self::metadata::Metadata;

use self::cursor::Cursor;
use super::{SourceFile, Tensor};
use crate::error::{Error, Result};
use crate::files::open_regular;

const MAGIC: [u8; 4] = *b"GGUF";
/// Versions that differ in nothing that is read here; the first had other lengths.
const VERSIONS: std::ops::RangeInclusive<u32> = 2..=3;
const ALIGNMENT_KEY: &str = "general.alignment";
const DEFAULT_ALIGNMENT: u64 = 32;
/// Largest alignment: of a page, with much to spare.
const MAX_ALIGNMENT: u64 = 1 << 16;

/// Whether the file at `path` is a GGUF file by its name or its first bytes.
pub(crate) fn is_gguf(path: &Path) -> Result<bool> {
    if path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf")) {
        return Ok(true);
    }
    let mut start = Vec::new();
    open_regular(path)?.take(MAGIC.len() as u64).read_to_end(&mut start).map_err(Error::io(path))?;
    Ok(start == MAGIC)
}

/// Opens the file at `path`, which becomes file `index` of its checkpoint, and reads everything but its tensors' numbers.
pub(super) fn open(path: &Path, index: usize) -> Result<(SourceFile, Vec<Tensor>, Metadata)> {
    let file = open_regular(path)?;
    let len = file.metadata().map_err(Error::io(path))?.len();
    let mut cursor = Cursor::new(path, &file, len);
    check_start(&mut cursor, len)?;
    let tensor_count = cursor.u64("tensor count")?;
    let key_count = cursor.u64("metadata count")?;
    let metadata = Metadata::read(&mut cursor, path, key_count)?;
    let mut tensors = tensors::read(&mut cursor, tensor_count, index)?;
    let alignment = alignment(&metadata)?;
    let data_start = cursor.position.next_multiple_of(alignment); // both have small limits
    tensors::place(&cursor, &mut tensors, alignment, data_start, len)?;
    let data_start = data_start.min(len); // with no tensors, the file may end before
    Ok((SourceFile { path: path.to_owned(), len, data_start, file }, tensors, metadata))
}

fn check_start(cursor: &mut Cursor, len: u64) -> Result<()> {
    if len == 0 {
        return Err(cursor.wrong("expected a GGUF file, found an empty file"));
    }
    let magic: [u8; 4] = cursor.array("magic")?;
    if magic != MAGIC {
        let found = magic.escape_ascii();
        return Err(cursor.wrong(format!("not a GGUF file: expected it to begin with GGUF, found {found}")));
    }
    let version = cursor.u32("version")?;
    if VERSIONS.contains(&version.swap_bytes()) {
        return Err(cursor.wrong("expected a little-endian GGUF file, found a big-endian one"));
    }
    match VERSIONS.contains(&version) {
        true => Ok(()),
        false => Err(cursor.wrong(format!("GGUF version: expected 2 or 3, found {version}"))),
    }
}

fn alignment(metadata: &Metadata) -> Result<u64> {
    let alignment = metadata.count(ALIGNMENT_KEY)?.unwrap_or(DEFAULT_ALIGNMENT);
    match alignment.is_power_of_two() && alignment <= MAX_ALIGNMENT {
        true => Ok(alignment),
        false => {
            Err(metadata.wrong(ALIGNMENT_KEY, format!("a power of two up to {MAX_ALIGNMENT}"), alignment))
        }
    }
}
