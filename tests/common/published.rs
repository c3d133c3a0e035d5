//! Files that others published, which `scripts/test.sh` fetches.

use std::env;
use std::path::{Path, PathBuf};

/// The file or folder of this name of what llama.cpp publishes.
pub fn published(name: impl AsRef<Path>) -> PathBuf {
    let folder =
        env::var_os("SMOL_PUBLISHED").expect("SMOL_PUBLISHED says where it is: scripts/test.sh fetches it");
    PathBuf::from(folder).join(name)
}
