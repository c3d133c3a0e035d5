//! A directory of a test's own.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A new, empty directory, removed with everything in it when dropped. It is in the directory that `SMOL_TEST_DIR` names,
/// or in the system's for temporary files.
pub struct TempDir {
    path: PathBuf,
}

impl TempDir {
    /// Creates the directory.
    #[allow(clippy::new_without_default)] // it touches the disk
    pub fn new() -> TempDir {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("smol-test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let parent = env::var_os("SMOL_TEST_DIR").map_or_else(env::temp_dir, PathBuf::from);
        let path = parent.join(name);
        fs::create_dir_all(&path).expect("a directory can be created in the temporary directory");
        TempDir { path }
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
