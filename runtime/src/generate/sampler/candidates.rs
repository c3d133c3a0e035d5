//! The tokens that may still be drawn.
//!
//! They stay in ascending order of their ids, and likelihoods are compared and summed as integers. So nothing depends on
//! how a selection arranged its scratch, which the standard library does not promise to keep, and a seed means the
//! same text everywhere and for ever. Nothing is sorted: what a filter keeps is found by selection, in linear time.

use std::cmp::Ordering;

use super::math::exp;
use crate::error::{Error, Result};
use crate::generate::rng::Rng;

/// The weight of the most likely token. The vocabulary has at most 2²² tokens, so sums stay below 2⁶².
const ONE: u64 = 1 << 40;

/// A token that may be drawn.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    id: u32,
    /// In f64: no option is so extreme that it overflows.
    logit: f64,
    /// [`ONE`] times e to the logit's distance from the largest, once [`Candidates::weigh`] has seen to it.
    weight: u64,
}

/// A candidate on its place in some order.
#[derive(Clone, Copy, Debug)]
struct Ranked {
    key: f64,
    id: u32,
    weight: u64,
}

impl Ranked {
    fn new(candidate: &Candidate, key: impl Fn(&Candidate) -> f64) -> Ranked {
        Ranked { key: key(candidate), id: candidate.id, weight: candidate.weight }
    }

    /// Smallest key first, equals by id.
    fn order(&self, other: &Ranked) -> Ordering {
        self.key.total_cmp(&other.key).then(self.id.cmp(&other.id))
    }
}

/// The most likely tokens first.
fn by_likelihood(candidate: &Candidate) -> f64 {
    -candidate.logit
}

#[derive(Clone, Debug, Default)]
pub(in crate::generate) struct Candidates {
    list: Vec<Candidate>,
    is_weighed: bool,
    /// Scratch.
    ranked: Vec<Ranked>,
}

impl Candidates {
    /// Takes memory for `vocab_size` of them.
    pub(in crate::generate) fn reserve(&mut self, vocab_size: usize) {
        self.list.reserve_exact(vocab_size.saturating_sub(self.list.len()));
        self.ranked.reserve_exact(vocab_size.saturating_sub(self.ranked.len()));
    }

    /// Makes every token a candidate.
    pub(super) fn fill(&mut self, logits: &[f32]) {
        self.is_weighed = false;
        self.list.clear();
        let candidates =
            (0u32..).zip(logits).map(|(id, &logit)| Candidate { id, logit: logit.into(), weight: 0 });
        self.list.extend(candidates);
    }

    /// Changes the logit of `id`, if it is a candidate.
    pub(super) fn adjust(&mut self, id: u32, change: impl Fn(f64) -> f64) {
        if let Ok(at) = self.list.binary_search_by_key(&id, |candidate| candidate.id) {
            self.list[at].logit = change(self.list[at].logit);
            self.is_weighed = false;
        }
    }

    /// Drops tokens whose logit is negative infinity; an error if none is left.
    pub(super) fn drop_ruled_out(&mut self) -> Result<()> {
        self.list.retain(|candidate| candidate.logit > f64::NEG_INFINITY);
        match self.list.is_empty() {
            false => Ok(()),
            true => Err(Error::Argument {
                name: "logit_bias",
                expected: "a token that is not ruled out".into(),
                found: "none".into(),
            }),
        }
    }

    /// Divides every logit.
    pub(super) fn divide(&mut self, temperature: f32) {
        let temperature = f64::from(temperature);
        self.list.iter_mut().for_each(|candidate| candidate.logit /= temperature);
        self.is_weighed = false;
    }

    /// Keeps the `k` most likely.
    pub(super) fn keep_top_k(&mut self, k: usize) {
        if (1..self.list.len()).contains(&k) {
            self.rank(by_likelihood);
            let (_, last, _) = self.ranked.select_nth_unstable_by(k - 1, Ranked::order);
            let last = *last;
            self.keep_to(last, by_likelihood);
        }
    }

