//! Features of activations over some tokens, rounded for exact products with one another: what sums of `x transpose(x)`
//! consist of.

use std::ops::Range;

use bytemuck::Zeroable;

use super::quantized::{ActivationBits, ActivationBlock, Quantized};
use super::{Kernels, LANES, MatmulQuantized, RoundFeatures};
use crate::format::{BLOCK, Dtype, QuantizedPanels};

/// Some features over some tokens: whole numbers of 8 bits times a scale, one for every 32 tokens of a feature.
#[doc(hidden)] // the converter's
#[derive(Debug)]
pub struct Features {
    tokens: usize,
    /// As weights, tokens being the inputs: panels of `q8`.
    panels: Vec<u8>,
    /// As activations, features being the rows: `[tokens/32, rounded up][features]`. Their numbers and scales are the same.
    rows: Vec<ActivationBlock>,
}

impl Features {
    /// How many, whole panels of them.
    pub fn count(&self) -> usize {
        self.rows.len() / self.tokens.div_ceil(BLOCK)
    }
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
        let mut panels = vec![0; layout.panel_len * (features / LANES)];
        let mut rows = vec![ActivationBlock::zeroed(); layout.blocks * features];
        self.run(RoundFeatures { activations, tokens, layout, panels: &mut panels, rows: &mut rows });
        Features { tokens, panels, rows }
    }

    /// What some panels of 16 features give with all of `others`, summed up over the tokens: `sums[panel][other][16]`, which
    /// is overwritten. A feature with itself gives exactly what its rounded activations do.
    ///
    /// # Panics
    /// If there are no such panels, the tokens are not as many or `sums` is not of that length.
    pub fn products(self, features: &Features, panels: Range<usize>, others: &Features, sums: &mut [f32]) {
        assert_eq!(features.tokens, others.tokens);
        let w = Quantized::new(&features.panels, Dtype::Q8, features.tokens).expect("see `round_features`");
        self.run(MatmulQuantized {
            w: w.slice(panels.start, panels.len()),
            x: &others.rows,
            bits: ActivationBits::Eight,
            rows: others.count(),
            y: sums,
        });
    }
}
