//! What comes after a sequence, token by token.

use super::cancel::CancelToken;
use super::logprobs::{LogSoftmax, Logprobs};
use super::options::GenerateOptions;
use super::sampler::Sampler;
use super::session::Session;
use super::stop::StopStrings;
use super::stream::TextStream;
use crate::error::{Error, Result};
use crate::tokenizer::Tokenizer;

/// Tokens of a prompt between one look at the [`CancelToken`] and the next.
const TOKENS_BETWEEN_LOOKS: usize = 256;

/// Why a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FinishReason {
    /// The model generated one of its end ids.
    Eos,
    /// A stop string came.
    Stop,
    /// `max_tokens` were generated.
    Length,
    /// The context is full.
    Context,
    /// The [`CancelToken`] was used.
    Cancelled,
}

impl FinishReason {
    /// `eos`, `stop`, `length`, `context` or `cancelled`.
    pub fn name(self) -> &'static str {
        match self {
            FinishReason::Eos => "eos",
            FinishReason::Stop => "stop",
            FinishReason::Length => "length",
            FinishReason::Context => "context",
            FinishReason::Cancelled => "cancelled",
        }
    }
}

/// A generated token.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Token {
    /// Its id.
    pub id: u32,
    /// The text that is complete with it. There is none while a character is unfinished or a stop string may be coming,
    /// and none for a control token.
    pub text: String,
    /// How likely it was, if that was asked for.
    pub logprobs: Option<Logprobs>,
    /// Why it is the last one, if it is.
    pub finish_reason: Option<FinishReason>,
}

/// The state of a generation, without the session, which is lent to it at each token.
///
/// It is for hosts that keep both side by side, such as an event loop between whose turns a token is generated. Others ask
/// [`Session::generate`] for [`Tokens`](super::Tokens), an iterator that has both.
///
/// A token allocates the text that it returns, and the alternatives that it names; where there are stop strings, the text a
/// second time. Nothing else is allocated for it, beyond what [`Session::feed`] may.
pub struct Generation {
    tokenizer: Tokenizer,
    sampler: Sampler,
    text: TextStream,
    stop: StopStrings,
    cancel: CancelToken,
    /// Tokens that the model has not seen yet: the prompt, then each token in turn.
    next: Vec<u32>,
    left: usize,
    /// How many alternatives to name, and scratch for finding them.
    logprobs: Option<(usize, Vec<u32>)>,
    /// Whether the prompt was run.
    is_begun: bool,
    is_finished: bool,
    finish_reason: Option<FinishReason>,
}

impl Generation {
    /// A generation of what comes after `prompt`, which comes after what `session` holds. Nothing is run yet.
    pub fn new(session: &Session, prompt: &[u32], options: GenerateOptions) -> Result<Generation> {
        if options.stop.iter().any(String::is_empty) {
            let (expected, found) = ("texts that are not empty".into(), "an empty one".into());
            return Err(Error::Argument { name: "stop", expected, found });
        }
        let is_finished = options.max_tokens == 0;
        let mut sampler = Sampler::new(options.sampling, session.model().config().vocab_size)?;
        session.tokens().iter().try_for_each(|&id| sampler.accept(id))?;
        Ok(Generation {
            tokenizer: session.model().tokenizer(),
            sampler,
            text: TextStream::default(),
            stop: StopStrings::new(options.stop),
            cancel: options.cancel,
            next: prompt.to_vec(),
            left: options.max_tokens,
            logprobs: options.logprobs.map(|top| (top, Vec::new())),
            is_begun: false,
            is_finished,
            finish_reason: is_finished.then_some(FinishReason::Length),
        })
    }

    /// The next token; after an error or the last token, none. `session` must be the one that it was made with, and
    /// nothing else may have been fed to it since.
    pub fn next(&mut self, session: &mut Session) -> Option<Result<Token>> {
        if self.is_finished {
            return None;
        }
        let token = self.step(session);
        self.is_finished = token.is_err() || self.finish_reason.is_some();
        token.transpose()
    }

    /// Why it ended, once it has. Usually its last token says so. Without one it ended before the first token: it was
    /// told to, or `max_tokens` is 0.
    pub fn finish_reason(&self) -> Option<FinishReason> {
        self.finish_reason
    }

    /// The next token; none if it was cancelled before there was one.
    fn step(&mut self, session: &mut Session) -> Result<Option<Token>> {
        let Some((id, logprobs)) = self.choose(session)? else {
            self.finish_reason = Some(FinishReason::Cancelled);
            return Ok(None);
        };
        self.next.clear();
        self.next.push(id);
        self.left -= 1;
        let text = self.show(session, id)?;
        Ok(Some(Token { id, text, logprobs, finish_reason: self.finish_reason }))
    }

    /// Feeds what the model has not seen and chooses what follows; none if it was cancelled within the prompt.
    fn choose(&mut self, session: &mut Session) -> Result<Option<(u32, Option<Logprobs>)>> {
        let Generation { sampler, cancel, next, logprobs, is_begun, .. } = self;
        session.check(next)?;
        next.iter().try_for_each(|&id| sampler.accept(id))?;
        // All but the last few, between looks.
        let last = (next.len() - 1) / TOKENS_BETWEEN_LOOKS * TOKENS_BETWEEN_LOOKS;
        let is_cancelled = || !*is_begun && cancel.is_cancelled();
        for tokens in next[..last].chunks(TOKENS_BETWEEN_LOOKS) {
            if is_cancelled() {
                return Ok(None);
            }
            session.feed(tokens)?;
        }
        if is_cancelled() {
            return Ok(None);
        }
        *is_begun = true;
        let logits = session.feed(&next[last..])?;
        let id = sampler.sample(logits)?;
        let of = |(top, scratch): &mut (usize, Vec<u32>)| LogSoftmax::new(logits).with_top(id, *top, scratch);
        Ok(Some((id, logprobs.as_mut().map(of))))
    }

    /// The text to show with token `id`, and `finish_reason` if it is the last.
    fn show(&mut self, session: &Session, id: u32) -> Result<String> {
        let mut text = String::new();
        if !self.tokenizer.is_special(id)? {
            let complete = self.text.push(self.tokenizer.token_bytes(id)?);
            text = self.stop.push(complete);
        }
        self.finish_reason = self.why_finished(session, id);
        if self.finish_reason.is_some() {
            let rest = self.text.finish();
            text += &self.stop.push(rest);
            text += &self.stop.finish();
        }
        Ok(text)
    }

    fn why_finished(&self, session: &Session, id: u32) -> Option<FinishReason> {
        let config = session.model().config();
        if config.eos_token_ids.contains(&id) {
            Some(FinishReason::Eos)
        } else if self.stop.is_hit() {
            Some(FinishReason::Stop)
        } else if self.left == 0 {
            Some(FinishReason::Length)
        } else if session.is_full() {
            Some(FinishReason::Context)
        } else {
            self.cancel.is_cancelled().then_some(FinishReason::Cancelled)
        }
    }
}
