//! The quantizer beside a naive one, and what it makes of numbers that nobody trains.

use sha2::{Digest, Sha256};
use smol_tests::common::Quantized;
use smol_tests::common::counting::Random;
use smolconv::quantize::{Codes, Loss, Quantizer, Scratch};
use smolrun::format::Dtype;

const DTYPES: [Dtype; 5] = [Dtype::Q8, Dtype::Q6, Dtype::Q5, Dtype::Q4, Dtype::Q3];

/// A matrix and its section.
struct Matrix {
    rows: Vec<Vec<f32>>,
    dtype: Dtype,
    bytes: Vec<u8>,
    loss: Loss,
}

impl Matrix {
    fn new(dtype: Dtype, rows: Vec<Vec<f32>>) -> Matrix {
        Matrix::with(Codes::of(dtype).unwrap(), rows, None)
    }

    fn with(codes: Codes, rows: Vec<Vec<f32>>, importance: Option<&[f32]>) -> Matrix {
        let (dtype, quantizer) = (codes.dtype(), Quantizer::new(codes, rows[0].len(), importance).unwrap());
        let (mut bytes, mut loss, mut scratch) = (quantizer.values(), Loss::default(), Scratch::default());
        for rows in rows.chunks(16) {
            let mut panel = vec![0; quantizer.layout().panel_len];
            loss += quantizer.quantize(&rows.concat(), &mut scratch, &mut panel);
            bytes.extend(panel);
        }
        Matrix { rows, dtype, bytes, loss }
    }

    fn columns(&self) -> usize {
        self.rows[0].len()
    }

    /// What a reader makes of the section.
    fn section(&self) -> Quantized<'_> {
        Quantized::new(self.dtype.code(), self.columns(), &self.bytes)
    }

    fn element(&self, row: usize, column: usize) -> f32 {
        self.section().element(row / 16, row, column)
    }

    /// The numbers of each block, with row and block.
    fn blocks(&self) -> impl Iterator<Item = (usize, usize, &[f32])> {
        let rows = self.rows.iter().enumerate();
        rows.flat_map(|(row, numbers)| {
            numbers.chunks(32).enumerate().map(move |(block, numbers)| (row, block, numbers))
        })
    }

    /// What `term` makes of each element and its number, summed over a block.
    fn sum(&self, row: usize, block: usize, term: impl Fn(usize, f64, f64) -> f64) -> f64 {
        let columns = block * 32..self.columns().min(block * 32 + 32);
        columns.map(|c| term(c, self.rows[row][c].into(), self.element(row, c).into())).sum()
    }
}

/// Rows of about a Gaussian, of about `size`.
fn gaussian(rows: usize, columns: usize, size: f32, seed: u64) -> Vec<Vec<f32>> {
    let mut random = Random(seed);
    let mut uniform = || (random.bits() >> 40) as f32 / (1u64 << 24) as f32;
    let mut number = || ((0..12).map(|_| uniform()).sum::<f32>() - 6.0) * size;
    (0..rows).map(|_| (0..columns).map(|_| number()).collect()).collect()
}

/// With the scales that are stored, no other code would be nearer.
fn assert_nearest(matrix: &Matrix) {
    let section = matrix.section();
    let mut values = section.values();
    values.retain(|&value| matrix.dtype != Dtype::Q8 || value != -128); // it has no counterpart
    for (row, block, numbers) in matrix.blocks() {
        let block_scale = section.block_scale(row / 16, row, block);
        let scale = f64::from(section.row_scale(row / 16, row)) * f64::from(block_scale);
        for (column, &number) in (block * 32..).zip(numbers) {
            let distance = |value: i8| (f64::from(number) - scale * f64::from(value)).abs();
            let best = values.iter().map(|&value| distance(value)).fold(f64::MAX, f64::min);
            let found = distance(section.value(row / 16, row, column));
            assert!(found <= best + 1e-5 * scale, "{:?} [{row}, {column}]: {found}, {best}", matrix.dtype);
        }
    }
}

