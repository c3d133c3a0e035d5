//! Features of activations over some tokens, rounded for exact products with one another: what sums of `x transpose(x)`
//! consist of.

use std::ops::Range;

use bytemuck::{Pod, Zeroable};

use super::quantized::Group;
use super::{AddFeatureProducts, Kernels, LANES, RoundFeatures};

/// Fours of tokens in a [`Values`] and in a [`FeatureTile`].
pub(super) const FOURS: usize = 16;
/// Tokens of these.
const STEP: usize = 4 * FOURS;

/// 16 features over 64 tokens as weights: of four tokens after four the numbers of each feature, 128 more where the set
/// multiplies unsigned ones.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C, align(64))]
pub(crate) struct Values(pub(super) [Group; FOURS]);
/// The same as activations: for each feature half after half, in the set's [`Encoding`](super::quantized::Encoding).
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C, align(64))]
pub(crate) struct FeatureTile(pub(super) [[i32; FOURS]; LANES]);

/// Some features over some tokens: whole numbers of 8 bits times a scale for each feature.
#[doc(hidden)] // the converter's
#[derive(Debug)]
pub struct Features {
    tokens: usize,
    /// `[features/16][tokens/64, rounded up]`
    values: Vec<Values>,
    /// The same numbers: of each 16 features those halves that the set multiplies, `[features/16][halves][tokens/64, rounded
    /// up]`, with room for both.
    tiles: Vec<FeatureTile>,
    /// What the numbers are multiples of, `[features/16]`.
    scales: Vec<[f32; LANES]>,
    /// What all of a feature's numbers add up to, negative.
    minus_sums: Vec<[i32; LANES]>,
}

impl Features {
    /// Most tokens whose products are whole numbers of 32 bits on every set.
    pub const MOST_TOKENS: usize = 512;

    /// How many, whole panels of them.
    pub fn count(&self) -> usize {
        self.scales.len() * LANES
    }
}

impl Kernels {
    /// Rounds activations, `[features/16][tokens][16]`: the same numbers on every set.
    ///
    /// # Panics
    /// Where there are no tokens, or more than [`Features::MOST_TOKENS`].
    pub fn round_features(self, activations: &[f32], tokens: usize) -> Features {
        assert!((1..=Features::MOST_TOKENS).contains(&tokens));
        let (panels, steps) = (activations.len() / (tokens * LANES), tokens.div_ceil(STEP));
        let mut features = Features {
            tokens,
            values: vec![Values::zeroed(); panels * steps],
            tiles: vec![FeatureTile::zeroed(); 2 * panels * steps],
            scales: vec![[0.0; LANES]; panels],
            minus_sums: vec![[0; LANES]; panels],
        };
        let Features { values, tiles, scales, minus_sums, .. } = &mut features;
        self.run(RoundFeatures { activations, tokens, values, tiles, scales, minus_sums });
        features
    }

    /// Adds what some panels of 16 features give with all of `others`, summed up over the tokens, to `sums[panel][other][16]`. A
    /// feature with itself gives exactly what its rounded activations do.
    ///
    /// # Panics
    /// If there are no such panels, the tokens are not as many or `sums` is not of that length.
    pub fn add_products(
        self,
        features: &Features,
        panels: Range<usize>,
        others: &Features,
        sums: &mut [[f32; LANES]],
    ) {
        assert_eq!(features.tokens, others.tokens);
        assert_eq!(sums.len(), panels.len() * others.count());
        let steps = features.tokens.div_ceil(STEP);
        self.add_feature_products(AddFeatureProducts {
            steps,
            values: &features.values[panels.start * steps..panels.end * steps],
            scales: &features.scales[panels],
            tiles: &others.tiles,
            tile_scales: &others.scales,
            minus_sums: &others.minus_sums,
            sums,
        });
    }
}
