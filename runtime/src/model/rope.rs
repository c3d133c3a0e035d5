//! Rotary position embedding (RoPE, Su et al. 2021), in Hugging Face's half-split order: feature i of a head turns with
//! feature i + head_dim / 2.

use crate::kernels::{Kernels, LANES, PlainOp, sin_cos};

/// Cosines and sines of the rows' positions, `[rows][head_dim / 2]` each.
#[derive(Default)]
pub(super) struct Rope {
    cos: Vec<f32>,
    sin: Vec<f32>,
    half: usize,
}

impl Rope {
    /// Computes the angles of these positions, one for each row.
    ///
    /// The angle is the f32 product of position and inverse frequency, as Hugging Face computes it.
    pub(super) fn set(&mut self, kernels: Kernels, inv_freq: &[f32], positions: impl Iterator<Item = usize>) {
        self.half = inv_freq.len();
        self.cos.clear();
        self.sin.clear();
        for position in positions {
            let start = self.cos.len();
            self.cos.resize(start + self.half, 0.0);
            self.sin.resize(start + self.half, 0.0);
            let (cos, sin) = (&mut self.cos[start..], &mut self.sin[start..]);
            kernels.run(Angles { position: position as f32, inv_freq, cos, sin });
        }
    }

    /// Cosines and sines of the first row, `[head_dim / 2]` each.
    pub(super) fn first(&self) -> (&[f32], &[f32]) {
        (&self.cos[..self.half], &self.sin[..self.half])
    }

    /// Turns a head of `rows` tokens, `[head_dim/16][rows][16]`, each by the angles of its position. Of the pass's rows, they are
    /// those from `first` on.
    pub(super) fn rotate(&self, kernels: Kernels, head: &mut [f32], first: usize, rows: usize) {
        let half = self.half;
        let (cos, sin) = (&self.cos[first * half..], &self.sin[first * half..]);
        kernels.run(Rotate { head, rows, cos, sin, half });
    }
}

/// The cosines and sines of one position.
struct Angles<'a> {
    position: f32,
    inv_freq: &'a [f32],
    /// As many.
    cos: &'a mut [f32],
    /// As many.
    sin: &'a mut [f32],
}

impl PlainOp for Angles<'_> {
    #[inline(always)]
    fn compute(self) {
        let Angles { position, inv_freq, cos, sin } = self;
        for ((inv_freq, cos), sin) in inv_freq.iter().zip(cos).zip(sin) {
            (*sin, *cos) = sin_cos(position * inv_freq);
        }
    }
}

struct Rotate<'a> {
    head: &'a mut [f32],
    rows: usize,
    cos: &'a [f32],
    sin: &'a [f32],
    half: usize,
}

impl PlainOp for Rotate<'_> {
    #[inline(always)]
    fn compute(self) {
        // Half a head is a multiple of 8 features: so many lie together in both halves.
        const RUN: usize = LANES / 2;
        let Rotate { head, rows, cos, sin, half } = self;
        let runs = head.as_chunks_mut::<RUN>().0;
        let at = |run: usize, row: usize| (run / 2 * rows + row) * 2 + run % 2;
        let angles = cos.chunks_exact(half).zip(sin.chunks_exact(half));
        for (row, (cos, sin)) in angles.take(rows).enumerate() {
            let angles = cos.as_chunks::<RUN>().0.iter().zip(sin.as_chunks::<RUN>().0);
            for (i, (cos, sin)) in angles.enumerate() {
                let (first, second) = (at(i, row), at(half / RUN + i, row));
                let (mut a, mut b) = (runs[first], runs[second]);
                for lane in 0..RUN {
                    let turned = a[lane] * cos[lane] - b[lane] * sin[lane];
                    b[lane] = b[lane] * cos[lane] + a[lane] * sin[lane];
                    a[lane] = turned;
                }
                (runs[first], runs[second]) = (a, b);
            }
        }
    }
}
