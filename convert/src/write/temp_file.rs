//! A file that becomes visible under its name only when it is complete, and that leaves nothing behind otherwise.
//!
//! Where the system has files without names (Linux, on most file systems), the file has none until it is complete, so that
//! it is gone with its process, however that ends. Elsewhere, and wherever `SMOLCONV_NAMED_TEMP` is set, it is called
//! `.smolconv-*.part` and locked for as long as it is in use: what a killed process left of that name has no lock, and
//! `prepare` removes it.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::target::{Target, exists};
use crate::error::{Error, Result};

/// What a temporary name begins and ends with.
const NAME: [&str; 2] = [".smolconv-", ".part"];
/// Digits between the two.
const DIGITS: usize = 16;

/// Temporary names that exist at this moment, for [`remove_all`].
static LIVE: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// A new file in the directory of its target, gone when dropped before [`TempFile::persist`].
#[derive(Debug)]
pub(crate) struct TempFile {
    target: Target,
    /// Locked, unless it is on a file system without locks.
    file: File,
    /// `None` of a file without a name.
    name: Option<PathBuf>,
}

impl TempFile {
    /// Creates the file where `target` is to be, so that a name is all that it will lack.
    pub(crate) fn create(target: &Target) -> Result<TempFile> {
        let directory = target.directory();
        let made = match unnamed::create(directory) {
            Some(file) => Ok((file, None)),
            None => create_named(directory).map(|(file, name)| (file, Some(name))),
        };
        let (file, name) = made.map_err(Error::io(&target.asked))?;
        Ok(TempFile { target: target.clone(), file, name })
    }

    /// The file, to be written.
    pub(crate) fn file(&self) -> Result<File> {
        self.file.try_clone().map_err(Error::io(&self.target.asked))
    }

    /// What its target was called, for messages.
    pub(super) fn asked(&self) -> &Path {
        &self.target.asked
    }

    /// Where the file can be opened until it is persisted.
    pub(crate) fn path(&self) -> PathBuf {
        self.name.clone().unwrap_or_else(|| unnamed::path(&self.file))
    }

    /// Brings the file to the disk, and then gives it its name.
    ///
    /// Without `force` nothing is replaced, also not what appeared since it was last looked at. With it, whatever then has
    /// the name is: a name is replaced as a whole, and nothing is ever written through it.
    pub(crate) fn persist(self) -> Result<()> {
        let Target { asked, path, .. } = &self.target;
        self.file.sync_all().map_err(Error::io(asked))?;
        self.target.look_again()?;
        let live = live();
        self.place(path).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => exists(asked),
            _ => Error::io(asked)(error),
        })?;
        drop(live);
        sync_directory(self.target.directory()).map_err(Error::io(asked))
    }

    fn place(&self, path: &Path) -> io::Result<()> {
        match (&self.name, self.target.force) {
            (Some(name), true) => fs::rename(name, path),
            (Some(name), false) => rename_to_new(name, path),
            (None, false) => unnamed::link(&self.file, path),
            (None, true) => {
                let name = temporary_name(self.target.directory());
                unnamed::link(&self.file, &name)?;
                fs::rename(&name, path).inspect_err(|_| drop(fs::remove_file(&name)))
            }
        }
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        if let Some(name) = &self.name {
            let mut live = live();
            live.retain(|other| other != name);
            let _ = fs::remove_file(name);
        }
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

/// Finds out before all the work whether a file can be made where `target` is to be, once what killed processes left there
/// is gone.
pub(crate) fn prepare(target: &Target) -> Result<()> {
    remove_stale(target.directory());
    TempFile::create(target).map(drop)
}

/// Removes temporary files from `directory` that no process has locked any more.
fn remove_stale(directory: &Path) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let is_file = entry.file_type().is_ok_and(|found| found.is_file());
        if is_file && is_temporary(&entry.file_name()) {
            remove_unlocked(&entry.path());
        }
    }
}

/// The lock is held while the name is removed, so that a process that just made the file finds out: see [`create_named`].
fn remove_unlocked(path: &Path) {
    if let Ok(file) = OpenOptions::new().read(true).write(true).open(path)
        && file.try_lock().is_ok()
    {
        let _ = fs::remove_file(path);
    }
}

/// Creates a file with a temporary name, and locks it. Who cleans up may have come between the two: then the name is gone,
/// and another is taken. A file system without locks gives nobody one, so that there nothing is taken for stale.
fn create_named(directory: &Path) -> io::Result<(File, PathBuf)> {
    loop {
        let name = temporary_name(directory);
        let mut live = live();
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(&name)?;
        live.push(name.clone());
        let _ = file.lock();
        if name.try_exists().unwrap_or(true) {
            return Ok((file, name));
        }
        live.retain(|other| other != &name);
    }
}

/// A name that nobody can have prepared a link under; nothing that exists is ever opened by one.
fn temporary_name(directory: &Path) -> PathBuf {
    let unique = RandomState::new().hash_one(std::process::id());
    let [start, end] = NAME;
    directory.join(format!("{start}{unique:0DIGITS$x}{end}"))
}

fn is_temporary(name: &OsStr) -> bool {
    let digits = name.to_str().and_then(|name| name.strip_prefix(NAME[0])?.strip_suffix(NAME[1]));
    digits.is_some_and(|digits| digits.len() == DIGITS && digits.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

/// Renames `from`, or gives it a second name of which the first is then removed, but replaces nothing. Only where there
/// are no second names it is looked first, and renamed then.
fn rename_to_new(from: &Path, to: &Path) -> io::Result<()> {
    match fs::hard_link(from, to) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(error),
        Err(_) if to.symlink_metadata().is_ok() => Err(io::ErrorKind::AlreadyExists.into()),
        Err(_) => fs::rename(from, to),
        Ok(()) => Ok(()), // `drop` removes the first name
    }
}

fn live() -> MutexGuard<'static, Vec<PathBuf>> {
    LIVE.lock().unwrap_or_else(PoisonError::into_inner)
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

/// Files without a name, which Linux has on most file systems.
#[cfg(target_os = "linux")]
mod unnamed {
    use std::env;
    use std::os::fd::AsRawFd;

    use rustix::fs::{AtFlags, CWD, Mode, OFlags, linkat, openat};

    use super::*;

    /// `None` where the file system has no such files, or would not name one later: that is tried with an empty one, since
    /// later is after all the work.
    pub(super) fn create(directory: &Path) -> Option<File> {
        if env::var_os("SMOLCONV_NAMED_TEMP").is_some() {
            return None;
        }
        let (probe, name) = (open(directory)?, temporary_name(directory));
        let live = live();
        link(&probe, &name).ok()?;
        fs::remove_file(&name).ok()?;
        drop(live);
        open(directory)
    }

    fn open(directory: &Path) -> Option<File> {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let file = File::from(openat(CWD, directory, flags, Mode::from_raw_mode(0o666)).ok()?);
        let _ = file.lock(); // for the moment in which it has a temporary name
        Some(file)
    }

    pub(super) fn path(file: &File) -> PathBuf {
        format!("/proc/self/fd/{}", file.as_raw_fd()).into()
    }

    pub(super) fn link(file: &File, to: &Path) -> io::Result<()> {
        Ok(linkat(CWD, path(file), CWD, to, AtFlags::SYMLINK_FOLLOW)?)
    }
}

#[cfg(not(target_os = "linux"))]
mod unnamed {
    use super::*;

    pub(super) fn create(_: &Path) -> Option<File> {
        None
    }

    pub(super) fn path(_: &File) -> PathBuf {
        PathBuf::new()
    }

    pub(super) fn link(_: &File, _: &Path) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}
