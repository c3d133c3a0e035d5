//! What the panels of `format-spec.md` were measured with: one matrix in several layouts, times one row of activations
//! read from memory, and times several rows with everything in the cache. One thread, portable loops, medians of 9.
//!
//! `rustc --edition 2024 -C opt-level=3 -C target-cpu=native scripts/layout.rs -o layout && ./layout`, and for WebAssembly
//! `--target wasm32-wasip1 -C target-feature=+simd128,+relaxed-simd`, run by `node scripts/run_wasi.mjs`.

use std::hint::black_box;
use std::time::Instant;

const INPUTS: usize = 576;
/// A matrix larger than the caches, and one that fits the second-level one.
const OUTPUTS: [usize; 2] = [96 * 1024, 192];
/// How often the small one is computed.
const REPEATS: usize = 400;

/// WebAssembly has no fused multiply-add that every processor does in hardware.
#[inline(always)]
fn multiply_add(a: f32, b: f32, sum: f32) -> f32 {
    if cfg!(target_arch = "wasm32") { a * b + sum } else { a.mul_add(b, sum) }
}

/// Sums leave through a `black_box`, so that the loops stay what they are.
mod one_row {
    use super::{INPUTS, black_box, multiply_add};

    #[inline(never)]
    pub fn row_major(w: &[f32], x: &[f32; INPUTS], y: &mut [f32]) {
        for (w, y) in w.chunks_exact(INPUTS).zip(y) {
            let mut sums = [0.0; 32];
            for (w, x) in w.as_chunks::<32>().0.iter().zip(x.as_chunks::<32>().0) {
                for i in 0..32 {
                    sums[i] = multiply_add(w[i], x[i], sums[i]);
                }
            }
            *y = black_box(sums).iter().sum();
        }
    }

    #[inline(never)]
    pub fn panels<const N: usize>(w: &[f32], x: &[f32; INPUTS], y: &mut [f32]) {
        for (w, y) in w.chunks_exact(INPUTS * N).zip(y.as_chunks_mut::<N>().0) {
            let mut sums = [0.0; N];
            for (w, x) in w.as_chunks::<N>().0.iter().zip(x) {
                for i in 0..N {
                    sums[i] = multiply_add(w[i], *x, sums[i]);
                }
            }
            *y = black_box(sums);
        }
    }

    #[inline(never)]
    pub fn four_panels(w: &[f32], x: &[f32; INPUTS], y: &mut [f32]) {
        let (w, y) = (w.as_chunks::<16>().0, y.as_chunks_mut::<16>().0);
        let run = y.len() / 4;
        for first in 0..run {
            let mut sums = [[0.0; 16]; 4];
            let panels = [0, 1, 2, 3].map(|p| &w[(first + p * run) * INPUTS..][..INPUTS]);
            for input in 0..INPUTS {
                for p in 0..4 {
                    for i in 0..16 {
                        sums[p][i] = multiply_add(panels[p][input][i], x[input], sums[p][i]);
                    }
                }
            }
            let sums = black_box(sums);
            (0..4).for_each(|p| y[first + p * run] = sums[p]);
        }
    }

    #[inline(never)]
    pub fn bf16(w: &[u16], x: &[f32; INPUTS], y: &mut [f32]) {
        for (w, y) in w.chunks_exact(INPUTS * 16).zip(y.as_chunks_mut::<16>().0) {
            let mut sums = [0.0; 16];
            for (w, x) in w.as_chunks::<16>().0.iter().zip(x) {
                for i in 0..16 {
                    sums[i] = multiply_add(f32::from_bits(u32::from(w[i]) << 16), *x, sums[i]);
                }
            }
            *y = black_box(sums);
        }
    }

    #[inline(never)]
    pub fn bf16_pairs(w: &[u32], x: &[f32; INPUTS], y: &mut [f32]) {
        for (w, y) in w.chunks_exact(INPUTS * 8).zip(y.as_chunks_mut::<16>().0) {
            let mut sums = [0.0; 16];
            for (w, x) in w.as_chunks::<16>().0.iter().zip(x.as_chunks::<2>().0) {
                for i in 0..16 {
                    sums[i] = multiply_add(f32::from_bits(w[i] << 16), x[0], sums[i]);
                }
                for i in 0..16 {
                    sums[i] = multiply_add(f32::from_bits(w[i] & 0xffff_0000), x[1], sums[i]);
                }
            }
            *y = black_box(sums);
        }
    }
}

mod rows {
    use super::{INPUTS, black_box, multiply_add};

