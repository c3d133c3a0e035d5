//! Every unit against the order of its instruction set, and against the stated bound.

use super::super::half::Bf16Pair;
use super::super::tiles::TILE_ROWS;
use super::super::{Bf16Unit, Kernels, LANES, MatmulBf16, RoundToBf16, Tile, tiles, tiles_of_row};
use super::{Noise, assert_same_bits, at, in_pairs, pack};

/// Around the 16 lanes and the two panels of a block.
const OUTPUTS: [usize; 3] = [1, 17, 48];
/// Around the 16 inputs of half a tile and the 32 of a whole one.
const INPUTS: [usize; 6] = [2, 16, 18, 32, 46, 96];
/// Around the 8 rows of half a tile, the 16 of a whole one and the two tiles of a block.
const ROWS: [usize; 6] = [1, 8, 16, 17, 32, 47];

/// A matrix of bf16, row-major and in panels, with activations for it.
struct Case {
    outputs: usize,
    inputs: usize,
    rows: usize,
    matrix: Vec<f32>,
    panels: Vec<Bf16Pair>,
    x: Vec<f32>,
}

impl Case {
    fn new(noise: &mut Noise, outputs: usize, inputs: usize, rows: usize) -> Case {
        let is_bf16 = |x: f32| f32::from_bits(x.to_bits() & 0xffff_0000);
        let matrix: Vec<f32> = noise.vec(outputs * inputs).into_iter().map(is_bf16).collect();
        let panels = in_pairs(&pack(&matrix, outputs, inputs));
        let mut x = noise.vec(inputs.next_multiple_of(LANES) * rows);
        for feature in inputs..inputs.next_multiple_of(LANES) {
            (0..rows).for_each(|row| x[at(feature, row, rows)] = f32::NAN); // never read
        }
        Case { outputs, inputs, rows, matrix, panels, x }
    }

    /// In two parts each, as two workers do it.
    fn rounded(&self, unit: Bf16Unit) -> Vec<Tile> {
        let mut to = vec![[[Bf16Pair(!0); LANES]; TILE_ROWS]; tiles(self.inputs, self.rows)];
        let half = self.rows.div_ceil(TILE_ROWS) / 2;
        let (first, second) = to.split_at_mut(half * tiles_of_row(self.inputs));
        let Case { inputs, rows, ref x, .. } = *self;
        unit.round(RoundToBf16 { x, inputs, rows, first: 0, tiles: first });
        unit.round(RoundToBf16 { x, inputs, rows, first: half, tiles: second });
        to
    }

    fn product(&self, unit: Bf16Unit) -> Vec<f32> {
        let mut y = vec![f32::NAN; self.outputs.next_multiple_of(LANES) * self.rows];
        let Case { inputs, rows, panels: ref w, .. } = *self;
        unit.matmul(MatmulBf16 { w, inputs, x: &self.rounded(unit), rows, y: &mut y });
        y
    }

    /// What each element is by `sum`, of its row's rounded activations in pairs and its output's weights.
    fn expected(&self, sum: impl Fn(&[[f32; 2]], &[[f32; 2]]) -> f32) -> Vec<f32> {
        let mut y = vec![0.0; self.outputs.next_multiple_of(LANES) * self.rows];
        for row in 0..self.rows {
            let x: Vec<_> = (0..self.inputs).map(|i| nearest_bf16(self.x[at(i, row, self.rows)])).collect();
            for (output, weights) in self.matrix.chunks_exact(self.inputs).enumerate() {
                y[at(output, row, self.rows)] = sum(x.as_chunks().0, weights.as_chunks().0);
            }
        }
        y
    }

    fn all() -> impl Iterator<Item = Case> {
        let mut noise = Noise(8);
        let shapes =
            OUTPUTS.into_iter().flat_map(|o| INPUTS.into_iter().flat_map(move |i| ROWS.map(|r| (o, i, r))));
        shapes.map(move |(outputs, inputs, rows)| Case::new(&mut noise, outputs, inputs, rows))
    }
}

fn units() -> Vec<Bf16Unit> {
    Kernels::available().into_iter().flat_map(Kernels::bf16_units).collect()
}

/// Of the two around a normal number, by distance; of equally near ones the one whose last bit is 0.
fn nearest_bf16(x: f32) -> f32 {
    let below = f32::from_bits(x.to_bits() & 0xffff_0000);
    let above = f32::from_bits((x.to_bits() & 0xffff_0000) + 0x1_0000);
    let distances = [below, above].map(|near| (f64::from(near) - f64::from(x)).abs());
    let is_even = below.to_bits() >> 16 & 1 == 0;
    if distances[0] < distances[1] || distances[0] == distances[1] && is_even { below } else { above }
}

