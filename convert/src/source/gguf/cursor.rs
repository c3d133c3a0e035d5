//! Reads the header of a GGUF file in order, and believes no length before it is compared with what is left.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use crate::error::{Error, Result};

/// Longest header, with all metadata: the largest vocabularies take about 20 MB.
pub const MAX_HEADER_LEN: u64 = 64 << 20;

/// A position in the header.
pub(super) struct Cursor<'a> {
    path: &'a Path,
    reader: BufReader<&'a File>,
    /// Bytes read.
    pub(super) position: u64,
    /// Bytes that may be read: the file's, or the most that a header has.
    end: u64,
}

impl<'a> Cursor<'a> {
    /// The start of the file at `path`, which has `len` bytes.
    pub(super) fn new(path: &'a Path, file: &'a File, len: u64) -> Cursor<'a> {
        Cursor { path, reader: BufReader::new(file), position: 0, end: len.min(MAX_HEADER_LEN) }
    }

    /// An error about what was just read.
    pub(super) fn wrong(&self, problem: impl Into<String>) -> Error {
        Error::file(self.path, problem)
    }

    /// Refuses what cannot fit: `count` things of at least `size` bytes each.
    pub(super) fn check_room(&self, count: u64, size: u64, what: &str) -> Result<()> {
        let left = self.end.saturating_sub(self.position);
        let bytes = u128::from(count) * u128::from(size);
        if bytes <= left.into() {
            return Ok(());
        }
        let why = match self.end {
            MAX_HEADER_LEN => format!("as a header has at most {MAX_HEADER_LEN}"),
            _ => "as the file ends within its header".to_owned(),
        };
        let position = self.position;
        Err(self.wrong(format!("{what} at byte {position}: expected {bytes} bytes, found {left}, {why}")))
    }

    /// The next `N` bytes.
    pub(super) fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N]> {
        self.check_room(1, N as u64, what)?;
        let mut bytes = [0; N];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    /// The next `len` bytes.
    pub(super) fn bytes(&mut self, len: u64, what: &str) -> Result<Vec<u8>> {
        self.check_room(len, 1, what)?;
        let mut bytes = vec![0; len as usize]; // inside the header, whose length has a limit
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    pub(super) fn u32(&mut self, what: &str) -> Result<u32> {
        self.array(what).map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self, what: &str) -> Result<u64> {
        self.array(what).map(u64::from_le_bytes)
    }

    /// The next string, of at most `most` bytes.
    pub(super) fn string(&mut self, most: u64, what: &str) -> Result<String> {
        let len = self.u64(what)?;
        if len > most {
            return Err(self.wrong(format!("{what}: expected at most {most} bytes, found {len}")));
        }
        let bytes = self.bytes(len, what)?;
        String::from_utf8(bytes).map_err(|error| {
            let at = self.position - len + error.utf8_error().valid_up_to() as u64;
            self.wrong(format!("{what}: expected UTF-8, found another byte at {at}"))
        })
    }

    fn fill(&mut self, bytes: &mut [u8]) -> Result<()> {
        self.reader.read_exact(bytes).map_err(Error::io(self.path))?;
        self.position += bytes.len() as u64;
        Ok(())
    }
}
