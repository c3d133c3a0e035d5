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
    writeln!(Stdout::new(), "{}", printable(line))
}

/// Standard output, whose errors say that it is.
pub(crate) struct Stdout(StdoutLock<'static>);

impl Stdout {
    pub(crate) fn new() -> Stdout {
        Stdout(io::stdout().lock())
    }
}

impl Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes).map_err(at_stdout)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush().map_err(at_stdout)
    }
}

/// Standard output for text that somebody else wrote: a model, a file.
pub(crate) struct Output {
    stdout: Stdout,
    is_terminal: bool,
}

impl Output {
    pub(crate) fn new() -> Output {
        Output { stdout: Stdout::new(), is_terminal: io::stdout().is_terminal() }
    }

    /// Writes a piece of text, at once.
    pub(crate) fn text(&mut self, text: &str) -> io::Result<()> {
        if text.is_empty() {
            return Ok(());
        }
        let shown = if self.is_terminal { printable(text) } else { text.into() };
        self.stdout.write_all(shown.as_bytes())?;
        self.stdout.flush()
    }

    /// Writes `value` as JSON in a line of its own, at once. It is harmless to a terminal, and the same for everybody.
    pub(crate) fn json(&mut self, value: &impl Serialize) -> Result<(), Box<dyn Error>> {
        let json = json_line(value)?;
        writeln!(self.stdout, "{json}")?;
        Ok(self.stdout.flush()?)
    }
}

/// An error that says where it was.
fn at_stdout(error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("standard output: {error}"))
}

/// `value` as JSON in one line that is harmless to a terminal.
pub(crate) fn json_line(value: &impl Serialize) -> serde_json::Result<String> {
    let json = serde_json::to_string(value)?;
    Ok(escape_json(&json).into_owned())
}

/// So many of a thing: `1 token`, `2 tokens`.
pub(crate) fn counted(count: usize, one: &str) -> String {
    match count {
        1 => format!("1 {one}"),
        _ => format!("{count} {one}s"),
    }
}

/// What is wrong with a JSON text of one line. (serde_json would name a line of its own.)
pub(crate) fn json_problem(error: &serde_json::Error) -> String {
    error.to_string().replace(" at line 1 column ", " at column ")
}

/// Bytes as hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
