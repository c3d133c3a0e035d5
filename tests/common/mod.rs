//! Helpers for black-box tests: built programs, directories that clean up after themselves, generated checkpoints.

pub mod blob;
mod checkpoint;
mod programs;
mod temp_dir;

pub use self::blob::{Blob, Part};
pub use self::checkpoint::{Checkpoint, Tensor, TensorDtype, tales};
pub use self::programs::{Outcome, program, run};
pub use self::temp_dir::TempDir;
