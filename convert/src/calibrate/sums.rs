//! Sums of `x transpose(x)` over the inputs of a matrix.

use rayon::prelude::*;
use smolrun::Activations;
use smolrun::format::PANEL;

/// Rows of features that are summed at once, and columns.
const TILE: (usize, usize) = (4, 8);

type Square = [[f32; PANEL]; PANEL];

/// The upper triangle of a symmetric matrix, in squares of 16 features by 16.
#[derive(Clone, Debug)]
pub(super) struct Sums {
    features: usize,
    /// `[panels][panels from this one on]`
    squares: Vec<Vec<Square>>,
}

impl Sums {
    pub(super) fn new(features: usize) -> Sums {
        let panels = features.div_ceil(PANEL);
        let row = |panel: usize| vec![[[0.0; PANEL]; PANEL]; panels - panel];
        Sums { features, squares: (0..panels).map(row).collect() }
    }

    /// Rows and columns.
    pub(super) fn features(&self) -> usize {
        self.features
    }

    /// Bytes of the sums of so many features.
    pub(super) fn bytes(features: usize) -> u64 {
        let panels = features.div_ceil(PANEL) as u64;
        panels * (panels + 1) / 2 * size_of::<Square>() as u64
    }

    /// Adds those of one pass, each `weight` times.
    pub(super) fn add(&mut self, inputs: &Activations<'_>, weight: f32) {
        let rows = inputs.panels.as_chunks::<PANEL>().0;
        let panel = |index: usize| &rows[index * inputs.rows..][..inputs.rows];
        self.squares.par_iter_mut().enumerate().for_each(|(first, squares)| {
            for (other, square) in (first..).zip(squares) {
                add_products(panel(first), panel(other), weight, square);
            }
        });
    }

    /// The mean of the diagonal.
    pub(super) fn mean(&self) -> f64 {
        let diagonal = (0..self.features).map(|feature| f64::from(self.at(feature, feature)));
        diagonal.sum::<f64>() / self.features as f64
    }

    /// All of them times `factor`, rows of as many numbers.
    pub(super) fn times(&self, factor: f64) -> Vec<f32> {
        let size = self.features;
        let at = |index: usize| (f64::from(self.at(index / size, index % size)) * factor) as f32;
        (0..size * size).into_par_iter().map(at).collect()
    }

    fn at(&self, row: usize, column: usize) -> f32 {
        let (row, column) = (row.min(column), row.max(column));
        self.squares[row / PANEL][column / PANEL - row / PANEL][row % PANEL][column % PANEL]
    }
}

/// Adds `weight` times the sum over rows of `a[i] b[j]` to `to[i][j]`.
fn add_products(a: &[[f32; PANEL]], b: &[[f32; PANEL]], weight: f32, to: &mut Square) {
    for i in (0..PANEL).step_by(TILE.0) {
        for j in (0..PANEL).step_by(TILE.1) {
            let mut sums = [[0.0; TILE.1]; TILE.0];
            for (a, b) in a.iter().zip(b) {
                for (row, sums) in sums.iter_mut().enumerate() {
                    for (column, sum) in sums.iter_mut().enumerate() {
                        *sum += a[i + row] * b[j + column];
                    }
                }
            }
            for (to, sums) in to[i..].iter_mut().zip(&sums) {
                to[j..].iter_mut().zip(sums).for_each(|(to, sum)| *to += weight * sum);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use smolrun::format::Kind;

    use super::*;

    #[test]
    fn sums_are_those_of_all_products() {
        let (features, rows) = (35, 5);
        let number = |feature: usize, row: usize| ((feature * 7 + row * 3) % 13) as f32 - 6.0;
        let mut panels = vec![9.0; 3 * rows * PANEL]; // what is beyond the features is of no matter
        for feature in 0..features {
            for row in 0..rows {
                panels[(feature / PANEL * rows + row) * PANEL + feature % PANEL] = number(feature, row);
            }
        }
        let inputs = Activations { kind: Kind::OProj, layer: Some(0), rows, panels: &panels };
        let mut sums = Sums::new(features);
        sums.add(&inputs, 1.0);
        sums.add(&inputs, 0.5);
        let numbers = sums.times(2.0);
        let expected = |a, b| 3.0 * (0..rows).map(|row| number(a, row) * number(b, row)).sum::<f32>();
        for a in 0..features {
            for b in 0..features {
                assert_eq!(numbers[a * features + b], expected(a, b), "{a} {b}");
            }
        }
        let mean = (0..features).map(|a| f64::from(expected(a, a))).sum::<f64>() / 2.0 / features as f64;
        assert!((sums.mean() - mean).abs() < 1e-9 * mean);
        assert_eq!(Sums::bytes(features), 6 * 1024);
    }
}
