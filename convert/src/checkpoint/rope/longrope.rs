//! LongRoPE (Ding et al. 2024): each frequency has a divisor of its own, one for texts as long as the original context
//! and another for longer ones.
//!
//! Transformers takes the one or the other by how long a text is at the moment, so that keys that it has kept no longer
//! fit once a text grows past the original context. A blob has one frequency for each pair: it takes those of the
//! original context, and that context for its own.

use super::fields::RopeFields;
use super::powers;
use crate::error::Result;

/// The scaling's numbers, every default resolved.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::checkpoint) struct LongRope {
    /// Of texts in the original context, `[head_dim / 2]`.
    short_factor: Vec<f32>,
    original: f64,
    /// What cosines and sines are multiplied with.
    pub attention_factor: f64,
}

impl LongRope {
    pub(super) fn read(rope: RopeFields) -> Result<LongRope> {
        let original = rope.original()?;
        let attention_factor = match rope.optional_number("attention_factor")? {
            Some(given) => given,
            None => {
                let ratio = rope.max_positions()? / original;
                attention_factor(rope.optional_number("factor")?.unwrap_or(ratio), original)
            }
        };
        rope.numbers("long_factor")?;
        Ok(LongRope { short_factor: rope.numbers("short_factor")?, original, attention_factor })
    }

    /// For how many positions the divisors hold.
    pub(super) fn positions(&self) -> usize {
        self.original as usize
    }

    pub(super) fn inv_freq(&self, theta: f64, head_dim: usize) -> Vec<f32> {
        powers(theta, head_dim)
            .zip(&self.short_factor)
            .map(|(power, factor)| 1.0 / (factor * power))
            .collect()
    }
}

/// The paper's.
fn attention_factor(factor: f64, original: f64) -> f64 {
    if factor <= 1.0 { 1.0 } else { (1.0 + factor.ln() / original.ln()).sqrt() }
}
