//! From a prompt to a stream of tokens: session, sampler, text.

#[cfg(feature = "chat")]
mod chat;
mod rng;
mod sampler;
mod session;
mod stream;

#[cfg(feature = "chat")]
pub use self::chat::Message;
pub use self::sampler::{Sampler, Sampling};
pub use self::session::{FinishReason, GenerateOptions, Generator, Session, SessionOptions, Token};
pub use self::stream::TextStream;
use crate::model::Model;
use crate::tokenizer::Tokenizer;

impl Model {
    /// The model's tokenizer, straight on the blob's tables: making one costs nothing.
    pub fn tokenizer(&self) -> Tokenizer {
        Tokenizer::new(self.storage().clone(), self.layout())
    }
}
