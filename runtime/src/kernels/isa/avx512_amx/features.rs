//! Products of features over tokens on tile registers: whole numbers, whose sums stay there over all tokens.

use super::Avx512Amx;
use crate::kernels::LANES;
use crate::kernels::ops::AddFeatureProducts;
use crate::kernels::simd::{Aligned, RunOn, Simd, unrolled};
use crate::kernels::tiles::TILE_ROWS;

impl RunOn<Avx512Amx> for AddFeatureProducts<'_> {
    #[inline(always)]
    fn run_on(self, set: Avx512Amx) {
        let AddFeatureProducts { steps, values, scales, tiles, tile_scales, minus_sums, sums } = self;
        let (simd, registers, rows) = (set.vnni(), set.amx().configure(), TILE_ROWS);
        let others = tile_scales.len() * LANES;
        // Of what a set of bytes has, one half is used: see `Features`.
        let (values, tiles) = (values.chunks_exact(steps), &tiles[..tile_scales.len() * steps]);
        let mut products = Aligned([[[[0.0; LANES]; TILE_ROWS]; 2]; 2]);
        let values: Vec<_> = values.collect();
        for (pair, sums) in sums.chunks_mut(2 * others).enumerate() {
            let own = &values[2 * pair..values.len().min(2 * pair + 2)];
            for (i, tiles) in tiles.chunks(2 * steps).enumerate() {
                // An odd last one comes twice.
                let x = [&tiles[..steps], &tiles[tiles.len() - steps..]];
                registers.products_of_bytes(x, [own[0], own[own.len() - 1]], &mut products.0);
                for (t, products) in (2 * i..).zip(&products.0).take(tiles.len() / steps) {
                    for (p, products) in products.iter().enumerate().take(own.len()) {
                        let scales = simd.load(&scales[2 * pair + p]);
                        let Some(sums) = sums[p * others + t * LANES..].first_chunk_mut::<TILE_ROWS>() else {
                            continue;
                        };
                        unrolled!(r < rows of 16 => {
                            let products = simd.integers_as_floats(&products[r], minus_sums[t][r].wrapping_mul(128));
                            let sum = simd.fma(simd.load(&sums[r]), simd.mul(products, scales), tile_scales[t][r]);
                            simd.store(sum, &mut sums[r]);
                        });
                    }
                }
            }
        }
    }
}
