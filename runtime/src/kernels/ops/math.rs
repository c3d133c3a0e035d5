//! The one definition of every operation that is not a matrix product, over 16 lanes and in plain Rust, but for two. Each
//! instruction set compiles these bodies for itself, so the compiler chooses the instructions and IEEE 754 fixes the bits.

use std::hint::black_box;
use std::ops::Range;

use crate::kernels::LANES;
use crate::kernels::multiply_add::multiply_add;
use crate::kernels::simd::{Integers, Op, PlainOp, Simd, unrolled};

type Lanes = [f32; LANES];

/// Joins 16 running values into one: halves onto each other until one is left.
#[inline(always)]
fn join_lanes(mut lanes: Lanes, join: impl Fn(f32, f32) -> f32) -> f32 {
    let mut width = LANES / 2;
    while width > 0 {
        for lane in 0..width {
            lanes[lane] = join(lanes[lane], lanes[lane + width]);
        }
        width /= 2;
    }
    lanes[0]
}

/// e^x with a relative error below 2e-7, for every finite x; the result is clamped to the normal numbers.
///
/// x = n ln 2 + r with |r| ≤ ln 2 / 2, then a polynomial in r (coefficients of Cephes' `expf`) and 2^n by its bits.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    // 1.5 * 2^23: adding it rounds to an integer, which then stands in the low bits.
    const ROUND: f32 = 12_582_912.0;
    const LN2_HI: f32 = 0.693_359_4; // 0.693359375, exact in 9 bits
    const LN2_LO: f32 = -2.121_944_4e-4;
    let x = x.clamp(-87.336, 88.376);
    let shifted = multiply_add(x, std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = multiply_add(n, -LN2_LO, multiply_add(n, -LN2_HI, x));
    let mut p = 1.987_569_1e-4f32;
    for coefficient in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5] {
        p = multiply_add(p, r, coefficient);
    }
    let e = multiply_add(p * r, r, r) + 1.0;
    e * f32::from_bits(shifted.to_bits().wrapping_add(127) << 23)
}

/// x / (1 + e^-x) (Elfwing et al. 2017; Hugging Face's `silu`).
#[inline(always)]
fn silu(x: f32) -> f32 {
    x / (1.0 + exp(-x))
}

/// `x += delta`, element by element.
pub(crate) struct Add<'a> {
    pub x: &'a mut [f32],
    pub delta: &'a [f32],
}

impl PlainOp for Add<'_> {
    #[inline(always)]
    fn compute(self) {
        let Add { x, delta } = self;
        for (x, delta) in x.iter_mut().zip(delta) {
            *x += delta;
        }
    }
}

/// What RMSNorm multiplies each of `y.len()` rows by, from row `first` on: `y = 1 / sqrt(mean(x²) + eps)` (Zhang and
/// Sennrich 2019).
pub(crate) struct InverseRms<'a> {
    /// `[features/16, rounded up][rows][16]`
    pub x: &'a [f32],
    pub rows: usize,
    pub features: usize,
    pub eps: f32,
    pub first: usize,
    pub y: &'a mut [f32],
}

impl PlainOp for InverseRms<'_> {
    #[inline(always)]
    fn compute(self) {
        let InverseRms { x, rows, features, eps, first, y } = self;
        let x = x.as_chunks::<LANES>().0;
        for (row, y) in (first..).zip(y) {
            let mut squares = [0.0f32; LANES];
            for x in x.iter().skip(row).step_by(rows) {
                for lane in 0..LANES {
                    squares[lane] = multiply_add(x[lane], x[lane], squares[lane]);
                }
            }
            let mean = join_lanes(squares, |a, b| a + b) / features as f32;
            *y = 1.0 / (mean + eps).sqrt();
        }
    }
}

/// `y = x * scales[row] * weight[feature]`, zero for the features that pad the last panel.
pub(crate) struct ScaleRows<'a> {
    /// `[panels][rows][16]`
    pub x: &'a [f32],
    /// `[rows]`
    pub scales: &'a [f32],
    /// A value for each feature, 16 a panel.
    pub weight: &'a [f32],
    /// `[panels][rows][16]`
    pub y: &'a mut [f32],
}