    #[inline(never)]
    pub fn row_major<const R: usize>(w: &[f32], x: &[[f32; INPUTS]; R], y: &mut [[f32; R]]) {
        for (w, y) in w.chunks_exact(INPUTS).zip(y) {
            let mut sums = [[0.0; 16]; R];
            for (step, w) in w.as_chunks::<16>().0.iter().enumerate() {
                for r in 0..R {
                    for i in 0..16 {
                        sums[r][i] = multiply_add(w[i], x[r][step * 16 + i], sums[r][i]);
                    }
                }
            }
            *y = black_box(sums).map(|sums| sums.iter().sum());
        }
    }

    #[inline(never)]
    pub fn panels<const R: usize, const N: usize>(w: &[f32], x: &[[f32; INPUTS]; R], y: &mut [[f32; N]]) {
        for (w, y) in w.chunks_exact(INPUTS * N).zip(y.as_chunks_mut::<R>().0) {
            let (mut sums, w) = ([[0.0; N]; R], w.as_chunks::<N>().0);
            for input in 0..INPUTS {
                for r in 0..R {
                    for i in 0..N {
                        sums[r][i] = multiply_add(w[input][i], x[r][input], sums[r][i]);
                    }
                }
            }
            *y = black_box(sums);
        }
    }
}

/// Seconds that `work` takes, the median of 9 times.
fn median(mut work: impl FnMut()) -> f64 {
    work();
    let mut times = [0.0; 9];
    for time in &mut times {
        let start = Instant::now();
        work();
        *time = start.elapsed().as_secs_f64();
    }
    times.sort_by(f64::total_cmp);
    times[4]
}

/// `unit`s per second, `amount` of them a time, in thousand millions.
fn report(name: &str, amount: usize, unit: &str, work: impl FnMut()) {
    println!("{name:40} {:6.1} {unit}", amount as f64 / 1e9 / median(work));
}

fn from_memory() {
    let (len, x, mut y) = (OUTPUTS[0] * INPUTS, [0.5; INPUTS], vec![0.0; OUTPUTS[0]]);
    let w = vec![1e-3f32; len];
    report("1 row, f32, row-major", 4 * len, "GB/s", || one_row::row_major(&w, &x, &mut y));
    report("1 row, f32, panels of 8", 4 * len, "GB/s", || one_row::panels::<8>(&w, &x, &mut y));
    report("1 row, f32, panels of 16", 4 * len, "GB/s", || one_row::panels::<16>(&w, &x, &mut y));
    report("1 row, f32, panels of 32", 4 * len, "GB/s", || one_row::panels::<32>(&w, &x, &mut y));
    report("1 row, f32, four panels of 16 at once", 4 * len, "GB/s", || {
        one_row::four_panels(&w, &x, &mut y);
    });
}

fn from_the_cache() {
    let (len, x, mut y) = (OUTPUTS[1] * INPUTS, [0.5; INPUTS], vec![0.0; OUTPUTS[1]]);
    let (halves, pairs) = (vec![0x3a83u16; len], vec![0x3a83_3a83u32; len / 2]);
    let repeat = |work: &mut dyn FnMut()| (0..REPEATS).for_each(|_| work());
    report("1 row, bf16, one input after another", len * REPEATS, "G weights/s", || {
        repeat(&mut || one_row::bf16(black_box(&halves), &x, &mut y));
    });
    report("1 row, bf16, inputs in pairs", len * REPEATS, "G weights/s", || {
        repeat(&mut || one_row::bf16_pairs(black_box(&pairs), &x, &mut y));
    });
    let w = vec![1e-3f32; len];
    many_rows::<6>("6 rows, f32, row-major", &w, |w, x| {
        rows::row_major::<6>(w, x, &mut [[0.0; 6]; OUTPUTS[1]]);
    });
    many_rows::<6>("6 rows, f32, panels of 8", &w, |w, x| {
        rows::panels::<6, 8>(w, x, &mut [[0.0; 8]; OUTPUTS[1] / 8 * 6]);
    });
    many_rows::<6>("6 rows, f32, panels of 16", &w, |w, x| {
        rows::panels::<6, 16>(w, x, &mut [[0.0; 16]; OUTPUTS[1] / 16 * 6]);
    });
    many_rows::<2>("2 rows, f32, panels of 16", &w, |w, x| {
        rows::panels::<2, 16>(w, x, &mut [[0.0; 16]; OUTPUTS[1] / 16 * 2]);
    });
    many_rows::<3>("3 rows, f32, panels of 32", &w, |w, x| {
        rows::panels::<3, 32>(w, x, &mut [[0.0; 32]; OUTPUTS[1] / 32 * 3]);
    });
}

fn many_rows<const R: usize>(name: &str, w: &[f32], product: impl Fn(&[f32], &[[f32; INPUTS]; R])) {
    let x = [[0.5; INPUTS]; R];
    report(name, 2 * w.len() * R * REPEATS, "GFLOP/s", || {
        (0..REPEATS).for_each(|_| product(black_box(w), &x));
    });
}

fn main() {
    from_memory();
    from_the_cache();
}
