//! A file that becomes visible under its name only when it is complete.

use std::fs::{self, File, OpenOptions};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::error::{Error, Result};

/// Temporary files that exist at this moment, for [`remove_all`].
static LIVE: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// A new file in the directory of `target`, gone when dropped before [`TempFile::persist`].
#[derive(Debug)]
pub struct TempFile {
    path: PathBuf,
    target: PathBuf,
    force: bool,
}

/// Refuses a target that may not be written: an existing file without `force`, and anything that is no file.
pub fn check_target(target: &Path, force: bool) -> Result<()> {
    if target.file_name().is_none() {
        return Err(Error::output(target, "expected the name of a file"));
    }
    match fs::symlink_metadata(target) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(Error::io(target)(error)),
        Ok(found) if !found.is_file() && !found.is_symlink() => {
            Err(Error::output(target, "expected a file to replace, found something else"))
        }
        Ok(_) if !force => Err(Error::output(target, "exists already; --force replaces it")),
        Ok(_) => Ok(()),
    }
}

impl TempFile {
    /// Creates the file, beside `target` so that a rename can reach it.
    pub fn create(target: &Path, force: bool) -> Result<(TempFile, File)> {
        check_target(target, force)?;
        // A name that nobody can have prepared a link under; `create_new` would refuse one anyway.
        let unique = RandomState::new().hash_one(std::process::id());
        let path = directory(target).join(format!(".smolconv-{unique:016x}.part"));
        let mut live = live();
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path);
        let file = file.map_err(Error::io(&path))?;
        live.push(path.clone());
        drop(live);
        Ok((TempFile { path, target: target.to_owned(), force }, file))
    }

    /// Where the file lies until it is persisted.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Gives the file, whose content is on the disk already, its name.
    pub fn persist(self) -> Result<()> {
        check_target(&self.target, self.force)?;
        let live = live();
        fs::rename(&self.path, &self.target).map_err(Error::io(&self.target))?;
        drop(live);
        // `drop` removes the path from the list and finds no file under it.
        sync_directory(directory(&self.target)).map_err(Error::io(&self.target))
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        let mut live = live();
        live.retain(|path| path != &self.path);
        let _ = fs::remove_file(&self.path);
    }
}

/// Removes every temporary file and lets no other be created or persisted: for a process that is about to end.
pub fn remove_all() -> impl Drop {
    let live = live();
    for path in live.iter() {
        let _ = fs::remove_file(path);
    }
    live
}

fn live() -> MutexGuard<'static, Vec<PathBuf>> {
    LIVE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn directory(target: &Path) -> &Path {
    target.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Makes a rename survive a power cut.
#[cfg(unix)]
fn sync_directory(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

#[cfg(not(unix))]
fn sync_directory(_: &Path) -> io::Result<()> {
    Ok(())
}
