//! From logits to a token.

mod candidates;
mod history;
pub(super) mod math;
mod options;
#[cfg(test)]
mod tests;

use self::candidates::Candidates;
use self::history::History;
pub use self::options::{SamplerStep, Sampling};
use super::rng::Rng;
use crate::error::{Error, Result};

/// Chooses tokens by a [`Sampling`]: the same ones for the same seed and logits, wherever it runs.
///
/// It takes memory in proportion to the vocabulary when it is made. Choosing a token allocates nothing.
#[derive(Clone, Debug)]
pub struct Sampler {
    sampling: Sampling,
    vocab_size: usize,
    rng: Rng,
    /// The tokens to penalize, if any.
    history: Option<History>,
    candidates: Candidates,
}

impl Sampler {
    /// A sampler for `vocab_size` tokens, or an error where an option makes no sense.
    pub fn new(sampling: Sampling, vocab_size: usize) -> Result<Sampler> {
        sampling.check(vocab_size)?;
        let history = sampling.has_penalties().then(|| History::new(vocab_size, sampling.penalty_window));
        let is_trivial = sampling.is_greedy() && history.is_none() && !sampling.has_bias();
        Ok(Sampler {
            rng: Rng::new(sampling.seed),
            candidates: Candidates::new(if is_trivial { 0 } else { vocab_size }),
            sampling,
            vocab_size,
            history,
        })
    }

    /// Tells the sampler of the sequence's next token, of its prompt or chosen, for the penalties to look at.
    pub fn accept(&mut self, id: u32) -> Result<()> {
        if id as usize >= self.vocab_size {
            return Err(Error::TokenId { id, vocab_size: self.vocab_size });
        }
        if let Some(history) = &mut self.history {
            history.push(id);
        }
        Ok(())
    }

    /// Chooses a token; `logits`: `[vocab_size]`.
    pub fn sample(&mut self, logits: &[f32]) -> Result<u32> {
        if self.sampling.is_greedy() && self.history.is_none() && !self.sampling.has_bias() {
            self.check(logits)?;
            return Ok(first_largest(logits));
        }
        self.narrow(logits)?;
        Ok(match self.sampling.is_greedy() {
            true => self.candidates.most_likely(),
            false => self.candidates.draw(&mut self.rng),
        })
    }

    /// The tokens that [`Sampler::sample`] would draw from, by id, each with its probability. With temperature 0 they
    /// are what bias and penalties leave, of which it takes the most likely.
    pub fn probabilities(&mut self, logits: &[f32]) -> Result<impl Iterator<Item = (u32, f64)> + '_> {
        self.narrow(logits)?;
        Ok(self.candidates.probabilities())
    }

    /// Applies every step to `logits`.
    fn narrow(&mut self, logits: &[f32]) -> Result<()> {
        self.check(logits)?;
        self.candidates.fill(logits);
        for at in 0..self.sampling.order.len() {
            self.apply(self.sampling.order[at])?;
        }
        Ok(())
    }

    fn apply(&mut self, step: SamplerStep) -> Result<()> {
        let (sampling, candidates) = (&self.sampling, &mut self.candidates);
        match step {
            SamplerStep::Bias if sampling.has_bias() => return self.add_bias(),
            SamplerStep::Penalties => self.penalise(),
            _ if sampling.is_greedy() => {}
            SamplerStep::Temperature if sampling.temperature != 1.0 => {
                candidates.divide(sampling.temperature)
            }
            SamplerStep::TopK if sampling.top_k > 0 => candidates.keep_top_k(sampling.top_k),
            SamplerStep::TopP if sampling.top_p < 1.0 => candidates.keep_top_p(sampling.top_p),
            SamplerStep::MinP if sampling.min_p > 0.0 => candidates.keep_min_p(sampling.min_p),
            SamplerStep::Typical if sampling.typical_p < 1.0 => candidates.keep_typical(sampling.typical_p),
            _ => {}
        }
        Ok(())
    }

    fn add_bias(&mut self) -> Result<()> {
        for &(id, bias) in &self.sampling.logit_bias {
            self.candidates.adjust(id, |logit| logit + f64::from(bias));
        }
        self.candidates.drop_ruled_out()
    }

    fn penalise(&mut self) {
        let Sampling { repetition_penalty, frequency_penalty, presence_penalty, .. } = self.sampling;
        let repetition = f64::from(repetition_penalty);
        for (id, count) in self.history.iter().flat_map(History::counts) {
            let flat = f64::from(frequency_penalty) * f64::from(count) + f64::from(presence_penalty);
            self.candidates.adjust(id, |logit| {
                let scaled = if logit > 0.0 { logit / repetition } else { logit * repetition };
                scaled - flat
            });
        }
    }

    fn check(&self, logits: &[f32]) -> Result<()> {
        if logits.len() != self.vocab_size {
            let (expected, found) = (format!("{} numbers", self.vocab_size), logits.len().to_string());
            return Err(Error::Argument { name: "logits", expected, found });
        }
        match logits.iter().all(|logit| logit.is_finite()) {
            true => Ok(()),
            false => Err(Error::NotFinite),
        }
    }
}

/// The first id with the largest logit.
pub(crate) fn first_largest(logits: &[f32]) -> u32 {
    let better = |best: (u32, f32), next: (u32, f32)| if next.1 > best.1 { next } else { best };
    (0u32..).zip(logits.iter().copied()).reduce(better).map_or(0, |best| best.0)
}
