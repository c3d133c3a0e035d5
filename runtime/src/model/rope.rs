//! Rotary position embedding (RoPE, Su et al. 2021), in Hugging Face's half-split order: feature i of a head turns with
//! feature i + head_dim / 2.

use crate::kernels::{LANES, sin_cos};

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
    pub(super) fn set(&mut self, inv_freq: &[f32], positions: impl Iterator<Item = usize>) {
        self.half = inv_freq.len();
        self.cos.clear();
        self.sin.clear();
        for position in positions {
            for inv_freq in inv_freq {
                let (sin, cos) = sin_cos(position as f32 * inv_freq);
                self.cos.push(cos);
                self.sin.push(sin);
            }
        }
    }

    /// Cosines and sines of the first row, `[head_dim / 2]` each.
    pub(super) fn first(&self) -> (&[f32], &[f32]) {
        (&self.cos[..self.half], &self.sin[..self.half])
    }

    /// Turns a head of `rows` tokens, `[head_dim/16][rows][16]`, each by the angles of its position.
    pub(super) fn rotate(&self, head: &mut [f32], rows: usize) {
        // Half a head is a multiple of 8 features: so many lie together in both halves.
        const RUN: usize = LANES / 2;
        let at = |feature: usize, row: usize| (feature / LANES * rows + row) * LANES + feature % LANES;
        let angles = self.cos.chunks_exact(self.half).zip(self.sin.chunks_exact(self.half));
        for (row, (cos, sin)) in angles.take(rows).enumerate() {
            let runs = cos.as_chunks::<RUN>().0.iter().zip(sin.as_chunks::<RUN>().0);
            for (i, (cos, sin)) in runs.enumerate() {
                let (first, second) = (at(i * RUN, row), at(self.half + i * RUN, row));
                for lane in 0..RUN {
                    let (a, b) = (head[first + lane], head[second + lane]);
                    let (cos, sin) = (cos[lane], sin[lane]);
                    (head[first + lane], head[second + lane]) = (a * cos - b * sin, b * cos + a * sin);
                }
            }
        }
    }
}
