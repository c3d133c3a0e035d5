//! From logits to a token.

use super::rng::Rng;
use crate::error::{Error, Result};
use crate::kernels::exp;

/// How the next token is chosen.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// Logits are divided by this; 0 always takes the most likely token (greedy).
    pub temperature: f32,
    /// Only the `top_k` most likely tokens are drawn from; 0 for all.
    pub top_k: usize,
    /// Only the most likely tokens that together reach this probability are drawn from (nucleus sampling, Holtzman et
    /// al. 2019); 1 for all. Applied after `top_k`, as in Hugging Face's `generate`.
    pub top_p: f32,
    /// Decides every draw.
    pub seed: u64,
}

impl Default for Sampling {
    /// Greedy.
    fn default() -> Sampling {
        Sampling { temperature: 0.0, top_k: 0, top_p: 1.0, seed: 0 }
    }
}

/// Chooses tokens by a [`Sampling`].
#[derive(Clone, Debug)]
pub struct Sampler {
    sampling: Sampling,
    rng: Rng,
    /// Reused from token to token.
    candidates: Vec<Candidate>,
}

#[derive(Clone, Copy, Debug)]
struct Candidate {
    id: u32,
    /// Logit, then e to the logit's distance from the largest.
    weight: f32,
}

impl Candidate {
    /// Most likely first, equals by id: an order that does not depend on how it was sorted.
    fn order(&self, other: &Candidate) -> std::cmp::Ordering {
        other.weight.total_cmp(&self.weight).then(self.id.cmp(&other.id))
    }
}

impl Sampler {
    /// A sampler, or an error where an option makes no sense.
    pub fn new(sampling: Sampling) -> Result<Sampler> {
        let wrong = |name, expected: &str, found: f32| {
            Err(Error::Argument { name, expected: expected.into(), found: found.to_string() })
        };
        if !(sampling.temperature.is_finite() && sampling.temperature >= 0.0) {
            return wrong("temperature", "a finite number from 0 up", sampling.temperature);
        }
        if !(sampling.top_p > 0.0 && sampling.top_p <= 1.0) {
            return wrong("top_p", "a number above 0, at most 1", sampling.top_p);
        }
        Ok(Sampler { rng: Rng::new(sampling.seed), sampling, candidates: Vec::new() })
    }

    /// Chooses a token; `logits`: `[vocab_size]`.
    pub fn sample(&mut self, logits: &[f32]) -> Result<u32> {
        let most = argmax(logits)?;
        if self.sampling.temperature == 0.0 {
            return Ok(most);
        }
        let ids = 0u32..;
        self.candidates.clear();
        self.candidates.extend(ids.zip(logits).map(|(id, &weight)| Candidate { id, weight }));
        self.keep_top_k();
        for candidate in &mut self.candidates {
            // Divided, since the inverse of a tiny temperature is infinite, and makes NaN of the likeliest's zero.
            candidate.weight = exp((candidate.weight - logits[most as usize]) / self.sampling.temperature);
        }
        self.keep_top_p();
        Ok(self.draw())
    }

    fn keep_top_k(&mut self) {
        let k = self.sampling.top_k;
        if (1..self.candidates.len()).contains(&k) {
            self.candidates.select_nth_unstable_by(k - 1, Candidate::order);
            self.candidates.truncate(k);
            self.candidates.sort_unstable_by(Candidate::order);
        }
    }

    fn keep_top_p(&mut self) {
        if self.sampling.top_p == 1.0 {
            return;
        }
        let target = f64::from(self.sampling.top_p) * self.total();
        // All that are lighter than this together weigh less than what the nucleus leaves out: no need to sort them.
        let least = (self.total() - target) / self.candidates.len() as f64;
        self.candidates.retain(|candidate| f64::from(candidate.weight) >= least);
        self.candidates.sort_unstable_by(Candidate::order);
        let mut sum = 0.0;
        let inside = self.candidates.iter().take_while(|candidate| {
            let is_needed = sum < target;
            sum += f64::from(candidate.weight);
            is_needed
        });
        let inside = inside.count().max(1);
        self.candidates.truncate(inside);
    }

    fn draw(&mut self) -> u32 {
        let mut left = self.rng.uniform() * self.total();
        for candidate in &self.candidates {
            left -= f64::from(candidate.weight);
            if left < 0.0 {
                return candidate.id;
            }
        }
        // Rounding may leave a crumb: it belongs to the last that can be drawn at all.
        let drawable = self.candidates.iter().rev().find(|candidate| candidate.weight > 0.0);
        drawable.map_or(0, |candidate| candidate.id)
    }

