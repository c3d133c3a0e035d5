//! What an adapter adds to a matrix: kept beside the checkpoint's tensors, added where rows are read.

/// What an adapter adds to a matrix of shape `[out, in]`.
#[derive(Clone, Debug)]
pub struct Delta {
    /// `[rank, in]`.
    a: Vec<f32>,
    /// `[out, rank]`.
    b: Vec<f32>,
    rank: usize,
    scale: f32,
    /// Of a DoRA, `[out]`.
    magnitudes: Option<Vec<f32>>,
}

impl Delta {
    /// `scale * b a`: `a` is `[rank, in]`, `b` is `[out, rank]`.
    pub(crate) fn new(a: Vec<f32>, b: Vec<f32>, rank: usize, scale: f32) -> Delta {
        Delta { a, b, rank, scale, magnitudes: None }
    }

    /// `scale * values`, which is `[out]`, for a vector: a matrix of one column.
    pub(crate) fn of_vector(values: Vec<f32>, scale: f32) -> Delta {
        Delta::new(vec![1.0], values, 1, scale)
    }

    /// Gives each row, once this is added, a length of its own (DoRA).
    pub(crate) fn with_magnitudes(self, magnitudes: Vec<f32>) -> Delta {
        Delta { magnitudes: Some(magnitudes), ..self }
    }

    /// The shape of the matrix that it is for.
    pub fn shape(&self) -> [usize; 2] {
        [self.b.len() / self.rank, self.a.len() / self.rank]
    }

    /// Adds to `values`, row `row` of the matrix. `sums` is memory for a row.
    pub(crate) fn add_to(&self, row: usize, values: &mut [f32], sums: &mut Vec<f32>) {
        sums.clear();
        sums.resize(values.len(), 0.0);
        let factors = &self.b[row * self.rank..(row + 1) * self.rank];
        for (&factor, a) in factors.iter().zip(self.a.chunks_exact(values.len())) {
            sums.iter_mut().zip(a).for_each(|(sum, &a)| *sum += factor * a);
        }
        values.iter_mut().zip(sums).for_each(|(value, sum)| *value += self.scale * *sum);
        if let Some(magnitudes) = &self.magnitudes {
            let length = values.iter().map(|&value| f64::from(value).powi(2)).sum::<f64>().sqrt();
            let factor = magnitudes[row] / length as f32;
            values.iter_mut().for_each(|value| *value *= factor);
        }
    }
}
