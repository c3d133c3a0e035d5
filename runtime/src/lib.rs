//! smolrun runs a small language model out of one mapped file.
//!
//! `smolconv` turns a checkpoint into a *blob* once; [`Model::open`] maps it and checks its directory, which takes
//! microseconds, and a [`Session`] generates from it:
//!
//! ```no_run
//! use std::io::Write;
//!
//! use smolrun::{GenerateOptions, Model, Session, SessionOptions, SpecialTokens};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let model = Model::open("tales.bin")?;
//! let prompt = model.tokenizer().encode_prompt("Once upon a time", SpecialTokens::AsText)?;
//! let mut session = Session::new(&model, SessionOptions::default())?;
//! for token in session.generate(&prompt, GenerateOptions::default().max_tokens(100))? {
//!     print!("{}", token?.text);
//!     std::io::stdout().flush()?;
//! }
//! # Ok(())
//! # }
//! ```
//!
//! A conversation is a list of [`Message`]s, which the checkpoint's own template makes a prompt. Of the next turn's prompt the
//! session knows all that was said before, and computes only what is new. A [`CancelToken`] ends an answer from anywhere:
//!
//! ```no_run
//! use std::io::Write;
//!
//! use smolrun::{CancelToken, GenerateOptions, Message, Model, Sampling, Session, SessionOptions};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # #[cfg(feature = "chat")] {
//! let model = Model::open("smol.bin")?;
//! let mut session = Session::new(&model, SessionOptions::default())?;
//! let sampling = Sampling { temperature: 0.7, top_p: 0.9, seed: 1, ..Sampling::default() };
//! let cancel = CancelToken::default(); // `cancel.clone()` goes to a button or a signal handler, which calls `cancel()`
//!
//! let mut messages = vec![Message::new("system", "Answer in one sentence.")];
//! for question in ["What is the capital of France?", "And what is it known for?"] {
//!     messages.push(Message::new("user", question));
//!     let prompt = model.encode_chat(&messages)?;
//!     let kept = session.keep_common_prefix(&prompt);
//!
//!     let options = GenerateOptions::default().sampling(sampling.clone()).cancel(&cancel);
//!     let mut answer = String::new();
//!     for token in session.generate(&prompt[kept..], options)? {
//!         let token = token?;
//!         print!("{}", token.text);
//!         std::io::stdout().flush()?;
//!         answer += &token.text;
//!     }
//!     println!();
//!     messages.push(Message::new("assistant", answer)); // what came of it, where it was cancelled
//!     cancel.reset();
//! }
//! # }
//! # Ok(())
//! # }
//! ```
//!
//! The library never prints, exits or panics on a bad file or argument: everything it has to say is an [`Error`].

#[cfg(feature = "bench")]
#[doc(hidden)]
pub mod bench;
mod error;
mod exec;
pub mod format;
mod generate;
mod kernels;
mod machine;
mod model;
mod sequence;
pub mod storage;
pub mod terminal;
pub mod tokenizer;
mod verify;

pub use self::error::{Error, Result};
pub use self::exec::{Spawn, Work};
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
