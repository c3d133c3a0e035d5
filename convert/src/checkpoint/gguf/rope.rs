//! The rotary embedding of a GGUF file: its base, linear scaling, YaRN, and the factors that stand for Llama 3's.

use smolrun::format::Config;

use super::keys::Keys;
use crate::checkpoint::rope::{Rope, Scaling, Yarn};
use crate::checkpoint::tensor_map::GGUF_ROPE_FACTORS;
use crate::error::{Error, Result};
use crate::source::{Source, Tensor};

const BASE: &str = "rope.freq_base";
const KIND: &str = "rope.scaling.type";
const FACTOR: &str = "rope.scaling.factor";
/// What [`FACTOR`] was called once.
const OLD_FACTOR: &str = "rope.scale_linear";
const ORIGINAL: &str = "rope.scaling.original_context_length";
/// What only YaRN has: when the ramp begins and ends, and the factor of attention.
const YARN: [&str; 3] =
    ["rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow", "rope.scaling.yarn_attn_factor"];
/// llama.cpp's default of [`BASE`].
const DEFAULT_BASE: f64 = 10_000.0;
/// `low_freq_factor` and `high_freq_factor` of every Llama from 3.1 on.
const LOW: f32 = 1.0;
const HIGH: f32 = 4.0;
/// How far a factor may be from what it was computed from: a few roundings of f32.
const TOLERANCE: f32 = 1e-6;

/// The rotary embedding of a model whose sizes are those of `config`.
pub(super) fn read(keys: Keys, source: &Source, config: &Config) -> Result<Rope> {
    let base = keys.number(BASE)?.unwrap_or(DEFAULT_BASE);
    if !(1.0..=1e30).contains(&base) {
        return Err(keys.wrong(BASE, "a number from 1 to 1e30", base));
    }
    let scaling = scaling(keys, config)?;
    if base == 1.0 && matches!(scaling, Scaling::Yarn(_)) {
        return Err(keys.wrong(BASE, "a number above 1", base));
    }
    let rope = match source.tensors.get(GGUF_ROPE_FACTORS) {
        None => Rope::new(&scaling, base, config),
        Some(_) if scaling != Scaling::None => {
            let problem = "expected no such tensor beside other scaling, found one";
            return Err(Error::tensor(GGUF_ROPE_FACTORS, problem));
        }
        Some(tensor) => divided(source, tensor, base, config)?,
    };
    match rope.inv_freq.iter().find(|frequency| !frequency.is_finite()) {
        Some(frequency) => Err(keys.wrong(BASE, "a base and a scaling to finite frequencies", frequency)),
        None => Ok(rope),
    }
}

/// The frequencies divided by the factors in `tensor`.
fn divided(source: &Source, tensor: &Tensor, base: f64, config: &Config) -> Result<Rope> {
    let (factors, plain) =
        (factors(source, tensor, config.head_dim / 2)?, Rope::new(&Scaling::None, base, config));
    Ok(match llama3(&plain.inv_freq, &factors) {
        Some(scaling) => Rope::new(&scaling, base, config),
        None => Rope { inv_freq: plain.inv_freq.iter().zip(factors).map(|(a, b)| a / b).collect(), ..plain },
    })
}

/// As llama.cpp, takes scaling for linear where the file does not say what it is, and a factor of 0 for none.
fn scaling(keys: Keys, config: &Config) -> Result<Scaling> {
    let (name, factor) = match keys.number(FACTOR)? {
        Some(factor) => (FACTOR, factor),
        None => (OLD_FACTOR, keys.number(OLD_FACTOR)?.unwrap_or(1.0)),
    };
    let factor = if factor == 0.0 { 1.0 } else { factor };
    if !(factor.is_finite() && factor > 0.0) {
        return Err(keys.wrong(name, "a number above 0", factor));
    }
    let kind = keys.metadata.string(&keys.full(KIND))?;
    if let Some(name) = YARN.into_iter().find(|name| kind != Some("yarn") && keys.has(name)) {
        return Err(keys.wrong(name, format!("none, as {KIND} is not \"yarn\""), "one"));
    }
    match kind {
        None | Some("linear" | "none") if factor == 1.0 => Ok(Scaling::None),
        None | Some("linear") => Ok(Scaling::Linear { factor: factor as f32 }),
        Some("none") => Err(keys.wrong(name, format!("1, as {KIND} is \"none\""), factor)),
        Some("yarn") => yarn(keys, factor, config),
        Some(kind) => Err(keys.wrong(KIND, "\"none\", \"linear\" or \"yarn\"", format!("{kind:?}"))),
    }
}

