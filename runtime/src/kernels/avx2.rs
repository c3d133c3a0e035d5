//! AVX2 and FMA: 8 lanes a register, a panel is two of them.

use std::arch::x86_64::*;

use super::{Bf16, Element, LANES, math};

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
    matmul_f32(w: &[f32], inputs: usize, x: &[f32], rows: usize, y: &mut [f32], accumulate: bool) = matmul;
    matmul_bf16(w: &[Bf16], inputs: usize, x: &[f32], rows: usize, y: &mut [f32], accumulate: bool) = matmul;
    add(x: &mut [f32], delta: &[f32]) = math::add;
    rms_norm(x: &[f32], rows: usize, weight: &[f32], eps: f32, y: &mut [f32]) = math::rms_norm;
    silu_mul(gate_up: &[f32], rows: usize, y: &mut [f32]) = math::silu_mul;
    softmax(scores: &mut [f32], rows: usize, row: usize, len: usize, scale: f32) = math::softmax;
}

/// One row reads four panels at once: several streams keep the memory busy. More rows hold one panel in 12 sums, which
/// with two registers of weights and one of input are 15 of the 16 there are.
#[target_feature(enable = "avx2,fma")]
fn matmul<E: Element>(w: &[E], inputs: usize, x: &[f32], rows: usize, y: &mut [f32], accumulate: bool) {
    let w = w.as_chunks::<LANES>().0;
    let y = y.as_chunks_mut::<LANES>().0;
    if rows == 1 {
        for (w, y) in w.chunks(4 * inputs).zip(y.chunks_mut(4)) {
            match y.len() {
                4 => vector_block::<E, 4>(w, inputs, x, y, accumulate),
                3 => vector_block::<E, 3>(w, inputs, x, y, accumulate),
                2 => vector_block::<E, 2>(w, inputs, x, y, accumulate),
                _ => vector_block::<E, 1>(w, inputs, x, y, accumulate),
            }
        }
        return;
    }
    for (w, y) in w.chunks_exact(inputs).zip(y.chunks_exact_mut(rows)) {
        for (block, y) in y.chunks_mut(6).enumerate() {
            let first = 6 * block;
            match y.len() {
                6 => row_block::<E, 6>(w, x, rows, first, y, accumulate),
                5 => row_block::<E, 5>(w, x, rows, first, y, accumulate),
                4 => row_block::<E, 4>(w, x, rows, first, y, accumulate),
                3 => row_block::<E, 3>(w, x, rows, first, y, accumulate),
                2 => row_block::<E, 2>(w, x, rows, first, y, accumulate),
                _ => row_block::<E, 1>(w, x, rows, first, y, accumulate),
            }
        }
    }
}

/// `P` panels times one row: `w`: `[P][inputs][16]`, `y`: `[P][16]`.
#[target_feature(enable = "avx2,fma")]
fn vector_block<E: Element, const P: usize>(
    w: &[[E; LANES]],
    inputs: usize,
    x: &[f32],
    y: &mut [[f32; LANES]],
    accumulate: bool,
) {
    let mut sums = start_sums::<P>(y, accumulate);
    let mut panels = [w; P];
    for (p, panel) in panels.iter_mut().enumerate() {
        *panel = &w[p * inputs..][..inputs];
    }
    let steps = inputs / STEP;
    for (step, x) in x.as_chunks::<STEP>().0.iter().take(steps).enumerate() {
        let mut weights = panels;
        for weights in &mut weights {
            *weights = &weights[step * STEP..][..STEP];
        }
        for (i, &x) in x.iter().enumerate() {
            let x = _mm256_set1_ps(x);
            for (sums, weights) in sums.iter_mut().zip(weights) {
                fma(sums, load(&E::widen(&weights[i])), x);
            }
        }
    }
    for input in steps * STEP..inputs {
        let x = _mm256_set1_ps(x[input]);
        for (sums, panel) in sums.iter_mut().zip(panels) {
            fma(sums, load(&E::widen(&panel[input])), x);
        }
    }
    finish_sums(sums, y);
}

/// One panel times the `R` rows from `first` on: `w`: `[inputs][16]`, `y`: `[R][16]`.
#[target_feature(enable = "avx2,fma")]
fn row_block<E: Element, const R: usize>(
    w: &[[E; LANES]],
    x: &[f32],
    rows: usize,
    first: usize,
    y: &mut [[f32; LANES]],
    accumulate: bool,
) {
    let mut sums = start_sums::<R>(y, accumulate);
    let (weights, last) = w.as_chunks::<STEP>();
    let steps = weights.len();
    let x = x.as_chunks::<LANES>().0;
    for (step, weights) in weights.iter().enumerate() {
        let Some(x) = x[step * rows + first..].first_chunk::<R>() else { return };
        for (i, weights) in weights.iter().enumerate() {
            let weights = load(&E::widen(weights));
            for (sums, x) in sums.iter_mut().zip(x) {
                fma(sums, weights, _mm256_set1_ps(x[i]));
            }
        }
    }
    for (i, weights) in last.iter().enumerate() {
        let Some(x) = x[steps * rows + first..].first_chunk::<R>() else { return };
        for (sums, x) in sums.iter_mut().zip(x) {
            fma(sums, load(&E::widen(weights)), _mm256_set1_ps(x[i]));
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
