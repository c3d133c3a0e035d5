//! The kinds of scaling, and what each makes of the rotary frequencies, in f32 and in the order in which transformers
//! computes it.

use serde_json::Value;

use super::fields::RopeFields;
use super::inv_freq;
use super::longrope::LongRope;
use super::yarn::Yarn;
use crate::error::Result;

/// What a scaled embedding does to the frequencies.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::checkpoint) enum Scaling {
    None,
    /// Divides all.
    Linear {
        factor: f32,
    },
    /// Divides those that turn less than `low` times in the original context, leaves those that turn more than `high`
    /// times, and goes from one to the other in between (Llama 3.1).
    Llama3 {
        factor: f32,
        low: f32,
        high: f32,
        original: f32,
    },
    Yarn(Yarn),
    LongRope(LongRope),
}

impl Scaling {
    /// The scaling that `rope` names, if it names any.
    pub(super) fn read(rope: RopeFields) -> Result<Option<Scaling>> {
        if let Some(partial) =
            rope.rope.value("partial_rotary_factor").filter(|&partial| partial.as_f64() != Some(1.0))
        {
            return Err(rope.wrong("partial_rotary_factor", "1", partial));
        }
        let Some((key, kind)) = named(rope)? else { return Ok(None) };
        let number = |field| rope.number(field).map(|number| number as f32);
        match kind.as_str() {
            Some("default") => Ok(Some(Scaling::None)),
            Some("linear") => Ok(Some(Scaling::Linear { factor: number("factor")? })),
            Some("llama3") => {
                let (low, high) = (number("low_freq_factor")?, number("high_freq_factor")?);
                if low >= high {
                    return Err(rope.wrong(
                        "high_freq_factor",
                        format!("above low_freq_factor, {low}"),
                        high,
                    ));
                }
                let (factor, original) = (number("factor")?, rope.original()? as f32);
                Ok(Some(Scaling::Llama3 { factor, low, high, original }))
            }
            Some("yarn") => Ok(Some(Scaling::Yarn(Yarn::read(rope)?))),
            Some("longrope") => Ok(Some(Scaling::LongRope(LongRope::read(rope)?))),
            _ => {
                let expected = "null, \"default\", \"linear\", \"llama3\", \"yarn\" or \"longrope\"";
                Err(rope.wrong(key, expected, kind))
            }
        }
    }

    /// The frequencies of a model whose first pair turns once in 2π positions, and whose next ones ever more slowly.
    pub(super) fn inv_freq(&self, theta: f64, head_dim: usize) -> Vec<f32> {
        match self {
            Scaling::Yarn(yarn) => yarn.inv_freq(theta, head_dim),
            Scaling::LongRope(longrope) => longrope.inv_freq(theta, head_dim),
            _ => inv_freq(theta, head_dim).into_iter().map(|frequency| self.apply(frequency)).collect(),
        }
    }

    /// What cosines and sines are multiplied with.
    pub(super) fn attention_factor(&self) -> f32 {
        match self {
            Scaling::Yarn(yarn) => yarn.attention_factor as f32,
            Scaling::LongRope(longrope) => longrope.attention_factor as f32,
            _ => 1.0,
        }
    }

    /// For how many positions it is made, in a model that says `max_position_embeddings`.
    pub(super) fn positions(&self, max_position_embeddings: usize) -> usize {
        match self {
            Scaling::Yarn(yarn) => max_position_embeddings.max(yarn.positions()),
            Scaling::LongRope(longrope) => max_position_embeddings.min(longrope.positions()),
            _ => max_position_embeddings,
        }
    }

    /// What becomes of a frequency, where that depends on nothing else.
    pub(in crate::checkpoint) fn apply(&self, frequency: f32) -> f32 {
        match *self {
            Scaling::Linear { factor } => frequency / factor,
            Scaling::Llama3 { factor, low, high, original } => {
                let wavelength = (1.0 / frequency) * std::f32::consts::TAU;
                if wavelength > original / low {
                    return frequency / factor;
                }
                if wavelength < original / high {
                    return frequency;
                }
                let smooth = ((1.0 / wavelength) * original - low) / (high - low);
                (1.0 - smooth) * frequency / factor + smooth * frequency
            }
            _ => frequency,
        }
    }
}

/// The kind that `rope` names, and the field that does: its new name or its old one, or both with the same.
fn named<'a>(rope: RopeFields<'a>) -> Result<Option<(&'static str, &'a Value)>> {
    let (new, old) = (rope.rope.value("rope_type"), rope.rope.value("type"));
    match (new, old) {
        (Some(new), Some(old)) if new != old => Err(rope.wrong("type", format!("rope_type, {new}"), old)),
        (Some(kind), _) => Ok(Some(("rope_type", kind))),
        (None, kind) => Ok(kind.map(|kind| ("type", kind))),
    }
}
