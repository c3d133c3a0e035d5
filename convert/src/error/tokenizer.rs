//! Why a `tokenizer.json` cannot be compiled.

use std::fmt;

/// Why a `tokenizer.json` cannot be compiled.
#[derive(Debug)]
#[non_exhaustive]
pub enum TokenizerError {
    /// It is not JSON, or a field has another type than expected.
    Json(serde_json::Error),
    /// It holds more than any tokenizer.
    TooLarge {
        /// Most JSON values that it may hold.
        expected: usize,
        /// Those that it holds.
        found: usize,
    },
    /// It asks for something that the runtime's tokenizer does not do.
    Unsupported {
        /// Path of the field.
        field: String,
        /// What is supported there.
        supported: String,
        /// What it asks for.
        found: String,
    },
    /// It contradicts itself or the model.
    Invalid {
        /// Path of the field.
        field: String,
        /// What it should have been.
        expected: String,
        /// What it was.
        found: String,
    },
    /// A pre-tokenizer's regex does not become an automaton.
    Regex {
        /// The regex.
        pattern: String,
        /// Why not.
        problem: String,
    },
}

impl TokenizerError {
    pub(crate) fn unsupported(
        field: impl Into<String>,
        supported: impl Into<String>,
        found: impl fmt::Display,
    ) -> TokenizerError {
        TokenizerError::Unsupported {
            field: field.into(),
            supported: supported.into(),
            found: found.to_string(),
        }
    }

    pub(crate) fn invalid(
        field: impl Into<String>,
        expected: impl Into<String>,
        found: impl fmt::Display,
    ) -> TokenizerError {
        TokenizerError::Invalid { field: field.into(), expected: expected.into(), found: found.to_string() }
    }
}

impl fmt::Display for TokenizerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Json(error) => error.fmt(f),
            Self::TooLarge { expected, found } => {
                write!(f, "expected at most {expected} JSON values, found {found}")
            }
            Self::Unsupported { field, supported, found } => {
                write!(f, "{field}: {found} is not supported, only {supported}")
            }
            Self::Invalid { field, expected, found } => {
                write!(f, "{field}: expected {expected}, found {found}")
            }
            Self::Regex { pattern, problem } => write!(f, "the regex {pattern}: {problem}"),
        }
    }
}

impl std::error::Error for TokenizerError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Json(error) => Some(error),
            _ => None,
        }
    }
}

impl From<serde_json::Error> for TokenizerError {
    fn from(error: serde_json::Error) -> TokenizerError {
        TokenizerError::Json(error)
    }
}
