//! What can go wrong between a path and a generated token.

use std::any::Any;
use std::fmt;
use std::path::PathBuf;

use crate::format::FormatError;

/// An error of this crate. The library never prints, exits or panics: everything it has to say is in here.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// A file could not be opened, mapped or read.
    Io {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },
    /// The bytes are not a blob that this version can run.
    Format(FormatError),
    /// There is no memory for something of this size.
    OutOfMemory {
        /// What it was for.
        what: &'static str,
        /// How many bytes were asked for.
        bytes: usize,
    },
    /// A token id that the vocabulary does not have.
    TokenId {
        /// The id.
        id: u32,
        /// Ids must be below this.
        vocab_size: usize,
    },
    /// More tokens than the model's context has room for.
    ContextFull {
        /// Tokens the session would hold.
        needed: usize,
        /// `max_position_embeddings`.
        limit: usize,
    },
    /// A text makes more tokens than there is room for. They were not all counted.
    TextTooLong {
        /// The least number of tokens that it makes.
        needed: usize,
        /// Tokens that there is room for.
        limit: usize,
    },
    /// An option or argument has a value it may not have.
    Argument {
        /// Its name.
        name: &'static str,
        /// What it should have been.
        expected: String,
        /// What it was.
        found: String,
    },
    /// A file is not a session that this one can continue.
    SavedSession {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// The chat template cannot be used.
    Template {
        /// What is wrong with it.
        problem: String,
    },
    /// The operating system would not start another thread.
    Threads {
        /// What it said.
        source: std::io::Error,
    },
    /// The model computed NaN or infinity: the weights are damaged or made to do so.
    NotFinite,
    /// A request's keys and values are more than a scheduler may ever keep.
    KvBudget {
        /// Bytes that they may come to.
        needed: usize,
        /// [`SchedulerOptions::kv_bytes`](crate::scheduler::SchedulerOptions#structfield.kv_bytes).
        limit: usize,
    },
    /// The handle in [`SessionOptions::cancel`](crate::SessionOptions#structfield.cancel) was used.
    Cancelled,
    /// A bug of this crate, caught where it ends only one request of a scheduler.
    Panic {
        /// What the panic said.
        message: String,
    },
}

