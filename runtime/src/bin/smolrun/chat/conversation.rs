//! A conversation, and its file: `{"messages": [{"role": ..., "content": ...}, ...]}`, as others write it too.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};
use smolrun::Message;

/// Largest file that is read: far more than any context holds.
const MAX_LEN: u64 = 16 << 20;
const SYSTEM: &str = "system";

/// What was said so far, by role.
#[derive(Debug, Default)]
pub(crate) struct Conversation {
    messages: Vec<Message>,
}

#[derive(Deserialize, Serialize)]
struct Saved<'a> {
    #[serde(borrow)]
    messages: Vec<SavedMessage<'a>>,
}

#[derive(Deserialize, Serialize)]
struct SavedMessage<'a> {
    role: std::borrow::Cow<'a, str>,
    content: std::borrow::Cow<'a, str>,
}

impl Conversation {
    /// One in which only the system message was said, if there is one.
    pub(crate) fn new(system: Option<&str>) -> Conversation {
        Conversation { messages: system.map(|text| Message::new(SYSTEM, text)).into_iter().collect() }
    }

    pub(crate) fn messages(&self) -> &[Message] {
        &self.messages
    }

    pub(crate) fn system(&self) -> Option<&str> {
        let first = self.messages.first().filter(|message| message.role == SYSTEM);
        first.map(|message| message.content.as_str())
    }

    /// Puts `text` in the place of the system message.
    pub(crate) fn set_system(&mut self, text: &str) {
        if self.system().is_some() {
            self.messages.remove(0);
        }
        self.messages.insert(0, Message::new(SYSTEM, text));
    }

    /// Forgets all but the system message.
    pub(crate) fn reset(&mut self) {
        self.messages.truncate(usize::from(self.system().is_some()));
    }

    pub(crate) fn push(&mut self, role: &str, content: &str) {
        self.messages.push(Message::new(role, content));
    }

    /// Takes back what was said last.
    pub(crate) fn pop(&mut self) {
        self.messages.pop();
    }

    /// Writes it to the file at `path`, whole or not at all.
    pub(crate) fn save(&self, path: &Path) -> Result<(), String> {
        let messages = self.messages.iter().map(|message| SavedMessage {
            role: message.role.as_str().into(),
            content: message.content.as_str().into(),
        });
        let saved = serde_json::to_string_pretty(&Saved { messages: messages.collect() });
        let text = saved.map_err(|error| error.to_string())? + "\n";
        write(path, text.as_bytes()).map_err(|error| format!("{}: {error}", path.display()))
    }

    /// Reads it from the file at `path`.
    pub(crate) fn load(path: &Path) -> Result<Conversation, String> {
        let problem = |problem: &dyn std::fmt::Display| format!("{}: {problem}", path.display());
        if !fs::metadata(path).map_err(|error| problem(&error))?.is_file() {
            return Err(problem(&"expected a regular file"));
        }
        let mut bytes = Vec::new();
        let file = File::open(path).map_err(|error| problem(&error))?;
        file.take(MAX_LEN + 1).read_to_end(&mut bytes).map_err(|error| problem(&error))?;
        if bytes.len() as u64 > MAX_LEN {
            return Err(problem(&format!("expected at most {MAX_LEN} bytes")));
        }
        let saved: Saved =
            serde_json::from_slice(&bytes).map_err(|error| problem(&format!("no conversation: {error}")))?;
        let messages = saved.messages.into_iter().map(|message| Message::new(message.role, message.content));
        Ok(Conversation { messages: messages.collect() })
    }
}

/// To a file beside it, which then takes its name.
fn write(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}.tmp", std::process::id()));
    let mut file = File::options().write(true).create_new(true).open(&name)?;
    let written = file.write_all(bytes).and_then(|()| fs::rename(&name, path));
    if written.is_err() {
        let _ = fs::remove_file(&name); // the first error is the one to tell
    }
    written
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::Conversation;

    fn said(conversation: &Conversation) -> Vec<[&str; 2]> {
        conversation.messages().iter().map(|said| [said.role.as_str(), said.content.as_str()]).collect()
    }

    #[test]
    fn the_system_message_stays_first_and_outlives_a_reset() {
        let mut conversation = Conversation::new(None);
        conversation.push("user", "Hi");
        conversation.set_system("Be kind.");
        conversation.set_system("Be short.");
        conversation.push("assistant", "Ho");
        assert_eq!(said(&conversation), [["system", "Be short."], ["user", "Hi"], ["assistant", "Ho"]]);
        conversation.pop();
        conversation.reset();
        assert_eq!(said(&conversation), [["system", "Be short."]]);
        assert_eq!(conversation.system(), Some("Be short."));
    }

    #[test]
    fn a_saved_conversation_comes_back_and_nothing_else_does() {
        let name = |name: &str| std::env::temp_dir().join(format!("smolrun-{}-{name}", std::process::id()));
        let (path, other) = (name("chat.json"), name("other.json"));
        let mut conversation = Conversation::new(Some("é \"quoted\"\n"));
        conversation.push("user", "<|im_end|>\u{0}日本");
        fs::write(&path, "was here before").unwrap();
        conversation.save(&path).unwrap();
        let loaded = Conversation::load(&path).unwrap();
        assert_eq!(said(&loaded), said(&conversation));
        fs::remove_file(&path).unwrap();
        assert!(Conversation::load(&path).unwrap_err().contains("chat.json"));
        for wrong in ["", "[]", "{}", r#"{"messages": [{"role": "user"}]}"#, "\u{0}"] {
            fs::write(&other, wrong).unwrap();
            assert!(Conversation::load(&other).unwrap_err().contains("no conversation"), "{wrong}");
        }
        fs::remove_file(&other).unwrap();
        assert!(Conversation::load(&std::env::temp_dir()).unwrap_err().contains("a regular file"));
        assert!(conversation.save(&name("nosuch/x")).is_err());
    }
}
