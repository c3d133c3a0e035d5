//! Triangular factors of symmetric matrices.
//!
//! Nearly all of the work is products of strips by the runtime's exact kernels, and the rest runs in a fixed order: neither
//! processors nor threads change the numbers.

use bytemuck::{cast_slice, cast_slice_mut};
use rayon::prelude::*;
use smolrun::format::PANEL;
use smolrun::{Kernels, PlainOp};

use super::super::lanes::{Lanes, lanes};
use super::strips::Strips;

/// Strips that are finished before the others are changed: what is left of these is read once for all of them.
const STRIPS: usize = 4;
/// Least square of a pivot, as a part of what was on the diagonal: below it there is nothing but rounding.
const LEAST_PIVOT: f32 = 1.0 / (1 << 18) as f32;

/// Of a symmetric positive definite matrix `h` the upper triangular `V` with `h = V transpose(V)`.
#[derive(Debug)]
pub(super) struct Factor {
    /// For each 16 columns, their rows as far as the diagonal's last: `[16 (strip + 1)][16]`. What is below the diagonal
    /// means nothing.
    strips: Vec<Vec<Lanes>>,
}

impl Factor {
    /// Of a matrix, of which only the upper triangle is read, with `damping` added to its diagonal. A matrix that is not
    /// quite positive definite is taken for one that is. `None` where numbers are not finite.
    pub(super) fn new(matrix: &Strips, damping: f32) -> Option<Factor> {
        let kernels = matrix.kernels();
        let strip = |strip: usize| {
            let mut rows = matrix.strip(strip)[..(strip + 1) * PANEL].to_vec();
            (0..PANEL).for_each(|column| rows[strip * PANEL + column][column] += damping);
            rows
        };
        let mut strips: Vec<Vec<Lanes>> = (0..matrix.size() / PANEL).into_par_iter().map(strip).collect();
        let of_diagonal = |place: usize| strips[place / PANEL][place][place % PANEL];
        let diagonal: Vec<f32> = (0..matrix.size()).map(of_diagonal).collect();
        let mut rest = strips.as_mut_slice();
        while !rest.is_empty() {
            let (earlier, now) = rest.split_at_mut(rest.len().saturating_sub(STRIPS));
            let first = earlier.len();
            for last in (0..now.len()).rev() {
                let (others, strip) = now.split_at_mut(last);
                finish(kernels, &mut strip[0], &diagonal[(first + last) * PANEL..])?;
                others.iter_mut().for_each(|other| take_out(kernels, other, &strip[0]));
            }
            let now = &*now;
            earlier.par_iter_mut().for_each(|strip| {
                now.iter().rev().for_each(|finished| take_out(kernels, strip, finished));
            });
            rest = earlier;
        }
        Some(Factor { strips })
    }

    /// What is in the upper triangle.
    pub(super) fn at(&self, row: usize, column: usize) -> f32 {
        self.strips[column / PANEL][row][column % PANEL]
    }
}

/// Makes columns of the factor of a strip, of which all later columns' products were taken out.
fn finish(kernels: Kernels, strip: &mut [Lanes], diagonal: &[f32]) -> Option<()> {
    let (above, own) = strip.split_at_mut(strip.len() - PANEL);
    for column in (0..PANEL).rev() {
        let pivot = match diagonal[column] {
            positive if positive > 0.0 => own[column][column].max(positive * LEAST_PIVOT).sqrt(),
            _ => 1.0, // all else in such a column is zero, too
        };
        if !(pivot.is_finite() && own[column][column].is_finite()) {
            return None;
        }
        own[column][column] = pivot;
        let of_column = lanes(|row| if row < column { own[row][column] / pivot } else { 0.0 });
        for (row, &number) in of_column.iter().enumerate().take(column) {
            own[row][column] = number;
            for lane in 0..column {
                own[row][lane] -= number * of_column[lane];
            }
        }
    }
    let columns: [Lanes; PANEL] =
        std::array::from_fn(|column| lanes(|row| if row < column { own[row][column] } else { 0.0 }));
    let pivots = lanes(|column| own[column][column]);
    kernels.compute(FinishRows { above, columns: &columns, pivots: &pivots });
    Some(())
}

