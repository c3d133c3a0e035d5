//! YaRN (Peng et al. 2023): pairs that turn often in the original context keep their frequency, those that turn seldom
//! have it divided, and attention is sharpened.

use super::fields::RopeFields;
use super::powers;
use crate::error::Result;

/// Turns in the original context from which on a pair keeps its frequency, and up to which it is divided.
const BETA_FAST: f64 = 32.0;
const BETA_SLOW: f64 = 1.0;

/// The scaling's numbers, every default resolved.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::checkpoint) struct Yarn {
    factor: f64,
    original: f64,
    beta_fast: f64,
    beta_slow: f64,
    /// Whether the pairs at which the ramp begins and ends are whole numbers.
    truncate: bool,
    /// What cosines and sines are multiplied with.
    pub attention_factor: f64,
}

impl Yarn {
    /// Of a GGUF file, which gives the two turns and the attention's factor where they are not the usual ones.
    pub(in crate::checkpoint) fn of_gguf(
        factor: f64,
        original: f64,
        [beta_fast, beta_slow, attention_factor]: [Option<f64>; 3],
    ) -> Yarn {
        Yarn {
            factor,
            original,
            beta_fast: beta_fast.unwrap_or(BETA_FAST),
            beta_slow: beta_slow.unwrap_or(BETA_SLOW),
            truncate: true,
            attention_factor: attention_factor.unwrap_or_else(|| sharpened(factor, 1.0)),
        }
    }

    pub(super) fn read(rope: RopeFields) -> Result<Yarn> {
        let original = rope.original()?;
        let factor = match rope.optional_number("factor")? {
            Some(factor) => factor,
            None if rope.rope.has("factor") => rope.max_positions()? / original,
            None => rope.number("factor")?,
        };
        Ok(Yarn {
            factor,
            original,
            beta_fast: or_default(rope, "beta_fast", BETA_FAST)?,
            beta_slow: or_default(rope, "beta_slow", BETA_SLOW)?,
            truncate: match rope.rope.optional("truncate", "true or false")? {
                Some(truncate) => truncate,
                None => !rope.rope.has("truncate"), // transformers takes null for false
            },
            attention_factor: match rope.optional_number("attention_factor")? {
                Some(given) => given,
                None => attention_factor(rope, factor)?,
            },
        })
    }

    /// For how many positions the factor is made.
    pub(super) fn positions(&self) -> usize {
        (self.original * self.factor) as usize
    }

    pub(super) fn inv_freq(&self, theta: f64, head_dim: usize) -> Vec<f32> {
        let (first, last) = self.ramp(theta, head_dim);
        let width = if first == last { 0.001 } else { last - first };
        let frequency = |(i, power): (usize, f32)| {
            let divided = ((i as f32 - first as f32) / width as f32).clamp(0.0, 1.0);
            let kept = 1.0 - divided;
            1.0 / (self.factor as f32 * power) * (1.0 - kept) + 1.0 / power * kept
        };
        powers(theta, head_dim).enumerate().map(frequency).collect()
    }

    /// The pairs between which frequencies go from kept to divided.
    fn ramp(&self, theta: f64, head_dim: usize) -> (f64, f64) {
        // The pair that turns so often in the original context.
        let pair = |turns: f64| {
            let ratio = self.original / (turns * 2.0 * std::f64::consts::PI);
            head_dim as f64 * ratio.ln() / (2.0 * theta.ln())
        };
        let (first, last) = (pair(self.beta_fast), pair(self.beta_slow));
        let (first, last) = if self.truncate { (first.floor(), last.ceil()) } else { (first, last) };
        (first.max(0.0), last.min(head_dim as f64 - 1.0))
    }
}

/// A number for which transformers takes its default if it is 0, too.
fn or_default(rope: RopeFields, field: &str, default: f64) -> Result<f64> {
    match rope.rope.value(field).and_then(|value| value.as_f64()) {
        Some(0.0) => Ok(default),
        _ => Ok(rope.optional_number(field)?.unwrap_or(default)),
    }
}

/// The paper's, or the ratio of two of them where the config has a weight for each.
fn attention_factor(rope: RopeFields, factor: f64) -> Result<f64> {
    let weights = (or_default(rope, "mscale", 0.0)?, or_default(rope, "mscale_all_dim", 0.0)?);
    Ok(match weights {
        (0.0, _) | (_, 0.0) => sharpened(factor, 1.0),
        (mscale, all_dim) => sharpened(factor, mscale) / sharpened(factor, all_dim),
    })
}

/// The paper's factor of attention, with a weight.
fn sharpened(factor: f64, weight: f64) -> f64 {
    if factor <= 1.0 { 1.0 } else { 0.1 * weight * factor.ln() + 1.0 }
}
