//! How Hugging Face's cache lies on the disk: files under their hashes, and links to them under their names.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

/// How often, and how long each time, another process is waited for that fetches the same file.
const WAITS: (usize, Duration) = (10, Duration::from_millis(500));

/// Locks a file that two processes may want to append to; the lock is gone with the file.
pub(super) fn lock(file: &File) -> Result<(), String> {
    let (times, pause) = WAITS;
    for _ in 0..times {
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => sleep(pause),
            _ => return Ok(()), // or there are no locks
        }
    }
    Err("another process that fetches it: when that is done, run this again".into())
}

/// Makes `pointer`, the file `path` of a snapshot, lead to `blob`: by a link that still does when the cache is moved.
pub(super) fn point(blob: &Path, pointer: &Path, path: &str) -> io::Result<()> {
    if pointer.exists() {
        return Ok(());
    }
    fs::create_dir_all(pointer.parent().unwrap_or(pointer))?;
    let _ = fs::remove_file(pointer); // a link that leads nowhere
    link(blob, pointer, path)
}

#[cfg(unix)]
fn link(blob: &Path, pointer: &Path, path: &str) -> io::Result<()> {
    let up = "../".repeat(2 + path.matches('/').count());
    let name = blob.file_name().unwrap_or_default();
    std::os::unix::fs::symlink(Path::new(&up).join("blobs").join(name), pointer)
}

/// Links need rights here that few have.
#[cfg(not(unix))]
fn link(blob: &Path, pointer: &Path, _: &str) -> io::Result<()> {
    fs::rename(blob, pointer)
}

/// Writes a small file that is never seen half written.
pub(super) fn replace(path: &Path, content: &str) -> io::Result<()> {
    fs::create_dir_all(path.parent().unwrap_or(path))?;
    let mut name = path.as_os_str().to_owned();
    name.push(".part");
    fs::write(&name, content)?;
    fs::rename(&name, path)
}

/// Removes the folder of a repository of which nothing came.
pub(super) fn remove_if_empty(folder: &Path) {
    let _ = fs::remove_dir(folder.join("blobs"));
    let _ = fs::remove_dir(folder);
}
