//! Logits in, tokens out.

use super::logprobs::{LogSoftmax, Logprobs};
use super::options::GenerateOptions;
use super::sampler::{Candidates, SamplerChain};
use super::stop::StopStrings;
use super::stream::TextStream;
use super::token::{FinishReason, Token};
use crate::cancel::CancelToken;
use crate::error::Result;
use crate::model::Model;
use crate::tokenizer::Tokenizer;

/// One generation's choices: it chooses each token by the logits before it, makes its text, and knows why it is the
/// last.
///
/// Whoever has it runs the model, be it for this generation alone or for many at once.
pub(super) struct TokenStream {
    model: Model,
    tokenizer: Tokenizer,
    sampler: SamplerChain,
    text: TextStream,
    stop: StopStrings,
    cancel: CancelToken,
    left: usize,
    /// How many alternatives to name.
    logprobs: Option<usize>,
    finish_reason: Option<FinishReason>,
}

/// Memory to choose a token with. One serves any number of streams in turn.
#[derive(Default)]
pub(super) struct TokenScratch {
    candidates: Candidates,
    /// For finding the likeliest alternatives.
    ids: Vec<u32>,
}

/// A chosen token, not yet shown.
pub(super) struct Chosen {
    id: u32,
    logprobs: Option<Logprobs>,
}

impl TokenStream {
    /// A stream that has seen no token of its sequence yet: see [`TokenStream::accept`].
    pub(super) fn new(model: &Model, options: GenerateOptions) -> Result<TokenStream> {
        options.check(model)?;
        Ok(TokenStream {
            model: model.clone(),
            tokenizer: model.tokenizer(),
            sampler: SamplerChain::new(options.sampling, model.config().vocab_size)?,
            text: TextStream::default(),
            stop: StopStrings::new(options.stop),
            cancel: options.cancel,
            left: options.max_tokens,
            logprobs: options.logprobs,
            finish_reason: (options.max_tokens == 0).then_some(FinishReason::Length),
        })
    }

    /// Tells it of the sequence's next token that it has not chosen itself, for the penalties to look at.
    pub(super) fn accept(&mut self, id: u32) -> Result<()> {
        self.sampler.accept(id)
    }

    /// Whether its [`CancelToken`] was used.
    pub(super) fn is_cancelled(&self) -> bool {
        self.cancel.is_cancelled()
    }

    /// Ends it without another token, as one that was cancelled.
    pub(super) fn cancel(&mut self) {
        self.finish_reason = Some(FinishReason::Cancelled);
    }

    /// Why it ended, once it has.
    pub(super) fn finish_reason(&self) -> Option<FinishReason> {
        self.finish_reason
    }

    /// Takes the memory now that choosing a token may take from `scratch`.
    pub(super) fn reserve(&self, scratch: &mut TokenScratch) {
        let vocab_size = self.model.config().vocab_size;
        if !self.sampler.is_trivial() {
            scratch.candidates.reserve(vocab_size);
        }
        if self.logprobs.is_some() {
            scratch.ids.reserve(vocab_size.saturating_sub(scratch.ids.len()));
        }
    }

    /// Chooses the token after `logits`, `[vocab_size]`.
    pub(super) fn choose(&mut self, logits: &[f32], scratch: &mut TokenScratch) -> Result<Chosen> {
        let id = self.sampler.sample(logits, &mut scratch.candidates)?;
        self.sampler.accept(id)?;
        let of = |top| LogSoftmax::new(logits).with_top(id, top, &mut scratch.ids);
        Ok(Chosen { id, logprobs: self.logprobs.map(of) })
    }

    /// The token with the text that is complete with it. `is_full` says that the sequence has no room for it.
    pub(super) fn show(&mut self, chosen: Chosen, is_full: bool) -> Result<Token> {
        let Chosen { id, logprobs } = chosen;
        self.left = self.left.saturating_sub(1);
        let mut text = String::new();
        if !self.tokenizer.is_special(id)? {
            let complete = self.text.push(self.tokenizer.token_bytes(id)?);
            text = self.stop.push(complete);
        }
        self.finish_reason = self.why_finished(id, is_full);
        if self.finish_reason.is_some() {
            let rest = self.text.finish();
            text += &self.stop.push(rest);
            text += &self.stop.finish();
        }
        Ok(Token { id, text, logprobs, finish_reason: self.finish_reason })
    }

    fn why_finished(&self, id: u32, is_full: bool) -> Option<FinishReason> {
        if self.model.config().eos_token_ids.contains(&id) {
            Some(FinishReason::Eos)
        } else if self.stop.is_hit() {
            Some(FinishReason::Stop)
        } else if self.left == 0 {
            Some(FinishReason::Length)
        } else if is_full {
            Some(FinishReason::Context)
        } else {
            self.is_cancelled().then_some(FinishReason::Cancelled)
        }
    }
}
