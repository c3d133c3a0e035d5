//! What becomes of activations before a product: nothing, or what the matrix's dtype asks for.

use super::fast;
use super::team::Team;
use crate::error::Result;
use crate::format::Config;
use crate::kernels::{
    Bf16Unit, Elements, Kernels, Panels, RoundedBlock, Tile, rounded_blocks, tiles, tiles_of_row,
};
use crate::pool::Pool;

/// The activations of a product of `rows` rows.
pub(super) struct Input<'a> {
    kernels: Kernels,
    rows: usize,
    form: Form<'a>,
}

/// What a product takes.
#[derive(Clone, Copy)]
enum Form<'a> {
    /// The activations themselves, `[inputs/16, rounded up][rows][16]`.
    Floats(&'a [f32]),
    /// Rounded to bf16, for many rows and bf16 weights where that was asked for.
    Bf16(Bf16Unit, &'a [Tile]),
    /// Rounded to whole numbers, for quantised weights: `[blocks][rows]`.
    Integers(&'a [RoundedBlock]),
}

impl Team {
    /// Makes room for the inputs of passes of `rows` tokens.
    pub(super) fn resize(&mut self, config: &Config, rows: usize) -> Result<()> {
        let widest = config.hidden_size.max(config.attention_width()).max(config.intermediate_size);
        if let Some(rounding) = &mut self.rounding {
            rounding.resize(widest, rows)?;
        }
        match &mut self.integers {
            Some(blocks) => blocks.resize(rounded_blocks(widest, rows)),
            None => Ok(()),
        }
    }

    /// Whether a pass of so many rows rounds to bf16.
    pub(super) fn rounds(&self, rows: usize) -> bool {
        self.rounding.is_some() && rows >= fast::FEWEST_ROWS
    }

    /// What the product of `w` with `x` takes, and the pool to compute it on.
    pub(super) fn input<'a>(
        &'a mut self,
        w: Panels<'_>,
        x: &'a [f32],
        rows: usize,
    ) -> (Input<'a>, &'a mut Pool) {
        let (rounds, tasks) = (self.rounds(rows), self.tasks(x.len()));
        let Team { kernels, pool, rounding, integers } = self;
        let kernels = *kernels;
        let form = match (w.data, rounding, integers) {
            (Elements::Bf16(_), Some(rounding), _) if rounds => {
                let (unit, to) = (rounding.unit, &mut rounding.tiles[..tiles(w.inputs, rows)]);
                pool.split(to, tiles_of_row(w.inputs), tasks, |first, to| {
                    unit.round(x, w.inputs, rows, first, to);
                });
                Form::Bf16(unit, to)
            }
            (Elements::Quantised(_), _, Some(blocks)) => {
                let to = &mut blocks[..rounded_blocks(w.inputs, rows)];
                pool.split(to, rows, tasks, |first, to| kernels.round(x, rows, first, to));
                Form::Integers(to)
            }
            _ => Form::Floats(x),
        };
        (Input { kernels, rows, form }, pool)
    }
}

impl Input<'_> {
    /// `y = w x`, for some panels of the matrix.
    pub(super) fn matmul(&self, w: Panels<'_>, y: &mut [f32]) {
        match (self.form, w.data) {
            (Form::Bf16(unit, x), Elements::Bf16(data)) => unit.matmul(data, w.inputs, x, self.rows, y),
            (Form::Integers(x), Elements::Quantised(data)) => {
                self.kernels.matmul_quantised(data, x, self.rows, y);
            }
            (Form::Floats(x), _) => self.kernels.matmul(w, x, self.rows, y, false),
            _ => unreachable!("the form was chosen for the matrix"),
        }
    }
}
