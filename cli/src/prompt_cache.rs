//! `--prompt-cache FILE`: keys and values from one run to the next.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use smolrun::{Error, Session};

use crate::output::tell;

/// A file that is known to be one that can be written, or replaced.
pub(crate) struct PromptCache {
    file: PathBuf,
    /// Whether what it held was of no use.
    is_stale: bool,
}

impl PromptCache {
    /// The cache in `file`, or an error where nothing could be kept there: before anything is computed.
    pub(crate) fn new(file: &Path) -> Result<PromptCache, String> {
        check(file).map_err(|problem| format!("--prompt-cache: {}: {problem}", file.display()))?;
        Ok(PromptCache { file: file.to_owned(), is_stale: false })
    }

    /// Loads what an earlier run left, if it did. What is of no use is told and will be replaced.
    pub(crate) fn load(&mut self, session: &mut Session) {
        if !self.file.exists() {
            return;
        }
        if let Err(error) = session.load(&self.file) {
            self.is_stale = true;
            tell(&format!("--prompt-cache: {error}; it will be written anew"));
        }
    }

    /// Writes what `session` holds, if that is worth it: `is_news` tells whether anything was computed.
    pub(crate) fn save(&self, session: &mut Session, is_news: bool) -> Result<(), Error> {
        match is_news || self.is_stale {
            true => session.save(&self.file),
            false => Ok(()),
        }
    }
}

/// That a session can be written to `file`, and takes nothing from anybody there.
fn check(file: &Path) -> io::Result<()> {
    match fs::metadata(file) {
        Ok(found) if !found.is_file() => Err(io::Error::other("expected a regular file")),
        Ok(found) if found.len() > 0 && !begins_as_session(file)? => {
            Err(io::Error::other("not a session to go on from, nor empty: it is not replaced"))
        }
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        // The same way as it will be written.
        _ => Session::check_save(file),
    }
}

fn begins_as_session(file: &Path) -> io::Result<bool> {
    let mut beginning = Vec::new();
    File::open(file)?.take(Session::SAVED_MAGIC.len() as u64).read_to_end(&mut beginning)?;
    Ok(beginning == Session::SAVED_MAGIC)
}