/// Makes those rows of a strip that are above its diagonal those of the factor: column by column, what each row's last number
/// leaves of those before it.
struct FinishRows<'a> {
    above: &'a mut [Lanes],
    /// The strip's finished columns above the diagonal, 0 elsewhere.
    columns: &'a [Lanes; PANEL],
    /// What is on it.
    pivots: &'a Lanes,
}

impl PlainOp for FinishRows<'_> {
    #[inline(always)]
    fn compute(self) {
        let FinishRows { above, columns, pivots } = self;
        for row in above {
            let mut numbers = *row;
            for column in (0..PANEL).rev() {
                let number = numbers[column] / pivots[column];
                numbers = lanes(|lane| numbers[lane] - number * columns[column][lane]);
                row[column] = number;
            }
        }
    }
}

/// Takes the products of a later, finished strip out of `strip`.
fn take_out(kernels: Kernels, strip: &mut [Lanes], finished: &[Lanes]) {
    let rows = strip.len();
    let own = &finished[rows - PANEL..][..PANEL];
    let turned: [Lanes; PANEL] = std::array::from_fn(|k| lanes(|lane| -own[lane][k]));
    let others = cast_slice(&finished[..rows]);
    kernels.add_product(cast_slice(&turned), PANEL, others, rows, cast_slice_mut(strip));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A symmetric positive definite matrix.
    fn matrix(size: usize) -> impl Fn(usize, usize) -> f32 {
        let factor = |row: usize, column: usize| ((row * 7 + column * 13) % 11) as f32 - 5.0;
        move |row, column| {
            let product: f32 = (0..size).map(|k| factor(row, k) * factor(column, k)).sum();
            product + if row == column { 10.0 } else { 0.0 }
        }
    }

    fn factor(kernels: Kernels, size: usize, at: impl Fn(usize, usize) -> f32 + Sync) -> Option<Factor> {
        Factor::new(&Strips::new(kernels, size, at), 0.0)
    }

    #[test]
    fn the_factor_times_itself_is_the_matrix() {
        for kernels in Kernels::available() {
            for size in [16, 32, 80, 144] {
                let h = matrix(size);
                let v = factor(kernels, size, &h).unwrap();
                for row in 0..size {
                    assert!(v.at(row, row) > 0.0);
                    for column in row..size {
                        let product: f32 = (column..size).map(|k| v.at(row, k) * v.at(column, k)).sum();
                        let difference = (product - h(row, column)).abs();
                        assert!(difference < 1e-5 * h(0, 0), "{size} [{row}, {column}]: {product}");
                    }
                }
            }
        }
    }

    #[test]
    fn every_set_finds_the_same_factor() {
        let bits = |kernels| {
            let v = factor(kernels, 144, matrix(144)).unwrap();
            v.strips
                .concat()
                .iter()
                .flat_map(|lanes| lanes.0)
                .map(|number| number.to_bits())
                .collect::<Vec<_>>()
        };
        let all = Kernels::available();
        let expected = bits(all[0]);
        assert!(all.into_iter().all(|kernels| bits(kernels) == expected));
    }

    #[test]
    fn what_is_nearly_singular_has_a_factor() {
        let kernels = Kernels::detect();
        let v = factor(kernels, 32, |row, column| (row.max(column) < 20).into()).unwrap();
        for row in 0..32 {
            assert!(
                (0.0..=1.0).contains(&v.at(row, row)) && v.at(row, row) > 0.0,
                "{row}: {}",
                v.at(row, row)
            );
        }
    }

    #[test]
    fn what_is_not_finite_has_none() {
        for number in [f32::NAN, f32::INFINITY] {
            assert!(factor(Kernels::detect(), 16, |_, _| number).is_none());
        }
    }
}
