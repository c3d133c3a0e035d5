//! How likely the model finds a given continuation: what classification and evaluation harnesses ask for.

use super::Session;
use super::logprobs::LogSoftmax;
use super::sampler::first_largest;
use crate::error::{Error, Result};

/// What [`Session::score`] says of a continuation.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Score {
    /// The sum of its tokens' log-probabilities, each given all before it.
    pub logprob: f64,
    /// How many tokens it has.
    pub tokens: usize,
    /// Whether each of them is the likeliest in its place: what greedy generation would have said.
    pub is_greedy: bool,
}

impl Session {
    /// Scores each of `continuations` after `context`, of which there is at least one token.
    ///
    /// The sequence becomes `context`; what it has in common with the one before is not computed again, and `context`
    /// is computed once for all of them.
    pub fn score(&mut self, context: &[u32], continuations: &[&[u32]]) -> Result<Vec<Score>> {
        let kept = self.keep_common_prefix(context);
        let first = finite(self.feed(&context[kept..])?)?.to_vec();
        let mut scores = Vec::with_capacity(continuations.len());
        for continuation in continuations {
            let score = self.score_one(&first, continuation);
            self.truncate(context.len());
            scores.push(score?);
        }
        Ok(scores)
    }

    /// Scores `continuation` after the sequence so far, whose last logits are `first`.
    fn score_one(&mut self, first: &[f32], continuation: &[u32]) -> Result<Score> {
        let mut score = Score { logprob: 0.0, tokens: continuation.len(), is_greedy: true };
        let Some((&last, before)) = continuation.split_last() else { return Ok(score) };
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

impl Score {
    fn add(&mut self, id: u32, logits: &[f32]) {
        self.logprob += LogSoftmax::new(logits).of(id);
        self.is_greedy &= first_largest(logits) == id;
    }
}

/// `logits`, or an error if one of them is none.
pub(super) fn finite(logits: &[f32]) -> Result<&[f32]> {
    match logits.iter().all(|logit| logit.is_finite()) {
        true => Ok(logits),
        false => Err(Error::NotFinite),
    }
}
