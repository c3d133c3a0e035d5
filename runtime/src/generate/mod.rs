//! From a prompt to a stream of tokens: session, sampler, text.

mod generation;
mod hidden;
mod logprobs;
mod options;
mod prompt;
mod rng;
mod sampler;
mod scheduler;
mod session;
mod stop;
mod stream;
mod token;
mod token_stream;
mod tokens;

pub use self::generation::Generation;
pub use self::hidden::Pooling;
pub(crate) use self::logprobs::LogSoftmax;
pub use self::logprobs::{Alternative, Logprobs};
pub use self::options::GenerateOptions;
pub use self::prompt::PromptOptions;
pub(crate) use self::sampler::first_largest;
pub use self::sampler::{Sampler, SamplerStep, Sampling};
pub use self::scheduler::{Event, Request, RequestId, Scheduler, SchedulerOptions};
pub use self::session::{Session, SessionOptions};
pub use self::stream::TextStream;
pub use self::token::{FinishReason, Token};
pub use self::tokens::Tokens;
