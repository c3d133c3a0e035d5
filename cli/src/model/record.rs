//! A record of the cache: which blob a source became, and by what it is seen that the source has not changed since.

use std::fs::{self, File, Metadata};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// Largest record that is read: a source has at most some hundred files.
const MAX_LEN: u64 = 1 << 20;

/// What the cache knows of a source.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub(crate) struct Record {
    /// What a person gave: a path or a name.
    pub(crate) source: String,
    /// The name of the blob's file.
    pub(crate) blob: String,
    /// Its bytes.
    pub(crate) bytes: u64,
    /// The files that it was made of.
    files: Vec<Stamp>,
    /// Whether they may go: what a hub's id named once does not change.
    may_go: bool,
}

/// A file as it was when it was read.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
struct Stamp {
    path: PathBuf,
    /// Nothing of a file that was not there.
    state: Option<State>,
}

#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
struct State {
    bytes: u64,
    /// Nanoseconds since 1970.
    modified: u64,
    /// Which file it is, where the system numbers them: another that takes its name may have its time.
    inode: u64,
}

impl Record {
    /// Of a source with these files, and without the `absent` ones, as they are now.
    pub(crate) fn new(source: String, files: &[PathBuf], absent: &[PathBuf], may_go: bool) -> Record {
        let files = files.iter().chain(absent).map(|path| Stamp::of(path)).collect();
        Record { source, blob: String::new(), bytes: 0, files, may_go }
    }

    /// The same of a source that became `blob`.
    pub(crate) fn of_blob(self, blob: String, bytes: u64) -> Record {
        Record { blob, bytes, ..self }
    }

    /// Reads the record at `path`; one that is not understood counts as none.
    pub(crate) fn read(path: &Path) -> Option<Record> {
        let mut bytes = Vec::new();
        File::open(path).ok()?.take(MAX_LEN).read_to_end(&mut bytes).ok()?;
        let record: Record = serde_json::from_slice(&bytes).ok()?;
        let is_bare = Path::new(&record.blob).file_name() == Some(record.blob.as_ref());
        is_bare.then_some(record)
    }

    /// Writes the record to `path`, so that it is never seen half written. A record is a convenience: where it cannot
    /// be written, the next start hashes the source.
    pub(crate) fn write(&self, path: &Path) {
        let Ok(json) = serde_json::to_vec(self) else { return }; // a path that is no text
        let part = path.with_extension(format!("{}.part", std::process::id()));
        if fs::write(&part, json).and_then(|()| fs::rename(&part, path)).is_err() {
            let _ = fs::remove_file(&part);
        }
    }

    /// Whether all files are as they were.
    pub(crate) fn holds(&self) -> bool {
        self.files.iter().all(|stamp| match State::of(&stamp.path) {
            None if self.may_go => true,
            found => found == stamp.state,
        })
    }

    /// Whether the same files are as they were in `other`.
    pub(crate) fn agrees_with(&self, other: &Record) -> bool {
        self.files == other.files
    }
}

impl Stamp {
    fn of(path: &Path) -> Stamp {
        Stamp { path: path.to_owned(), state: State::of(path) }
    }
}

impl State {
    fn of(path: &Path) -> Option<State> {
        let found = path.metadata().ok()?;
        let modified = found.modified().unwrap_or(SystemTime::UNIX_EPOCH);
        let modified = modified.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64;
        Some(State { bytes: found.len(), modified, inode: inode(&found) })
    }
}

#[cfg(unix)]
fn inode(found: &Metadata) -> u64 {
    std::os::unix::fs::MetadataExt::ino(found)
}

#[cfg(not(unix))]
fn inode(_: &Metadata) -> u64 {
    0
}
