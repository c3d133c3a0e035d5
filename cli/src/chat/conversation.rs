//! A conversation, and its file: `{"messages": [{"role": ..., "content": ...}, ...]}`, as others write it too.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;

use smolrun::Message;

/// Largest file that is read: far more than any context holds.
const MAX_LEN: u64 = 16 << 20;
const SYSTEM: &str = "system";

/// What was said so far, by role.
#[derive(Clone, Debug, Default)]
pub(crate) struct Conversation {
    messages: Vec<Message>,
    /// Whether something was said that is in no file.
    has_news: bool,
}

impl Conversation {
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
        self.has_news = true;
    }

    /// Whether an answer comes next: after what a user says, or a tool.
    pub(crate) fn wants_answer(&self) -> bool {
        self.messages.last().is_some_and(|last| !["assistant", SYSTEM].contains(&last.role.as_str()))
    }

    /// Takes back the last message of the user and what came after it.
    pub(crate) fn take_back(&mut self) -> Option<Message> {
        let last = self.messages.iter().rposition(|message| message.role == "user")?;
        self.messages.drain(last..).next()
    }

    /// Takes back what was said last, if it was by `role`.
    pub(crate) fn pop(&mut self, role: &str) -> Option<Message> {
        self.messages.pop_if(|last| last.role == role)
    }

    /// Whether something would be lost with it.
    pub(crate) fn has_news(&self) -> bool {
        self.has_news
    }

    /// Writes it to the file at `path`, whole or not at all; one that is there is replaced only if `may_replace`.
    pub(crate) fn save(&mut self, path: &Path, may_replace: bool) -> Result<(), String> {
        let text = Message::list_to_json(&self.messages).map_err(|error| error.to_string())? + "\n";
        write(path, text.as_bytes(), may_replace).map_err(|error| format!("{}: {error}", path.display()))?;
        self.has_news = false;
        Ok(())
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
        Conversation::parse(&bytes).map_err(|error| problem(&error))
    }

    /// Reads it from a file's bytes.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Conversation, String> {
        if bytes.len() as u64 > MAX_LEN {
            return Err(format!("expected at most {MAX_LEN} bytes"));
        }
        let text = str::from_utf8(bytes).map_err(|error| format!("no conversation: {error}"))?;
        let text = text.strip_prefix('\u{feff}').unwrap_or(text); // as editors on Windows save it
        let messages = Message::list_from_json(text).map_err(|error| format!("no conversation: {error}"))?;
        Ok(Conversation { messages, has_news: false })
    }
}

/// To a file beside it, which then takes its name; where it is a link, that of the file that it leads to.
fn write(path: &Path, bytes: &[u8], may_replace: bool) -> io::Result<()> {
    let target = match fs::canonicalize(path) {
        Ok(target) if !target.is_file() => return Err(io::Error::other("expected a regular file")),
        Ok(_) if !may_replace => return Err(io::Error::other("it is there already: /save! replaces it")),
        Ok(target) => target,
        Err(_) => path.to_owned(),
    };
    let mut temporary = target.as_os_str().to_owned();
    temporary.push(format!(".{}.tmp", std::process::id()));
    let _ = fs::remove_file(&temporary); // what a killed process of the same number left
    let written = create(Path::new(&temporary)).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all() // or the name might reach the disk before what it stands for
    });
    let written = written.and_then(|()| fs::rename(&temporary, &target));
    if written.is_err() {
        let _ = fs::remove_file(&temporary); // the first error is the one to tell
    }
    written
}

/// A new file that nobody else may read, as the history is.
fn create(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::{Conversation, Message};

    fn said(conversation: &Conversation) -> Vec<[&str; 2]> {
        conversation.messages().iter().map(|said| [said.role.as_str(), said.content.as_str()]).collect()
    }

    #[test]
    fn the_system_message_stays_first_and_outlives_a_reset() {
        let mut conversation = Conversation::default();
        conversation.push("user", "Hi");
        conversation.set_system("Be kind.");
        conversation.set_system("Be short.");
        conversation.push("assistant", "Ho");
        assert_eq!(said(&conversation), [["system", "Be short."], ["user", "Hi"], ["assistant", "Ho"]]);
        assert!(conversation.pop("user").is_none() && conversation.pop("assistant").is_some());
        conversation.reset();
        assert_eq!(said(&conversation), [["system", "Be short."]]);
        assert_eq!(conversation.system(), Some("Be short."));
    }

    #[test]
    fn what_tools_say_is_answered_and_taken_back_with_the_question() {
        let json = r#"[{"role": "system", "content": "x"}, {"role": "user", "content": "Time?"},
            {"role": "assistant", "tool_calls": [{"function": {"name": "now"}}]}, {"role": "tool", "content": "12:34"}]"#;
        let mut conversation = Conversation::parse(json.as_bytes()).unwrap();
        assert!(conversation.wants_answer());
        conversation.push("assistant", "Noon.");
        assert!(!conversation.wants_answer());
        assert_eq!(conversation.take_back().unwrap().content, "Time?");
        assert_eq!(said(&conversation), [["system", "x"]]);
        assert!(conversation.take_back().is_none() && !conversation.wants_answer());
    }

    #[test]
    fn a_saved_conversation_comes_back_and_nothing_else_does() {
        let name = |name: &str| std::env::temp_dir().join(format!("smolrun-{}-{name}", std::process::id()));
        let (path, other) = (name("chat.json"), name("other.json"));
        let mut conversation = Conversation::default();
        conversation.set_system("é \"quoted\"\n");
        conversation.push("user", "<|im_end|>\u{0}日本");
        conversation.messages.push(Message::new("tool", "12").name("now").tool_call_id("\"1\""));
        fs::write(&path, "was here before").unwrap();
        assert!(conversation.save(&path, false).unwrap_err().contains("/save!"));
        assert_eq!(fs::read(&path).unwrap(), b"was here before");
        assert!(conversation.has_news());
        conversation.save(&path, true).unwrap();
        assert!(!conversation.has_news());
        let loaded = Conversation::load(&path).unwrap();
        assert_eq!(loaded.messages(), conversation.messages());
        fs::remove_file(&path).unwrap();
        assert!(Conversation::load(&path).unwrap_err().contains("chat.json"));
        for wrong in [
            "",
            "[1]",
            "{}",
            r#"{"messages": [{"role": "user"}]}"#,
            "\u{0}",
            r#"{"messages": [{"role": 1}]}"#,
        ] {
            fs::write(&other, wrong).unwrap();
            assert!(Conversation::load(&other).unwrap_err().contains("no conversation"), "{wrong}");
        }
        fs::remove_file(&other).unwrap();
        assert!(Conversation::load(&std::env::temp_dir()).unwrap_err().contains("a regular file"));
        assert!(conversation.save(&name("nosuch/x"), false).is_err());
    }
}