/// The least squared error of any scale, by trying two thousand.
fn least_error(values: &[i8], numbers: &[f32], importance: &[f32]) -> f64 {
    let largest = numbers.iter().fold(0.0, |largest: f32, number| largest.max(number.abs()));
    let value = values.iter().fold(0, |largest, value| value.unsigned_abs().max(largest));
    let full = f64::from(largest) / f64::from(value);
    let mut values: Vec<f64> = values.iter().map(|&value| value.into()).collect();
    values.sort_unstable_by(f64::total_cmp);
    let error = |scale: f64| -> f64 {
        let errors = numbers.iter().zip(importance).map(|(&number, &importance)| {
            let wanted = f64::from(number) / scale;
            let above = values.partition_point(|&value| value < wanted);
            let neighbors = &values[above.saturating_sub(1)..values.len().min(above + 1)];
            let distances = neighbors.iter().map(|value| (scale * (wanted - value)).powi(2));
            f64::from(importance) * distances.fold(f64::MAX, f64::min)
        });
        errors.sum()
    };
    (0..2000).map(|step| error(full * (0.4 + f64::from(step) / 2000.0))).fold(f64::MAX, f64::min)
}

#[test]
fn codes_are_the_nearest_for_the_scales_that_are_stored() {
    for dtype in DTYPES {
        for (rows, columns) in [(1, 1), (3, 31), (16, 32), (17, 33), (20, 24), (5, 200)] {
            let seed = (rows * columns) as u64;
            assert_nearest(&Matrix::new(dtype, gaussian(rows, columns, 0.05, seed)));
        }
    }
}

#[test]
fn scales_lose_little_more_than_the_best_would() {
    for (dtype, bound) in DTYPES.into_iter().zip([1.5, 1.25, 1.15, 1.1, 1.1]) {
        for weighted in [false, true] {
            let rows = gaussian(6, 96, 0.03, 7);
            let importance: Vec<f32> =
                (0..96).map(|c| if weighted { (c % 7 * c) as f32 } else { 2.0 }).collect();
            let codes = Codes::of(dtype).unwrap();
            let matrix = Matrix::with(codes, rows, weighted.then_some(&importance));
            let values = matrix.section().values();
            let (mut found, mut best) = (0.0, 0.0);
            for (row, block, numbers) in matrix.blocks() {
                best += least_error(&values, numbers, &importance[block * 32..]);
                found += matrix.sum(row, block, |c, number, element| {
                    f64::from(importance[c]) * (number - element).powi(2)
                });
            }
            assert!(found < bound * best, "{dtype:?}, weighted {weighted}: {}", found / best);
        }
    }
}

#[test]
fn what_matters_more_is_nearer() {
    for dtype in DTYPES {
        let rows = gaussian(16, 64, 1.0, 3);
        let importance: Vec<f32> = (0..64).map(|c| if c % 8 == 0 { 1e30 } else { 0.0 }).collect();
        let error = |importance| {
            let matrix = Matrix::with(Codes::of(dtype).unwrap(), rows.clone(), importance);
            assert_nearest(&matrix);
            let blocks = matrix.blocks();
            let matters =
                |c, number: f64, element: f64| if c % 8 == 0 { (number - element).powi(2) } else { 0.0 };
            blocks.map(|(row, block, _)| matrix.sum(row, block, matters)).sum::<f64>()
        };
        assert!(error(Some(&importance)) < 0.9 * error(None), "{dtype:?}");
    }
}

#[test]
fn importance_has_no_scale_and_may_be_zero() {
    for dtype in DTYPES {
        let rows = gaussian(3, 40, 1.0, 5);
        let bytes = |importance: Option<f32>| {
            let importance = importance.map(|number| vec![number; 40]);
            Matrix::with(Codes::of(dtype).unwrap(), rows.clone(), importance.as_deref()).bytes
        };
        for number in [0.0, 1e-45, 2.0, f32::MAX] {
            assert!(bytes(Some(number)) == bytes(None), "{dtype:?} {number}");
        }
        let half: Vec<f32> = (0..40).map(|c| if c < 32 { 0.0 } else { 1.0 }).collect();
        let matrix = Matrix::with(Codes::of(dtype).unwrap(), rows, Some(&half));
        for (row, block, numbers) in matrix.blocks() {
            // A block in which nothing matters keeps its numbers all the same.
            let error = matrix.sum(row, block, |_, number, element| (number - element).powi(2));
            let square: f64 = numbers.iter().map(|&number| f64::from(number).powi(2)).sum();
            assert!(error < 0.05 * square, "{dtype:?} [{row}] block {block}");
        }
    }
}

