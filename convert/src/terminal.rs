//! Text from files and models, made safe to show.
//!
//! A model's text, a file's name and a blob's metadata may hold anything: escape sequences that rewrite the screen or
//! the clipboard, and marks that show text in another order than it has. Programs pass such text through here on its
//! way to a terminal. Scripts want the exact bytes, so what goes to a file or a pipe stays as it is.

use std::borrow::Cow;
use std::ffi::OsString;
use std::fmt::Write;
use std::io;
use std::process;

use clap::Parser;
use clap::error::{ContextKind, ContextValue, ErrorKind};

/// `text` with U+FFFD for every character that does something to a terminal. Newlines and tabs stay.
///
/// Those are C0 and C1 controls, DEL, and the embeddings, overrides and isolates of bidirectional text. Marks such as
/// U+200F stay: honest right-to-left text needs them, and they move only what is beside them.
pub fn printable(text: &str) -> Cow<'_, str> {
    let is_kept = |c: char| matches!(c, '\n' | '\t') || !is_harmful(c);
    if text.chars().all(is_kept) {
        return Cow::Borrowed(text);
    }
    text.chars().map(|c| if is_kept(c) { c } else { char::REPLACEMENT_CHARACTER }).collect()
}

/// `text` in one line, with what [`printable`] would replace written as Rust writes it, such as `\u{1b}`: for messages
/// and names.
pub fn one_line(text: &str) -> Cow<'_, str> {
    if !text.chars().any(is_harmful) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match is_harmful(c) {
            true => shown.extend(c.escape_default()),
            false => shown.push(c),
        }
    }
    shown.into()
}

/// `json`, which is a JSON text, with what [`printable`] would replace written as `\u001b` is: another text for the same
/// value.
pub fn escape_json(json: &str) -> Cow<'_, str> {
    // Outside of strings JSON has newlines and tabs only, and no others of these characters.
    let is_kept = |c: char| matches!(c, '\n' | '\t' | '\r') || !is_harmful(c);
    if json.chars().all(is_kept) {
        return Cow::Borrowed(json);
    }
    let mut escaped = String::with_capacity(json.len());
    for c in json.chars() {
        match is_kept(c) {
            true => escaped.push(c),
            // All of them are below U+10000. A String takes everything.
            false => drop(write!(escaped, "\\u{:04x}", u32::from(c))),
        }
    }
    escaped.into()
}

/// The command line of this program: its name, then its arguments.
///
/// # Errors
/// What clap says of it. That quotes the command line, and so could hold anything: here it is [`printable`].
pub fn command_line<T: Parser>(args: impl IntoIterator<Item = OsString>) -> Result<T, clap::Error> {
    parse(T::command(), args)
}

/// Shows what the command line of `program` asks for, such as help, or what is wrong with it, and ends the program. Help that
/// cannot be written, as on a full disk, is an error.
pub fn exit(program: &str, error: &clap::Error) -> ! {
    let shown = error.print().and_then(|()| io::Write::flush(&mut io::stdout()));
    match shown {
        Err(problem) if !error.use_stderr() && problem.kind() != io::ErrorKind::BrokenPipe => {
            let told = format_args!("{program}: error: standard output: {problem}\n");
            let _ = io::Write::write_fmt(&mut io::stderr(), told);
            process::exit(1)
        }
        _ => process::exit(error.exit_code()),
    }
}

/// As [`command_line`], by a command that may differ from `T`'s in what it says.
///
/// # Errors
/// As those of [`command_line`].
pub fn parse<T: Parser>(
    mut command: clap::Command,
    args: impl IntoIterator<Item = OsString>,
) -> Result<T, clap::Error> {
    let matches = command.try_get_matches_from_mut(args);
    let parsed = matches.and_then(|mut matches| {
        T::from_arg_matches_mut(&mut matches).map_err(|error| error.format(&mut command))
    });
    parsed.map_err(|error| {
        let error = stray_argument(error, &mut command);
        let text = error.to_string();
        match printable(&text) {
            Cow::Borrowed(_) => error,
            Cow::Owned(printable) => {
                let message = printable.strip_prefix("error: ").unwrap_or(&printable);
                clap::Error::raw(error.kind(), message)
            }
        }
    })
}

/// What an error should say where a command line has either a subcommand or arguments: clap takes any that is one too many
/// for a subcommand.
fn stray_argument(error: clap::Error, command: &mut clap::Command) -> clap::Error {
    match error.get(ContextKind::InvalidSubcommand) {
        Some(ContextValue::String(name))
            if error.kind() == ErrorKind::ArgumentConflict && command.find_subcommand(name).is_none() =>
        {
            let message = format!("unexpected argument '{name}' found");
            command.error(ErrorKind::UnknownArgument, message)
        }
        _ => error,
    }
}

/// Whether a terminal takes `c` for more than a character to show.
fn is_harmful(c: char) -> bool {
    c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::{escape_json, one_line, printable};

    /// Every character that is to be kept from a terminal.
    fn harmful() -> impl Iterator<Item = char> {
        let ranges = [0..=0x1f, 0x7f..=0x9f, 0x202a..=0x202e, 0x2066..=0x2069];
        ranges.into_iter().flatten().filter_map(char::from_u32)
    }

    #[test]
    fn nothing_harmful_comes_through_and_all_else_does() {
        for c in harmful() {
            let text = format!("a{c}b");
            let expected = if matches!(c, '\n' | '\t') { text.clone() } else { "a\u{fffd}b".into() };
            assert_eq!(printable(&text), expected, "{c:?}");
            assert!(!one_line(&text).contains(c), "{c:?}");
        }
        assert_eq!(one_line("\u{1b}[31m\n\u{202e}"), "\\u{1b}[31m\\n\\u{202e}");
        for text in ["", "naïve 日本語 👩‍🚀\n\t", "שלום\u{200f}!", "\u{feff}\u{a0}\u{fdd0}"] {
            assert_eq!(printable(text), text);
        }
        assert_eq!(one_line("שלום 'a\" \\"), "שלום 'a\" \\");
    }

    #[test]
    fn json_means_the_same_and_is_harmless() {
        let text: String = harmful().chain("é\"\\".chars()).collect();
        let json = serde_json::to_string(&[&text]).unwrap();
        let escaped = escape_json(&json);
        assert!(!harmful().any(|c| escaped.contains(c)), "{escaped}");
        assert_eq!(serde_json::from_str::<[String; 1]>(&escaped).unwrap(), [text]);
        assert_eq!(escape_json("[\n\t\"é\"\r\n]"), "[\n\t\"é\"\r\n]");
    }
}
