//! What becomes of activations before a product: nothing, or what the matrix's dtype asks for.

use super::fast;
use super::team::{Team, WholeNumbers};
use crate::error::Result;
use crate::format::Config;
use crate::kernels::{
    Bf16Unit, Elements, Kernels, Panels, RoundedBlock, RoundedTile, Tile, rounded_blocks, rounded_tiles,
    tiles, tiles_of_row,
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
    /// Rounded to bf16, for many rows and bf16 or quantised weights where that was asked for.
    Bf16(Bf16Unit, &'a [Tile]),
    /// Rounded to whole numbers, for quantised weights: `[blocks][rows]`.
    Integers(&'a [RoundedBlock]),
    /// The same for many rows, where the set takes tiles: `[rows/16, rounded up][blocks]`.
    Tiles(&'a [RoundedTile]),
}

impl Team {
    /// Makes room for the inputs of passes of `rows` tokens.
    pub(super) fn resize(&mut self, config: &Config, rows: usize) -> Result<()> {
        let widest = config.hidden_size.max(config.attention_width()).max(config.intermediate_size);
        if let Some(rounding) = &mut self.rounding {
            rounding.resize(widest, rows)?;
        }
        match &mut self.integers {
            Some(numbers) => numbers.resize(self.kernels.fewest_tile_rows(), widest, rows),
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
            (_, Some(rounding), _) if rounds && rounding.rounds_for(w.data) => {
                let (unit, to) = (rounding.unit, &mut rounding.tiles[..tiles(w.inputs, rows)]);
                pool.split(to, tiles_of_row(w.inputs), tasks, |first, to| {
                    unit.round(x, w.inputs, rows, first, to);
                });
                Form::Bf16(unit, to)
            }
            (Elements::Quantised(_), _, Some(numbers)) => {
                numbers.round(kernels, pool, w.inputs, x, rows, tasks)
            }
            _ => Form::Floats(x),
        };
        (Input { kernels, rows, form }, pool)
    }
}

impl WholeNumbers {
    /// Makes room for up to `rows` rows, in tiles from `fewest` on.
    fn resize(&mut self, fewest: usize, inputs: usize, rows: usize) -> Result<()> {
        if rows >= fewest {
            self.tiles.resize(rounded_tiles(inputs, rows))?;
        }
        self.blocks.resize(rounded_blocks(inputs, rows.min(fewest - 1)))
    }

    /// Rounds the activations `x`, in tiles where the set takes them.
    fn round(
        &mut self,
        kernels: Kernels,
        pool: &mut Pool,
        inputs: usize,
        x: &[f32],
        rows: usize,
        tasks: usize,
    ) -> Form<'_> {
        if rows >= kernels.fewest_tile_rows() {
            let to = &mut self.tiles[..rounded_tiles(inputs, rows)];
            pool.split(to, rounded_tiles(inputs, 1), tasks, |first, to| {
                kernels.round_tiles(x, inputs, rows, first, to);
            });
            Form::Tiles(to)
        } else {
            let to = &mut self.blocks[..rounded_blocks(inputs, rows)];
            pool.split(to, rows, tasks, |first, to| kernels.round(x, rows, first, to));
            Form::Integers(to)
        }
    }
}

impl Input<'_> {
    /// `y = w x`, for some panels of the matrix.
    pub(super) fn matmul(&self, w: Panels<'_>, y: &mut [f32]) {
        match (self.form, w.data) {
            (Form::Bf16(unit, x), Elements::Bf16(data)) => unit.matmul(data, w.inputs, x, self.rows, y),
            (Form::Bf16(_, x), Elements::Quantised(data)) => {
                self.kernels.matmul_rounded_quantised(data, x, self.rows, y);
            }
            (Form::Integers(x), Elements::Quantised(data)) => {
                self.kernels.matmul_quantised(data, x, self.rows, y);
            }
            (Form::Tiles(x), Elements::Quantised(data)) => self.kernels.matmul_tiles(data, x, self.rows, y),
            (Form::Floats(x), _) => self.kernels.matmul(w, x, self.rows, y, false),
            _ => unreachable!("the form was chosen for the matrix"),
        }
    }
}
