//! AVX2 and FMA: 8 lanes a register, a panel is two of them.

use std::arch::x86_64::*;

use super::{LANES, Panels, math};

/// Inputs of one step: those that lie together in the activations.
const STEP: usize = LANES;

/// The proof that this processor has AVX2 and FMA.
#[derive(Clone, Copy, Debug)]
pub(super) struct Avx2(());

impl Avx2 {
    pub(super) fn detect() -> Option<Avx2> {
        (is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma")).then_some(Avx2(()))
    }
}

/// Methods that call the function of the same name, which is compiled for AVX2 and FMA.
macro_rules! entries {
    ($($name:ident ( $($argument:ident : $type:ty),* ) = $body:path;)*) => {
        impl Avx2 {
            $(pub(super) fn $name(self, $($argument: $type),*) {
                #[target_feature(enable = "avx2,fma")]
                fn compiled($($argument: $type),*) {
                    $body($($argument),*)
                }
                // SAFETY: `self` exists only if `detect` found AVX2 and FMA on this processor.
                unsafe { compiled($($argument),*) }
            })*
        }
    };
}

entries! {
    matmul(w: Panels<'_>, x: &[f32], rows: usize, y: &mut [f32], accumulate: bool) = matmul;
    add(x: &mut [f32], delta: &[f32]) = math::add;
    rms_norm(x: &[f32], rows: usize, weight: &[f32], eps: f32, y: &mut [f32]) = math::rms_norm;
    silu_mul(gate_up: &[f32], rows: usize, y: &mut [f32]) = math::silu_mul;
    softmax(scores: &mut [f32], rows: usize, row: usize, len: usize, scale: f32) = math::softmax;
}

/// One row reads four panels at once: several streams keep the memory busy. More rows hold one panel in 12 sums, which
/// with two registers of weights and one of input are 15 of the 16 there are.
#[target_feature(enable = "avx2,fma")]
fn matmul(w: Panels<'_>, x: &[f32], rows: usize, y: &mut [f32], accumulate: bool) {
    let y = y.as_chunks_mut::<LANES>().0;
    if rows == 1 {
        for (i, y) in y.chunks_mut(4).enumerate() {
            let panels = w.slice(4 * i, y.len());
            match y.len() {
                4 => vector_block::<4>(panels, x, y, accumulate),
                3 => vector_block::<3>(panels, x, y, accumulate),
                2 => vector_block::<2>(panels, x, y, accumulate),
                _ => vector_block::<1>(panels, x, y, accumulate),
            }
        }
        return;
    }
    for (i, y) in y.chunks_exact_mut(rows).enumerate() {
        let panel = w.slice(i, 1);
        for (block, y) in y.chunks_mut(6).enumerate() {
            let first = 6 * block;
            match y.len() {
                6 => row_block::<6>(panel, x, rows, first, y, accumulate),
                5 => row_block::<5>(panel, x, rows, first, y, accumulate),
                4 => row_block::<4>(panel, x, rows, first, y, accumulate),
                3 => row_block::<3>(panel, x, rows, first, y, accumulate),
                2 => row_block::<2>(panel, x, rows, first, y, accumulate),
                _ => row_block::<1>(panel, x, rows, first, y, accumulate),
            }
        }
    }
}

/// `P` panels times one row: `y`: `[P][16]`.
#[target_feature(enable = "avx2,fma")]
fn vector_block<const P: usize>(w: Panels<'_>, x: &[f32], y: &mut [[f32; LANES]], accumulate: bool) {
    let mut sums = start_sums::<P>(y, accumulate);
    let mut panels = [&[][..]; P];
    for (p, panel) in panels.iter_mut().enumerate() {
        *panel = w.slice(p, 1).data.as_chunks::<LANES>().0;
    }
    let steps = w.inputs / STEP;
    for (step, x) in x.as_chunks::<STEP>().0.iter().take(steps).enumerate() {
        let mut weights = [&[[0.0; LANES]; STEP]; P];
        for (weights, panel) in weights.iter_mut().zip(panels) {
            *weights = &panel.as_chunks::<STEP>().0[step];
        }
        for (i, &x) in x.iter().enumerate() {
            let x = _mm256_set1_ps(x);
            for (sums, weights) in sums.iter_mut().zip(weights) {
                fma(sums, load(&weights[i]), x);
            }
        }
    }
    for input in steps * STEP..w.inputs {
        let x = _mm256_set1_ps(x[input]);
        for (sums, panel) in sums.iter_mut().zip(panels) {
            fma(sums, load(&panel[input]), x);
        }
    }
    finish_sums(sums, y);
}

/// One panel times the `R` rows from `first` on: `y`: `[R][16]`.
#[target_feature(enable = "avx2,fma")]
fn row_block<const R: usize>(
    w: Panels<'_>,
    x: &[f32],
    rows: usize,
    first: usize,
    y: &mut [[f32; LANES]],
    accumulate: bool,
) {
    let mut sums = start_sums::<R>(y, accumulate);
    let (weights, last) = w.data.as_chunks::<LANES>().0.as_chunks::<STEP>();
    let x = x.as_chunks::<LANES>().0;
    for (step, weights) in weights.iter().enumerate() {
        let Some(x) = x[step * rows + first..].first_chunk::<R>() else { return };
        for (i, weights) in weights.iter().enumerate() {
            let weights = load(weights);
            for (sums, x) in sums.iter_mut().zip(x) {
                fma(sums, weights, _mm256_set1_ps(x[i]));
            }
        }
    }
    for (i, weights) in last.iter().enumerate() {
        let Some(x) = x[w.inputs / STEP * rows + first..].first_chunk::<R>() else { return };
        for (sums, x) in sums.iter_mut().zip(x) {
            fma(sums, load(weights), _mm256_set1_ps(x[i]));
        }
    }
    finish_sums(sums, y);
}

/// A panel's 16 lanes in two registers.
type Sums = [__m256; 2];

#[target_feature(enable = "avx2,fma")]
#[inline]
fn fma(sums: &mut Sums, weights: Sums, x: __m256) {
    sums[0] = _mm256_fmadd_ps(weights[0], x, sums[0]);
    sums[1] = _mm256_fmadd_ps(weights[1], x, sums[1]);
}

#[target_feature(enable = "avx2,fma")]
#[inline]
fn start_sums<const N: usize>(y: &[[f32; LANES]], accumulate: bool) -> [Sums; N] {
    let mut sums = [[_mm256_setzero_ps(); 2]; N];
    if accumulate {
        for (sums, y) in sums.iter_mut().zip(y) {
            *sums = load(y);
        }
    }
    sums
}

#[target_feature(enable = "avx2,fma")]
#[inline]
fn finish_sums<const N: usize>(sums: [Sums; N], y: &mut [[f32; LANES]]) {
    for (sums, y) in sums.into_iter().zip(y) {
        let (low, high) = y.split_at_mut(LANES / 2);
        // SAFETY: `low` and `high` are the 8 floats each that a store writes.
        unsafe {
            _mm256_storeu_ps(low.as_mut_ptr(), sums[0]);
            _mm256_storeu_ps(high.as_mut_ptr(), sums[1]);
        }
    }
}

#[target_feature(enable = "avx2,fma")]
#[inline]
fn load(lanes: &[f32; LANES]) -> Sums {
    let (low, high) = lanes.split_at(LANES / 2);
    // SAFETY: `low` and `high` are the 8 floats each that a load reads.
    unsafe { [_mm256_loadu_ps(low.as_ptr()), _mm256_loadu_ps(high.as_ptr())] }
}