fn yarn(keys: Keys, factor: f64, config: &Config) -> Result<Scaling> {
    let original = keys.count(ORIGINAL)?.unwrap_or(config.max_position_embeddings) as f64;
    let positive = |name: &str| match keys.number(name)? {
        Some(number) if !(number.is_finite() && number > 0.0) => {
            Err(keys.wrong(name, "a number above 0", number))
        }
        number => Ok(number),
    };
    let [fast, slow, attention] = YARN;
    if original < 1.0 {
        return Err(keys.wrong(ORIGINAL, "a positive integer", original));
    }
    let numbers = [positive(fast)?, positive(slow)?, positive(attention)?];
    Ok(Scaling::Yarn(Yarn::of_gguf(factor, original, numbers)))
}

/// What each frequency is divided by: computed from Llama 3's scaling when the file was made.
fn factors(source: &Source, tensor: &Tensor, expected: usize) -> Result<Vec<f32>> {
    if tensor.shape != [expected] || tensor.dtype.block_len() != 1 || !tensor.dtype.is_weight() {
        let (dtype, shape) = (tensor.dtype, &tensor.shape);
        let problem = format!("expected {expected} floats, found {dtype} of shape {shape:?}");
        return Err(Error::tensor(&tensor.name, problem));
    }
    let (mut bytes, mut factors) = (vec![0; tensor.len as usize], vec![0.0; expected]);
    source.files[tensor.file].read_at(&mut bytes, tensor.offset)?;
    tensor.dtype.decode(&bytes, &mut factors);
    match factors.iter().find(|factor| !(factor.is_finite() && **factor > 0.0)) {
        Some(factor) => Err(Error::tensor(&tensor.name, format!("expected numbers above 0, found {factor}"))),
        None => Ok(factors),
    }
}

/// The scaling that `factors` were computed from, if it was Llama 3's. With it the frequencies are to the last bit those
/// of the config that the file was made of, which a division by the factors would miss by a rounding.
fn llama3(frequencies: &[f32], factors: &[f32]) -> Option<Scaling> {
    let factor = factors.iter().copied().fold(1.0, f32::max);
    let mut pairs = frequencies.iter().zip(factors);
    let between = pairs.find(|(_, found)| (1.0 + TOLERANCE..factor * (1.0 - TOLERANCE)).contains(*found));
    let original = between.map(|(&frequency, &found)| original(frequency, found, factor))?;
    let scaling = Scaling::Llama3 { factor, low: LOW, high: HIGH, original };
    let agrees = |(&frequency, &found): (&f32, &f32)| {
        (frequency / scaling.apply(frequency) - found).abs() <= TOLERANCE * found
    };
    frequencies.iter().zip(factors).all(agrees).then_some(scaling)
}

/// The length of the original context, by a frequency between those that are left and those that are divided by all of
/// `factor`: how far it is on the way from one to the other tells how often it turns in that context.
fn original(frequency: f32, divisor: f32, factor: f32) -> f32 {
    let [frequency, divisor, factor] = [frequency, divisor, factor].map(f64::from);
    let share = (1.0 / divisor - 1.0 / factor) / (1.0 - 1.0 / factor);
    let turns = f64::from(LOW) + share * f64::from(HIGH - LOW);
    (turns * std::f64::consts::TAU / frequency).round() as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What llama.cpp's converter writes for a frequency, in the order in which it computes it.
    fn written(frequency: f32, factor: f32, original: f32) -> f32 {
        let wavelength = (1.0 / frequency) * std::f32::consts::TAU;
        if wavelength < original / HIGH {
            return 1.0;
        }
        if wavelength > original / LOW {
            return factor;
        }
        let share = ((1.0 / wavelength) * original - LOW) / (HIGH - LOW);
        1.0 / ((1.0 - share) / factor + share)
    }

    #[test]
    fn llama_3s_scaling_is_known_by_its_factors() {
        for (head_dim, factor, original) in [(128, 8.0, 8192.0), (64, 32.0, 8192.0), (64, 8.0, 131_072.0)] {
            let mut config = Config::default();
            config.head_dim = head_dim;
            let plain = Rope::new(&Scaling::None, 500_000.0, &config).inv_freq;
            let mut factors: Vec<f32> =
                plain.iter().map(|&frequency| written(frequency, factor, original)).collect();
            let expected = Scaling::Llama3 { factor, low: LOW, high: HIGH, original };
            let scaled = Rope::new(&expected, 500_000.0, &config).inv_freq;
            assert_eq!(llama3(&plain, &factors), Some(expected));
            let divided = plain.iter().zip(&factors).map(|(frequency, factor)| frequency / factor);
            assert!(divided.zip(&scaled).any(|(divided, scaled)| divided != *scaled), "a rounding apart");
            *factors.iter_mut().rev().find(|found| **found < factor).unwrap() *= 1.01;
            assert_eq!(llama3(&plain, &factors), None);
        }
        assert_eq!(llama3(&[1.0, 0.5], &[1.0, 1.0]), None);
        assert_eq!(llama3(&[1.0, 0.5], &[1.0, 8.0]), None);
        assert_eq!(llama3(&[1.0, f32::NAN], &[8.0, 2.0]), None);
    }
}
