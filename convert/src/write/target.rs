//! What OUT means: a regular file, there or to be made, behind any symbolic links.

use std::fs;
use std::io;
use std::path::{Path, PathBuf, is_separator};

use crate::error::{Error, Result};
use crate::files::kind;

/// Symbolic links that are followed one after the other: as many as Linux follows.
const MAX_LINKS: usize = 40;

/// A file that may be written.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    /// As it was asked for, which is what errors name.
    pub(crate) asked: PathBuf,
    /// Where it lies: a symbolic link is followed, never replaced.
    pub(crate) path: PathBuf,
    /// Whether it may be replaced.
    pub(crate) force: bool,
}

impl Target {
    /// Refuses what may not be written: an existing file without `force`, and anything that is no regular file. A device,
    /// a pipe or a directory would otherwise be replaced by a file.
    pub(crate) fn new(out: &Path, force: bool) -> Result<Target> {
        let target = |path| Target { asked: out.to_owned(), path, force };
        match fs::metadata(out) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => new_file(out).map(target),
            Err(error) => Err(Error::io(out)(error)),
            Ok(found) if !found.is_file() => {
                Err(Error::output(out, format!("expected a regular file, found {}", kind(&found))))
            }
            Ok(_) if !force => Err(exists(out)),
            Ok(_) => fs::canonicalize(out).map(target).map_err(Error::io(out)),
        }
    }

    /// Refuses a target that is one of `files`, which are `what` and must not be lost to `force`.
    pub(crate) fn must_not_be<'p>(
        &self,
        mut files: impl Iterator<Item = &'p Path>,
        what: &str,
    ) -> Result<()> {
        match files.any(|file| fs::canonicalize(file).is_ok_and(|path| path == self.path)) {
            true => Err(Error::output(&self.asked, format!("expected another file than {what}"))),
            false => Ok(()),
        }
    }

    /// Refuses a target that has come to mean another file, or one that may not be written, since it was looked at.
    pub(crate) fn look_again(&self) -> Result<()> {
        match Target::new(&self.asked, self.force)?.path == self.path {
            true => Ok(()),
            false => Err(Error::output(&self.asked, "expected the same file as at the start, found another")),
        }
    }

    /// The directory of the file.
    pub(crate) fn directory(&self) -> &Path {
        directory(&self.path)
    }
}

/// `out` is there and may not be replaced.
pub(crate) fn exists(out: &Path) -> Error {
    Error::output(out, "exists already; --force replaces it")
}

/// Where `out` lies, which is not there: links may lead to it.
fn new_file(out: &Path) -> Result<PathBuf> {
    let mut path = out.to_owned();
    for _ in 0..MAX_LINKS {
        let name = file_name(&path).ok_or_else(|| Error::output(out, "expected the name of a file"))?;
        path = fs::canonicalize(directory(&path)).map_err(Error::io(out))?.join(name);
        match fs::read_link(&path) {
            Ok(link) => path = directory(&path).join(link),
            Err(_) => return Ok(path),
        }
    }
    Err(Error::output(out, "expected a file, found symbolic links in a circle"))
}

/// The last part of `path`, unless that is written as a directory's.
fn file_name(path: &Path) -> Option<PathBuf> {
    let ends_in_separator = path.to_string_lossy().ends_with(is_separator);
    path.file_name().filter(|_| !ends_in_separator).map(PathBuf::from)
}

fn directory(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}
