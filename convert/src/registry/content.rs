//! What a file's content must be, by what the registry or the hub says of it.

use std::path::Path;

use sha1::Sha1;
use sha2::Digest;

use super::RegisteredFile;
use crate::error::{Error, Result};
use crate::files::{hex, read_pieces, sha256};
use crate::progress::Progress;

/// A file's size and hash, as far as they are known.
#[derive(Clone, Debug, Default)]
pub(super) struct Content {
    /// Its bytes.
    pub(super) size: Option<u64>,
    hash: Option<Hash>,
    /// Who says so.
    by: &'static str,
}

#[derive(Clone, Debug)]
enum Hash {
    /// SHA-256 of the content, in hexadecimal digits.
    Sha256(String),
    /// What Git calls it: SHA-1 of a header and the content.
    Git(String),
}

impl Content {
    /// What the registry says.
    pub(super) fn registered(file: &RegisteredFile) -> Content {
        let hash = file.sha256.clone().map(Hash::Sha256);
        Content { size: file.size, hash, by: "the registry" }
    }

    /// What the name says by which the hub and its cache call a content: nothing if it is of another kind.
    pub(super) fn named(name: &str) -> Content {
        let is_hex = name.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        let hash = match name.len() {
            64 if is_hex => Some(Hash::Sha256(name.to_owned())),
            40 if is_hex => Some(Hash::Git(name.to_owned())),
            _ => None,
        };
        Content { size: None, hash, by: "the hub" }
    }

    /// The same with a size.
    pub(super) fn with_size(self, size: u64) -> Content {
        Content { size: Some(size), ..self }
    }

    /// What the hub and its cache call it by: the hash, if there is one.
    pub(super) fn name(&self) -> &str {
        match &self.hash {
            Some(Hash::Sha256(name) | Hash::Git(name)) => name,
            None => "",
        }
    }

    /// Whether there is a hash to compare with.
    pub(super) fn has_hash(&self) -> bool {
        self.hash.is_some()
    }

    /// Whether the file at `path` is so.
    pub(super) fn check(&self, path: &Path, progress: &Progress) -> std::result::Result<(), Wrong> {
        let len = path.metadata().map_err(Error::io(path))?.len();
        if let Some(size) = self.size.filter(|&size| size != len) {
            return Err(Wrong::Content(format!("expected {size} bytes, found {len}")));
        }
        let Some(hash) = &self.hash else { return Ok(()) };
        progress.start("checking", len);
        let (kind, expected, found) = match hash {
            Hash::Sha256(expected) => ("SHA-256", expected, hex(&sha256(path, |read| progress.add(read))?)),
            Hash::Git(expected) => ("Git's SHA-1", expected, git_sha1(path, len, progress)?),
        };
        match found == *expected {
            true => Ok(()),
            false => {
                let by = self.by;
                Err(Wrong::Content(format!("expected {kind} {expected}, as {by} says, found {found}")))
            }
        }
    }
}

/// Why a file is not what it must be.
pub(super) enum Wrong {
    /// It has another content.
    Content(String),
    /// It cannot be read.
    File(Error),
}

impl From<Error> for Wrong {
    fn from(error: Error) -> Wrong {
        Wrong::File(error)
    }
}

fn git_sha1(path: &Path, len: u64, progress: &Progress) -> Result<String> {
    let mut hasher = Sha1::new();
    hasher.update(format!("blob {len}\0"));
    read_pieces(path, |piece| {
        hasher.update(piece);
        Ok(progress.add(piece.len() as u64)?)
    })?;
    Ok(hex(&hasher.finalize()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_content_is_known_by_either_hash() {
        let path = std::env::temp_dir().join(format!("smolconv-content-{}", std::process::id()));
        std::fs::write(&path, "hello\n").unwrap();
        let check = |name: &str| Content::named(name).check(&path, &Progress::new(true)).is_ok();
        assert!(check("ce013625030ba8dba906f756967f9e9ca394464a")); // git hash-object
        assert!(check("5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03"));
        assert!(!check("ce013625030ba8dba906f756967f9e9ca394464b"));
        assert!(check("some-etag") && !Content::named("some-etag").has_hash());
        assert!(Content::named("x").with_size(7).check(&path, &Progress::new(true)).is_err());
        std::fs::remove_file(&path).unwrap();
    }
}
