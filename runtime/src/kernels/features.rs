//! Features of activations over some tokens, rounded for exact products with one another: what sums of `x transpose(x)`
//! consist of.

use bytemuck::{Pod, Zeroable, zeroed_vec};

use super::quantized::{ActivationBits, ActivationBlock, Group, Quantized};
use super::{ByteTile, Kernels, LANES, MatmulQuantized, MatmulTiles, RoundFeatures};
use crate::format::{Dtype, QuantizedPanels};

/// Some features over some tokens: whole numbers of 8 bits times a scale, one for every 32 tokens of a feature.
#[doc(hidden)] // the converter's
#[derive(Debug)]
pub struct Features {
    tokens: usize,
    features: usize,
    /// As weights, tokens being the inputs: panels of `q8`.
    panels: Vec<Line>,
    /// As activations, features being the rows. Their numbers and scales are the same.
    rows: Rows,
}

/// 64 bytes of a panel, at the start of a cache line: tiles are read fastest from there.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C, align(64))]
pub(crate) struct Line(Group);

/// What the set multiplies panels with.
#[derive(Debug)]
enum Rows {
    /// `[tokens/32, rounded up][features]`
    Blocks(Vec<ActivationBlock>),
    /// `[features/16][tokens/32, rounded up]`
    Tiles(Vec<ByteTile>),
}

impl Kernels {
    /// Rounds activations, `[features/16][tokens][16]`: the same on every set.
    ///
    /// # Panics
    /// Where there are no tokens.
    pub fn round_features(self, activations: &[f32], tokens: usize) -> Features {
        assert!(tokens > 0);
        let layout =
            QuantizedPanels::new(Dtype::Q8, tokens).expect("tokens that are in memory have a layout");
        let features = activations.len() / tokens;
        let mut panels: Vec<Line> = zeroed_vec(layout.panel_len / size_of::<Line>() * (features / LANES));
        let mut rows: Vec<ActivationBlock> = zeroed_vec(layout.blocks * features);
        self.run(RoundFeatures {
            activations,
            tokens,
            layout,
            panels: bytemuck::cast_slice_mut(&mut panels),
            rows: &mut rows,
        });
        let rows = match self.multiplies_byte_tiles() {
            true => Rows::Tiles(tiles(&rows, features)),
            false => Rows::Blocks(rows),
        };
        Features { tokens, features, panels, rows }
    }

    /// Rounds numbers, `[panels][inputs][16]`, to panels of `q8`: the same on every set.
    pub(crate) fn round_panels(
        self,
        numbers: &[f32],
        layout: QuantizedPanels,
        inputs: usize,
        panels: &mut [u8],
    ) {
        self.run(RoundFeatures { activations: numbers, tokens: inputs, layout, panels, rows: &mut [] });
    }

    /// What the features give with all of `others`, summed up over the tokens: `sums[panel][other][16]`, which is overwritten.
    /// A feature with itself gives exactly what its rounded activations do.
    ///
    /// # Panics
    /// If the tokens are not as many or `sums` is not of that length.
    pub fn products(self, features: &Features, others: &Features, sums: &mut [f32]) {
        assert_eq!(features.tokens, others.tokens);
        let bytes = bytemuck::cast_slice(&features.panels);
        let w = Quantized::new(bytes, Dtype::Q8, features.tokens).expect("see `round_features`");
        let (rows, y) = (others.features, sums);
        match &others.rows {
            Rows::Blocks(x) => self.run(MatmulQuantized { w, x, bits: ActivationBits::Eight, rows, y }),
            Rows::Tiles(x) => self.matmul_byte_tiles(MatmulTiles { w, x, rows, y }),
        }
    }
}

/// The same rows in tiles, `[rows/16][blocks]`.
fn tiles(blocks: &[ActivationBlock], rows: usize) -> Vec<ByteTile> {
    let of_row = blocks.len() / rows;
    let mut tiles: Vec<ByteTile> = zeroed_vec(blocks.len() / LANES);
    for (block, blocks) in blocks.chunks_exact(rows).enumerate() {
        for (row, x) in blocks.iter().enumerate() {
            tiles[row / LANES * of_row + block].set_block(row % LANES, x);
        }
    }
    tiles
}
