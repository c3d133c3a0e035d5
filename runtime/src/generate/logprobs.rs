//! How likely the model found a token, before any sampling option.

use std::cmp::Ordering;

use super::sampler::math::{exp, ln};

/// A token's log-probability, and the likeliest tokens in its place.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Logprobs {
    /// The natural logarithm of the chosen token's probability.
    pub logprob: f32,
    /// The likeliest tokens, likeliest first, equals by id.
    pub top: Vec<Alternative>,
}

/// A token that could have been chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Alternative {
    /// Its id.
    pub id: u32,
    /// The natural logarithm of its probability.
    pub logprob: f32,
}

/// The logarithm of the softmax of some logits.
pub(crate) struct LogSoftmax<'a> {
    logits: &'a [f32],
    largest: f64,
    /// The logarithm of the sum of all exponentials, each logit less the largest.
    normalizer: f64,
}

impl LogSoftmax<'_> {
    /// Of finite `logits`, at least one.
    pub(crate) fn new(logits: &[f32]) -> LogSoftmax<'_> {
        let largest = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
        let sum = sum_over([logits], |[logit]| exp(logit - largest));
        LogSoftmax { logits, largest, normalizer: ln(sum) }
    }

    /// The log-probability of `id`, which is below the number of logits.
    pub(crate) fn of(&self, id: u32) -> f64 {
        self.of_logit(f64::from(self.logits[id as usize]))
    }

    fn of_logit(&self, logit: f64) -> f64 {
        logit - self.largest - self.normalizer
    }

    /// The Kullback-Leibler divergence of `other` from this, over as many ids: the sum of p ln(p / q), p being these
    /// probabilities and q `other`'s. It is never below zero, nor is what rounding leaves of it.
    pub(crate) fn divergence(&self, other: &LogSoftmax<'_>) -> f64 {
        let sum = sum_over([self.logits, other.logits], |[p, q]| {
            let (p, q) = (self.of_logit(p), other.of_logit(q));
            exp(p) * (p - q)
        });
        sum.max(0.0)
    }

    /// The log-probability of `id`, and the `count` likeliest tokens, found with `scratch`.
    pub(crate) fn with_top(&self, id: u32, count: usize, scratch: &mut Vec<u32>) -> Logprobs {
        let order = |a: &u32, b: &u32| self.order(*a, *b);
        let count = count.min(self.logits.len());
        scratch.clear();
        scratch.extend((0u32..).zip(self.logits).map(|(id, _)| id));
        if (1..self.logits.len()).contains(&count) {
            scratch.select_nth_unstable_by(count - 1, order);
        }
        scratch.truncate(count);
        scratch.sort_unstable_by(order);
        let alternative = |&id: &u32| Alternative { id, logprob: self.of(id) as f32 };
        Logprobs { logprob: self.of(id) as f32, top: scratch.iter().map(alternative).collect() }
    }

    /// Likeliest first, equals by id.
    fn order(&self, a: u32, b: u32) -> Ordering {
        self.logits[b as usize].total_cmp(&self.logits[a as usize]).then(a.cmp(&b))
    }
}

/// The sum of `term` of each column of rows alike in length: eight sums side by side, so that a vector unit can compute
/// several terms at once.
#[inline]
fn sum_over<const ROWS: usize>(rows: [&[f32]; ROWS], term: impl Fn([f64; ROWS]) -> f64) -> f64 {
    const SUMS: usize = 8;
    let (whole, rest) =
        (rows.map(|row| row.as_chunks::<SUMS>().0), rows.map(|row| row.as_chunks::<SUMS>().1));
    let mut sums = [0.0; SUMS];
    for i in 0..whole[0].len() {
        let chunks = whole.map(|chunks| &chunks[i]);
        for lane in 0..SUMS {
            sums[lane] += term(chunks.map(|chunk| f64::from(chunk[lane])));
        }
    }
    for (i, sum) in sums.iter_mut().enumerate().take(rest[0].len()) {
        *sum += term(rest.map(|row| f64::from(row[i])));
    }
    sums.iter().sum()
}

#[cfg(test)]
mod tests {
    use super::LogSoftmax;

    #[test]
    fn they_are_the_logarithms_of_the_softmax() {
        let logits: Vec<f32> = (0..1000).map(|i| ((i * 7919) % 1009) as f32 / 50.0 - 10.0).collect();
        let sum: f64 = logits.iter().map(|&logit| f64::from(logit).exp()).sum();
        let softmax = LogSoftmax::new(&logits);
        for (id, &logit) in (0u32..).zip(&logits) {
            assert!((softmax.of(id) - (f64::from(logit).exp() / sum).ln()).abs() < 1e-12);
        }
        let mut sorted: Vec<u32> = (0..1000).collect();
        sorted.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]));
        let mut scratch = Vec::new();
        for count in [0, 1, 5, 999, 1000, 5000] {
            let found = softmax.with_top(17, count, &mut scratch);
            assert!((f64::from(found.logprob) - softmax.of(17)).abs() < 1e-6);
            let ids: Vec<u32> = found.top.iter().map(|alternative| alternative.id).collect();
            assert_eq!(ids, sorted[..count.min(1000)]);
            assert!(found.top.iter().all(|a| a.logprob == softmax.of(a.id) as f32));
        }
    }

    #[test]
    fn far_logits_and_equal_ones_are_no_trouble() {
        let softmax = LogSoftmax::new(&[f32::MAX, f32::MIN, f32::MAX]);
        assert!((softmax.of(0) + 2f64.ln()).abs() < 1e-9 && softmax.of(1).is_finite());
        let top = softmax.with_top(1, 2, &mut Vec::new()).top;
        assert_eq!([top[0].id, top[1].id], [0, 2]);
    }
}
