//! The rotary frequencies: everything that a config says about them, resolved to one number for each pair of features.

use serde_json::Value;

use crate::error::Result;
use crate::json::Fields;

/// What a scaled embedding does to the frequencies.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Scaling {
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
}

/// Rotary inverse frequencies, `[head_dim / 2]`, from where transformers 4 or 5 keep what they depend on. Kinds of
/// scaling that are not known here are refused.
pub(crate) fn read(fields: &Fields, default_theta: f64, head_dim: usize) -> Result<Vec<f32>> {
    let mut theta = fields.optional::<f64>("rope_theta", "a number")?;
    let mut scaling = Scaling::None;
    for object in ["rope_scaling", "rope_parameters"] {
        let Some(rope) = fields.object(object)? else { continue };
        match read_scaling(fields, &rope, object)? {
            Scaling::None => {}
            found if scaling == Scaling::None => scaling = found,
            found if found != scaling => {
                return Err(fields.wrong(object, "the scaling of rope_scaling", "another"));
            }
            _ => {}
        }
        let inner = rope.optional::<f64>("rope_theta", "a number")?;
        if let (Some(outer), Some(inner)) = (theta, inner.filter(|&inner| Some(inner) != theta)) {
            let expected = format!("rope_theta, {outer}");
            return Err(fields.wrong(&format!("{object}.rope_theta"), expected, inner));
        }
        theta = theta.or(inner);
    }
    let theta = theta.unwrap_or(default_theta);
    match theta.is_finite() && (1.0..=1e30).contains(&theta) {
        true => Ok(inv_freq(theta, head_dim).into_iter().map(|frequency| scaling.apply(frequency)).collect()),
        false => Err(fields.wrong("rope_theta", "a number from 1 to 1e30", theta)),
    }
}

/// `1 / theta^(2i / head_dim)` with the roundings of transformers, which computes it in f32: each step is rounded
/// once, the power correctly.
pub(crate) fn inv_freq(theta: f64, head_dim: usize) -> Vec<f32> {
    let theta = f64::from(theta as f32);
    let frequency = |i: usize| {
        let exponent = (2 * i) as f32 / head_dim as f32;
        1.0 / (theta.powf(f64::from(exponent)) as f32)
    };
    (0..head_dim / 2).map(frequency).collect()
}

fn read_scaling(fields: &Fields, rope: &Fields, object: &str) -> Result<Scaling> {
    if let Some(partial) =
        rope.value("partial_rotary_factor").filter(|&partial| partial.as_f64() != Some(1.0))
    {
        return Err(fields.wrong(&format!("{object}.partial_rotary_factor"), "1", partial));
    }
    let kinds = ["rope_type", "type"].map(|key| rope.value(key).map(|kind| (key, kind)));
    let Some((key, kind)) = kinds.into_iter().flatten().next() else { return Ok(Scaling::None) };
    let number = |name: &str| {
        let found: f64 = rope.required(name, "a number above 0")?;
        let is_usable = found.is_finite() && found > 0.0;
        if is_usable { Ok(found as f32) } else { Err(rope.wrong(name, "a number above 0", found)) }
    };
    match kind.as_str() {
        Some("default") => Ok(Scaling::None),
        Some("linear") => Ok(Scaling::Linear { factor: number("factor")? }),
        Some("llama3") => {
            let (low, high) = (number("low_freq_factor")?, number("high_freq_factor")?);
            if low >= high {
                return Err(rope.wrong("high_freq_factor", format!("above low_freq_factor, {low}"), high));
            }
            let original = match rope.value("original_max_position_embeddings") {
                Some(_) => number("original_max_position_embeddings")?,
                None => fields.required::<u32>("max_position_embeddings", "a positive integer")? as f32,
            };
            Ok(Scaling::Llama3 { factor: number("factor")?, low, high, original })
        }
        _ => {
            let expected = "null, \"default\", \"linear\" or \"llama3\"";
            Err(fields.wrong(&format!("{object}.{key}"), expected, kind as &Value))
        }
    }
}

impl Scaling {
    /// In f32 and in the order in which transformers computes it.
    fn apply(self, frequency: f32) -> f32 {
        match self {
            Scaling::None => frequency,
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
        }
    }
}
