//! Lines from the terminal, with editing and a history that outlives the program.

use std::env;
use std::fs;
use std::path::PathBuf;

use rustyline::error::ReadlineError;
use rustyline::{Config, DefaultEditor};

/// Lines that the history keeps.
const HISTORY_LEN: usize = 1000;

/// What came from the terminal.
pub(crate) enum Input {
    Line(String),
    /// Ctrl-C.
    Interrupt,
    /// Ctrl-D, or the terminal is gone.
    End,
}

pub(crate) struct Editor {
    lines: DefaultEditor,
    history: Option<PathBuf>,
}

impl Editor {
    pub(crate) fn new() -> rustyline::Result<Editor> {
        let config = Config::builder().max_history_size(HISTORY_LEN)?.auto_add_history(false).build();
        let mut lines = DefaultEditor::with_config(config)?;
        let history = history_file();
        if let Some(path) = &history {
            let _ = lines.load_history(path); // there is none before the first time
        }
        Ok(Editor { lines, history })
    }

    /// The next line; one that ends in a backslash goes on in the line after it.
    pub(crate) fn read(&mut self) -> rustyline::Result<Input> {
        let mut text = String::new();
        loop {
            let prompt = if text.is_empty() { "> " } else { ". " };
            text += &match self.lines.readline(prompt) {
                Ok(line) => line,
                Err(ReadlineError::Interrupted) => return Ok(Input::Interrupt),
                Err(ReadlineError::Eof) => return Ok(Input::End),
                Err(error) => return Err(error),
            };
            let Some(so_far) = text.strip_suffix('\\') else { break };
            text = format!("{so_far}\n");
        }
        if !text.trim().is_empty() {
            self.lines.add_history_entry(&text)?;
        }
        Ok(Input::Line(text))
    }

    /// Writes the history, as far as the file system lets it: an answer is worth more than its history.
    pub(crate) fn save_history(&mut self) {
        let Some(path) = &self.history else { return };
        let _ = path.parent().map(fs::create_dir_all);
        let _ = self.lines.append_history(path);
    }
}

/// `SMOLRUN_HISTORY` (empty for none), or a file where programs keep such things; none without a home.
fn history_file() -> Option<PathBuf> {
    let named = |name: &str| env::var_os(name).map(PathBuf::from);
    if let Some(path) = named("SMOLRUN_HISTORY") {
        return (!path.as_os_str().is_empty()).then_some(path);
    }
    let home = || named("HOME").map(|home| home.join(".local/state"));
    let state = named("XDG_STATE_HOME").or_else(|| named("LOCALAPPDATA")).or_else(home)?;
    Some(state.join("smolrun/history"))
}
