//! What can go wrong between a path and a generated token.

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
    /// A text makes more tokens than there is room for. How many was not counted.
    TextTooLong {
        /// Tokens that it makes at least.
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
    /// A file is no session that this one can go on from.
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
}

/// A result with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

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
                write!(f, "a text of {needed} tokens or more does not fit the model's context of {limit}")
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
