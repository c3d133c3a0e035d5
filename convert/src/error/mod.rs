//! What can be wrong with a checkpoint, said in one line as what, expected, found and where.

mod tokenizer;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

pub use self::tokenizer::TokenizerError;

use crate::options::Keep;
use crate::progress::{Cancelled, Progress};

/// Why a checkpoint was not converted, or a blob not read.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// A file could not be opened, read or written.
    Io {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// A file of the checkpoint is not what it should be.
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong, in words.
        problem: String,
    },
    /// A field of a JSON file has a value that cannot be converted.
    Field {
        /// The file.
        path: PathBuf,
        /// The field's name.
        field: String,
        /// What it should have been.
        expected: String,
        /// What it was.
        found: String,
    },
    /// A tensor is missing, superfluous, or not what the config asks for.
    Tensor {
        /// The file or directory that it is of, as far as that is known.
        path: Option<PathBuf>,
        /// Its name in the checkpoint.
        name: String,
        /// What is wrong, in words.
        problem: String,
    },
    /// The tokenizer is not one that can be compiled.
    Tokenizer {
        /// Its file.
        path: PathBuf,
        /// What is wrong with it.
        source: TokenizerError,
    },
    /// The options contradict each other.
    Options {
        /// What is wrong, in words.
        problem: String,
    },
    /// What was asked for some of the matrices cannot be done.
    Keep {
        /// Which matrices and what for.
        keep: Keep,
        /// What is wrong, in words.
        problem: String,
    },
    /// The blob may not be written where it should go.
    Output {
        /// Where it should have gone.
        path: PathBuf,
        /// What is wrong, in words.
        problem: String,
    },
    /// A blob cannot be read, or is not as it was written.
    Blob {
        /// The blob.
        path: PathBuf,
        /// What `smolrun` found.
        source: smolrun::Error,
    },
    /// Who watched it ended it: see [`Watch::cancel`](crate::progress::Watch::cancel).
    Cancelled,
}

/// A result with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// What ended a whole work on `source`: whoever cancelled it, whatever a thread that writes, or a session, made of
    /// that.
    pub(crate) fn of_work(source: &Path, progress: &Progress) -> impl FnOnce(Error) -> Error {
        move |error| match progress.cancel_token().is_cancelled() {
            true => Error::Cancelled,
            false => Error::within(source)(error),
        }
    }

    /// An operation on `path` failed: for `map_err`.
    pub(crate) fn io(path: &Path) -> impl FnOnce(io::Error) -> Error + '_ {
        |source| Error::Io { path: path.to_owned(), source }
    }

    /// `path` is not what it should be.
    pub(crate) fn file(path: &Path, problem: impl Into<String>) -> Error {
        Error::File { path: path.to_owned(), problem: problem.into() }
    }

    /// A tensor is not what it should be. Whoever knows of which file it is adds that: see [`Error::within`].
    pub(crate) fn tensor(name: &str, problem: impl Into<String>) -> Error {
        Error::Tensor { path: None, name: name.to_owned(), problem: problem.into() }
    }

    /// The same error, of a tensor of the file or directory `path` if no other is named: for `map_err`.
    pub(crate) fn within(path: &Path) -> impl FnOnce(Error) -> Error + '_ {
        |error| match error {
            Error::Tensor { path: None, name, problem } => {
                Error::Tensor { path: Some(path.to_owned()), name, problem }
            }
            other => other,
        }
    }

    /// What `keep` asks for cannot be done.
    pub(crate) fn keep(keep: &Keep, problem: String) -> Error {
        Error::Keep { keep: keep.clone(), problem }
    }

    /// No blob may be written to `path`.
    pub(crate) fn output(path: &Path, problem: impl Into<String>) -> Error {
        Error::Output { path: path.to_owned(), problem: problem.into() }
    }

    /// The blob at `path` is not one: for `map_err`.
    pub(crate) fn blob<E: Into<smolrun::Error>>(path: &Path) -> impl FnOnce(E) -> Error + '_ {
        |source| match source.into() {
            smolrun::Error::Io { source, .. } => Error::io(path)(source),
            source => Error::Blob { path: path.to_owned(), source },
        }
    }

    /// A model could not read the text at `path`: for `map_err`.
    pub(crate) fn text(path: &Path) -> impl Fn(smolrun::Error) -> Error + '_ {
        |source| match source {
            smolrun::Error::Cancelled => Error::Cancelled,
            source => Error::file(path, source.to_string()),
        }
    }

    /// The same error of a blob that is not called by its name yet: for `map_err`.
    pub(crate) fn of_blob(path: &Path) -> impl FnOnce(Error) -> Error + '_ {
        |error| match error {
            Error::Io { source, .. } => Error::io(path)(source),
            Error::Blob { source, .. } => Error::blob(path)(source),
            other => other,
        }
    }
}

impl From<Cancelled> for Error {
    fn from(_: Cancelled) -> Error {
        Error::Cancelled
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Io { path, source } => write!(f, "{}: {source}", path.display()),
            Error::File { path, problem } | Error::Output { path, problem } => {
                write!(f, "{}: {problem}", path.display())
            }
            Error::Field { path, field, expected, found } => {
                write!(f, "{}: {field}: expected {expected}, found {found}", path.display())
            }
            Error::Tensor { path: None, name, problem } => write!(f, "tensor {name}: {problem}"),
            Error::Tensor { path: Some(path), name, problem } => {
                write!(f, "{}: tensor {name}: {problem}", path.display())
            }
            Error::Tokenizer { path, source } => write!(f, "{}: {source}", path.display()),
            Error::Options { problem } => f.write_str(problem),
            Error::Keep { keep, problem } => write!(f, "--keep {keep}: {problem}"),
            Error::Blob { path, source } => write!(f, "{}: {source}", path.display()),
            Error::Cancelled => f.write_str("it was cancelled"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Io { source, .. } => Some(source),
            Error::Tokenizer { source, .. } => Some(source),
            Error::Blob { source, .. } => Some(source),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use super::*;

    #[test]
    fn errors_name_the_path_once_and_keep_their_source() {
        let io = || io::Error::other("broken");
        let path = Path::new("a/b");
        let tokenizer = TokenizerError::Regex { pattern: "(".into(), problem: "open".into() };
        let cases = [
            (Error::io(path)(io()), "a/b: broken", true),
            (Error::blob(path)(smolrun::Error::NotFinite), "a/b: the model's logits", true),
            (Error::blob(path)(smolrun::Error::Io { path: "c".into(), source: io() }), "a/b: broken", true),
            (Error::of_blob(path)(Error::io(Path::new("c"))(io())), "a/b: broken", true),
            (Error::Tokenizer { path: path.into(), source: tokenizer }, "a/b: the regex (: open", true),
            (Error::tensor("x", "is bad"), "tensor x: is bad", false),
            (Error::within(path)(Error::tensor("x", "is bad")), "a/b: tensor x: is bad", false),
            (
                Error::within(Path::new("c"))(Error::within(path)(Error::tensor("x", ""))),
                "a/b: tensor x",
                false,
            ),
            (Error::within(Path::new("c"))(Error::file(path, "is bad")), "a/b: is bad", false),
        ];
        for (error, expected, has_source) in cases {
            assert!(error.to_string().starts_with(expected), "{error}");
            assert_eq!(error.source().is_some(), has_source, "{error}");
        }
    }
}
