//! A directory of a test's own.

use std::env;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A new, empty directory, removed with everything in it when dropped. It is in the directory that `SMOL_TEST_DIR` names,
/// or in the system's for temporary files.
pub struct TempDir {
    path: PathBuf,
}

impl TempDir {
    /// Creates the directory: a new one, also where an earlier process of this number was killed and left some.
    #[allow(clippy::new_without_default)] // it touches the disk
    pub fn new() -> TempDir {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let parent = env::var_os("SMOL_TEST_DIR").map_or_else(env::temp_dir, PathBuf::from);
        fs::create_dir_all(&parent).expect("there is a directory for temporary files");
        loop {
            let name = format!("smol-test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
            let path = parent.join(name);
            match fs::create_dir(&path) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                created => {
                    created.expect("a directory can be created in the temporary directory");
                    return TempDir { path };
                }
            }
        }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where `name` is in it.
    pub fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Names of everything in it, sorted.
    pub fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.path).expect("the directory can be read");
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.path);
    }
}
