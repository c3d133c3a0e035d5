//! Products of bytes that a thread computes by itself.

use super::buffer::Buffer;
use crate::error::Result;
use crate::kernels::{
    ActivationBits, ActivationBlock, ByteTile, Kernels, MatmulQuantized, MatmulTiles, QuantizeBlocks,
    QuantizeTiles, Quantized, activation_blocks, quantized_tiles,
};

/// The activations of such a product.
#[derive(Default)]
pub(crate) struct RoundedInputs {
    blocks: Buffer<ActivationBlock>,
    tiles: Buffer<ByteTile>,
}

impl RoundedInputs {
    /// Makes room for `rows` rows of so many inputs.
    pub(crate) fn resize(&mut self, kernels: Kernels, inputs: usize, rows: usize) -> Result<()> {
        match kernels.multiplies_byte_tiles() {
            true => self.tiles.resize(quantized_tiles::<ByteTile>(inputs, rows)),
            false => self.blocks.resize(activation_blocks(inputs, rows)),
        }
    }

    /// `y = w x` for weights of `q8`, with the activations `x` of as many inputs rounded to 8 bits. There is room for them.
    pub(crate) fn matmul(
        &mut self,
        kernels: Kernels,
        w: Quantized<'_>,
        x: &[f32],
        rows: usize,
        y: &mut [f32],
    ) {
        let inputs = x.len() / rows;
        if kernels.multiplies_byte_tiles() {
            let tiles = &mut self.tiles[..quantized_tiles::<ByteTile>(inputs, rows)];
            kernels.run(QuantizeTiles { x, inputs, rows, first: 0, tiles });
            kernels.matmul_byte_tiles(MatmulTiles { w, x: tiles, rows, y });
        } else {
            let (blocks, bits) = (&mut self.blocks[..activation_blocks(inputs, rows)], ActivationBits::Eight);
            kernels.run(QuantizeBlocks { x, rows, first: 0, bits, blocks });
            kernels.run(MatmulQuantized { w, x: blocks, bits, rows, y });
        }
    }
}
