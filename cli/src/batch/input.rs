//! The lines of IN, within limits.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::output::hex;

/// Longest line that is read: far more than any context holds.
pub(super) const MAX_LINE: usize = 16 << 20;

/// What some editors begin a file of UTF-8 with.
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// A file of requests, read through once: what identifies it, and how long it is.
pub(super) struct Survey {
    /// Its lines, those without a request included.
    pub(super) lines: u64,
    /// Of all its bytes, in hexadecimal digits.
    pub(super) sha256: String,
}

/// A line with something in it.
pub(super) struct Line {
    /// From 1 up.
    pub(super) number: u64,
    /// Without its end; none where it is longer than [`MAX_LINE`].
    pub(super) bytes: Option<Vec<u8>>,
}

/// Goes over a file's lines.
pub(super) struct Lines {
    path: PathBuf,
    reader: BufReader<File>,
    number: u64,
}

/// Opens a file that can be read twice.
pub(super) fn open(path: &Path) -> Result<File, String> {
    let wrong = |error: io::Error| format!("{}: {error}", path.display());
    if !path.metadata().map_err(wrong)?.is_file() {
        return Err(format!("{}: expected a regular file, which can be read twice", path.display()));
    }
    File::open(path).map_err(wrong)
}

impl Survey {
    pub(super) fn new(path: &Path) -> Result<Survey, String> {
        let mut reader = BufReader::with_capacity(1 << 20, open(path)?);
        let (mut hash, mut lines, mut last) = (Sha256::new(), 0, b'\n');
        loop {
            let bytes = reader.fill_buf().map_err(|error| format!("{}: {error}", path.display()))?;
            let Some(&end) = bytes.last() else { break };
            hash.update(bytes);
            lines += bytes.iter().filter(|&&byte| byte == b'\n').count() as u64;
            last = end;
            let len = bytes.len();
            reader.consume(len);
        }
        Ok(Survey { lines: lines + u64::from(last != b'\n'), sha256: hex(&hash.finalize()) })
    }
}

impl Lines {
    pub(super) fn new(path: &Path) -> Result<Lines, String> {
        let reader = BufReader::with_capacity(1 << 16, open(path)?);
        Ok(Lines { path: path.to_owned(), reader, number: 0 })
    }

    /// The next line with something in it; none at the end.
    pub(super) fn next(&mut self) -> Result<Option<Line>, String> {
        loop {
            let mut bytes = Vec::new();
            let limit = MAX_LINE as u64 + 2; // its end may be two bytes
            let wrong = |error| format!("{}, line {}: {error}", self.path.display(), self.number + 1);
            let read = (&mut self.reader).take(limit).read_until(b'\n', &mut bytes).map_err(wrong)?;
            if read == 0 {
                return Ok(None);
            }
            self.number += 1;
            if self.number == 1 && bytes.starts_with(BYTE_ORDER_MARK) {
                bytes.drain(..BYTE_ORDER_MARK.len());
            }
            let is_whole = bytes.last() == Some(&b'\n') || (read as u64) < limit;
            while bytes.last().is_some_and(|byte| b"\r\n".contains(byte)) {
                bytes.pop();
            }
            if !is_whole {
                self.skip_rest()?;
            }
            if !is_whole || bytes.len() > MAX_LINE {
                return Ok(Some(Line { number: self.number, bytes: None }));
            }
            if !bytes.trim_ascii().is_empty() {
                return Ok(Some(Line { number: self.number, bytes: Some(bytes) }));
            }
        }
    }

    /// Goes to the end of a line without keeping it.
    fn skip_rest(&mut self) -> Result<(), String> {
        loop {
            let wrong = |error| format!("{}, line {}: {error}", self.path.display(), self.number);
            let bytes = self.reader.fill_buf().map_err(wrong)?;
            let (len, is_end) = match bytes.iter().position(|&byte| byte == b'\n') {
                Some(at) => (at + 1, true),
                None => (bytes.len(), bytes.is_empty()),
            };
            self.reader.consume(len);
            if is_end {
                return Ok(());
            }
        }
    }
}
