//! Every set against a naive oracle in f64, and against the scalar set bit for bit.

mod attention;
mod calibration;
mod quantized;
mod rounded;

use super::half::Bf16Pair;
use super::ops::math;
use super::{Add, Elements, F16, InverseRms, Kernels, LANES, Panels, ScaleRows, SiluMul, Softmax, sin_cos};

/// A few bits of noise per call: xorshift64*, so that a failure repeats.
struct Noise(u64);

impl Noise {
    /// Uniform in [-1, 1).
    fn next(&mut self) -> f32 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    fn vec(&mut self, len: usize) -> Vec<f32> {
        (0..len).map(|_| self.next()).collect()
    }
}

/// Row-major `[out][in]` to panels `[out/16][in][16]`.
fn pack(matrix: &[f32], outputs: usize, inputs: usize) -> Vec<f32> {
    let mut panels = vec![0.0; outputs.next_multiple_of(LANES) * inputs];
    for out in 0..outputs {
        for input in 0..inputs {
            panels[(out / LANES * inputs + input) * LANES + out % LANES] = matrix[out * inputs + input];
        }
    }
    panels
}

/// Panels of f32 that are bf16 to panels of pairs: `[out/16][in][16]` to `[out/16][in/2][16][2]`.
fn in_pairs(panels: &[f32]) -> Vec<Bf16Pair> {
    let inputs = panels.as_chunks::<LANES>().0.as_chunks::<2>().0;
    let pair = |first: f32, second: f32| Bf16Pair(first.to_bits() >> 16 | second.to_bits());
    inputs.iter().flat_map(|[first, second]| (0..LANES).map(|lane| pair(first[lane], second[lane]))).collect()
}

/// Where feature `feature` of row `row` lies in activations of `rows` rows.
fn at(feature: usize, row: usize, rows: usize) -> usize {
    (feature / LANES * rows + row) * LANES + feature % LANES
}

/// Around the 16 lanes, the 4 panels and the 6, 8, 12 or 24 rows of a register tile, the 16 inputs of a step and the 256 that
/// many rows read together.
const OUTPUTS: [usize; 7] = [1, 15, 16, 17, 64, 80, 113];
const INPUTS: [usize; 7] = [1, 15, 16, 17, 100, 256, 523];
const ROWS: [usize; 17] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 16, 23, 24, 25, 67];

/// Every set, as it is on each processor that it is set for: their bits are the same.
fn sets() -> Vec<Kernels> {
    Kernels::available().into_iter().flat_map(Kernels::of_all_processors).collect()
}

#[test]
fn matmul_is_the_matrix_product() {
    let mut noise = Noise(1);
    for (outputs, inputs) in OUTPUTS.into_iter().flat_map(|o| INPUTS.map(|i| (o, i))) {
        let matrix = noise.vec(outputs * inputs);
        let panels = pack(&matrix, outputs, inputs);
        let w = Panels { data: Elements::F32(&panels), inputs };
        for (rows, accumulate) in ROWS.into_iter().flat_map(|r| [(r, false), (r, true)]) {
            let mut x = noise.vec(inputs.next_multiple_of(LANES) * rows);
            // Features past the last are never read.
            for feature in inputs..inputs.next_multiple_of(LANES) {
                (0..rows).for_each(|row| x[at(feature, row, rows)] = f32::NAN);
            }
            let start = noise.vec(outputs.next_multiple_of(LANES) * rows);
            let mut exact = Vec::new();
            for set in sets() {
                let mut y = start.clone();
                set.matmul(w, &x, rows, &mut y, accumulate);
                assert_product(&matrix, outputs, inputs, &x, &y, accumulate.then_some(&start));
                if set.is_exact() {
                    exact.push(y);
                }
            }
            assert_same_bits(&exact);
        }
    }
}

/// That `y` is `start + matrix x`, computed in f64, up to a few roundings.
fn assert_product(
    matrix: &[f32],
    outputs: usize,
    inputs: usize,
    x: &[f32],
    y: &[f32],
    start: Option<&Vec<f32>>,
) {
    let rows = x.len() / inputs.next_multiple_of(LANES);
    for (out, row) in (0..outputs).flat_map(|out| (0..rows).map(move |row| (out, row))) {
        let place = at(out, row, rows);
        let products =
            (0..inputs).map(|i| f64::from(matrix[out * inputs + i]) * f64::from(x[at(i, row, rows)]));
        let expected = start.map_or(0.0, |start| f64::from(start[place])) + products.sum::<f64>();
        let found = f64::from(y[place]);
        assert!((found - expected).abs() < 1e-4, "[{outputs}, {inputs}] x {rows}: {found}, not {expected}");
    }
}

#[test]
fn bf16_weights_give_the_bits_of_the_same_numbers_as_f32() {
    let mut noise = Noise(6);
    for (outputs, inputs) in OUTPUTS.into_iter().flat_map(|o| INPUTS.map(|i| (o, i + i % 2))) {
        let mut floats = pack(&noise.vec(outputs * inputs), outputs, inputs);
        floats.iter_mut().for_each(|x| *x = f32::from_bits(x.to_bits() & 0xffff_0000));
        let pairs = in_pairs(&floats);
        for rows in ROWS {
            let x = noise.vec(inputs.next_multiple_of(LANES) * rows);
            assert_same_products([Elements::F32(&floats), Elements::Bf16(&pairs)], inputs, &x, rows);
        }
    }
}

