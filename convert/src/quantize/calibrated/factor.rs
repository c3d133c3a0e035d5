//! Triangular factors of symmetric matrices, in f64.
//!
//! Sums run in a fixed order, so that no processor and no compiler changes them.

use std::ops::Range;

use rayon::prelude::*;

/// Numbers of a row summed side by side.
const LANES: usize = 4;
/// Rows that one row is multiplied with side by side.
const ROWS: usize = 4;
/// Columns that are found together, so that what is left of a row is read once for all of them.
const COLUMNS: usize = 32;
/// Rows below which another thread is not worth waking.
const MIN_ROWS: usize = 64;

/// Of the symmetric positive definite matrix `h`, `size` rows of as many, of which only the upper triangle is read: the
/// upper triangular `V` with `h = V transpose(V)`; what is below its diagonal means nothing. `None` where `h` is not
/// positive definite.
///
/// It is found from the last columns to the first, [`COLUMNS`] at a time.
pub(super) fn upper_factor(mut h: Vec<f64>, size: usize) -> Option<Vec<f64>> {
    for last in (0..size.div_ceil(COLUMNS)).rev() {
        let columns = last * COLUMNS..size.min((last + 1) * COLUMNS);
        let (above, rest) = h.split_at_mut(columns.start * size);
        let pivots = &mut rest[..columns.len() * size];
        factor_own(pivots, columns.clone(), size)?;
        let pivots = &*pivots;
        let rows = above.par_chunks_exact_mut(size).with_min_len(MIN_ROWS);
        rows.for_each(|row| take_out(row, pivots, columns.clone(), size));
    }
    Some(h)
}

/// The rows of `columns`.
fn factor_own(rows: &mut [f64], columns: Range<usize>, size: usize) -> Option<()> {
    for column in columns.clone().rev() {
        let (above, own) = rows.split_at_mut((column - columns.start) * size);
        let own = &mut own[..size];
        let pivot = (own[column] - dot(&own[column + 1..], &own[column + 1..])).sqrt();
        if !(pivot > 0.0 && pivot.is_finite()) {
            return None;
        }
        own[column] = pivot;
        for row in above.chunks_exact_mut(size) {
            row[column] = (row[column] - dot(&row[column + 1..], &own[column + 1..])) / pivot;
        }
    }
    Some(())
}

/// What a row above has in `columns`, whose own rows are `pivots`.
fn take_out(row: &mut [f64], pivots: &[f64], columns: Range<usize>, size: usize) {
    let (row, later) = row.split_at_mut(columns.end);
    let groups = row[columns.clone()].chunks_mut(ROWS).zip(pivots.chunks(ROWS * size));
    for (numbers, pivots) in groups {
        let pivot = |index: usize| &pivots[index * size..][columns.end..size];
        if let Some(numbers) = numbers.as_chunks_mut::<ROWS>().0.first_mut() {
            let products: [f64; ROWS] = dots(later, std::array::from_fn(pivot));
            *numbers = std::array::from_fn(|index| numbers[index] - products[index]);
        } else {
            for (index, number) in numbers.iter_mut().enumerate() {
                *number -= dot(later, pivot(index));
            }
        }
    }
    for (column, pivot) in columns.clone().zip(pivots.chunks_exact(size)).rev() {
        let product = dot(&row[column + 1..], &pivot[column + 1..columns.end]);
        row[column] = (row[column] - product) / pivot[column];
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    let [dot] = dots(a, [b]);
    dot
}

/// The products of `a` with some rows of as many numbers.
fn dots<const ROWS: usize>(a: &[f64], rows: [&[f64]; ROWS]) -> [f64; ROWS] {
    let (chunks, rest) = a.as_chunks::<LANES>();
    let whole = rows.map(|row| &row.as_chunks::<LANES>().0[..chunks.len()]);
    let mut sums = [[0.0; LANES]; ROWS];
    for (index, chunk) in chunks.iter().enumerate() {
        for (sums, row) in sums.iter_mut().zip(&whole) {
            for lane in 0..LANES {
                sums[lane] += chunk[lane] * row[index][lane];
            }
        }
    }
    std::array::from_fn(|index| {
        let [a, b, c, d] = sums[index];
        let last = rest.iter().zip(&rows[index][chunks.len() * LANES..]);
        ((a + c) + (b + d)) + last.map(|(a, b)| a * b).sum::<f64>()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A symmetric positive definite matrix with condition numbers like those of activations.
    fn matrix(size: usize) -> Vec<f64> {
        let factor = |row: usize, column: usize| ((row * 7 + column * 13) % 11) as f64 - 5.0;
        let mut h = vec![0.0; size * size];
        for row in 0..size {
            for column in 0..size {
                h[row * size + column] = (0..size).map(|k| factor(row, k) * factor(column, k)).sum();
            }
            h[row * size + row] += 0.5;
        }
        h
    }

    #[test]
    fn the_factor_times_itself_is_the_matrix() {
        for size in [1, 2, 5, 31, 32, 35, 64, 133] {
            let h = matrix(size);
            let v = upper_factor(h.clone(), size).unwrap();
            for row in 0..size {
                assert!(v[row * size + row] > 0.0);
                for column in row..size {
                    let product: f64 = (column..size).map(|k| v[row * size + k] * v[column * size + k]).sum();
                    let difference = (product - h[row * size + column]).abs();
                    assert!(difference < 1e-9 * h[0], "{size} [{row}, {column}]: {product}");
                }
            }
        }
    }

    #[test]
    fn what_is_not_positive_definite_has_none() {
        for h in [vec![0.0], vec![1.0, 2.0, 2.0, 1.0], vec![f64::NAN], vec![f64::INFINITY]] {
            let size = h.len().isqrt();
            assert!(upper_factor(h, size).is_none());
        }
    }
}
