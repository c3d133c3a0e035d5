//! smolrun runs a small language model out of one mapped file.
//!
//! `smolconv` turns a checkpoint into a *blob* once; [`Model::open`] maps it and checks its directory, which takes
//! microseconds, and a [`Session`] generates from it:
//!
//! ```no_run
//! use smolrun::{GenerateOptions, Model, Session, SessionOptions, SpecialTokens};
//!
//! # fn main() -> smolrun::Result<()> {
//! let model = Model::open("tales.bin")?;
//! let prompt = model.tokenizer().encode("Once upon a time", SpecialTokens::AsText)?;
//! let mut session = Session::new(&model, SessionOptions::default())?;
//! for token in session.generate(&prompt, GenerateOptions::default().max_tokens(100))? {
//!     print!("{}", token?.text);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! The library never prints, exits or panics on a bad file or argument: everything it has to say is an [`Error`].

#[cfg(feature = "bench")]
#[doc(hidden)]
pub mod bench;
mod error;
pub mod format;
mod generate;
mod kernels;
mod machine;
mod model;
mod pool;
pub mod storage;
pub mod tokenizer;
mod verify;

pub use self::error::{Error, Result};
pub use self::generate::{
    Alternative, CancelToken, Comparison, ComparisonWindows, FinishReason, GenerateOptions, Generation,
    Generator, Logprobs, Perplexity, PerplexityOptions, PerplexityWindows, Sampler, SamplerStep, Sampling,
    Score, Session, SessionOptions, TextStream, Token,
};
#[cfg(feature = "chat")]
pub use self::generate::{ChatOptions, ChatTemplate, Message, TemplateVariable};
pub use self::kernels::Kernels;
pub use self::machine::Machine;
pub use self::model::{Activations, Fast, KvDtype, Model, Overflow};
pub use self::pool::{Spawn, Work};
pub use self::tokenizer::{SpecialTokens, Tokenizer};
pub use self::verify::verify;

/// The bytes of a blob inside the program, aligned as [`Model::from_static`] needs them.
///
/// The path is relative to the file that uses the macro, as with `include_bytes!`.
#[macro_export]
macro_rules! include_blob {
    ($path:expr) => {{
        #[repr(C, align(64))]
        struct Aligned<Bytes: ?Sized>(Bytes);
        static BLOB: &Aligned<[u8]> = &Aligned(*include_bytes!($path));
        &BLOB.0
    }};
}
