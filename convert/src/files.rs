//! Files that are read: opened only if they are regular ones, and recorded by name, length and hash.

use std::fs::{self, File, Metadata};
use std::io::{ErrorKind, Read};
use std::path::Path;

use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::error::{Error, Result};
use crate::progress::Cancelled;

/// A file that was read.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct SourceRecord {
    pub(crate) name: String,
    bytes: u64,
    sha256: String,
}

impl SourceRecord {
    /// Of the file at `path`, which has so many bytes and this hash.
    pub(crate) fn hashed(path: &Path, bytes: u64, sha256: &[u8; 32]) -> SourceRecord {
        SourceRecord { name: name(path), bytes, sha256: hex(sha256) }
    }

    /// Of the file at `path`, which has these bytes.
    pub(crate) fn new(path: &Path, bytes: &[u8]) -> SourceRecord {
        SourceRecord { name: name(path), bytes: bytes.len() as u64, sha256: hex(&Sha256::digest(bytes)) }
    }
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Bytes that are read at once of a file that is only hashed.
const PIECE: usize = 1 << 20;

/// Calls `take` with the bytes of the file at `path`, a piece at a time, until there are no more or it has enough.
pub(crate) fn read_pieces(path: &Path, mut take: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
    let (mut file, mut buffer) = (open_regular(path)?, vec![0; PIECE]);
    loop {
        match file.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(read) => take(&buffer[..read])?,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(Error::io(path)(error)),
        }
    }
}

/// The SHA-256 of the file at `path`; `add` is told how many bytes were read, and may end it.
pub(crate) fn sha256(
    path: &Path,
    add: impl Fn(u64) -> std::result::Result<(), Cancelled>,
) -> Result<[u8; 32]> {
    let mut hasher = Sha256::new();
    read_pieces(path, |piece| {
        hasher.update(piece);
        Ok(add(piece.len() as u64)?)
    })?;
    Ok(hasher.finalize().into())
}

/// Bytes as hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Opens a file, and refuses a directory, a pipe or a device before it could block or never end.
pub(crate) fn open_regular(path: &Path) -> Result<File> {
    let found = fs::metadata(path).map_err(Error::io(path))?;
    match found.is_file() {
        true => File::open(path).map_err(Error::io(path)),
        false => Err(Error::file(path, format!("expected a regular file, found {}", kind(&found)))),
    }
}

/// What is no regular file, in words.
pub(crate) fn kind(found: &Metadata) -> &'static str {
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt;
        let found = found.file_type();
        if found.is_char_device() || found.is_block_device() {
            return "a device";
        } else if found.is_fifo() {
            return "a pipe";
        } else if found.is_socket() {
            return "a socket";
        }
    }
    if found.is_dir() { "a directory" } else { "something else" }
}