/// A result with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// The error for what [`catch_unwind`](std::panic::catch_unwind) caught.
    pub fn from_panic(panic: &(dyn Any + Send)) -> Error {
        let text = panic.downcast_ref::<&str>().copied();
        let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        Error::Panic { message: text.unwrap_or("no message").to_owned() }
    }

    /// The error's class, by which programs and bindings tell errors apart. A code never changes its meaning and none goes
    /// away; there may be more of them one day.
    ///
    /// | code | what |
    /// |---|---|
    /// | `argument` | an option or argument has a value it may not have |
    /// | `argument.token_id` | a token id is not in the vocabulary |
    /// | `blob.alignment` | the bytes in memory do not start on a multiple of 64 |
    /// | `blob.checksum` | verifying: a section's bytes are not those that were written |
    /// | `blob.config` | a hyperparameter has a value it may not have |
    /// | `blob.directory` | the header or the directory was changed after it was written |
    /// | `blob.entry` | a directory entry has a field it may not have |
    /// | `blob.header` | a header field has a value it may not have, as in a file that was cut off |
    /// | `blob.magic` | it is no blob |
    /// | `blob.missing` | a section is missing |
    /// | `blob.padding` | verifying: bytes between sections are not zero |
    /// | `blob.reserved` | reserved bytes are not zero |
    /// | `blob.table` | a table contradicts itself |
    /// | `blob.too_short` | there are fewer bytes than a header has |
    /// | `blob.version` | it was written by an incompatible version |
    /// | `cancelled` | a session's work was ended from elsewhere |
    /// | `chat_template` | the chat template cannot be used |
    /// | `context_full` | more tokens than the model's context has room for |
    /// | `io` | a file could not be opened, mapped or read |
    /// | `kv_budget` | a request's keys and values are more than a scheduler may ever keep |
    /// | `not_finite` | the model computed NaN or infinity |
    /// | `out_of_memory` | there is no memory for something |
    /// | `panic` | a bug of this crate |
    /// | `saved_session` | a file is no session to go on from |
    /// | `text_too_long` | a text makes more tokens than there is room for |
    /// | `threads` | no other thread could be started |
    pub fn code(&self) -> &'static str {
        match self {
            Error::Io { .. } => "io",
            Error::Format(error) => error.code(),
            Error::OutOfMemory { .. } => "out_of_memory",
            Error::TokenId { .. } => "argument.token_id",
            Error::ContextFull { .. } => "context_full",
            Error::TextTooLong { .. } => "text_too_long",
            Error::Argument { .. } => "argument",
            Error::SavedSession { .. } => "saved_session",
            Error::Template { .. } => "chat_template",
            Error::Threads { .. } => "threads",
            Error::NotFinite => "not_finite",
            Error::KvBudget { .. } => "kv_budget",
            Error::Cancelled => "cancelled",
            Error::Panic { .. } => "panic",
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Io { path, source } => write!(f, "{}: {source}", path.display()),
            Error::Format(error) => error.fmt(f),
            Error::OutOfMemory { what, bytes } => write!(f, "no memory for {what}: {bytes} bytes"),
            Error::TokenId { id, vocab_size } => {
                write!(f, "token id {id}: expected an id below vocab_size, {vocab_size}")
            }
            Error::ContextFull { needed, limit } => {
                write!(f, "{needed} tokens do not fit the model's context of {limit}")
            }
            Error::TextTooLong { needed, limit } => {
                write!(f, "a text of {needed} tokens or more does not fit: there is room for {limit}")
            }
            Error::Argument { name, expected, found } => {
                write!(f, "{name}: expected {expected}, found {found}")
            }
            Error::SavedSession { path, problem } => {
                write!(f, "{}: not a session to go on from: {problem}", path.display())
            }
            Error::Template { problem } => write!(f, "chat template: {problem}"),
            Error::Threads { source } => write!(f, "no thread could be started: {source}"),
            Error::NotFinite => f.write_str("the model's logits are not finite: its weights are damaged"),
            Error::KvBudget { needed, limit } => {
                write!(
                    f,
                    "the request's keys and values may take {needed} bytes, more than the {limit} that all requests may have"
                )
            }
            Error::Cancelled => f.write_str("it was cancelled"),
            Error::Panic { message } => write!(f, "a bug in smolrun: it panicked: {message}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Io { source, .. } | Error::Threads { source } => Some(source),
            Error::Format(error) => Some(error),
            _ => None,
        }
    }
}

impl From<FormatError> for Error {
    fn from(error: FormatError) -> Error {
        Error::Format(error)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::Error;
    use crate::format::FormatError;

    /// What stands between two marks in a line, of the lines of `source`.
    fn between<'a>(source: &'a str, start: &str, end: &str) -> Vec<&'a str> {
        source.lines().filter_map(|line| Some(line.trim().split_once(start)?.1.split_once(end)?.0)).collect()
    }

    /// The compiler sees to it that each variant has a code, this to it that no two share one and that each is documented.
    #[test]
    fn each_code_is_of_one_variant_and_documented() {
        let (ours, _) = include_str!("error.rs").split_once("mod tests").unwrap();
        let given =
            [between(ours, "=> \"", "\""), between(include_str!("format/error.rs"), "=> \"blob", "\"")];
        let given: Vec<String> = given[0]
            .iter()
            .map(|code| code.to_string())
            .chain(given[1].iter().map(|code| format!("blob{code}")))
            .collect();
        assert_eq!(given.len(), 13 + 13, "a code for each variant: {given:?}");
        let distinct: BTreeSet<&str> = given.iter().map(String::as_str).collect();
        assert_eq!(distinct.len(), given.len(), "each of its own: {given:?}");
        let documented = between(ours, "/// | `", "` |");
        assert_eq!(documented, Vec::from_iter(distinct), "documented, in order");
    }

    #[test]
    fn codes_are_those_of_the_variants() {
        let place = crate::format::Place::Header;
        for (error, code) in [
            (Error::NotFinite, "not_finite"),
            (Error::TokenId { id: 5, vocab_size: 4 }, "argument.token_id"),
            (FormatError::SectionHash { place }.into(), "blob.checksum"),
            (FormatError::TooShort { found: 5 }.into(), "blob.too_short"),
        ] {
            assert_eq!(error.code(), code, "{error}");
        }
    }
}
