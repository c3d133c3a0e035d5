//! What a fast session gives up exact bits for: prompts with activations rounded to bf16, and quantized weights, too.

use std::fmt;

use super::scratch::Buffer;
use crate::error::Result;
use crate::format::Dtype;
use crate::kernels::{Bf16Unit, Elements, Kernels, Tile, tiles};

/// Fewest rows that are worth rounding for: fewer take hardly longer than reading the weights does.
pub(crate) const FEWEST_ROWS: usize = 32;

/// The effect of [`SessionOptions::fast`](crate::SessionOptions::fast) in a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fast {
    /// It was not asked for: everything is exact.
    Off,
    /// Prompts run on this unit: `amx`, `avx512bf16`, or `scalar`, which imitates the latter without being fast.
    On(&'static str),
    /// Everything is exact, because the instruction set has no unit for products of bf16.
    NoUnit,
    /// Everything is exact, because no matrix of the blob's layers is bf16, or quantized where there is AMX.
    NoBf16,
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
            Fast::On(unit) => write!(f, "prompts rounded to bf16 on {unit}, not bit-exact"),
            Fast::NoUnit => {
                f.write_str("exact, because the processor has, or may use, neither AMX nor AVX512-BF16")
            }
            Fast::NoBf16 => {
                f.write_str("exact, because the blob's matrices are neither bf16 nor, with AMX, quantized")
            }
        }
    }
}

/// A unit for products of bf16, and room for the activations of one.
pub(crate) struct Rounding {
    pub unit: Bf16Unit,
    /// Whether the instruction set multiplies rounded activations with quantized weights, too.
    with_quantized: bool,
    pub tiles: Buffer<Tile>,
}

impl Rounding {
    /// For a session that was asked to be fast, over layers with matrices of these dtypes; else what it is instead.
    pub(crate) fn new(
        mut dtypes: impl Iterator<Item = Dtype>,
        kernels: Kernels,
    ) -> std::result::Result<Rounding, Fast> {
        let with_quantized = kernels.rounds_for_quantized();
        let is_possible =
            dtypes.any(|dtype| dtype == Dtype::Bf16 || with_quantized && dtype.code_bits().is_some());
        match kernels.bf16_units().pop() {
            _ if !is_possible => Err(Fast::NoBf16),
            None => Err(Fast::NoUnit),
            Some(unit) => Ok(Rounding { unit, with_quantized, tiles: Buffer::default() }),
        }
    }

    /// Whether activations are rounded for such weights.
    pub(crate) fn rounds_for(&self, weights: Elements<'_>) -> bool {
        match weights {
            Elements::Bf16(_) => true,
            Elements::Quantized(_) => self.with_quantized,
            _ => false,
        }
    }

    pub(crate) fn name(&self) -> Fast {
        Fast::On(self.unit.name())
    }

    /// Makes room for `rows` rows of so many inputs.
    pub(crate) fn resize(&mut self, inputs: usize, rows: usize) -> Result<()> {
        self.tiles.resize(tiles(inputs, rows))
    }
}