// With the set's own operations, as `ScaleLanes`: of plain loops over rows and lanes LLVM makes one over rows, which gathers
// and scatters lane by lane.
impl Op for ScaleRows<'_> {
    #[inline(always)]
    fn run<S: Integers>(self, simd: S) {
        let ScaleRows { x, scales, weight, y } = self;
        let rows = scales.len();
        let (x, y) = (x.as_chunks().0, y.as_chunks_mut().0);
        let panels = x.chunks_exact(rows).zip(y.chunks_exact_mut(rows));
        for ((x, y), weight) in panels.zip(weight.chunks(LANES)) {
            let mut lanes = [0.0; LANES]; // so that features past the last become zero
            lanes[..weight.len()].copy_from_slice(weight);
            let weight = simd.load(&lanes);
            for ((x, y), &scale) in x.iter().zip(y).zip(scales) {
                let scaled = simd.mul(simd.load(x), simd.load(&[scale; LANES]));
                simd.store(simd.mul(scaled, weight), y);
            }
        }
    }
}

/// `x *= scales[feature]`, in each row.
pub(crate) struct ScaleLanes<'a> {
    /// `[panels][rows][16]`
    pub x: &'a mut [f32],
    pub rows: usize,
    /// A value for each feature, 16 a panel.
    pub scales: &'a [f32],
}

impl Op for ScaleLanes<'_> {
    #[inline(always)]
    fn run<S: Integers>(self, simd: S) {
        scale_lanes(simd, self.x.as_chunks_mut().0, self.rows, self.scales);
    }
}

/// See [`ScaleLanes`].
#[inline(always)]
pub(super) fn scale_lanes<S: Simd>(simd: S, x: &mut [[f32; LANES]], rows: usize, scales: &[f32]) {
    for (x, scales) in x.chunks_exact_mut(rows).zip(scales.as_chunks().0) {
        let scales = simd.load(scales);
        for x in x {
            simd.store(simd.mul(simd.load(x), scales), x);
        }
    }
}

/// `y = silu(gate) * up` for panels of gate and up in turn.
pub(crate) struct SiluMul<'a> {
    /// `[2 n][rows][16]`
    pub gate_up: &'a [f32],
    pub rows: usize,
    /// `[n][rows][16]`
    pub y: &'a mut [f32],
}

impl PlainOp for SiluMul<'_> {
    #[inline(always)]
    fn compute(self) {
        let SiluMul { gate_up, rows, y } = self;
        let panel = rows * LANES;
        for (pair, y) in gate_up.chunks_exact(2 * panel).zip(y.chunks_exact_mut(panel)) {
            let (gate, up) = pair.split_at(panel);
            for ((y, gate), up) in y.iter_mut().zip(gate).zip(up) {
                *y = silu(*gate) * up;
            }
        }
    }
}

/// Softmax of `scale * scores` in each row, over the positions that its token sees, the others set to zero: the first of
/// `tokens` tokens stands at the end of `len` positions, each next one further, and each sees the last `window` of those up to
/// its own. Row `r` is token `r % tokens` of some head.
pub(crate) struct Softmax<'a> {
    /// `[positions/16, rounded up][rows][16]`
    pub scores: &'a mut [f32],
    pub rows: usize,
    pub tokens: usize,
    pub len: usize,
    pub window: usize,
    pub scale: f32,
}

impl PlainOp for Softmax<'_> {
    #[inline(always)]
    fn compute(self) {
        let Softmax { scores, rows, tokens, len, window, scale } = self;
        let scores = scores.as_chunks_mut::<LANES>().0;
        for row in 0..rows {
            let end = len + row % tokens;
            mask(scores, rows, row, end.saturating_sub(window)..end);
        }
        let together = rows / TOGETHER * TOGETHER;
        for first in (0..together).step_by(TOGETHER) {
            softmax::<TOGETHER>(scores, rows, first, scale);
        }
        match rows - together {
            3 => softmax::<3>(scores, rows, together, scale),
            2 => softmax::<2>(scores, rows, together, scale),
            1 => softmax::<1>(scores, rows, together, scale),
            _ => {}
        }
    }
}

/// Rows whose softmax is computed side by side: those of a panel lie one after the other, and do not wait for one another.
const TOGETHER: usize = 4;

