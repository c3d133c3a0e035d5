//! What goes to standard output: the exact text for files and pipes, what is safe to show for terminals.

use std::error::Error;
use std::io::{self, IsTerminal, StdoutLock, Write};

use serde::Serialize;
use smolconv::terminal::{escape_json, one_line, printable};

/// Tells `message` on standard error, in one line, if somebody is there to read it.
pub(crate) fn tell(message: &str) {
    let _ = writeln!(io::stderr(), "smolrun: {}", one_line(message)); // nobody is left who could be told
}

/// Writes a line to the terminal: what of it is not text is replaced.
pub(crate) fn say(line: &str) -> io::Result<()> {
    writeln!(io::stdout(), "{}", printable(line))
}

/// Standard output for text that somebody else wrote: a model, a file.
pub(crate) struct Output {
    stdout: StdoutLock<'static>,
    is_terminal: bool,
}

impl Output {
    pub(crate) fn new() -> Output {
        Output { stdout: io::stdout().lock(), is_terminal: io::stdout().is_terminal() }
    }

    /// Writes a piece of text, at once.
    pub(crate) fn text(&mut self, text: &str) -> io::Result<()> {
        if text.is_empty() {
            return Ok(());
        }
        match self.is_terminal {
            true => self.stdout.write_all(printable(text).as_bytes())?,
            false => self.stdout.write_all(text.as_bytes())?,
        }
        self.stdout.flush()
    }

    /// Writes `value` as JSON in a line of its own, at once. It is harmless to a terminal, and the same for everybody.
    pub(crate) fn json(&mut self, value: &impl Serialize) -> Result<(), Box<dyn Error>> {
        writeln!(self.stdout, "{}", json_line(value)?)?;
        Ok(self.stdout.flush()?)
    }
}

/// `value` as JSON in one line that is harmless to a terminal.
pub(crate) fn json_line(value: &impl Serialize) -> serde_json::Result<String> {
    let json = serde_json::to_string(value)?;
    Ok(escape_json(&json).into_owned())
}

/// Bytes as hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