/// VDPBF16PS, one pair after another.
fn avx512_bf16_sum(x: &[[f32; 2]], w: &[[f32; 2]]) -> f32 {
    x.iter().zip(w).fold(0.0, |sum, (x, w)| w[0].mul_add(x[0], w[1].mul_add(x[1], sum)))
}

/// TDPBF16PS on the whole tiles, VDPBF16PS on the rest.
fn amx_sum(x: &[[f32; 2]], w: &[[f32; 2]]) -> f32 {
    let (x_tiles, x_rest) = x.as_chunks::<16>();
    let (w_tiles, w_rest) = w.as_chunks::<16>();
    let chain = |x: &[[f32; 2]], w: &[[f32; 2]], i: usize| {
        x.iter().zip(w).fold(0.0, |sum, (x, w)| f32::mul_add(w[i], x[i], sum))
    };
    let tiles = x_tiles.iter().zip(w_tiles);
    let sum = tiles.fold(0.0, |sum, (x, w)| sum + (chain(x, w, 0) + chain(x, w, 1)));
    x_rest.iter().zip(w_rest).fold(sum, |sum, (x, w)| w[0].mul_add(x[0], w[1].mul_add(x[1], sum)))
}

#[test]
fn each_unit_adds_in_the_order_of_its_instruction_set() {
    for case in Case::all() {
        for unit in units() {
            let expected = match unit.name() {
                "amx" => case.expected(amx_sum),
                _ => case.expected(avx512_bf16_sum),
            };
            assert_same_bits(&[expected, case.product(unit)]);
        }
    }
}

#[test]
fn the_error_is_within_the_stated_bound() {
    for case in Case::all() {
        for unit in units() {
            let y = case.product(unit);
            for (output, row) in (0..case.outputs).flat_map(|o| (0..case.rows).map(move |r| (o, r))) {
                let weights = &case.matrix[output * case.inputs..][..case.inputs];
                let products = weights
                    .iter()
                    .enumerate()
                    .map(|(i, &w)| f64::from(w) * f64::from(case.x[at(i, row, case.rows)]));
                let (sum, magnitude) = products.fold((0.0, 0.0), |(sum, all), p| (sum + p, all + p.abs()));
                let bound = (2f64.powi(-8) + case.inputs as f64 * 2f64.powi(-22)) * magnitude;
                let found = f64::from(y[at(output, row, case.rows)]);
                assert!((found - sum).abs() <= bound, "{}: {found}, not {sum} ± {bound}", unit.name());
            }
        }
    }
}

#[test]
fn ties_go_to_even_and_small_numbers_to_zero_in_every_unit() {
    let tie = |bits: u32| f32::from_bits(bits << 16 | 0x8000);
    let values = [
        (1.0, 1.0),
        (tie(0x3f80), 1.0),
        (tie(0x3f81), f32::from_bits(0x3f82 << 16)),
        (-tie(0x3f81), -f32::from_bits(0x3f82 << 16)),
        (f32::from_bits(0x3fff_ffff), 2.0),
        (f32::MAX, f32::INFINITY),
        (f32::MIN_POSITIVE, f32::MIN_POSITIVE),
        (f32::MIN_POSITIVE.next_down(), 0.0),
        (f32::INFINITY, f32::INFINITY),
        (f32::NAN, f32::NAN),
    ];
    for unit in units() {
        for (value, expected) in values {
            let x = [value; LANES];
            let mut to = [[[Bf16Pair(0); LANES]; TILE_ROWS]];
            unit.round(RoundToBf16 { x: &x, inputs: LANES, rows: 1, first: 0, tiles: &mut to });
            let found = to[0][0][0].to_f32();
            assert!(
                found.map(f32::to_bits) == [expected.to_bits(); 2] || value.is_nan() && found[0].is_nan(),
                "{value}"
            );
        }
        // The larger product stays, the smaller one is below the normal numbers.
        let w = [[Bf16Pair(0x0080_3f80); LANES]];
        let x = [[[Bf16Pair(0x3f00_0080); LANES]; TILE_ROWS]];
        let mut y = [f32::NAN; LANES];
        let w = w.as_flattened();
        unit.matmul(MatmulBf16 { w, inputs: 2, x: &x, rows: 1, y: &mut y });
        assert_eq!(y, [f32::MIN_POSITIVE; LANES], "{}", unit.name());
    }
}
