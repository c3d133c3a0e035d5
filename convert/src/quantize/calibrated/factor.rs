//! Triangular factors of symmetric matrices, row after row, in f64.
//!
//! Sums run in a fixed order, so that no processor and no compiler changes them.

use rayon::prelude::*;

/// Numbers summed side by side.
const LANES: usize = 8;
/// Rows below which another thread is not worth waking.
const MIN_ROWS: usize = 64;

/// Of the symmetric positive definite matrix `h`, `size` rows of as many, of which only the upper triangle is read: the
/// lower triangular `L` with `inverse(h) = L transpose(L)`, zeroes above. `None` where `h` is not positive definite.
///
/// `h = V transpose(V)` with an upper triangular `V`, found from the last column to the first, and `L` is the transpose of
/// V's inverse.
pub(super) fn inverse_factor(mut h: Vec<f64>, size: usize) -> Option<Vec<f64>> {
    for column in (0..size).rev() {
        let (above, rest) = h.split_at_mut(column * size);
        let row = &mut rest[..size];
        let pivot = (row[column] - dot(&row[column + 1..], &row[column + 1..])).sqrt();
        if !(pivot > 0.0 && pivot.is_finite()) {
            return None;
        }
        row[column] = pivot;
        above.par_chunks_exact_mut(size).with_min_len(MIN_ROWS).for_each(|above| {
            above[column] = (above[column] - dot(&above[column + 1..], &row[column + 1..])) / pivot;
        });
    }
    let mut inverse = vec![0.0; size * size];
    let rows = inverse.par_chunks_exact_mut(size).enumerate();
    rows.for_each(|(index, row)| solve(&h, &mut row[..=index], size));
    Some(inverse)
}

/// Leaves in `x` the first numbers of the solution of `v x = (0, ..., 0, 1)`, of as many equations.
fn solve(v: &[f64], x: &mut [f64], size: usize) {
    let last = x.len() - 1;
    x[last] = 1.0 / v[last * size + last];
    for index in (0..last).rev() {
        let row = &v[index * size..][..=last];
        x[index] = -dot(&row[index + 1..], &x[index + 1..]) / row[index];
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    let mut sums = [0.0; LANES];
    for (a, b) in a.iter().zip(b) {
        for lane in 0..LANES {
            sums[lane] += a[lane] * b[lane];
        }
    }
    let rest: f64 = a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum();
    let [a, b, c, d, e, f, g, h] = sums;
    (((a + e) + (c + g)) + ((b + f) + (d + h))) + rest
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
    fn the_factor_is_that_of_the_inverse() {
        for size in [1, 2, 5, 8, 13, 40] {
            let h = matrix(size);
            let l = inverse_factor(h.clone(), size).unwrap();
            let at = |row: usize, column: usize| l[row * size + column];
            for row in 0..size {
                assert!((row + 1..size).all(|column| at(row, column) == 0.0) && at(row, row) > 0.0);
                for column in 0..size {
                    // (L transpose(L) h)[row][column]
                    let inverse = |k: usize| (0..size).map(|j| at(row, j) * at(k, j)).sum::<f64>();
                    let product: f64 = (0..size).map(|k| inverse(k) * h[k * size + column]).sum();
                    let expected = if row == column { 1.0 } else { 0.0 };
                    assert!((product - expected).abs() < 1e-7, "{size} [{row}, {column}]: {product}");
                }
            }
        }
    }

    #[test]
    fn what_is_not_positive_definite_has_none() {
        for h in [vec![0.0], vec![1.0, 2.0, 2.0, 1.0], vec![f64::NAN], vec![f64::INFINITY]] {
            let size = h.len().isqrt();
            assert!(inverse_factor(h, size).is_none());
        }
    }
}
