//! Each kernel on one thread, beside what the machine can do at most: `machine/read` in bytes per second stands over the
//! products of one row, `machine/multiply-add` in operations per second over those of many.
//!
//! `cargo bench -p smol-benches --bench kernels`

use std::hint::black_box;
use std::time::Duration;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use smolrun::bench::{Matrix, MatrixDtype, rms_norm, silu_mul, softmax};
use smolrun::format::Dtype;
use smolrun::{Kernels, Machine};

/// The sizes of SmolLM2-135M.
const HIDDEN: usize = 576;
const INTERMEDIATE: usize = 1536;
/// Outputs of a matrix that is larger than any cache.
const MANY: usize = 100_000;

fn sets() -> impl Iterator<Item = Kernels> {
    Kernels::available().into_iter().filter(|set| set.name() != "scalar")
}

fn machine(c: &mut Criterion) {
    for set in sets() {
        let mut group = c.benchmark_group(format!("{}/machine", set.name()));
        let bytes = MANY * HIDDEN * 4;
        let mut machine = Machine::new(set, 1, bytes).expect("memory and a thread");
        group.sample_size(10).throughput(Throughput::Bytes(bytes as u64));
        group.bench_function("read", |b| b.iter(|| machine.read_bandwidth()));
        // One call takes as long as its operations do.
        let operations = 1_000_000_000u64;
        group.throughput(Throughput::Elements(operations));
        group.bench_function("multiply-add", |b| {
            b.iter_custom(|iterations| {
                let seconds = (0..iterations).map(|_| operations as f64 / machine.fma_peak()).sum();
                Duration::from_secs_f64(seconds)
            })
        });
    }
}

fn products(c: &mut Criterion) {
    let stored = [Dtype::F32, Dtype::Bf16, Dtype::Q8, Dtype::Q6, Dtype::Q5, Dtype::Q4, Dtype::Q3];
    let dtypes = || stored.map(|dtype| (dtype.name(), MatrixDtype::Stored(dtype))).into_iter();
    let dtypes = || dtypes().chain([("f16", MatrixDtype::F16), ("i8", MatrixDtype::I8)]);
    for (set, (name, dtype)) in sets().flat_map(|set| dtypes().map(move |dtype| (set, dtype))) {
        let mut group = c.benchmark_group(format!("{}/{name}", set.name()));
        group.sample_size(10);
        for (name, outputs, rows) in [("1 row", MANY, 1), ("3 rows", MANY, 3), ("256 rows", HIDDEN, 256)] {
            let mut matrix = Matrix::new(dtype, outputs, HIDDEN);
            let (x, mut y) = (vec![0.5; HIDDEN * rows], vec![0.0; outputs * rows]);
            group.throughput(match rows {
                256 => Throughput::Elements((2 * outputs * HIDDEN * rows) as u64),
                _ => Throughput::Bytes(matrix.bytes() as u64),
            });
            group.bench_function(name, |b| b.iter(|| matrix.product(set, black_box(&x), rows, &mut y)));
        }
    }
}

fn rest(c: &mut Criterion) {
    for set in sets() {
        let mut group = c.benchmark_group(set.name());
        let (x, weight) = (vec![0.5; HIDDEN], vec![1.0; HIDDEN]);
        let mut y = vec![0.0; HIDDEN];
        group.throughput(Throughput::Elements(HIDDEN as u64));
        group.bench_function("rms_norm", |b| {
            b.iter(|| rms_norm(set, black_box(&x), &weight, &mut [0.0], &mut y))
        });
        let (gate_up, mut y) = (vec![0.5; 2 * INTERMEDIATE], vec![0.0; INTERMEDIATE]);
        group.throughput(Throughput::Elements(INTERMEDIATE as u64));
        group.bench_function("silu_mul", |b| b.iter(|| silu_mul(set, black_box(&gate_up), &mut y)));
        let mut scores = vec![0.5; 3 * 4096];
        group.throughput(Throughput::Elements(scores.len() as u64));
        group.bench_function("softmax of 3 x 4096", |b| b.iter(|| softmax(set, &mut scores, 3)));
    }
}

criterion_group!(benches, machine, products, rest);
criterion_main!(benches);