/// That the same numbers stored in two ways give the same product in every set.
fn assert_same_products(stored: [Elements<'_>; 2], inputs: usize, x: &[f32], rows: usize) {
    for set in sets() {
        let results = stored.map(|data| {
            let w = Panels { data, inputs };
            let mut y = vec![f32::NAN; w.len() / inputs * rows];
            set.matmul(w, x, rows, &mut y, false);
            y
        });
        assert_same_bits(&results);
    }
}

/// By the definition of IEEE 754: sign, 5 bits of exponent with bias 15, 10 of mantissa.
fn f16_value(bits: u16) -> f64 {
    let (exponent, mantissa) = (i32::from(bits >> 10 & 31), f64::from(bits & 1023));
    let magnitude = match exponent {
        0 => mantissa * 2f64.powi(-24),
        _ => (1024.0 + mantissa) * 2f64.powi(exponent - 25),
    };
    if bits >> 15 == 1 { -magnitude } else { magnitude }
}

#[test]
fn f16_keeps_its_own_numbers_and_rounds_others_to_the_nearest() {
    let finite = || (0..=u16::MAX).filter(|bits| bits & 0x7c00 != 0x7c00);
    for bits in finite() {
        let value = F16(bits).to_f32();
        assert_eq!(f64::from(value), f16_value(bits));
        assert_eq!(F16::from_f32(value), F16(bits));
    }
    // Between two neighbours: the tie goes to the even one, a hair to either side to the nearer one.
    for bits in (0..0x7bff_u16).step_by(7).chain(0..40).chain(1000..1100) {
        let middle = ((f16_value(bits) + f16_value(bits + 1)) / 2.0) as f32;
        assert_eq!(F16::from_f32(middle), F16(bits + (bits & 1)));
        assert_eq!(F16::from_f32(middle.next_down()), F16(bits));
        assert_eq!(F16::from_f32(-middle.next_up()), F16((bits + 1) | 0x8000));
    }
    assert_eq!(F16::from_f32(1e9), F16(0x7bff), "the largest one");
    assert_eq!(F16::from_f32(f32::NEG_INFINITY), F16(0xfbff));
    assert_eq!(F16::from_f32(f32::NAN).0 & 0x7fff, 0);
}

#[test]
fn a_chain_may_be_split_anywhere() {
    let mut noise = Noise(2);
    let (outputs, inputs) = (48, 64);
    let panels = pack(&noise.vec(outputs * inputs), outputs, inputs);
    for rows in [1, 3, 6] {
        let x = noise.vec(inputs * rows);
        for set in sets() {
            let mut whole = vec![0.0; outputs * rows];
            set.matmul(Panels { data: Elements::F32(&panels), inputs }, &x, rows, &mut whole, false);
            let mut parts = vec![f32::NAN; outputs * rows];
            for (i, y) in parts.chunks_exact_mut(rows * LANES).enumerate() {
                let panel = &panels[i * inputs * LANES..][..inputs * LANES];
                let (head, tail) = panel.split_at(16 * LANES);
                set.matmul(Panels { data: Elements::F32(head), inputs: 16 }, &x, rows, y, false);
                set.matmul(Panels { data: Elements::F32(tail), inputs: 48 }, &x[16 * rows..], rows, y, true);
            }
            assert_same_bits(&[whole, parts]);
        }
    }
}

#[test]
fn rms_norm_is_its_formula() {
    let mut noise = Noise(3);
    for (features, rows) in [(1, 1), (16, 3), (33, 2), (192, 7), (576, 1)] {
        let weight = noise.vec(features);
        let mut x = vec![0.0; features.next_multiple_of(LANES) * rows];
        for row in 0..rows {
            (0..features).for_each(|feature| x[at(feature, row, rows)] = 3.0 * noise.next());
        }
        let results: Vec<_> = sets()
            .into_iter()
            .map(|set| {
                // As two workers do it: the rows in two parts.
                let mut scales = vec![f32::NAN; rows];
                let (head, tail) = scales.split_at_mut(rows / 2);
                for (first, y) in [(0, head), (rows / 2, tail)] {
                    set.run(InverseRms { x: &x, rows, features, eps: 1e-5, first, y });
                }
                let mut y = vec![f32::NAN; x.len()];
                set.run(ScaleRows { x: &x, scales: &scales, weight: &weight, y: &mut y });
                y
            })
            .collect();
        for row in 0..rows {
            let values: Vec<f64> = (0..features).map(|f| x[at(f, row, rows)].into()).collect();
            let mean = values.iter().map(|v| v * v).sum::<f64>() / features as f64;
            for feature in 0..features {
                let expected = values[feature] / (mean + 1e-5).sqrt() * f64::from(weight[feature]);
                assert!((f64::from(results[0][at(feature, row, rows)]) - expected).abs() < 2e-6);
            }
            for feature in features..features.next_multiple_of(LANES) {
                assert_eq!(results[0][at(feature, row, rows)], 0.0, "features past the last stay zero");
            }
        }
        assert_same_bits(&results);
    }
}

#[test]
fn softmax_sums_to_one_over_the_positions_that_a_token_sees() {
    let mut noise = Noise(4);
    const ALL: usize = usize::MAX;
    for (len, heads, tokens, window) in [
        (1, 1, 1, ALL),
        (15, 2, 1, ALL),
        (16, 1, 3, ALL),
        (14, 3, 7, ALL),
        (100, 3, 16, ALL),
        (1000, 9, 1, ALL),
        (1, 1, 1, 1),
        (30, 2, 5, 7),
        (100, 3, 16, 40),
        (20, 1, 3, 20),
    ] {
        let (rows, positions): (usize, usize) = (heads * tokens, len + tokens - 1);
        let scores: Vec<f32> =
            noise.vec(positions.next_multiple_of(LANES) * rows).iter().map(|x| x * 30.0).collect();
        let results: Vec<_> = sets()
            .into_iter()
            .map(|set| {
                let mut y = scores.clone();
                set.run(Softmax { scores: &mut y, rows, tokens, len, window, scale: 0.5 });
                y
            })
            .collect();
        for row in 0..rows {
            let seen = len + row % tokens;
            let first = seen.saturating_sub(window);
            let exp =
                |p: usize| if p < first { 0.0 } else { (0.5 * f64::from(scores[at(p, row, rows)])).exp() };
            let exps: Vec<f64> = (0..seen).map(exp).collect();
            let total: f64 = exps.iter().sum();
            for position in 0..scores.len() / rows {
                let expected = exps.get(position).map_or(0.0, |e| e / total);
                let found = f64::from(results[0][at(position, row, rows)]);
                assert!((found - expected).abs() < 1e-6 && (expected > 0.0 || found == 0.0));
            }
        }
        assert_same_bits(&results);
    }
}

#[test]
fn silu_mul_and_add_are_their_formulas() {
    let mut noise = Noise(5);
    for (panels, rows) in [(1, 1), (3, 1), (2, 5)] {
        let gate_up: Vec<f32> = noise.vec(2 * panels * rows * LANES).iter().map(|x| x * 20.0).collect();
        let results: Vec<_> = sets()
            .into_iter()
            .map(|set| {
                let mut y = vec![f32::NAN; panels * rows * LANES];
                set.run(SiluMul { gate_up: &gate_up, rows, y: &mut y });
                set.run(Add { x: &mut y, delta: &gate_up[..panels * rows * LANES] });
                y
            })
            .collect();
        for (i, &found) in results[0].iter().enumerate() {
            let (panel, inside) = (i / (rows * LANES), i % (rows * LANES));
            let gate = f64::from(gate_up[2 * panel * rows * LANES + inside]);
            let up = f64::from(gate_up[(2 * panel + 1) * rows * LANES + inside]);
            let expected = gate / (1.0 + (-gate).exp()) * up + f64::from(gate_up[i]);
            assert!(
                (f64::from(found) - expected).abs() < 1e-6 * expected.abs().max(20.0),
                "{found} {expected}"
            );
        }
        assert_same_bits(&results);
    }
}

#[test]
fn exp_is_within_two_units_in_the_last_place() {
    let mut worst = 0.0f64;
    for i in -870_000..880_000 {
        let x = i as f32 * 1e-4;
        let expected = f64::from(x).exp();
        worst = worst.max((f64::from(math::exp(x)) / expected - 1.0).abs());
    }
    assert!(worst < 2e-7, "relative error {worst:e}");
    assert_eq!(math::exp(0.0), 1.0);
    assert!(math::exp(f32::NEG_INFINITY) < 2e-38 && math::exp(f32::INFINITY) > 2e38);
    assert!(math::exp(f32::NAN).is_nan());
}

#[test]
fn sine_and_cosine_are_correctly_rounded_but_for_near_ties() {
    for i in 0..200_000u32 {
        // Up to 2^24, the largest position there can be.
        let angle = (f64::from(i) * 83.886_08) as f32;
        let (sin, cos) = sin_cos(angle);
        let (expected_sin, expected_cos) = f64::from(angle).sin_cos();
        assert!((f64::from(sin) - expected_sin).abs() < 6e-8, "sin {angle}");
        assert!((f64::from(cos) - expected_cos).abs() < 6e-8, "cos {angle}");
    }
    assert_eq!(sin_cos(0.0), (0.0, 1.0));
}

#[test]
fn a_missing_set_is_an_error_that_names_the_others() {
    let error = Kernels::named("sse9").unwrap_err().to_string();
    assert!(error.contains("scalar") && error.contains("sse9"), "{error}");
    assert_eq!(Kernels::named("scalar").unwrap().name(), "scalar");
    assert_eq!(Kernels::detect().name(), Kernels::available().pop().unwrap().name());
}

fn assert_same_bits(results: &[Vec<f32>]) {
    let bits = |values: &Vec<f32>| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    for result in results {
        assert_eq!(bits(result), bits(&results[0]));
    }
}
