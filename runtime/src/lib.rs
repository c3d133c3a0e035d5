//! smolrun runs a small language model from one mapped file.
//!
//! `smolconv` turns a checkpoint into a *blob* once. [`Model::open`] maps the blob and checks its directory, which
//! takes microseconds. A [`Session`] generates from it:
//!
//! ```no_run
//! use std::io::Write;
//!
//! use smolrun::{GenerateOptions, Model, Session, SessionOptions};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let model = Model::open("tales.bin")?;
//! let prompt = model.encode_prompt("Once upon a time")?;
//! let mut session = Session::new(&model, SessionOptions::default())?;
//! for token in session.generate(&prompt, GenerateOptions::default().max_tokens(100))? {
//!     print!("{}", token?.text);
//!     std::io::stdout().flush()?;
//! }
//! # Ok(())
//! # }
//! ```
//!
//! A conversation is a list of `Message`s (feature `chat`), which the checkpoint's own template makes a prompt. Of the next turn's
//! prompt the session knows all that was said before, and computes only what is new. A [`CancelToken`] ends an answer from anywhere:
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
//! let sampling = Sampling::default().temperature(0.7).top_p(0.9).seed(1);
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
//!     cancel.reset(); // a cancel from before this answer does not count
//!     for token in session.generate(&prompt[kept..], options)? {
//!         let token = token?;
//!         print!("{}", token.text);
//!         std::io::stdout().flush()?;
//!         answer += &token.text;
//!     }
//!     println!();
//!     messages.push(Message::new("assistant", answer)); // the part so far, if it was cancelled
//! }
//! # }
//! # Ok(())
//! # }
//! ```
//!
//! The library never prints, exits or panics on a bad file or argument: everything it has to say is an [`Error`].
//!
//! What most programs need is at the crate's root. The rest lies in modules by topic: conversations in `chat` (behind the
//! feature `chat`), scores and perplexity in [`eval`], the blob's layout in [`format`](mod@format), the parts of a generation in
//! [`generation`], many requests at once in [`scheduler`].

#![warn(missing_debug_implementations)]

#[cfg(feature = "bench")]
#[doc(hidden)]
pub mod bench;
mod cancel;
#[cfg(feature = "chat")]
pub mod chat;
mod error;
pub mod eval;
mod exec;
pub mod format;
mod generate;
mod kernels;
mod machine;
mod model;
mod sequence;
pub mod storage;
pub mod tokenizer;
mod verify;

pub use self::cancel::CancelToken;
#[cfg(feature = "chat")]
#[doc(inline)]
pub use self::chat::Message;
pub use self::error::{Error, Result};
pub use self::generate::{
    FinishReason, GenerateOptions, PromptOptions, Sampling, Session, SessionOptions, Token,
};
pub use self::kernels::Kernels;
#[doc(hidden)] // the converter's
pub use self::kernels::{Features, PlainOp, exp, one_by_one, sin_cos};
#[doc(hidden)] // for `smolrun bench`
pub use self::machine::Machine;
#[doc(hidden)] // the converter's
pub use self::model::Activations;
pub use self::model::{Fast, KvDtype, Model, Overflow};
#[doc(inline)]
pub use self::tokenizer::SpecialTokens;

pub mod embedding {
    //! Texts as vectors: see [`Session::embed`](crate::Session::embed).

    pub use crate::generate::Pooling;
}

pub mod engine {
    //! One model and many sequences: for hosts that put passes together themselves.
    //!
    //! An [`Engine`] runs a pass over [`Rows`] of any [`Sequence`]s at once. A [`Session`](crate::Session) is an
    //! engine with one sequence.

    pub use crate::model::{Engine, EngineOptions, PassError, PrefixCache, Rows, Sequence};
}

pub mod generation {
    //! The parts of a generation: for hosts that drive one themselves, and for what is said of each token.
    //!
    //! [`Tokens`] is the iterator that [`Session::generate`](crate::Session::generate) gives, and [`Generation`] the state
    //! in it, to be kept beside a session. [`Sampler`] chooses a token by its logits, [`TextStream`] makes text of tokens'
    //! bytes.

    pub use crate::generate::{Alternative, Generation, Logprobs, Sampler, SamplerStep, TextStream, Tokens};
}

pub mod scheduler {
    //! Many requests on one engine: continuous batching.
    //!
    //! A [`Scheduler`] takes [`Request`]s and gives their tokens, each as [`Event`]s of its [`RequestId`]. What a request
    //! generates does not depend on the others.

    pub use crate::generate::{Event, Request, RequestId, Scheduler, SchedulerOptions};
}

pub mod threads {
    //! Worker threads that the caller starts: see [`SessionOptions::spawn`](crate::SessionOptions#structfield.spawn).

    pub use crate::exec::{Spawn, Work};
}

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
