//! From a prompt to a stream of tokens: session, sampler, text.

mod cancel;
#[cfg(feature = "chat")]
mod chat;
mod generator;
mod logprobs;
mod perplexity;
mod rng;
mod sampler;
mod score;
mod session;
mod stop;
mod stream;

pub use self::cancel::CancelToken;
#[cfg(feature = "chat")]
pub use self::chat::{ChatOptions, ChatTemplate, Message, TemplateVariable};
pub use self::generator::{FinishReason, GenerateOptions, Generation, Generator, Token};
pub use self::logprobs::{Alternative, Logprobs};
pub use self::perplexity::{Comparison, ComparisonWindows, Perplexity, PerplexityOptions, PerplexityWindows};
pub use self::sampler::{Sampler, SamplerStep, Sampling};
pub use self::score::Score;
pub use self::session::{Session, SessionOptions};
pub use self::stream::TextStream;
use crate::model::Model;
use crate::tokenizer::Tokenizer;

impl Model {
    /// The model's tokenizer, straight on the blob's tables: making one costs nothing.
    pub fn tokenizer(&self) -> Tokenizer {
        Tokenizer::new(self.storage().clone(), self.layout())
    }
}