/// Rows that are hard to quantize.
fn hard_rows() -> Vec<(&'static str, Vec<f32>)> {
    let row = |number: fn(usize) -> f32| (0..70).map(number).collect::<Vec<f32>>();
    vec![
        ("zeroes", row(|_| 0.0)),
        ("negative zeroes", row(|_| -0.0)),
        ("a block of zeroes", row(|c| if c / 32 == 1 { 0.0 } else { c as f32 - 30.0 })),
        ("one number", row(|c| if c == 69 { -0.3 } else { 0.0 })),
        ("an outlier", row(|c| if c == 40 { 1e4 } else { (c as f32).sin() })),
        ("an outlier among the smallest", row(|c| if c == 3 { 1e30 } else { 1e-30 })),
        ("blocks of all sizes", row(|c| [1e-30, 1.0, -1e30][c / 32])),
        ("the largest", row(|c| if c % 2 == 0 { f32::MAX } else { f32::MIN })),
        ("the largest, once", row(|c| if c == 1 { f32::MIN } else { 1.0 })),
        ("about the largest", row(|c| f32::MAX * (0.9 + c as f32 / 1000.0))),
        ("the largest of bf16", row(|_| f32::from_bits(0x7f7f_0000))),
        ("the smallest normal", row(|c| f32::MIN_POSITIVE * (1.0 + c as f32))),
        ("subnormal", row(|c| f32::from_bits(c as u32 * 100_000))),
        ("the smallest", row(|_| f32::from_bits(1))),
        ("the smallest and the largest", row(|c| if c % 9 == 0 { f32::MAX } else { f32::from_bits(1) })),
        ("all alike", row(|_| 0.7)),
        ("two signs", row(|c| if c % 2 == 0 { 0.7 } else { -0.7 })),
    ]
}

#[test]
fn hard_rows_stay_finite_and_near() {
    for dtype in DTYPES {
        let (names, rows): (Vec<_>, Vec<_>) = hard_rows().into_iter().unzip();
        let matrix = Matrix::new(dtype, rows);
        assert_nearest(&matrix);
        assert!(matrix.loss.relative_error() < 0.2, "{dtype:?} {:?}", matrix.loss);
        let (section, values) = (matrix.section(), matrix.section().values());
        // Near the end of f32 a scale is kept finite for the largest value of either sign, which q6 and q5 have below zero
        // only: the largest numbers above zero lose up to that step.
        let largest = values.iter().fold(0, |largest, value| value.unsigned_abs().max(largest));
        let slack = (1.2 / f64::from(largest).powi(2)).max(1e-3);
        for (row, block, numbers) in matrix.blocks() {
            let scale = f64::from(section.row_scale(row / 16, row));
            let name = names[row];
            // A row scale of few bits leaves few block scales to choose from: half of the widest step of q4, more of q3.
            let coarse = if dtype == Dtype::Q3 { 0.05 } else { 0.015 };
            let slack = if scale < f64::from(f32::MIN_POSITIVE) { coarse } else { slack };
            assert!(scale.is_finite() && scale >= 0.0, "{dtype:?} {name} {scale}");
            // No other block scale would be much better, of those with which all values are finite.
            let error = |block_scale: u8| -> f64 {
                let distance = |number: f32, value: i8| {
                    let element = scale * f64::from(block_scale) * f64::from(value);
                    if element.abs() > f64::from(f32::MAX) {
                        f64::MAX
                    } else {
                        (f64::from(number) - element).powi(2)
                    }
                };
                let least =
                    |&number| values.iter().map(|&value| distance(number, value)).fold(f64::MAX, f64::min);
                numbers.iter().map(least).sum()
            };
            let best = (0..=u8::MAX).map(error).fold(f64::MAX, f64::min);
            let found = matrix.sum(row, block, |_, number, element| (number - element).powi(2));
            assert!(found.is_finite(), "{dtype:?} {name}");
            let square: f64 = numbers.iter().map(|&number| f64::from(number).powi(2)).sum();
            assert!(found <= 1.3 * best + slack * square, "{dtype:?} {name} {block}: {found}, {best}");
        }
    }
}