/// That of the `R` rows from `first` on.
// Its loops are over indices, and what they sum up goes through `black_box`: else LLVM carries the halving of `join_lanes`
// back into them, lane by lane, which costs twice their time.
#[allow(clippy::needless_range_loop)]
#[inline(always)]
fn softmax<const R: usize>(scores: &mut [Lanes], rows: usize, first: usize, scale: f32) {
    let mut most = [[f32::NEG_INFINITY; LANES]; R];
    for scores in scores.chunks_exact_mut(rows) {
        let scores = &mut scores[first..first + R];
        unrolled!(r < R of 4 => {
            for lane in 0..LANES {
                scores[r][lane] *= scale;
                most[r][lane] = if scores[r][lane] > most[r][lane] { scores[r][lane] } else { most[r][lane] };
            }
        });
    }
    let mut largest = [0.0; R];
    unrolled!(r < R of 4 => { largest[r] = join_lanes(black_box(most[r]), |a, b| if a > b { a } else { b }) });
    let mut sums = [[0.0f32; LANES]; R];
    for scores in scores.chunks_exact_mut(rows) {
        let scores = &mut scores[first..first + R];
        unrolled!(r < R of 4 => {
            for lane in 0..LANES {
                let e = exp(scores[r][lane] - largest[r]);
                scores[r][lane] = if scores[r][lane] == f32::NEG_INFINITY { 0.0 } else { e };
                sums[r][lane] += scores[r][lane];
            }
        });
    }
    let mut inverse = [0.0; R];
    unrolled!(r < R of 4 => { inverse[r] = 1.0 / join_lanes(black_box(sums[r]), |a, b| a + b) });
    for scores in scores.chunks_exact_mut(rows) {
        let scores = &mut scores[first..first + R];
        unrolled!(r < R of 4 => {
            for lane in 0..LANES {
                scores[r][lane] *= inverse[r];
            }
        });
    }
}

/// Makes sure that the positions which row `row` does not see are never the largest, nor count.
#[inline(always)]
fn mask(scores: &mut [Lanes], rows: usize, row: usize, seen: Range<usize>) {
    for position in (0..seen.start).chain(seen.end..scores.len() / rows * LANES) {
        scores[position / LANES * rows + row][position % LANES] = f32::NEG_INFINITY;
    }
}

/// Sine and cosine of a finite angle ≥ 0 below 2^30, within half a unit in the last place of f32.
///
/// Reduced in f64 to |r| ≤ π/4 by subtracting a multiple of π/2 in two parts, then the Taylor polynomials to r^13 and
/// r^14, whose remainders are below 1e-13. No libm: its results differ between platforms.
#[inline(always)]
pub fn sin_cos(angle: f32) -> (f32, f32) {
    const HALF_PI_HI: f64 = 1.570_796_326_734_125_6; // 33 bits of π/2: exact when multiplied by a quarter turn count
    const HALF_PI_LO: f64 = 6.077_100_506_506_192e-11;
    let turns = (f64::from(angle) * std::f64::consts::FRAC_2_PI + 0.5).floor();
    let r = f64::from(angle) - turns * HALF_PI_HI - turns * HALF_PI_LO;
    let square = r * r;
    // The Taylor series by Horner: term k is term k - 1 times -r² / (its next two factors).
    let series = |first: f64, factors: [f64; 7]| {
        factors.iter().rev().fold(1.0, |sum, factor| 1.0 - square / factor * sum) * first
    };
    let sin = series(r, [6.0, 20.0, 42.0, 72.0, 110.0, 156.0, 210.0]);
    let cos = series(1.0, [2.0, 12.0, 30.0, 56.0, 90.0, 132.0, 182.0]);
    // A quarter turn makes the sine of a cosine, and of a sine the cosine's negative.
    let quarters = turns as i32;
    let (sin, cos) = if quarters & 1 == 0 { (sin as f32, cos as f32) } else { (cos as f32, sin as f32) };
    let negated = |number: f32, is: i32| f32::from_bits(number.to_bits() ^ (is as u32 & 2) << 30);
    (negated(sin, quarters), negated(cos, quarters.wrapping_add(1)))
}
