//! OUT: a line for each request, written as soon as it may be. What it holds is all that a batch needs to go on.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::output::json_line;

/// Results that may wait for one that comes before them.
const MOST_WAITING: usize = 4096;

/// A file of results.
pub(super) struct Results {
    path: PathBuf,
    file: File,
    is_ordered: bool,
    /// Lines of IN that have a result in the file.
    done: BTreeSet<u64>,
    /// Lines that were begun and are not written, in their order.
    begun: VecDeque<u64>,
    /// Results of those whose turn it is not yet.
    ready: BTreeMap<u64, String>,
    /// What is to be written.
    text: String,
}

/// What is read of a result.
#[derive(Deserialize)]
struct Known {
    line: u64,
}

impl Results {
    /// An empty file at `path`.
    pub(super) fn create(path: &Path, is_ordered: bool) -> Result<Results, String> {
        let wrong = |error: io::Error| format!("{}: {error}", path.display());
        let file = File::create(path).map_err(wrong)?;
        Ok(Results::new(path, file, is_ordered, BTreeSet::new()))
    }

    /// What a run left at `path` that may have been killed: the end of a line that was not finished is cut off.
    pub(super) fn resume(path: &Path, is_ordered: bool) -> Result<Results, String> {
        let wrong = |error: io::Error| format!("{}: {error}", path.display());
        let mut options = OpenOptions::new();
        let file = options.read(true).append(true).open(path).map_err(wrong)?;
        let (done, len) = read(path, &file)?;
        file.set_len(len).map_err(wrong)?;
        Ok(Results::new(path, file, is_ordered, done))
    }

    fn new(path: &Path, file: File, is_ordered: bool, done: BTreeSet<u64>) -> Results {
        let (begun, ready, text) = (VecDeque::new(), BTreeMap::new(), String::new());
        Results { path: path.to_owned(), file, is_ordered, done, begun, ready, text }
    }

    /// Whether a line has its result already.
    pub(super) fn has(&self, line: u64) -> bool {
        self.done.contains(&line)
    }

    /// How many lines had it at the start.
    pub(super) fn resumed(&self) -> usize {
        self.done.len()
    }

    /// Whether another line may be begun: else too much would wait for the first one.
    pub(super) fn has_room(&self) -> bool {
        self.begun.len() < MOST_WAITING
    }

    /// A line is begun; they are in ascending order. It is an error if its result could only come after that of a later one.
    pub(super) fn begin(&mut self, line: u64) -> Result<(), String> {
        if !self.is_ordered {
            return Ok(());
        }
        if self.done.last().is_some_and(|&last| last > line) {
            let path = self.path.display();
            return Err(format!(
                "{path}: it has no result of line {line}, but of later ones: --force begins anew"
            ));
        }
        self.begun.push_back(line);
        Ok(())
    }

    /// Takes the result of a line that was begun.
    pub(super) fn put(&mut self, line: u64, record: &impl Serialize) -> Result<(), String> {
        let json = json_line(record).map_err(|error| format!("line {line}: {error}"))?;
        if !self.is_ordered {
            self.append(&json);
            return Ok(());
        }
        self.ready.insert(line, json);
        while let Some(first) = self.begun.front()
            && let Some(json) = self.ready.remove(first)
        {
            self.begun.pop_front();
            self.append(&json);
        }
        Ok(())
    }

    fn append(&mut self, json: &str) {
        self.text += json;
        self.text.push('\n');
    }

    /// Writes what may be written.
    pub(super) fn flush(&mut self) -> Result<(), String> {
        if !self.text.is_empty() {
            let written = self.file.write_all(self.text.as_bytes());
            written.map_err(|error| format!("{}: {error}", self.path.display()))?;
            self.text.clear();
        }
        Ok(())
    }

    /// Sees to it that all of it is on the disk.
    pub(super) fn end(mut self) -> Result<(), String> {
        self.flush()?;
        self.file.sync_all().map_err(|error| format!("{}: {error}", self.path.display()))
    }
}

/// That results can be written to `path`: a regular file, or nothing yet. Says whether something is in it.
pub(super) fn is_there(path: &Path) -> Result<bool, String> {
    match fs::metadata(path) {
        Ok(found) if found.is_file() => Ok(found.len() > 0),
        Ok(_) => Err(format!("{}: expected a regular file", path.display())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(format!("{}: {error}", path.display())),
    }
}

/// The lines that have a result in a file, and how many bytes of it are whole results.
fn read(path: &Path, file: &File) -> Result<(BTreeSet<u64>, u64), String> {
    let mut reader = BufReader::with_capacity(1 << 20, file);
    let (mut done, mut len, mut bytes) = (BTreeSet::new(), 0, Vec::new());
    for number in 1.. {
        bytes.clear();
        let wrong = |problem: &dyn std::fmt::Display| format!("{}, line {number}: {problem}", path.display());
        let read = reader.read_until(b'\n', &mut bytes).map_err(|error| wrong(&error))?;
        if bytes.last() != Some(&b'\n') {
            break; // the end, or a line that was being written
        }
        let known: Known = serde_json::from_slice(&bytes)
            .map_err(|error| wrong(&format!("expected a result of smolrun batch: {error}")))?;
        if !done.insert(known.line) {
            return Err(wrong(&format!("another result of line {}", known.line)));
        }
        len += read as u64;
    }
    Ok((done, len))
}
