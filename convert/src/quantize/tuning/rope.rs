//! Rotary position embedding, there and back: feature i of a head turns with feature i + head_dim / 2.

use smolrun::format::PANEL;
use smolrun::sin_cos;

/// Cosines and sines of the positions from 0 on, `[rows][head_dim / 2]`.
#[derive(Debug)]
pub(super) struct Rope {
    angles: Vec<(f32, f32)>,
    half: usize,
}

impl Rope {
    pub(super) fn new(inv_freq: &[f32], rows: usize) -> Rope {
        let angle = |row: usize, frequency: f32| {
            let (sin, cos) = sin_cos(row as f32 * frequency);
            (cos, sin)
        };
        let angles = (0..rows).flat_map(|row| inv_freq.iter().map(move |&frequency| angle(row, frequency)));
        Rope { angles: angles.collect(), half: inv_freq.len() }
    }

    /// Turns a head, `[head_dim/16][rows][16]`.
    pub(super) fn turn(&self, head: &mut [f32], rows: usize) {
        self.rotate(head, rows, 1.0);
    }

    /// Turns it back.
    pub(super) fn turn_back(&self, head: &mut [f32], rows: usize) {
        self.rotate(head, rows, -1.0);
    }

    fn rotate(&self, head: &mut [f32], rows: usize, direction: f32) {
        let place = |feature: usize, row: usize| (feature / PANEL * rows + row) * PANEL + feature % PANEL;
        for (row, angles) in self.angles.chunks_exact(self.half).enumerate().take(rows) {
            for (feature, (cos, sin)) in angles.iter().enumerate() {
                let (first, second) = (place(feature, row), place(feature + self.half, row));
                let (a, b, sin) = (head[first], head[second], direction * sin);
                head[first] = a * cos - b * sin;
                head[second] = b * cos + a * sin;
            }
        }
    }
}
