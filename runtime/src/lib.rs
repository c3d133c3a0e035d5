//! The runtime for small language models as one mapped file.

mod error;
pub mod format;
pub mod storage;
mod verify;

pub use self::error::{Error, Result};
pub use self::verify::verify;
