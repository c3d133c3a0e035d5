//! What a session that was asked to be fast trades its bits for: prompts with activations rounded to bf16, and quantised weights,
//! too.

use std::fmt;

use super::Model;
use super::scratch::Buffer;
use crate::error::Result;
use crate::format::{Dtype, LayerSections};
use crate::kernels::{Bf16Unit, Elements, Kernels, Tile, tiles};

/// Fewest rows whose products are worth rounding for: fewer take hardly longer than reading the weights does.
pub(super) const FEWEST_ROWS: usize = 32;

/// What [`SessionOptions::fast`](crate::SessionOptions::fast) came to in a session.
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
pub(super) struct Rounding {
    pub unit: Bf16Unit,
    /// Whether the instruction set multiplies rounded activations with quantised weights, too.
    with_quantised: bool,
    pub tiles: Buffer<Tile>,
}

impl Rounding {
    /// For a session that was asked to be fast; else what it is instead.
    pub(super) fn new(model: &Model, kernels: Kernels) -> std::result::Result<Rounding, Fast> {
        let with_quantised = kernels.rounds_for_quantised();
        let mut matrices = model.layout().weights.layers.iter().flat_map(LayerSections::matrices);
        let is_possible = matrices.any(|matrix| {
            matrix.dtype == Dtype::Bf16 || with_quantised && matrix.dtype.code_bits().is_some()
        });
        match kernels.bf16_units().pop() {
            _ if !is_possible => Err(Fast::NoBf16),
            None => Err(Fast::NoUnit),
            Some(unit) => Ok(Rounding { unit, with_quantised, tiles: Buffer::default() }),
        }
    }

    /// Whether activations are rounded for such weights.
    pub(super) fn rounds_for(&self, weights: Elements<'_>) -> bool {
        match weights {
            Elements::Bf16(_) => true,
            Elements::Quantised(_) => self.with_quantised,
            _ => false,
        }
    }

    pub(super) fn name(&self) -> Fast {
        Fast::On(self.unit.name())
    }

    /// Makes room for `rows` rows of so many inputs.
    pub(super) fn resize(&mut self, inputs: usize, rows: usize) -> Result<()> {
        self.tiles.resize(tiles(inputs, rows))
    }
}
