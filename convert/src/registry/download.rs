//! Downloading a file: in one piece or several, and under its name only when it is as it should be.
//!
//! A download that is cut off goes on where it was: at once if that attempt brought anything, else, if it is large, the
//! next time.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::Path;

use ureq::Response;

use super::cache::lock;
use super::content::{Content, Wrong};
use super::hub::{Failure, Hub};
use crate::error::Error;

/// What goes right, or why not.
pub(super) type Done<T> = std::result::Result<T, Problem>;

/// Bytes of a download that are kept for another attempt after an error.
const WORTH_KEEPING: u64 = 16 << 20;

impl Hub<'_> {
    /// Downloads `url` to a file beside `blob`, which takes its name when it is whole and as it should be.
    pub(super) fn download(&self, url: &str, blob: &Path, expected: &[Content]) -> Done<()> {
        let mut name = blob.as_os_str().to_owned();
        name.push(".part");
        let part = Path::new(&name);
        fs::create_dir_all(blob.parent().unwrap_or(blob))?;
        let mut file = open_locked(part)?;
        if blob.exists() {
            let _ = fs::remove_file(part);
            return Ok(()); // by who had the lock
        }
        let most = expected.iter().find_map(|content| content.size);
        let whole = self.receive_all(url, &mut file, most).and_then(|()| {
            expected.iter().try_for_each(|content| content.check(part, self.progress))?;
            Ok(fs::rename(part, blob)?)
        });
        whole.map_err(|problem| problem.after_cleaning(part))
    }

    /// Goes on as long as each attempt brings something.
    fn receive_all(&self, url: &str, file: &mut File, most: Option<u64>) -> Done<()> {
        loop {
            let before = file.metadata()?.len();
            match self.receive(url, file, before, most) {
                Err(Problem::Hub(_)) if file.metadata()?.len() > before => {}
                received => break received,
            }
        }
    }

    /// Appends to `file`, which has `start` bytes, what comes after them.
    fn receive(&self, url: &str, file: &mut File, start: u64, most: Option<u64>) -> Done<()> {
        let response = self.get(&self.agent, url, Some(&format!("bytes={start}-")))?;
        let content_range = response.header("content-range").and_then(ContentRange::parse);
        let len = match (response.status(), content_range) {
            (206, Some(ContentRange { first: Some(first), len })) if first == start => len,
            (416, Some(ContentRange { len, .. })) if len == Some(start) => return Ok(()),
            (200, _) => {
                file.set_len(0)?;
                response.header("content-length").and_then(|len| len.parse().ok())
            }
            (416, _) => {
                file.set_len(0)?;
                return Err(format!("less than the {start} bytes that were fetched; they are dropped").into());
            }
            (status, _) => {
                return Err(format!("status {status} without the bytes from {start} on").into());
            }
        };
        self.append(response, file, len, most.or(len))?;
        let found = file.metadata()?.len();
        match len {
            Some(len) if len != found => Err(format!("an end after {found} of {len} bytes").into()),
            _ => Ok(()),
        }
    }

    fn append(&self, from: Response, file: &mut File, len: Option<u64>, most: Option<u64>) -> Done<()> {
        let mut total = file.metadata()?.len();
        self.progress.start("fetching", len.unwrap_or(0));
        self.progress.add(total).map_err(io::Error::from)?;
        let (mut reader, mut buffer) = (from.into_reader(), vec![0; 1 << 16]);
        loop {
            match reader.read(&mut buffer) {
                Ok(0) => return Ok(()),
                Ok(read) => {
                    total += read as u64;
                    if let Some(most) = most.filter(|&most| most < total) {
                        return Err(Problem::Content(format!("expected {most} bytes, found more")));
                    }
                    file.write_all(&buffer[..read])?;
                    self.progress.add(read as u64).map_err(io::Error::from)?;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.broken_off(&error).into()),
            }
        }
    }
}

/// Opens a file to append to it, or makes it, while no other process does so. Whoever had the lock before may have removed the
/// file or given it another name: then it is made again. (Not for ever: there are file systems that number files anew.)
fn open_locked(part: &Path) -> Done<File> {
    const TRIES: usize = 10;
    for _ in 1..TRIES {
        let file = open(part)?;
        if is_at(&file, part)? {
            return Ok(file);
        }
    }
    open(part)
}

