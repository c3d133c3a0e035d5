//! What comes after a sequence, token by token.

use super::options::GenerateOptions;
use super::session::Session;
use super::token::{FinishReason, Token};
use super::token_stream::{Chosen, TokenScratch, TokenStream};
use crate::error::{Error, Result};
use std::fmt;

/// Tokens of a prompt between one look at the [`CancelToken`](crate::CancelToken) and the next.
const TOKENS_BETWEEN_LOOKS: usize = 256;

/// The state of a generation, without the session, which is lent to it at each token.
///
/// It is for hosts that keep both side by side, such as an event loop between whose turns a token is generated. Others ask
/// [`Session::generate`] for [`Tokens`](super::Tokens), an iterator that has both.
///
/// A token allocates the text that it returns, and the alternatives that it names; where there are stop strings, the text a
/// second time. Nothing else is allocated for it, beyond what [`Session::feed`] may.
pub struct Generation {
    stream: TokenStream,
    scratch: TokenScratch,
    /// Tokens that the model has not seen yet: the prompt, then each token in turn.
    next: Vec<u32>,
    /// Whether the prompt was run.
    is_begun: bool,
    is_finished: bool,
}

impl Generation {
    /// A generation of what comes after `prompt`, which comes after what `session` holds. Nothing is run yet.
    pub fn new(session: &Session, prompt: &[u32], options: GenerateOptions) -> Result<Generation> {
        session.check(prompt)?;
        let mut stream = TokenStream::new(session.model(), options)?;
        session.tokens().iter().try_for_each(|&id| stream.accept(id))?;
        let mut scratch = TokenScratch::default();
        stream.reserve(&mut scratch);
        let (next, is_finished) = (prompt.to_vec(), stream.finish_reason().is_some());
        Ok(Generation { stream, scratch, next, is_begun: false, is_finished })
    }

    /// The next token; after an error or the last token, none. `session` must be the one that it was made with, and
    /// nothing else may have been fed to it since.
    pub fn next(&mut self, session: &mut Session) -> Option<Result<Token>> {
        if self.is_finished {
            return None;
        }
        let token = self.step(session);
        if matches!(token, Err(Error::Cancelled)) {
            self.stream.cancel();
        }
        self.is_finished = token.is_err() || self.finish_reason().is_some();
        token.transpose()
    }

    /// Why it ended, once it has. Usually its last token says so. Without one it ended before the first token, because it
    /// was told to or because `max_tokens` is 0, or within a pass, because its session was told to.
    pub fn finish_reason(&self) -> Option<FinishReason> {
        self.stream.finish_reason()
    }

    /// The next token; none if it was cancelled before there was one.
    fn step(&mut self, session: &mut Session) -> Result<Option<Token>> {
        let Some(chosen) = self.choose(session)? else {
            self.stream.cancel();
            return Ok(None);
        };
        let token = self.stream.show(chosen, session.is_full())?;
        self.next.clear();
        self.next.push(token.id);
        Ok(Some(token))
    }

    /// Feeds what the model has not seen and chooses what follows; none if it was cancelled within the prompt.
    fn choose(&mut self, session: &mut Session) -> Result<Option<Chosen>> {
        let Generation { stream, scratch, next, is_begun, .. } = self;
        session.check(next)?;
        if !*is_begun {
            next.iter().try_for_each(|&id| stream.accept(id))?;
        }
        // All but the last few, between looks.
        let last = (next.len() - 1) / TOKENS_BETWEEN_LOOKS * TOKENS_BETWEEN_LOOKS;
        for tokens in next[..last].chunks(TOKENS_BETWEEN_LOOKS) {
            if !*is_begun && stream.is_cancelled() {
                return Ok(None);
            }
            session.feed(tokens)?;
        }
        if !*is_begun && stream.is_cancelled() {
            return Ok(None);
        }
        *is_begun = true;
        let logits = session.feed(&next[last..])?;
        stream.choose(logits, scratch).map(Some)
    }
}

impl fmt::Debug for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Generation").field("finish_reason", &self.finish_reason()).finish_non_exhaustive()
    }
}
