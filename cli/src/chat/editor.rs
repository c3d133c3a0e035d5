//! Lines from the terminal, with editing and a history that outlives the program.

use std::env;
use std::fs;
use std::io;
use std::path::PathBuf;

use rustyline::error::ReadlineError;
use rustyline::{Config, DefaultEditor};

use super::command::{Block, Line};
use crate::interrupt::Interrupt;
use crate::output::say;

/// Lines that the history keeps.
const HISTORY_LEN: usize = 1000;

/// What came from the terminal.
pub(crate) enum Input {
    Line(Line),
    /// Ctrl-C.
    Interrupt,
    /// Ctrl-D, the terminal is gone, or a signal ends the program.
    End,
}

pub(crate) struct Editor {
    lines: DefaultEditor,
    history: Option<PathBuf>,
    interrupt: Interrupt,
}

/// What ends the reading of lines before there is one.
enum Stop {
    Input(Input),
    Error(ReadlineError),
}

impl Editor {
    pub(crate) fn new(interrupt: Interrupt) -> rustyline::Result<Editor> {
        let config = Config::builder().max_history_size(HISTORY_LEN)?.auto_add_history(false).build();
        let mut lines = DefaultEditor::with_config(config)?;
        // What is no file, such as /dev/null, keeps none; reading one might never end.
        let history = history_file().filter(|path| fs::metadata(path).map_or(true, |found| found.is_file()));
        if let Some(path) = &history {
            let _ = lines.load_history(path); // there is none before the first time
        }
        Ok(Editor { lines, history, interrupt })
    }

    /// What is typed next: a line with those that go on with it.
    pub(crate) fn read(&mut self) -> rustyline::Result<Input> {
        match self.read_lines() {
            Ok(line) => Ok(Input::Line(line)),
            Err(Stop::Input(input)) => Ok(input),
            Err(Stop::Error(error)) => Err(error),
        }
    }

    fn read_lines(&mut self) -> Result<Line, Stop> {
        let mut typed = self.next("> ")?;
        let line = match Block::begin(&typed) {
            Some(mut block) => loop {
                if let Some(line) = block.end() {
                    break line;
                }
                let next = self.next(". ")?;
                typed = format!("{typed}\n{next}");
                block.push(next);
            },
            None => {
                while let Some(so_far) = typed.strip_suffix('\\') {
                    typed = format!("{so_far}\n{}", self.next(". ")?);
                }
                Line::parse(&typed)
            }
        };
        if line != Line::Empty {
            self.lines.add_history_entry(&typed).map_err(Stop::Error)?;
        }
        Ok(line)
    }

    /// One line. What is no text is told, and asked for again.
    fn next(&mut self, prompt: &str) -> Result<String, Stop> {
        loop {
            match self.interrupt.while_reading(|| self.lines.readline(prompt)) {
                None | Some(Err(ReadlineError::Eof)) => return Err(Stop::Input(Input::End)),
                Some(Ok(line)) => return Ok(line),
                // A key, or a signal from elsewhere: it may be what a termination wakes this with.
                Some(Err(ReadlineError::Interrupted | ReadlineError::Signal(_))) => {
                    let is_end = self.interrupt.termination().is_some();
                    return Err(Stop::Input(if is_end { Input::End } else { Input::Interrupt }));
                }
                Some(Err(ReadlineError::Io(error))) if error.kind() == io::ErrorKind::InvalidData => {
                    forget_typed();
                    let problem =
                        "error: that line was not UTF-8, and is dropped; is the terminal set to UTF-8?";
                    say(problem).map_err(|error| Stop::Error(error.into()))?;
                }
                Some(Err(error)) => return Err(Stop::Error(error)),
            }
        }
    }

    /// Writes the history, as far as the file system lets it: an answer is worth more than its history.
    pub(crate) fn save_history(&mut self) {
        let Some(path) = &self.history else { return };
        let _ = path.parent().map(fs::create_dir_all);
        let _ = self.lines.append_history(path);
    }
}

/// Drops what the terminal holds: the rest of a pasted text, of which no part should go to the model without the others.
fn forget_typed() {
    #[cfg(unix)]
    {
        use nix::sys::termios::{FlushArg, tcflush};

        std::thread::sleep(std::time::Duration::from_millis(50)); // it may still be on its way
        let _ = tcflush(io::stdin(), FlushArg::TCIFLUSH); // where it fails, it is read as typed
    }
}

/// `SMOLRUN_HISTORY` (empty for none), or a file where programs keep such things; none without a home.
pub(crate) fn history_file() -> Option<PathBuf> {
    let named = |name: &str| env::var_os(name).map(PathBuf::from);
    if let Some(path) = named("SMOLRUN_HISTORY") {
        return (!path.as_os_str().is_empty()).then_some(path);
    }
    let home = || named("HOME").map(|home| home.join(".local/state"));
    let state = named("XDG_STATE_HOME").or_else(|| named("LOCALAPPDATA")).or_else(home)?;
    Some(state.join("smolrun/history"))
}
