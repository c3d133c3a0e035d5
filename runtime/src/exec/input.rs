//! What becomes of activations before a product: nothing, or what the matrix's dtype asks for.

use super::context::{ExecContext, QuantizedActivations};
use super::fast::{self, Rounding};
use super::pool::Pool;
use crate::error::Result;
use crate::format::{Config, Dtype};
use crate::kernels::{
    ActivationBits, ActivationBlock, ActivationTile, Bf16Unit, ByteTile, Elements, FastUnit, Kernels,
    MatmulBf16, MatmulQuantized, MatmulRounded, MatmulTiles, Panels, QuantizeBlocks, QuantizeTiles,
    Quantized, QuantizedTile, RoundToBf16, SplitTile, Tile, activation_blocks, quantized_tiles, tiles,
    tiles_of_row,
};

/// The activations of a product of `rows` rows.
pub(crate) struct Input<'a> {
    kernels: Kernels,
    rows: usize,
    form: Form<'a>,
}

/// What a product takes.
#[derive(Clone, Copy)]
enum Form<'a> {
    /// The activations themselves, `[inputs/16, rounded up][rows][16]`.
    Floats(&'a [f32]),
    /// Rounded to bf16, for many rows and bf16 or quantized weights where that was asked for.
    Bf16(Bf16Unit, &'a [Tile]),
    /// Quantized to so many bits, for quantized weights: `[blocks][rows]`.
    Quantized(ActivationBits, &'a [ActivationBlock]),
    /// The same for some rows, where the set takes tiles: `[rows/8, rounded up][blocks]`.
    SplitTiles(&'a [SplitTile]),
    /// The same for many rows: `[rows/16, rounded up][blocks]`.
    QuantizedTiles(&'a [ActivationTile]),
    /// The same to 8 bits, for weights of `q8`.
    ByteTiles(&'a [ByteTile]),
}

impl ExecContext {
    /// Makes room for the inputs of passes of `rows` tokens.
    pub(crate) fn resize(&mut self, config: &Config, rows: usize) -> Result<()> {
        let widest = config.hidden_size.max(config.attention_width()).max(config.intermediate_size);
        if let Some(rounding) = &mut self.rounding {
            rounding.resize(widest, rows)?;
        }
        let bits = if self.rounding.as_ref().is_some_and(Rounding::is_to_8_bits) {
            ActivationBits::Eight
        } else {
            ActivationBits::Twelve
        };
        match &mut self.quantized {
            Some(quantized) => quantized.resize(self.kernels, bits, widest, rows),
            None => Ok(()),
        }
    }

    /// Whether a pass of so many rows rounds to bf16.
    pub(crate) fn rounds(&self, rows: usize) -> bool {
        self.rounding.is_some() && rows >= fast::FEWEST_ROWS
    }

    /// Whether the attention of a pass of so many rows multiplies in 8 bits.
    pub(crate) fn rounds_attention(&self, rows: usize) -> bool {
        self.rounds(rows) && self.rounding.as_ref().is_some_and(|rounding| rounding.attention)
    }

    /// What the product of `w` with `x` takes, and the pool to compute it on.
    pub(crate) fn input<'a>(
        &'a mut self,
        w: Panels<'_>,
        x: &'a [f32],
        rows: usize,
    ) -> (Input<'a>, &'a mut Pool) {
        let (rounds, tasks) = (self.rounds(rows), self.element_tasks(x.len()));
        let ExecContext { kernels, pool, rounding, quantized } = self;
        let kernels = *kernels;
        let unit = rounding.as_ref().filter(|_| rounds).and_then(|rounding| rounding.unit_for(w.data));
        let form = match (w.data, rounding, quantized) {
            (_, Some(rounding), _) if let Some(FastUnit::Bf16(unit)) = unit => {
                let to = &mut rounding.tiles[..tiles(w.inputs, rows)];
                pool.split(to, tiles_of_row(w.inputs), tasks, move |first, to| {
                    unit.round(RoundToBf16 { x, inputs: w.inputs, rows, first, tiles: to });
                });
                Form::Bf16(unit, to)
            }
            (Elements::Quantized(Quantized { dtype, .. }), _, Some(quantized)) => {
                let bits = if unit.is_some() { ActivationBits::Eight } else { ActivationBits::Twelve };
                quantized.quantize(kernels, pool, [w.inputs, rows], x, (dtype, bits), tasks)
            }
            _ => Form::Floats(x),
        };
        (Input { kernels, rows, form }, pool)
    }
}

impl QuantizedActivations {
    /// Makes room for up to `rows` rows, whose activations get so many bits where they are many.
    fn resize(&mut self, kernels: Kernels, bits: ActivationBits, inputs: usize, rows: usize) -> Result<()> {
        let fewest = kernels.fewest_tile_rows();
        // With how many rows activations have twelve bits, and with how many they may lie in blocks.
        let (rows_of_twelve, rows_of_blocks) = match bits {
            ActivationBits::Eight => (rows.min(fast::FEWEST_ROWS - 1), rows), // weights may have another dtype
            ActivationBits::Twelve => (rows, rows.min(fewest.split - 1)),
        };
        if bits == ActivationBits::Eight && kernels.multiplies_byte_tiles() {
            self.byte_tiles.resize(quantized_tiles::<ByteTile>(inputs, rows))?;
        }
        if rows_of_twelve >= fewest.split {
            let rows = rows_of_twelve.min(fewest.whole - 1);
            self.split_tiles.resize(quantized_tiles::<SplitTile>(inputs, rows))?;
        }
        if rows_of_twelve >= fewest.whole {
            self.tiles.resize(quantized_tiles::<ActivationTile>(inputs, rows_of_twelve))?;
        }
        self.blocks.resize(activation_blocks(inputs, rows_of_blocks))
    }

    /// Quantizes the activations `x` to so many bits for weights of a dtype, in tiles where the set takes them.
    fn quantize(
        &mut self,
        kernels: Kernels,
        pool: &mut Pool,
        [inputs, rows]: [usize; 2],
        x: &[f32],
        (dtype, bits): (Dtype, ActivationBits),
        tasks: usize,
    ) -> Form<'_> {
        let fewest = kernels.fewest_tile_rows();
        match (bits, dtype) {
            (ActivationBits::Twelve, _) if rows >= fewest.whole => {
                let to = &mut self.tiles;
                Form::QuantizedTiles(quantize_tiles(kernels, pool, [inputs, rows], x, to, tasks))
            }
            (ActivationBits::Twelve, _) if rows >= fewest.split => {
                let to = &mut self.split_tiles;
                Form::SplitTiles(quantize_tiles(kernels, pool, [inputs, rows], x, to, tasks))
            }
            (ActivationBits::Eight, Dtype::Q8) if kernels.multiplies_byte_tiles() => {
                let to = &mut self.byte_tiles;
                Form::ByteTiles(quantize_tiles(kernels, pool, [inputs, rows], x, to, tasks))
            }
            _ => {
                let to = &mut self.blocks[..activation_blocks(inputs, rows)];
                pool.split(to, rows, tasks, move |first, to| {
                    kernels.run(QuantizeBlocks { x, rows, first, bits, blocks: to });
                });
                Form::Quantized(bits, to)
            }
        }
    }
}

/// Quantizes the activations `x` in tiles of one kind, the first of `to`.
fn quantize_tiles<'t, T: QuantizedTile + Send>(
    kernels: Kernels,
    pool: &mut Pool,
    [inputs, rows]: [usize; 2],
    x: &[f32],
    to: &'t mut [T],
    tasks: usize,
) -> &'t [T] {
    let to = &mut to[..quantized_tiles::<T>(inputs, rows)];
    pool.split(to, quantized_tiles::<T>(inputs, 1), tasks, move |first, tiles| {
        kernels.run(QuantizeTiles { x, inputs, rows, first, tiles });
    });
    to
}

impl Input<'_> {
    /// `y = w x`, for some panels of the matrix.
    pub(crate) fn matmul(&self, w: Panels<'_>, y: &mut [f32]) {
        let (kernels, inputs, rows) = (self.kernels, w.inputs, self.rows);
        match (self.form, w.data) {
            (Form::Bf16(unit, x), Elements::Bf16(w)) => unit.matmul(MatmulBf16 { w, inputs, x, rows, y }),
            (Form::Bf16(_, x), Elements::Quantized(w)) => {
                kernels.matmul_rounded(MatmulRounded { w, x, rows, y });
            }
            (Form::Quantized(bits, x), Elements::Quantized(w)) => {
                kernels.run(MatmulQuantized { w, x, bits, rows, y });
            }
            (Form::SplitTiles(x), Elements::Quantized(w)) => {
                kernels.matmul_split_tiles(MatmulTiles { w, x, rows, y });
            }
            (Form::QuantizedTiles(x), Elements::Quantized(w)) => {
                kernels.matmul_tiles(MatmulTiles { w, x, rows, y });
            }
            (Form::ByteTiles(x), Elements::Quantized(w)) => {
                kernels.matmul_byte_tiles(MatmulTiles { w, x, rows, y });
            }
            (Form::Floats(x), _) => kernels.matmul(w, x, rows, y, false),
            _ => unreachable!("the form was chosen for the matrix"),
        }
    }
}
