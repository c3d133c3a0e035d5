//! From a checkpoint to a blob: everything slow, fallible or clever, done once.
//!
//! [`convert()`] reads a Hugging Face checkpoint or a GGUF file and writes the file that `smolrun` maps. Nothing is
//! written before the whole checkpoint was read and checked once, and the blob only gets its name after it was read back and verified.

mod blocks;
pub mod calibrate;
pub mod chat_template;
pub mod check;
pub mod checkpoint;
pub mod config_json;
pub mod convert;
pub mod error;
mod family;
pub mod gguf_config;
mod gguf_sentencepiece;
pub mod gguf_tokenizer;
#[cfg(feature = "hub")]
mod hub;
pub mod inspect;
pub mod json;
pub mod lora;
pub mod metadata;
mod mistaken;
pub mod pack;
pub mod plan;
pub mod progress;
pub mod quantise;
pub mod recommended;
pub mod registry;
pub mod report;
mod rope;
pub mod source;
mod target;
pub mod temp_file;
pub mod tensor_map;
pub mod tokenizer_json;
pub mod verify;
pub mod weights;
pub mod write;

pub use self::calibrate::Calibration;
pub use self::convert::{Options, Summary, convert};
pub use self::error::{Error, Result};
pub use self::progress::Progress;
pub use self::weights::{Keep, Mix, Weights};
