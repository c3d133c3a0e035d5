//! The numbers of a matrix's rows as the checkpoint has them: read, put in order, and with an adapter's share added.

use half::bf16;

use super::binding::{PanelRows, Part};
use crate::error::{Error, Result};
use crate::source::{Source, Tensor};

/// Memory for rows on their way, used again for every panel that a thread packs.
#[derive(Default)]
pub(crate) struct Rows {
    bytes: Vec<u8>,
    values: Vec<f32>,
    sums: Vec<f32>,
}

impl Rows {
    /// The rows of `from`, one after the other.
    pub(crate) fn values(&mut self, source: &Source, from: PanelRows) -> Result<&[f32]> {
        let mut values = std::mem::take(&mut self.values);
        values.resize(from.count * from.part.columns(), 0.0);
        let read = self.read_rows(source, from, &mut values).and_then(|()| self.add_delta(from, &mut values));
        self.values = values;
        read.map(|()| &*self.values)
    }

    /// Reads the rows of `from`, at once where they lie side by side.
    fn read_rows(&mut self, source: &Source, from: PanelRows, values: &mut [f32]) -> Result<()> {
        let PanelRows { part, first, .. } = from;
        let columns = part.columns();
        if columns == 1 {
            // A vector, of which no row need begin a block.
            let mut stored = vec![0.0; part.tensor.shape[0]];
            self.read(source, part.tensor, 0, &mut stored)?;
            let rows = (first..).map(|row| stored[part.stored_row(row)]);
            values.iter_mut().zip(rows).for_each(|(value, stored)| *value = stored);
            return Ok(());
        }
        if part.interleaved.is_none() {
            return self.read(source, part.tensor, first * columns, values);
        }
        let mut rows = values.chunks_exact_mut(columns).zip(first..);
        rows.try_for_each(|(values, row)| {
            self.read(source, part.tensor, part.stored_row(row) * columns, values)
        })
    }

    /// Adds what an adapter adds to the rows of `from`.
    fn add_delta(&mut self, from: PanelRows, values: &mut [f32]) -> Result<()> {
        let Part { tensor, delta: Some(delta), .. } = from.part else { return Ok(()) };
        for (values, row) in values.chunks_exact_mut(from.part.columns()).zip(from.first..) {
            delta.add_to(row, values, &mut self.sums);
        }
        match values.iter().find(|value| value.is_nan() || value.abs() > bf16::MAX.to_f32()) {
            Some(value) => Err(Error::tensor(
                &tensor.name,
                format!("expected finite numbers with the LoRA, found {value}"),
            )),
            None => Ok(()),
        }
    }

    /// Reads elements of `tensor` from index `first`, which begins a block, until `values`, whole blocks, is full.
    pub(crate) fn read(
        &mut self,
        source: &Source,
        tensor: &Tensor,
        first: usize,
        values: &mut [f32],
    ) -> Result<()> {
        let (block_len, block_bytes) = (tensor.dtype.block_len(), tensor.dtype.block_bytes());
        self.bytes.resize(values.len() / block_len * block_bytes, 0);
        // Both stay inside the tensor, whose byte range was checked to lie in the file.
        let offset = tensor.offset + (first / block_len * block_bytes) as u64;
        source.files[tensor.file].read_at(&mut self.bytes, offset)?;
        tensor.dtype.decode(&self.bytes, values);
        Ok(())
    }
}
