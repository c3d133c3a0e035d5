//! What a fast session gives up exact bits for: prompts with activations rounded to bf16, and quantized weights with them, or
//! to 8 bits, and the attention of quantized blobs in 8 bits.

use std::fmt;

use super::buffer::Buffer;
use crate::error::Result;
use crate::format::Dtype;
use crate::kernels::{Bf16Unit, Elements, FastUnit, Kernels, Tile, tiles};

/// Fewest rows that are worth rounding for: fewer take hardly longer than reading the weights does.
pub(crate) const FEWEST_ROWS: usize = 32;

/// The effect of [`SessionOptions::fast`](crate::SessionOptions::fast) in a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fast {
    /// It was not asked for: everything is exact.
    Off,
    /// Prompts run on this unit. With bf16 weights: `amx`, `avx512bf16`, or `scalar`, which imitates the latter without
    /// being fast. With quantized ones: `amx`, or `int8`, whose bits are the same on every processor. Of a blob with both,
    /// where they differ: both names, such as `avx512bf16+int8`.
    On(&'static str),
    /// Everything is exact, because the instruction set has no unit that is faster for the blob's matrices.
    NoUnit,
    /// Everything is exact, because no matrix of the blob's layers is bf16 or quantized.
    NothingToRound,
}

impl Fast {
    /// The unit that prompts run on, unless they are exact.
    pub fn unit(self) -> Option<&'static str> {
        match self {
            Fast::On(unit) => Some(unit),
            _ => None,
        }
    }
}

impl fmt::Display for Fast {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fast::Off => f.write_str("exact"),
            Fast::On(unit) => write!(f, "prompts rounded for {unit}, not bit-exact"),
            Fast::NoUnit => f.write_str(
                "exact, because the processor has, or may use, no unit for it: AMX, AMD's AVX512-BF16 for bf16 \
                 matrices, VNNI or Arm's dot product for quantized ones",
            ),
            Fast::NothingToRound => {
                f.write_str("exact, because the blob's matrices are neither bf16 nor quantized")
            }
        }
    }
}

/// The units that a fast session's products run on, and room for the activations of one.
pub(crate) struct Rounding {
    /// With bf16 weights.
    bf16: Option<Bf16Unit>,
    /// With quantized weights.
    quantized: Option<FastUnit>,
    /// Whether keys and values are multiplied in 8 bits.
    pub attention: bool,
    pub tiles: Buffer<Tile>,
}

impl Rounding {
    /// For a session that was asked to be fast, over layers with matrices of these dtypes; else what it is instead.
    pub(crate) fn new(
        dtypes: impl Iterator<Item = Dtype> + Clone,
        kernels: Kernels,
    ) -> std::result::Result<Rounding, Fast> {
        let has_bf16 = dtypes.clone().any(|dtype| dtype == Dtype::Bf16);
        let has_quantized = dtypes.clone().any(|dtype| dtype.code_bits().is_some());
        let bf16 = if has_bf16 { kernels.fast_unit_for_bf16() } else { None };
        let quantized = if has_quantized { kernels.fast_unit_for_quantized() } else { None };
        match (bf16, quantized) {
            (None, None) if has_bf16 || has_quantized => Err(Fast::NoUnit),
            (None, None) => Err(Fast::NothingToRound),
            // Where quantized weights have a unit, it is faster for keys and values, too.
            _ => Ok(Rounding { bf16, quantized, attention: quantized.is_some(), tiles: Buffer::default() }),
        }
    }

    /// Of products with quantized weights alone, whose activations get 8 bits: the same on every processor, fast on most.
    pub(crate) fn to_8_bits() -> Rounding {
        let (quantized, tiles) = (Some(FastUnit::Int8), Buffer::default());
        Rounding { bf16: None, quantized, attention: false, tiles }
    }

    /// Whether activations for quantized weights get 8 bits.
    pub(crate) fn is_to_8_bits(&self) -> bool {
        matches!(self.quantized, Some(FastUnit::Int8))
    }

    /// What multiplies such weights with activations that are rounded for it, if anything does.
    pub(crate) fn unit_for(&self, weights: Elements<'_>) -> Option<FastUnit> {
        match weights {
            Elements::Bf16(_) => self.bf16.map(FastUnit::Bf16),
            Elements::Quantized(_) => self.quantized,
            _ => None,
        }
    }

    pub(crate) fn name(&self) -> Fast {
        Fast::On(match (self.bf16, self.quantized) {
            (Some(unit), Some(FastUnit::Int8)) => unit.name_with_int8(),
            (Some(unit), _) | (None, Some(FastUnit::Bf16(unit))) => unit.name(),
            (None, _) => "int8",
        })
    }

    /// Makes room for `rows` rows of so many inputs.
    pub(crate) fn resize(&mut self, inputs: usize, rows: usize) -> Result<()> {
        let needs_tiles = self.bf16.is_some() || matches!(self.quantized, Some(FastUnit::Bf16(_)));
        self.tiles.resize(if needs_tiles { tiles(inputs, rows) } else { 0 })
    }
}
