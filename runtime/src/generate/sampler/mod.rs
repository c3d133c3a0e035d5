//! From logits to a token.

mod candidates;
mod history;
pub(super) mod math;
mod options;
#[cfg(test)]
mod tests;

pub(super) use self::candidates::Candidates;
use self::history::History;
pub use self::options::{SamplerStep, Sampling};
use super::rng::Rng;
use crate::error::{Error, Result};

/// Chooses tokens by a [`Sampling`]: the same ones for the same seed and logits, wherever it runs.
///
/// It takes memory in proportion to the vocabulary when it is made. Choosing a token allocates nothing.
#[derive(Clone, Debug)]
pub struct Sampler {
    chain: SamplerChain,
    candidates: Candidates,
}

impl Sampler {
    /// A sampler for `vocab_size` tokens, or an error where an option makes no sense.
    pub fn new(sampling: Sampling, vocab_size: usize) -> Result<Sampler> {
        let chain = SamplerChain::new(sampling, vocab_size)?;
        let mut candidates = Candidates::default();
        if !chain.is_trivial() {
            candidates.reserve(vocab_size);
        }
        Ok(Sampler { chain, candidates })
    }

    /// Tells the sampler of the sequence's next token, of its prompt or chosen, for the penalties to look at.
    pub fn accept(&mut self, id: u32) -> Result<()> {
        self.chain.accept(id)
    }

    /// Chooses a token; `logits`: `[vocab_size]`.
    pub fn sample(&mut self, logits: &[f32]) -> Result<u32> {
        self.chain.sample(logits, &mut self.candidates)
    }

    /// The tokens that [`Sampler::sample`] would draw from, by id, each with its probability. With temperature 0 they
    /// are what bias and penalties leave, of which it takes the most likely.
    pub fn probabilities(&mut self, logits: &[f32]) -> Result<impl Iterator<Item = (u32, f64)> + '_> {
        self.chain.narrow(logits, &mut self.candidates)?;
        Ok(self.candidates.probabilities())
    }
}

/// A [`Sampler`] without the memory that choosing a token takes: that one is lent, and may serve many.
#[derive(Clone, Debug)]
pub(super) struct SamplerChain {
    sampling: Sampling,
    vocab_size: usize,
    rng: Rng,
    /// The tokens to penalize, if any.
    history: Option<History>,
}

impl SamplerChain {
    /// An error where an option makes no sense for `vocab_size` tokens.
    pub(super) fn check(sampling: &Sampling, vocab_size: usize) -> Result<()> {
        sampling.check(vocab_size)
    }

    /// A chain for `vocab_size` tokens, or an error where an option makes no sense.
    pub(super) fn new(sampling: Sampling, vocab_size: usize) -> Result<SamplerChain> {
        sampling.check(vocab_size)?;
        let history = sampling.has_penalties().then(|| History::new(vocab_size, sampling.penalty_window));
        Ok(SamplerChain { rng: Rng::new(sampling.seed), sampling, vocab_size, history })
    }

    /// Whether it takes the most likely token, whatever that is, and needs no candidates.
    pub(super) fn is_trivial(&self) -> bool {
        self.sampling.is_greedy() && self.history.is_none() && !self.sampling.has_bias()
    }

    /// As [`Sampler::accept`].
    pub(super) fn accept(&mut self, id: u32) -> Result<()> {
        if id as usize >= self.vocab_size {
            return Err(Error::TokenId { id, vocab_size: self.vocab_size });
        }
        if let Some(history) = &mut self.history {
            history.push(id);
        }
        Ok(())
    }

    /// As [`Sampler::sample`].
    pub(super) fn sample(&mut self, logits: &[f32], candidates: &mut Candidates) -> Result<u32> {
        if self.is_trivial() {
            self.check_logits(logits)?;
            return Ok(first_largest(logits));
        }
        self.narrow(logits, candidates)?;
        Ok(match self.sampling.is_greedy() {
            true => candidates.most_likely(),
            false => candidates.draw(&mut self.rng),
        })
    }

    /// Applies every step to `logits`.
    fn narrow(&self, logits: &[f32], candidates: &mut Candidates) -> Result<()> {
        self.check_logits(logits)?;
        candidates.fill(logits);
        self.sampling.sampler_order.iter().try_for_each(|&step| self.apply(step, candidates))
    }

    fn apply(&self, step: SamplerStep, candidates: &mut Candidates) -> Result<()> {
        let sampling = &self.sampling;
        match step {
            SamplerStep::Bias if sampling.has_bias() => return self.add_bias(candidates),
            SamplerStep::Penalties => self.penalise(candidates),
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

    fn add_bias(&self, candidates: &mut Candidates) -> Result<()> {
        for &(id, bias) in &self.sampling.logit_bias {
            candidates.adjust(id, |logit| logit + f64::from(bias));
        }
        candidates.drop_ruled_out()
    }

    fn penalise(&self, candidates: &mut Candidates) {
        let Sampling { repetition_penalty, frequency_penalty, presence_penalty, .. } = self.sampling;
        let repetition = f64::from(repetition_penalty);
        for (id, count) in self.history.iter().flat_map(History::counts) {
            let flat = f64::from(frequency_penalty) * f64::from(count) + f64::from(presence_penalty);
            candidates.adjust(id, |logit| {
                let scaled = if logit > 0.0 { logit / repetition } else { logit * repetition };
                scaled - flat
            });
        }
    }

    fn check_logits(&self, logits: &[f32]) -> Result<()> {
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
