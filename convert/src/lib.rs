//! From a checkpoint to a blob: everything slow, fallible or clever is done here, once.
//!
//! [`convert()`] reads a Hugging Face checkpoint or a GGUF file and writes the file that `smolrun` maps. It writes
//! nothing before it has read and checked the whole checkpoint once. The blob gets its name only after it was read back
//! and verified.

mod budget;
pub mod bundle;
pub mod checkpoint;
pub mod convert;
pub mod curve;
pub mod error;
mod files;
mod inputs;
pub mod inspect;
pub mod json;
pub mod options;
pub mod parts;
#[doc(hidden)] // for the binary, and for packages that bring the program along
pub mod program;
pub mod progress;
pub mod quantize;
pub mod registry;
#[doc(hidden)] // for both programs
pub mod signals;
pub mod source;
pub mod terminal;
pub mod tokenizer;
pub mod write;

pub use self::convert::{Summary, convert};
pub use self::error::{Error, Result};
pub use self::inputs::Inputs;
pub use self::options::{Calibration, Keep, Mix, Options, Origin, Size, Weights};
pub use self::progress::Progress;

/// The version of this converter.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