/// A row as a matrix of its own is what it is among others.
#[test]
fn rows_do_not_meet() {
    for dtype in DTYPES {
        let (_, rows): (Vec<_>, Vec<_>) = hard_rows().into_iter().unzip();
        let all = Matrix::new(dtype, rows.clone());
        for (row, numbers) in rows.into_iter().enumerate() {
            let alone = Matrix::new(dtype, vec![numbers]);
            assert!(
                (0..70).all(|column| alone.element(0, column) == all.element(row, column)),
                "{dtype:?} {row}"
            );
        }
    }
}

#[test]
fn nothing_but_zeroes_becomes_scales_of_zero() {
    for dtype in DTYPES {
        let half: Vec<f32> = (0..40).map(|column| if column < 32 { 0.0 } else { 1.0 }).collect();
        let matrix = Matrix::new(dtype, vec![vec![0.0; 40], vec![1.0; 40], half]);
        let section = matrix.section();
        assert_eq!([0, 1, 2].map(|row| section.row_scale(0, row) == 0.0), [true, false, false]);
        let scales = [1, 2].map(|row| [0, 1].map(|block| section.block_scale(0, row, block)));
        // The row scale is rounded up by a part in 128 at most.
        assert!(
            scales[0].into_iter().chain([scales[1][1]]).all(|scale| scale >= 252),
            "{dtype:?} {scales:?}"
        );
        assert_eq!(scales[1][0], 0, "{dtype:?}");
        for row in 3..16 {
            assert_eq!((section.row_scale(0, row), section.block_scale(0, row, 1)), (0.0, 0));
        }
        assert_eq!(Matrix::new(dtype, vec![vec![0.0; 5]; 3]).loss.relative_error(), 0.0);
    }
}

#[test]
fn columns_that_fill_up_have_the_value_nearest_to_zero() {
    for (dtype, nearest) in [(Dtype::Q8, 0), (Dtype::Q6, 0), (Dtype::Q5, 0), (Dtype::Q4, 6), (Dtype::Q3, 14)]
    {
        let matrix = Matrix::new(dtype, gaussian(16, 33, 1.0, 11));
        let section = matrix.section();
        let places = (0..16).flat_map(|row| (33..64).map(move |column| (row, column)));
        for (row, column) in places {
            assert_eq!(section.value(0, row, column).abs(), nearest, "{dtype:?} [{row}, {column}]");
        }
        assert!(section.ignored().all(|byte| byte == 0));
    }
}

#[test]
fn the_loss_is_that_of_a_reader() {
    for dtype in DTYPES {
        let matrix = Matrix::new(dtype, gaussian(20, 45, 1e-3, 13));
        let total = |term: fn(usize, f64, f64) -> f64| -> f64 {
            matrix.blocks().map(|(row, block, _)| matrix.sum(row, block, term)).sum()
        };
        let differences = total(|_, number, element| (number - element).powi(2));
        let numbers = total(|_, number, _| number * number);
        assert!((matrix.loss.differences / differences - 1.0).abs() < 1e-12, "{dtype:?}");
        assert!((matrix.loss.numbers / numbers - 1.0).abs() < 1e-12, "{dtype:?}");
        let relative_error = matrix.loss.relative_error();
        assert!((relative_error / (differences / numbers).sqrt() - 1.0).abs() < 1e-3);
        assert!(relative_error.to_string().len() <= 9, "{relative_error}");
    }
}

/// The bytes are these on every machine; whoever changes how scales are found changes them knowingly.
#[test]
fn the_bytes_are_always_the_same() {
    let hashes = DTYPES.map(|dtype| {
        let importance: Vec<f32> = (0..100).map(|c| 1.0 + (c % 5) as f32).collect();
        let rows = gaussian(40, 100, 0.02, 19);
        let matrix = Matrix::with(Codes::of(dtype).unwrap(), rows, Some(&importance));
        Sha256::digest(&matrix.bytes)[..4].iter().map(|byte| format!("{byte:02x}")).collect::<String>()
    });
    assert_eq!(hashes, ["61ac51d7", "f6c8750f", "d9ad55fe", "5b81612b", "f997e156"]);
}
