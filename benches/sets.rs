//! No instruction set may be slower than a lower one on the same machine: every product, on one thread, in every set that
//! this processor has, in turn.
//!
//! `cargo bench -p smol-benches --bench sets [-- DTYPE...]` prints a line for each dtype and number of rows, in billions of
//! multiply-adds per second, and fails where a set is slower than one before it.

use std::hint::black_box;
use std::process::ExitCode;
use std::time::Instant;

use smolrun::Kernels;
use smolrun::bench::{Matrix, MatrixDtype};
use smolrun::format::Dtype;

/// The matrix of SmolLM2-135M's `gate_up_proj`.
const INPUTS: usize = 576;
const OUTPUTS: usize = 3072;
const ROWS: [usize; 15] = [1, 2, 3, 4, 5, 6, 8, 11, 12, 16, 17, 32, 64, 256, 512];
/// Measurements of each set, one after the other so that what else the machine does meets all; the best one counts.
const ROUNDS: usize = 9;
/// How long one measurement takes, in seconds, at least.
const SPAN: f64 = 0.004;
/// What a set may lose against a lower one before it counts: measurements differ by that much.
const TOLERANCE: f64 = 0.93;

fn main() -> ExitCode {
    let wanted: Vec<String> =
        std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let sets: Vec<_> = Kernels::available().into_iter().filter(|set| set.name() != "scalar").collect();
    let names: Vec<_> = sets.iter().map(|set| format!("{:>10}", set.name())).collect();
    println!("{:5} {:>4} {}   billions of multiply-adds per second", "", "rows", names.join(" "));
    let mut slower = 0;
    for (name, dtype) in dtypes().filter(|(name, _)| wanted.is_empty() || wanted.contains(name)) {
        for rows in ROWS {
            let speeds = speeds(&sets, dtype, rows);
            let is_slower = (1..speeds.len()).any(|i| {
                (0..i).any(|lower| is_compared(sets[lower], sets[i]) && speeds[i] < TOLERANCE * speeds[lower])
            });
            slower += usize::from(is_slower);
            let speeds: Vec<_> = speeds.iter().map(|speed| format!("{speed:10.1}")).collect();
            println!("{name:5} {rows:4} {}{}", speeds.join(" "), if is_slower { "   SLOWER" } else { "" });
        }
    }
    if slower > 0 {
        eprintln!("{slower} products are slower in a set than in a lower one");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

/// Whether the first of two sets is lower than the second. Where a processor has AVX-VNNI and AVX-512, it has AVX512-VNNI,
/// too, and nobody takes AVX-512 without.
fn is_compared(lower: Kernels, set: Kernels) -> bool {
    (lower.name(), set.name()) != ("avxvnni", "avx512")
}

fn dtypes() -> impl Iterator<Item = (String, MatrixDtype)> {
    let stored = [Dtype::F32, Dtype::Bf16, Dtype::Q8, Dtype::Q6, Dtype::Q5, Dtype::Q4, Dtype::Q3];
    let stored = stored.map(|dtype| (dtype.name().to_owned(), MatrixDtype::Stored(dtype)));
    stored.into_iter().chain([("f16".to_owned(), MatrixDtype::F16), ("i8".to_owned(), MatrixDtype::I8)])
}

/// Of each set, in billions of multiply-adds per second.
fn speeds(sets: &[Kernels], dtype: MatrixDtype, rows: usize) -> Vec<f64> {
    let mut matrix = Matrix::new(dtype, OUTPUTS, INPUTS);
    let (x, mut y) = (vec![0.5; INPUTS * rows], vec![0.0; OUTPUTS * rows]);
    let mut seconds = vec![f64::INFINITY; sets.len()];
    for _ in 0..ROUNDS {
        for (set, seconds) in sets.iter().zip(&mut seconds) {
            let (start, mut calls) = (Instant::now(), 0);
            while start.elapsed().as_secs_f64() < SPAN {
                matrix.product(*set, black_box(&x), rows, black_box(&mut y));
                calls += 1;
            }
            *seconds = seconds.min(start.elapsed().as_secs_f64() / f64::from(calls));
        }
    }
    seconds.iter().map(|seconds| (OUTPUTS * INPUTS * rows) as f64 / seconds / 1e9).collect()
}
