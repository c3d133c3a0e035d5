//! The runtime for small language models as one mapped file.

mod error;
pub mod format;
pub mod storage;
pub mod tokenizer;

pub use self::error::{Error, Result};
pub use self::tokenizer::{SpecialTokens, Tokenizer};