    /// Keeps the most likely that together reach `share`, at least one.
    pub(super) fn keep_top_p(&mut self, share: f32) {
        self.weigh();
        self.keep_share(share, by_likelihood);
    }

    /// Keeps those at least `share` as likely as the most likely.
    pub(super) fn keep_min_p(&mut self, share: f32) {
        self.weigh();
        let least = f64::from(share) * ONE as f64;
        self.list.retain(|candidate| candidate.weight as f64 >= least);
    }

    /// Keeps those whose information is nearest to the expected and that together reach `share`, at least one.
    pub(super) fn keep_typical(&mut self, share: f32) {
        self.weigh();
        // Information and its expectation, both less that of the most likely token, which cancels.
        let most = self.largest_logit();
        let expected = |candidate: &Candidate| candidate.weight as f64 * (most - candidate.logit);
        let mean = self.list.iter().map(expected).sum::<f64>() / self.total() as f64;
        self.keep_share(share, |candidate| (most - candidate.logit - mean).abs());
        self.is_weighed = false; // the most likely may have gone
    }

    /// The most likely, the first of several.
    pub(super) fn most_likely(&self) -> u32 {
        let better = |best: Candidate, next: &Candidate| if next.logit > best.logit { *next } else { best };
        self.list.iter().copied().reduce(|best, next| better(best, &next)).map_or(0, |best| best.id)
    }

    /// Draws one.
    pub(super) fn draw(&mut self, rng: &mut Rng) -> u32 {
        self.weigh();
        let mut left = rng.below(self.total());
        for candidate in &self.list {
            match left.checked_sub(candidate.weight) {
                Some(rest) => left = rest,
                None => return candidate.id,
            }
        }
        0 // of no candidates: there is always one
    }

    /// The id and probability of every one that can be drawn.
    pub(super) fn probabilities(&mut self) -> impl Iterator<Item = (u32, f64)> + '_ {
        self.weigh();
        let total = self.total() as f64;
        let drawable = self.list.iter().filter(|candidate| candidate.weight > 0);
        drawable.map(move |candidate| (candidate.id, candidate.weight as f64 / total))
    }

    fn weigh(&mut self) {
        if !self.is_weighed {
            let most = self.largest_logit();
            for candidate in &mut self.list {
                candidate.weight = (exp(candidate.logit - most) * ONE as f64 + 0.5) as u64;
            }
            self.is_weighed = true;
        }
    }

    fn largest_logit(&self) -> f64 {
        self.list.iter().map(|candidate| candidate.logit).fold(f64::NEG_INFINITY, f64::max)
    }

    fn total(&self) -> u64 {
        self.list.iter().map(|candidate| candidate.weight).sum()
    }

    /// Keeps the first in the order of `key` that together reach `share` of the weight, at least one.
    fn keep_share(&mut self, share: f32, key: impl Fn(&Candidate) -> f64) {
        let target = (f64::from(share) * self.total() as f64) as u64;
        self.rank(&key);
        if let Some(last) = reach(&mut self.ranked, target) {
            self.keep_to(last, key);
        }
    }

    fn rank(&mut self, key: impl Fn(&Candidate) -> f64) {
        self.ranked.clear();
        self.ranked.extend(self.list.iter().map(|candidate| Ranked::new(candidate, &key)));
    }

    fn keep_to(&mut self, last: Ranked, key: impl Fn(&Candidate) -> f64) {
        self.list.retain(|candidate| Ranked::new(candidate, &key).order(&last).is_le());
    }
}

/// The last of the first of `ranked`, in their order, whose weights together reach `target`: found by halving, so that
/// the work is linear.
fn reach(mut ranked: &mut [Ranked], mut target: u64) -> Option<Ranked> {
    while ranked.len() > 1 {
        let middle = ranked.len() / 2;
        ranked.select_nth_unstable_by(middle, Ranked::order);
        let (first, second) = ranked.split_at_mut(middle);
        let sum = first.iter().map(|ranked| ranked.weight).sum();
        match target.checked_sub(sum) {
            Some(rest) if rest > 0 => (ranked, target) = (second, rest),
            _ => ranked = first,
        }
    }
    ranked.first().copied()
}
