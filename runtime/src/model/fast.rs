//! What a session that was asked to be fast trades its bits for: prompts with activations rounded to bf16.

use std::fmt;

use super::Model;
use super::scratch::Buffer;
use super::team::Team;
use crate::error::Result;
use crate::format::{Config, Dtype};
use crate::kernels::{Bf16Unit, Elements, Kernels, Panels, Tile, tiles, tiles_of_row};
use crate::pool::Pool;

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
    /// Everything is exact, because no matrix of the blob's layers is bf16.
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
            Fast::NoBf16 => f.write_str("exact, because the blob's matrices are not bf16"),
        }
    }
}

/// A unit for products of bf16, and room for the activations of one.
pub(super) struct Rounding {
    unit: Bf16Unit,
    tiles: Buffer<Tile>,
}

impl Rounding {
    /// For a session that was asked to be fast; else what it is instead.
    pub(super) fn new(model: &Model, kernels: Kernels) -> std::result::Result<Rounding, Fast> {
        let mut layers = model.layout().weights.layers.iter();
        let is_bf16 = layers.any(|layer| {
            let matrices = [&layer.qkv_proj, &layer.o_proj, &layer.gate_up_proj, &layer.down_proj];
            matrices.iter().any(|matrix| matrix.dtype == Dtype::Bf16)
        });
        match kernels.bf16_units().pop() {
            _ if !is_bf16 => Err(Fast::NoBf16),
            None => Err(Fast::NoUnit),
            Some(unit) => Ok(Rounding { unit, tiles: Buffer::default() }),
        }
    }

    pub(super) fn name(&self) -> Fast {
        Fast::On(self.unit.name())
    }

    /// Makes room for passes of `rows` tokens.
    pub(super) fn resize(&mut self, config: &Config, rows: usize) -> Result<()> {
        let widest = config.hidden_size.max(config.attention_width()).max(config.intermediate_size);
        self.tiles.resize(tiles(widest, rows))
    }
}

/// The activations of a product, `[inputs/16, rounded up][rows][16]`, and rounded where it is one of many rows with bf16
/// weights.
pub(super) struct Input<'a> {
    kernels: Kernels,
    x: &'a [f32],
    rows: usize,
    rounded: Option<(Bf16Unit, &'a [Tile])>,
}

impl Team {
    /// Whether a pass of so many rows rounds.
    pub(super) fn rounds(&self, rows: usize) -> bool {
        self.rounding.is_some() && rows >= FEWEST_ROWS
    }

    /// What the product of `w` with `x` takes, and the pool to compute it on.
    pub(super) fn input<'a>(
        &'a mut self,
        w: Panels<'_>,
        x: &'a [f32],
        rows: usize,
    ) -> (Input<'a>, &'a mut Pool) {
        let (rounds, tasks) = (self.rounds(rows), self.tasks(x.len()));
        let Team { kernels, pool, rounding } = self;
        let rounded = match (rounding, w.data) {
            (Some(Rounding { unit, tiles: to }), Elements::Bf16(_)) if rounds => {
                let to = &mut to[..tiles(w.inputs, rows)];
                pool.split(to, tiles_of_row(w.inputs), tasks, |first, to| {
                    unit.round(x, w.inputs, rows, first, to);
                });
                Some((*unit, &*to))
            }
            _ => None,
        };
        (Input { kernels: *kernels, x, rows, rounded }, pool)
    }
}

impl Input<'_> {
    /// `y = w x`, for some panels of the matrix.
    pub(super) fn matmul(&self, w: Panels<'_>, y: &mut [f32]) {
        match (self.rounded, w.data) {
            (Some((unit, x)), Elements::Bf16(data)) => unit.matmul(data, w.inputs, x, self.rows, y),
            _ => self.kernels.matmul(w, self.x, self.rows, y, false),
        }
    }
}
