//! How likely the model finds a given continuation, as classification and evaluation harnesses ask.

use super::finite;
use crate::error::{Error, Result};
use crate::generate::{LogSoftmax, Session, first_largest};
use crate::tokenizer::SpecialTokens;

/// What [`Session::score`] says of a continuation.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Score {
    /// The sum of its tokens' log-probabilities, each given all before it.
    pub logprob: f64,
    /// How many tokens were scored: those of the continuation, at least one.
    pub tokens: usize,
    /// Whether each of them is the most likely in its place, so that greedy generation would have written it.
    pub is_greedy: bool,
}

impl Session {
    /// Scores each of `continuations` after `context`, which has at least one token.
    ///
    /// The sequence becomes `context`. What it has in common with the one before is not computed again, and `context`
    /// is computed once for all continuations. A continuation without tokens is an error: it would be certain, and so
    /// more likely than any other. The session's [`CancelToken`](crate::CancelToken) ends it with
    /// [`Error::Cancelled`], between two continuations, too.
    pub fn score(&mut self, context: &[u32], continuations: &[&[u32]]) -> Result<Vec<Score>> {
        if let Some(index) = continuations.iter().position(|tokens| tokens.is_empty()) {
            return Err(no_tokens(format!("none in number {}", index + 1)));
        }
        let kept = self.keep_common_prefix(context);
        let first = finite(self.feed(&context[kept..])?)?.to_vec();
        let mut scores = Vec::with_capacity(continuations.len());
        for continuation in continuations {
            self.check_cancelled()?;
            let score = self.score_one(&first, continuation);
            self.truncate(context.len());
            scores.push(score?);
        }
        Ok(scores)
    }

    /// Scores each of `continuations` as a text that follows the text `context`, in which control tokens are text.
    ///
    /// Context and continuation are encoded together, and the blanks at the context's end belong to the continuation,
    /// as in evaluation harnesses. The continuation begins with the first token that is not the context's own. That is
    /// usually the one after the context's last, but an earlier one if the two merge into one token, as `un` and `able`
    /// may. [`Score::tokens`] says how many were scored. If the context has no token left, the token that begins a text
    /// takes its place.
    pub fn score_texts(&mut self, context: &str, continuations: &[impl AsRef<str>]) -> Result<Vec<Score>> {
        let alone = self.encode_within_context(context.trim_end())?;
        let cut = |continuation: &_| self.cut(&alone, &[context, AsRef::as_ref(continuation)].concat());
        let pairs = continuations.iter().map(cut).collect::<Result<Vec<_>>>()?;
        let mut scores = Vec::with_capacity(pairs.len());
        // Nearly always one group: a context's tokens rarely depend on what follows.
        for group in pairs.chunk_by(|a, b| a.0 == b.0) {
            let continuations: Vec<&[u32]> = group.iter().map(|pair| &pair.1[..]).collect();
            scores.extend(self.score(&group[0].0, &continuations)?);
        }
        Ok(scores)
    }

    /// The tokens of a context and of what follows it in `text`, where the context's are `alone` without anything after it.
    fn cut(&self, alone: &[u32], text: &str) -> Result<(Vec<u32>, Vec<u32>)> {
        self.check_cancelled()?;
        let mut tokens = self.encode_within_context(text)?;
        let common = tokens.iter().zip(alone).take_while(|(a, b)| a == b).count();
        let continuation = tokens.split_off(common);
        if continuation.is_empty() {
            return Err(no_tokens("one without".into()));
        }
        if tokens.is_empty() {
            tokens.extend(self.model().config().bos_token_id);
        }
        Ok((tokens, continuation))
    }

    /// The tokens of a text that the sequence has room for, whose last one is not fed.
    fn encode_within_context(&self, text: &str) -> Result<Vec<u32>> {
        let limit = self.most_tokens();
        let tokens =
            self.model().tokenizer().encode_within(text, SpecialTokens::AsText, limit.saturating_add(1));
        tokens.map_err(|error| match error {
            Error::TextTooLong { needed, .. } => Error::TextTooLong { needed, limit },
            other => other,
        })
    }

    /// Scores `continuation` after the sequence so far, whose last logits are `first`.
    fn score_one(&mut self, first: &[f32], continuation: &[u32]) -> Result<Score> {
        let mut score = Score { logprob: 0.0, tokens: continuation.len(), is_greedy: true };
        let Some((&last, before)) = continuation.split_last() else {
            return Err(no_tokens("one without".into()));
        };
        let vocab_size = first.len();
        if last as usize >= vocab_size {
            return Err(Error::TokenId { id: last, vocab_size });
        }
        let mut is_finite = true;
        let mut add = |id: u32, logits: &[f32]| match finite(logits) {
            Ok(logits) => score.add(id, logits),
            Err(_) => is_finite = false,
        };
        if before.is_empty() {
            add(last, first);
        } else {
            self.feed_all(before, |index, logits| {
                // Ids before the last are checked by now.
                if index == 0 {
                    add(before[0], first);
                }
                add(continuation[index + 1], logits);
            })?;
        }
        if is_finite { Ok(score) } else { Err(Error::NotFinite) }
    }
}

/// There is a continuation with nothing to score.
fn no_tokens(found: String) -> Error {
    Error::Argument { name: "continuations", expected: "at least one token in each".into(), found }
}

impl Score {
    fn add(&mut self, id: u32, logits: &[f32]) {
        self.logprob += LogSoftmax::new(logits).of(id);
        self.is_greedy &= first_largest(logits) == id;
    }
}