fn open(part: &Path) -> Done<File> {
    let file = OpenOptions::new().create(true).append(true).open(part)?;
    lock(&file)?;
    Ok(file)
}

/// Whether the file at `path` is this one.
#[cfg(unix)]
fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    use std::os::unix::fs::MetadataExt;
    let found = file.metadata()?;
    Ok(fs::metadata(path).is_ok_and(|there| (there.dev(), there.ino()) == (found.dev(), found.ino())))
}

/// Whether there still is a file at `path`.
#[cfg(not(unix))]
fn is_at(_: &File, path: &Path) -> io::Result<bool> {
    path.try_exists()
}

/// Why a download ended early.
pub(super) enum Problem {
    /// What the hub did; another attempt may go on.
    Hub(Failure),
    /// What is wrong with what it sent.
    Content(String),
    /// What this machine's disk did.
    Disk(io::Error),
}

impl Problem {
    /// Removes what came of the file, unless that is so much that the next attempt had better go on from there.
    fn after_cleaning(self, part: &Path) -> Problem {
        let len = part.metadata().map_or(0, |found| found.len());
        match self {
            Problem::Hub(mut failure) if len >= WORTH_KEEPING => {
                let megabytes = len as f64 / 1e6;
                failure.words += &format!(" ({megabytes:.1} MB are kept: the next attempt goes on there)");
                Problem::Hub(failure)
            }
            problem => {
                let _ = fs::remove_file(part);
                problem
            }
        }
    }

    /// The error of the file `path` of `repository` that should have become `blob`.
    pub(super) fn of(self, repository: &str, path: &str, blob: &Path) -> Error {
        let failure = match self {
            Problem::Content(problem) => {
                return Error::file(Path::new(repository), format!("{path}: {problem}"));
            }
            Problem::Disk(error) => at(blob, error).into(),
            Problem::Hub(failure) => failure,
        };
        Error::file(Path::new(repository), failure.instead_of(&format!("{path} from the Hugging Face hub")))
    }
}

impl From<Wrong> for Problem {
    fn from(wrong: Wrong) -> Problem {
        match wrong {
            Wrong::Content(problem) => Problem::Content(problem),
            Wrong::File(Error::Io { source, .. }) => Problem::Disk(source),
            Wrong::File(error) => Problem::Content(error.to_string()),
        }
    }
}

impl From<Failure> for Problem {
    fn from(failure: Failure) -> Problem {
        Problem::Hub(failure)
    }
}

impl From<String> for Problem {
    fn from(words: String) -> Problem {
        Problem::Hub(words.into())
    }
}

impl From<io::Error> for Problem {
    fn from(error: io::Error) -> Problem {
        Problem::Disk(error)
    }
}

/// `bytes first-last/len` or `bytes */len`.
struct ContentRange {
    first: Option<u64>,
    len: Option<u64>,
}

impl ContentRange {
    fn parse(header: &str) -> Option<ContentRange> {
        let (range, len) = header.strip_prefix("bytes ")?.split_once('/')?;
        let first = range.split_once('-').and_then(|(first, _)| first.parse().ok());
        Some(ContentRange { first, len: len.parse().ok() })
    }
}

/// What the disk did to `path`.
pub(super) fn at(path: &Path, error: io::Error) -> String {
    format!("{}: {error}", path.display())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use super::{is_at, open_locked};

    #[test]
    fn who_waited_for_a_download_that_failed_makes_a_file_of_its_own() {
        let part = std::env::temp_dir().join(format!("smolconv-download-{}", std::process::id()));
        let Ok(held) = open_locked(&part) else { panic!("nobody else has it") };
        fs::write(&part, "what was fetched").unwrap();
        let (send, waiting) = mpsc::channel();
        thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                send.send(()).unwrap();
                open_locked(&part)
                    .ok()
                    .map(|file| (is_at(&file, &part).unwrap(), file.metadata().unwrap().len()))
            });
            waiting.recv().unwrap();
            thread::sleep(Duration::from_millis(100)); // it has opened the file, and waits for the lock
            fs::remove_file(&part).unwrap();
            drop(held);
            assert_eq!(waiter.join().unwrap(), Some((true, 0)));
        });
        fs::remove_file(&part).unwrap();
    }
}
