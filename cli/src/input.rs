//! What is to be continued or answered: out of the arguments, files and standard input.

use std::fs::File;
use std::io::{self, IsTerminal, Read};
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use smolrun::Message;
use smolrun::chat::ChatOptions;

use crate::args::PromptArgs;
use crate::chat::Conversation;
use crate::output::tell;

/// Longest text that is read: far more than any context holds.
const MAX_LEN: u64 = 256 << 20;
/// How long standard input may stay open before a line tells what is being waited for.
const PATIENCE: Duration = Duration::from_secs(5);

type Result<T> = std::result::Result<T, String>;

impl PromptArgs {
    /// Whether the blob's chat template is to be rendered.
    pub(crate) fn is_chat(&self) -> bool {
        self.chat || self.messages.is_some()
    }

    /// Whether nothing was said of what is to be continued.
    pub(crate) fn is_empty(&self) -> bool {
        self.text.is_empty() && self.prompt_file.is_none()
    }

    /// The prompt: the argument or the file, and after it what standard input holds, if that is no terminal.
    ///
    /// The line end at the end of a file or a pipe is not part of it.
    pub(crate) fn read(&self) -> Result<Option<String>> {
        let given = match (&self.text[..], &self.prompt_file) {
            ([dash], _) if dash == "-" => return Ok(Some(without_line_end(read_standard_input()?))),
            ([], Some(file)) => Some(without_line_end(read_file(file)?)),
            ([], None) => None,
            (words, _) => Some(words.join(" ")),
        };
        if io::stdin().is_terminal() {
            return Ok(given);
        }
        let piped = without_line_end(read_standard_input()?);
        Ok(match given {
            given if piped.is_empty() => given,
            None => Some(piped),
            Some(given) => Some(format!("{given}\n{piped}")),
        })
    }

    /// The conversation so far: its file's, with the system message that was given.
    pub(crate) fn conversation(&self) -> Result<Conversation> {
        let mut conversation = match &self.messages {
            Some(file) => {
                let parsed = Conversation::parse(read_file(file)?.as_bytes());
                parsed.map_err(|problem| format!("{}: {problem}", file.display()))?
            }
            None => Conversation::default(),
        };
        match (&self.system, &self.system_file) {
            (Some(text), _) => conversation.set_system(text),
            (None, Some(file)) => conversation.set_system(&without_line_end(read_file(file)?)),
            (None, None) => {}
        }
        Ok(conversation)
    }

    /// What the chat template is told besides the conversation.
    pub(crate) fn chat_options(&self) -> Result<ChatOptions> {
        let Some(file) = &self.tools else { return Ok(ChatOptions::default()) };
        let options = ChatOptions::default().tools(&read_file(file)?);
        options.map_err(|error| format!("{}: {error}", file.display()))
    }

    /// What is to be answered; none if there is nothing to answer.
    pub(crate) fn messages(&self, prompt: Option<String>) -> Result<Option<Vec<Message>>> {
        let mut conversation = self.conversation()?;
        if let Some(prompt) = prompt {
            conversation.push("user", &prompt);
        }
        Ok(conversation.wants_answer().then(|| conversation.messages().to_vec()))
    }
}

/// The text of a file, or of a pipe that a shell gives a name to.
fn read_file(path: &Path) -> Result<String> {
    let read = File::open(path).and_then(read_text);
    read.map_err(|error| format!("{}: {error}", path.display()))
}

/// All of standard input. Where it does not end, somebody should know what is being waited for.
fn read_standard_input() -> Result<String> {
    let wrong = |error: io::Error| format!("standard input: {error}");
    let (sender, receiver) = mpsc::channel();
    let read = move || drop(sender.send(read_text(io::stdin())));
    if thread::Builder::new().name("input".into()).spawn(read).is_err() {
        return read_text(io::stdin()).map_err(wrong); // without a word, then
    }
    let read = receiver.recv_timeout(PATIENCE).or_else(|_| {
        tell("waiting for the end of standard input; \"< /dev/null\" where there is none");
        receiver.recv()
    });
    read.unwrap_or_else(|_| Err(io::Error::other("it could not be read"))).map_err(wrong)
}

fn read_text(from: impl Read) -> io::Result<String> {
    let mut bytes = Vec::new();
    from.take(MAX_LEN + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_LEN {
        return Err(io::Error::other(format!("expected at most {MAX_LEN} bytes")));
    }
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        io::Error::new(io::ErrorKind::InvalidData, format!("expected UTF-8, found another byte at {at}"))
    })
}

fn without_line_end(mut text: String) -> String {
    if text.ends_with('\n') {
        text.pop();
        if text.ends_with('\r') {
            text.pop();
        }
    }
    text
}
