//! One sequence: its tokens so far, and what is generated after them.

use std::fmt;
use std::thread::available_parallelism;

use super::sampler::{Sampler, Sampling};
use super::stream::TextStream;
use crate::error::{Error, Result};
use crate::kernels::Kernels;
use crate::model::{Forward, KvDtype, Model};
use crate::pool::Pool;
use crate::tokenizer::Tokenizer;

/// Most threads a session may ask for.
const MAX_THREADS: usize = 1024;

/// How a session computes.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct SessionOptions {
    /// Threads, the caller's included; by default as many as the process may use at once. The result does not depend
    /// on it. With 1 no thread is started.
    pub threads: Option<usize>,
    /// Instruction set; by default `SMOLRUN_ISA`'s, or the fastest there is. The result does not depend on it.
    pub kernels: Option<Kernels>,
    /// How keys and values are kept.
    pub kv_dtype: KvDtype,
}

impl SessionOptions {
    /// These options with `threads` threads.
    pub fn threads(self, threads: usize) -> SessionOptions {
        SessionOptions { threads: Some(threads), ..self }
    }

    /// These options with this instruction set.
    pub fn kernels(self, kernels: Kernels) -> SessionOptions {
        SessionOptions { kernels: Some(kernels), ..self }
    }

    /// These options with keys and values kept in this way.
    pub fn kv_dtype(self, kv_dtype: KvDtype) -> SessionOptions {
        SessionOptions { kv_dtype, ..self }
    }
}

/// One sequence of tokens over a model: a KV cache, scratch and worker threads of its own.
///
/// Memory for the cache comes as the sequence grows. Sessions over one model share its weights.
pub struct Session {
    forward: Forward,
}

/// What to generate.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct GenerateOptions {
    /// Most tokens to generate.
    pub max_tokens: usize,
    /// How each is chosen.
    pub sampling: Sampling,
}

impl Default for GenerateOptions {
    fn default() -> GenerateOptions {
        GenerateOptions { max_tokens: 256, sampling: Sampling::default() }
    }
}

impl GenerateOptions {
    /// These options with at most `max_tokens` tokens.
    pub fn max_tokens(self, max_tokens: usize) -> GenerateOptions {
        GenerateOptions { max_tokens, ..self }
    }

    /// These options with this way to choose tokens.
    pub fn sampling(self, sampling: Sampling) -> GenerateOptions {
        GenerateOptions { sampling, ..self }
    }
}

/// Why a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FinishReason {
    /// The model generated one of its end ids.
    Eos,
    /// `max_tokens` were generated.
    Length,
    /// The context is full.
    Context,
}

impl FinishReason {
    /// `eos`, `length` or `context`.
    pub fn name(self) -> &'static str {
        match self {
            FinishReason::Eos => "eos",
            FinishReason::Length => "length",
            FinishReason::Context => "context",
        }
    }
}

/// A generated token.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Token {
    /// Its id.
    pub id: u32,
    /// The text that is complete with it: nothing while a character is unfinished, nothing for a control token.
    pub text: String,
    /// Why it is the last one, if it is.
    pub finish_reason: Option<FinishReason>,
}

impl Session {
    /// An empty sequence.
    pub fn new(model: &Model, options: SessionOptions) -> Result<Session> {
        let threads = options.threads.unwrap_or_else(|| available_parallelism().map_or(1, usize::from));
        if !(1..=MAX_THREADS).contains(&threads) {
            let (expected, found) = (format!("1 to {MAX_THREADS}"), threads.to_string());
            return Err(Error::Argument { name: "threads", expected, found });
        }
        let kernels = options.kernels.map_or_else(Kernels::from_env, Ok)?;
        let pool = Pool::new(threads).map_err(|source| Error::Threads { source })?;
        Ok(Session { forward: Forward::new(model, kernels, pool, options.kv_dtype) })
    }

    /// The model it runs.
    pub fn model(&self) -> &Model {
        self.forward.model()
    }

    /// Tokens of the sequence so far.
    pub fn position(&self) -> usize {
        self.forward.position()
    }

    /// Threads it computes with.
    pub fn threads(&self) -> usize {
        self.forward.threads()
    }

    /// The instruction set it computes with.
    pub fn kernels(&self) -> Kernels {
        self.forward.kernels()
    }

    /// Bytes its KV cache has reserved.
    pub fn cache_bytes(&self) -> usize {
        self.forward.cache_bytes()
    }

    /// Forgets all tokens from `position` on.
    pub fn truncate(&mut self, position: usize) {
        self.forward.truncate(position);
    }

    /// Appends `tokens` and returns the logits after the last one, `[vocab_size]`.
    ///
    /// After an error in the middle of a long prompt, [`Session::position`] tells how many tokens were taken.
    pub fn feed(&mut self, tokens: &[u32]) -> Result<&[f32]> {
        self.forward.feed(tokens)
    }

    /// Appends `tokens` and calls `each` with every one's index in `tokens` and the logits after it, `[vocab_size]`.
    pub fn feed_all(&mut self, tokens: &[u32], mut each: impl FnMut(usize, &[f32])) -> Result<()> {
        self.forward.feed_all(tokens, &mut each)
    }

    /// Appends `prompt` and generates what comes after it. The work is done as the iterator is asked for tokens.
    pub fn generate(&mut self, prompt: &[u32], options: GenerateOptions) -> Result<Generator<'_>> {
        Ok(Generator {
            tokenizer: self.model().tokenizer(),
            sampler: Sampler::new(options.sampling)?,
            text: TextStream::default(),
            next: prompt.to_vec(),
            left: options.max_tokens,
            is_finished: options.max_tokens == 0,
            session: self,
        })
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("position", &self.position())
            .field("threads", &self.threads())
            .field("kernels", &self.kernels())
            .finish_non_exhaustive()
    }
}

/// The tokens that a session generates, one at each call of `next`; after an error or the last token, none.
pub struct Generator<'a> {
    session: &'a mut Session,
    tokenizer: Tokenizer,
    sampler: Sampler,
    text: TextStream,
    /// Tokens that the model has not seen yet: the prompt, then each token in turn.
    next: Vec<u32>,
    left: usize,
    is_finished: bool,
}

impl Iterator for Generator<'_> {
    type Item = Result<Token>;

    fn next(&mut self) -> Option<Result<Token>> {
        if self.is_finished {
            return None;
        }
        let token = self.step();
        self.is_finished = token.as_ref().map_or(true, |token| token.finish_reason.is_some());
        Some(token)
    }
}

impl Generator<'_> {
    fn step(&mut self) -> Result<Token> {
        let id = self.sampler.sample(self.session.feed(&self.next)?)?;
        self.next.clear();
        self.next.push(id);
        self.left -= 1;
        let finish_reason = self.finish_reason(id);
        let mut text = match self.tokenizer.is_special(id)? {
            true => String::new(),
            false => self.text.push(self.tokenizer.token_bytes(id)?),
        };
        if finish_reason.is_some() {
            text += &self.text.finish();
        }
        Ok(Token { id, text, finish_reason })
    }

    fn finish_reason(&self, id: u32) -> Option<FinishReason> {
        let config = self.session.model().config();
        if config.eos_token_ids.contains(&id) {
            Some(FinishReason::Eos)
        } else if self.left == 0 {
            Some(FinishReason::Length)
        } else if self.session.position() == config.max_position_embeddings {
            Some(FinishReason::Context)
        } else {
            None
        }
    }
}
