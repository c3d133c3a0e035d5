//! What a conversation that ends by an error or a signal leaves behind.

use std::env;
use std::fs;
use std::path::{Path, PathBuf, absolute};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use super::conversation::Conversation;
use super::editor::history_file;
use crate::output::tell;

/// A copy of the conversation, for whichever thread ends the program. Clones are the same.
#[derive(Clone, Default)]
pub(crate) struct Rescue(Arc<Mutex<Conversation>>);

impl Rescue {
    /// So it would be lost now.
    pub(crate) fn keep(&self, conversation: &Conversation) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = conversation.clone();
    }

    /// Writes it to a file of its own, if something was said that is in no other, and tells where.
    pub(crate) fn save(&self) {
        let mut conversation = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !conversation.has_news() {
            return;
        }
        let mut problem = String::new();
        for directory in directories() {
            let _ = fs::create_dir_all(&directory);
            let path = directory.join(name());
            match conversation.save(&path, false) {
                Ok(()) => return told(&path),
                Err(error) => problem = error,
            }
        }
        tell(&format!("the conversation could not be saved: {problem}"));
    }
}

fn told(path: &Path) {
    let path = absolute(path).unwrap_or_else(|_| path.to_owned());
    tell(&format!("the conversation is saved in {}; --messages and /load go on with it", path.display()));
}

/// Beside the history, or where anything may be written.
fn directories() -> impl Iterator<Item = PathBuf> {
    let beside = history_file().and_then(|history| Some(history.parent()?.to_owned()));
    beside.into_iter().chain([env::temp_dir()])
}

fn name() -> String {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    format!("conversation-{}-{}.json", now.as_secs(), std::process::id())
}
