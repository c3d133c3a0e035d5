//! RMSNorm, there and back.

use smolrun::format::PANEL;
use smolrun::{Kernels, PlainOp, one_by_one};

use super::panels::Lanes;

/// Norms of rows of so many features.
#[derive(Clone, Copy, Debug)]
pub(super) struct Norm {
    pub(super) kernels: Kernels,
    pub(super) rows: usize,
    pub(super) features: usize,
    pub(super) eps: f32,
}

impl Norm {
    /// `x * weight / sqrt(mean(x²) + eps)`, all `[features/16, rounded up][rows][16]` but the weight, `[features]`.
    pub(super) fn forward(self, x: &[f32], weight: &[f32]) -> Vec<f32> {
        let inverse = self.inverse(x);
        let mut y = vec![0.0; x.len()];
        self.kernels.compute(Scale { x: x.as_chunks().0, inverse: &inverse, weight, y: y.as_chunks_mut().0 });
        y
    }

    /// Adds to `dx` what the gradient `dy` of the outputs is at `x`, and to `gradient` what it is at the weight.
    pub(super) fn backward(
        self,
        x: &[f32],
        weight: &[f32],
        dy: &[f32],
        dx: &mut [f32],
        gradient: Option<&mut [f32]>,
    ) {
        let inverse = self.inverse(x);
        let (x, dy, dx) = (x.as_chunks().0, dy.as_chunks().0, dx.as_chunks_mut().0);
        let mut means = vec![0.0; self.rows];
        self.kernels.compute(Mean { x, dy, weight, features: self.features, means: &mut means });
        if let Some(gradient) = gradient {
            self.kernels.compute(AtWeight { x, dy, inverse: &inverse, gradient });
        }
        self.kernels.compute(AtInput { x, dy, inverse: &inverse, means: &means, weight, dx });
    }

    fn inverse(self, x: &[f32]) -> Vec<f32> {
        let mut inverse = vec![0.0; self.rows];
        let Norm { kernels, features, eps, .. } = self;
        kernels.compute(Inverse { x: x.as_chunks().0, features, eps, inverse: &mut inverse });
        inverse
    }
}

/// The weights of a panel's features, zero past the last.
#[inline(always)]
fn lanes_of(weight: &[f32]) -> Lanes {
    let mut lanes = [0.0; PANEL];
    lanes[..weight.len()].copy_from_slice(weight);
    lanes
}

struct Inverse<'a> {
    x: &'a [Lanes],
    features: usize,
    eps: f32,
    inverse: &'a mut [f32],
}

impl PlainOp for Inverse<'_> {
    #[inline(always)]
    fn compute(self) {
        let Inverse { x, features, eps, inverse } = self;
        let rows = inverse.len();
        for (row, inverse) in inverse.iter_mut().enumerate() {
            let mut squares = [0.0; PANEL];
            for x in x[row..].iter().step_by(rows) {
                for lane in 0..PANEL {
                    squares[lane] += x[lane] * x[lane];
                }
            }
            *inverse = 1.0 / (squares.iter().sum::<f32>() / features as f32 + eps).sqrt();
        }
    }
}

struct Scale<'a> {
    x: &'a [Lanes],
    inverse: &'a [f32],
    weight: &'a [f32],
    y: &'a mut [Lanes],
}

impl PlainOp for Scale<'_> {
    #[inline(always)]
    fn compute(self) {
        let Scale { x, inverse, weight, y } = self;
        let rows = inverse.len();
        let panels = x.chunks_exact(rows).zip(y.chunks_exact_mut(rows)).zip(weight.chunks(PANEL));
        for ((x, y), weight) in panels {
            let weight = lanes_of(weight);
            for ((x, y), inverse) in one_by_one(x).zip(y).zip(inverse) {
                for lane in 0..PANEL {
                    y[lane] = x[lane] * inverse * weight[lane];
                }
            }
        }
    }
}

/// The mean of `x * weight * dy` over a row's features.
struct Mean<'a> {
    x: &'a [Lanes],
    dy: &'a [Lanes],
    weight: &'a [f32],
    features: usize,
    /// Zero.
    means: &'a mut [f32],
}

impl PlainOp for Mean<'_> {
    #[inline(always)]
    fn compute(self) {
        let Mean { x, dy, weight, features, means } = self;
        let rows = means.len();
        for ((x, dy), weight) in x.chunks_exact(rows).zip(dy.chunks_exact(rows)).zip(weight.chunks(PANEL)) {
            let weight = lanes_of(weight);
            for ((x, dy), mean) in one_by_one(x).zip(dy).zip(&mut *means) {
                let mut sum = 0.0;
                for lane in 0..PANEL {
                    sum += x[lane] * weight[lane] * dy[lane];
                }
                *mean += sum;
            }
        }
        means.iter_mut().for_each(|mean| *mean /= features as f32);
    }
}

struct AtWeight<'a> {
    x: &'a [Lanes],
    dy: &'a [Lanes],
    inverse: &'a [f32],
    gradient: &'a mut [f32],
}

impl PlainOp for AtWeight<'_> {
    #[inline(always)]
    fn compute(self) {
        let AtWeight { x, dy, inverse, gradient } = self;
        let rows = inverse.len();
        let panels = x.chunks_exact(rows).zip(dy.chunks_exact(rows)).zip(gradient.chunks_mut(PANEL));
        for ((x, dy), gradient) in panels {
            let mut sums = [0.0; PANEL];
            for ((x, dy), inverse) in x.iter().zip(dy).zip(inverse) {
                for lane in 0..PANEL {
                    sums[lane] += dy[lane] * x[lane] * inverse;
                }
            }
            gradient.iter_mut().zip(sums).for_each(|(gradient, sum)| *gradient += sum);
        }
    }
}

/// `dx += inverse * (weight * dy - x * inverse² * mean)`.
struct AtInput<'a> {
    x: &'a [Lanes],
    dy: &'a [Lanes],
    inverse: &'a [f32],
    means: &'a [f32],
    weight: &'a [f32],
    dx: &'a mut [Lanes],
}

impl PlainOp for AtInput<'_> {
    #[inline(always)]
    fn compute(self) {
        let AtInput { x, dy, inverse, means, weight, dx } = self;
        let rows = inverse.len();
        let panels = x.chunks_exact(rows).zip(dy.chunks_exact(rows)).zip(dx.chunks_exact_mut(rows));
        for (((x, dy), dx), weight) in panels.zip(weight.chunks(PANEL)) {
            let weight = lanes_of(weight);
            let rows = one_by_one(x).zip(dy).zip(dx).zip(inverse).zip(means);
            for ((((x, dy), dx), inverse), mean) in rows {
                let along = inverse * inverse * mean;
                for lane in 0..PANEL {
                    dx[lane] += inverse * (weight[lane] * dy[lane] - x[lane] * along);
                }
            }
        }
    }
}
