//! Helpers for black-box tests: built programs, directories that clean up after themselves, generated checkpoints.

pub mod blob;
mod checkpoint;
pub mod counting;
pub mod gguf;
mod greedy;
mod hub;
mod logits;
mod models;
mod programs;
mod published;
mod quantized;
mod running;
mod saved;
mod temp_dir;
mod terminal;
mod tokenizer;
pub mod versions;

pub use self::blob::{Blob, Part};
pub use self::checkpoint::{Checkpoint, Tensor, TensorDtype};
pub use self::greedy::chat_agreement;
pub use self::hub::{FakeHub, Fault};
pub use self::logits::{logits_sha256, scattered_tokens};
pub use self::models::{
    REAL, TALES, all_widths, blob, blob_of, blob_of_mix, blob_with_all_widths, data, is_long, model_dir,
    real_with_context, repository, tales, tales_with_prefix, tales_with_template,
};
pub use self::programs::{Outcome, program, run};
pub use self::published::published;
pub use self::quantized::Quantized;
pub use self::running::{Running, within};
pub use self::saved::SavedSession;
pub use self::temp_dir::TempDir;
pub use self::terminal::Terminal;
pub use self::tokenizer::{damage, tokenizer};
