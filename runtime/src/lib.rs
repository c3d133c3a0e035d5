//! The runtime for small language models as one mapped file.

mod error;
pub mod format;
pub mod storage;
pub mod tokenizer;
mod verify;

pub use self::error::{Error, Result};
pub use self::tokenizer::{SpecialTokens, Tokenizer};
pub use self::verify::verify;