    fn total(&self) -> f64 {
        self.candidates.iter().map(|candidate| f64::from(candidate.weight)).sum()
    }
}

/// The first id with the largest logit.
fn argmax(logits: &[f32]) -> Result<u32> {
    let mut best = (0u32, f32::NEG_INFINITY);
    for (id, &logit) in (0u32..).zip(logits) {
        if !logit.is_finite() {
            return Err(Error::NotFinite);
        }
        if logit > best.1 {
            best = (id, logit);
        }
    }
    Ok(best.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draws(sampling: Sampling, logits: &[f32], count: usize) -> Vec<usize> {
        let mut sampler = Sampler::new(sampling).unwrap();
        let mut counts = vec![0; logits.len()];
        (0..count).for_each(|_| counts[sampler.sample(logits).unwrap() as usize] += 1);
        counts
    }

    #[test]
    fn greedy_takes_the_first_of_the_largest() {
        assert_eq!(draws(Sampling::default(), &[0.0, 3.0, -1.0, 3.0], 3), [0, 3, 0, 0]);
    }

    #[test]
    fn draws_follow_the_softmax() {
        let logits: Vec<f32> = [0.5f32, 0.25, 0.125, 0.125].map(f32::ln).to_vec();
        let sampling = Sampling { temperature: 1.0, seed: 7, ..Sampling::default() };
        let counts = draws(sampling, &logits, 100_000);
        for (count, expected) in counts.iter().zip([50_000, 25_000, 12_500, 12_500]) {
            // Four standard deviations of a binomial.
            assert!(count.abs_diff(expected) < 640, "{counts:?}");
        }
    }

    #[test]
    fn temperature_sharpens() {
        let logits = [1.0, 0.0];
        let cold = Sampling { temperature: 0.25, ..Sampling::default() };
        let hot = Sampling { temperature: 4.0, ..Sampling::default() };
        let share = |sampling| draws(sampling, &logits, 50_000)[0] as f64 / 5e4;
        assert!((share(cold) - 1.0 / (1.0 + (-4f64).exp())).abs() < 0.01);
        assert!((share(hot) - 1.0 / (1.0 + (-0.25f64).exp())).abs() < 0.01);
    }

    #[test]
    fn top_k_and_top_p_leave_the_most_likely() {
        let logits: Vec<f32> = [0.05f32, 0.4, 0.25, 0.3].map(f32::ln).to_vec();
        let base = Sampling { temperature: 1.0, ..Sampling::default() };
        let drawn = |sampling| draws(sampling, &logits, 2_000).iter().map(|&n| n > 0).collect::<Vec<_>>();
        assert_eq!(drawn(Sampling { top_k: 2, ..base.clone() }), [false, true, false, true]);
        assert_eq!(drawn(Sampling { top_p: 0.69, ..base.clone() }), [false, true, false, true]);
        assert_eq!(drawn(Sampling { top_p: 0.71, ..base.clone() }), [false, true, true, true]);
        assert_eq!(drawn(Sampling { top_p: 1e-6, ..base.clone() }), [false, true, false, false]);
        // 0.4 of the 0.7 that top_k leaves is over one half.
        assert_eq!(drawn(Sampling { top_k: 2, top_p: 0.5, ..base.clone() }), [false, true, false, false]);
        assert_eq!(drawn(Sampling { top_k: 9, ..base }), [true; 4]);
    }

    #[test]
    fn a_seed_decides_every_draw() {
        let logits: Vec<f32> = (0..1000).map(|i| (i as f32 * 0.37).sin()).collect();
        let run = |seed| {
            let sampling = Sampling { temperature: 1.0, top_k: 500, top_p: 0.9, seed };
            let mut sampler = Sampler::new(sampling).unwrap();
            (0..50).map(|_| sampler.sample(&logits).unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(run(1), run(1));
        assert_ne!(run(1), run(2));
    }

    #[test]
    fn senseless_options_and_logits_are_errors() {
        for temperature in [-1.0, f32::NAN, f32::INFINITY] {
            assert!(Sampler::new(Sampling { temperature, ..Sampling::default() }).is_err());
        }
        for top_p in [0.0, -0.5, 1.5, f32::NAN] {
            assert!(Sampler::new(Sampling { top_p, ..Sampling::default() }).is_err());
        }
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut sampler = Sampler::new(Sampling { temperature: 1.0, ..Sampling::default() }).unwrap();
            assert!(matches!(sampler.sample(&[0.0, bad]), Err(Error::NotFinite)));
        }
    }
}
