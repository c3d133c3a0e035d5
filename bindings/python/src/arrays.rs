//! Rows of f32 as numpy arrays, which take the memory over.

use numpy::{PyArray1, PyArray2, PyArrayMethods};
use pyo3::prelude::*;
use smolrun::{Error, Session};

use crate::failure::Result;

/// Rows one after the other, each of `width` numbers.
pub(crate) struct Matrix {
    numbers: Vec<f32>,
    width: usize,
}

impl Matrix {
    /// The logits after each of `tokens`, which it appends to `session`, but for the first `skip`:
    /// `[tokens][vocab_size]`.
    pub(crate) fn logits(session: &mut Session, tokens: &[u32], skip: usize) -> Result<Matrix> {
        let width = session.model().config().vocab_size;
        let len = tokens.len().saturating_sub(skip).saturating_mul(width);
        let mut numbers = Vec::new();
        let out_of_memory =
            |_| Error::OutOfMemory { what: "logits", bytes: len.saturating_mul(size_of::<f32>()) };
        numbers.try_reserve_exact(len).map_err(out_of_memory)?;
        session.feed_all(tokens, |index, logits| {
            if index >= skip {
                numbers.extend_from_slice(logits);
            }
        })?;
        Ok(Matrix { numbers, width })
    }

    /// The last hidden states of `tokens`, which it appends to `session`, but for the first `skip`:
    /// `[tokens][hidden_size]`.
    pub(crate) fn hidden(session: &mut Session, tokens: &[u32], skip: usize) -> Result<Matrix> {
        let width = session.model().config().hidden_size;
        let mut numbers = session.hidden(tokens)?;
        numbers.drain(..skip * width);
        Ok(Matrix { numbers, width })
    }

    pub(crate) fn into_array(self, py: Python<'_>) -> PyResult<Bound<'_, PyArray2<f32>>> {
        let rows = self.numbers.len() / self.width;
        vector(py, self.numbers)?.reshape([rows, self.width])
    }
}

/// An array of these numbers.
pub(crate) fn vector(py: Python<'_>, numbers: Vec<f32>) -> PyResult<Bound<'_, PyArray1<f32>>> {
    py.import("numpy")?; // an ImportError where there is none
    Ok(PyArray1::from_vec(py, numbers))
}
