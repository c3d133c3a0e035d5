//! Rotary position embedding (RoPE, Su et al. 2021): the angles of some positions.

use crate::kernels::{rotate, sin_cos};

/// Cosines and sines of consecutive positions, `[positions][head_dim / 2]` each.
#[derive(Default)]
pub(super) struct Rope {
    cos: Vec<f32>,
    sin: Vec<f32>,
    half: usize,
}

impl Rope {
    /// Computes the angles of positions `first..first + count`.
    ///
    /// The angle is the f32 product of position and inverse frequency, as Hugging Face computes it.
    pub(super) fn set(&mut self, inv_freq: &[f32], first: usize, count: usize) {
        self.half = inv_freq.len();
        self.cos.clear();
        self.sin.clear();
        for position in first..first + count {
            for inv_freq in inv_freq {
                let (sin, cos) = sin_cos(position as f32 * inv_freq);
                self.cos.push(cos);
                self.sin.push(sin);
            }
        }
    }

    /// Turns `head`, `[head_dim]`, by the angles of the position `index` places after the first.
    pub(super) fn rotate(&self, head: &mut [f32], index: usize) {
        let range = index * self.half..(index + 1) * self.half;
        rotate(head, &self.cos[range.clone()], &self.sin[range]);
    }
}
