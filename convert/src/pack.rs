//! Tensor bytes to panels: sixteen rows side by side, `[out/16][in][16]`; of bf16, the numbers of two columns lie
//! together, `[out/16][in/2][16][2]`; quantised ones are made by `quantise`.

use std::ops::Range;

use half::bf16;
use rayon::prelude::*;
use smolrun::format::{PANEL, QuantizedPanels};

use crate::error::{Error, Result};
use crate::progress::Progress;
use crate::quantise::{Calibrated, Loss, Quantiser, Scratch};
use crate::source::{Source, Tensor};
use crate::tensor_map::{Arrangement, Binding, PanelRows, Part};

/// Bytes packed at a time: enough to keep all cores busy, little enough to stay small in memory.
const CHUNK_LEN: usize = 8 << 20;

/// A section's pieces in file order: ranges of its panels that make about 8 MB. A vector is one piece.
pub fn pieces(binding: &Binding) -> Vec<Range<usize>> {
    if binding.arrangement == Arrangement::Vector {
        return std::iter::once(0..1).collect();
    }
    let quantised = QuantizedPanels::new(binding.dtype, binding.columns());
    let panel_len = quantised.map_or(binding.columns() * PANEL * size_of::<f32>(), |panels| panels.panel_len);
    let step = (CHUNK_LEN / panel_len).max(1);
    let panels = binding.panels();
    (0..panels).step_by(step).map(|start| start..panels.min(start + step)).collect()
}

/// The numbers of one of a section's [`pieces`].
pub fn pack(source: &Source, binding: &Binding, piece: Range<usize>) -> Result<Vec<f32>> {
    if binding.arrangement == Arrangement::Vector {
        let mut packed = Vec::new();
        for Part { tensor, .. } in &binding.tensors {
            let done = packed.len();
            packed.resize(done + tensor.shape[0], 0.0);
            Rows::default().read(source, tensor, 0, &mut packed[done..])?;
        }
        return Ok(packed);
    }
    let panel_len = binding.columns() * PANEL;
    let mut packed = vec![0.0; piece.len() * panel_len];
    let panels = packed.par_chunks_exact_mut(panel_len).zip(piece);
    panels.try_for_each_init(Rows::default, |rows, (panel, index)| {
        pack_panel(source, binding.panel_rows(index), rows, panel)
    })?;
    Ok(packed)
}

/// Fills `panel`, which is zero, with the rows of `from`.
fn pack_panel(source: &Source, from: PanelRows, rows: &mut Rows, panel: &mut [f32]) -> Result<()> {
    let values = rows.values(source, from)?;
    for (row, values) in values.chunks_exact(from.part.tensor.shape[1]).enumerate() {
        for (column, &value) in panel.chunks_exact_mut(PANEL).zip(values) {
            column[row] = value;
        }
    }
    Ok(())
}

/// The bytes of one of a quantised section's [`pieces`], and what its numbers lost.
pub fn quantise(
    source: &Source,
    binding: &Binding,
    quantiser: &Quantiser,
    piece: Range<usize>,
) -> Result<(Vec<u8>, Loss)> {
    let panel_len = quantiser.layout().panel_len;
    let mut packed = vec![0; piece.len() * panel_len];
    let panels = packed.par_chunks_exact_mut(panel_len).zip(piece);
    let memory = <(Rows, Scratch)>::default;
    let losses = panels.map_init(memory, |(rows, scratch), (panel, index)| {
        let values = rows.values(source, binding.panel_rows(index))?;
        Ok(quantiser.quantise(values, scratch, panel))
    });
    let losses: Vec<Loss> = losses.collect::<Result<_>>()?; // in the order of the panels
    Ok((packed, losses.into_iter().sum()))
}

/// The bytes of all panels of a quantised section whose inputs are known, and what it lost.
pub fn quantise_calibrated(
    source: &Source,
    binding: &Binding,
    calibrated: &Calibrated,
    progress: &Progress,
) -> Result<(Vec<u8>, Loss)> {
    let (panels, panel_len) = (binding.panels(), calibrated.layout().panel_len);
    let panel_numbers = binding.columns() * PANEL;
    let mut packed = vec![0; panels * panel_len];
    let pieces = packed.par_chunks_mut(Calibrated::PANELS * panel_len).enumerate();
    let losses = pieces.map_init(<(Rows, Vec<f32>)>::default, |(rows, numbers), (piece, packed)| {
        numbers.clear();
        numbers.resize(packed.len() / panel_len * panel_numbers, 0.0);
        for (index, numbers) in (piece * Calibrated::PANELS..).zip(numbers.chunks_exact_mut(panel_numbers)) {
            let values = rows.values(source, binding.panel_rows(index))?;
            numbers[..values.len()].copy_from_slice(values);
        }
        let loss = calibrated.quantise(numbers, packed);
        progress.add(packed.len() as u64);
        Ok(loss)
    });
    let losses: Vec<Loss> = losses.collect::<Result<_>>()?; // in the order of the panels
    Ok((packed, losses.into_iter().sum()))
}

/// Panels of f32 to panels of bf16, of an even number of columns. Rounds to the nearest, ties to even; `check` has seen
/// that all stay finite.
pub fn in_bf16(panels: &[f32]) -> Vec<[u16; 2]> {
    let columns = panels.as_chunks::<PANEL>().0.as_chunks::<2>().0;
    let pair = |first, second| [first, second].map(|number| bf16::from_f32(number).to_bits());
    let pairs = columns.par_iter().flat_map_iter(|[first, second]| {
        first.iter().zip(second).map(move |(&first, &second)| pair(first, second))
    });
    pairs.collect()
}

/// Memory for rows on their way, used again for every panel that a thread packs.
#[derive(Default)]
struct Rows {
    bytes: Vec<u8>,
    values: Vec<f32>,
    sums: Vec<f32>,
}

impl Rows {
    /// The rows of `from`, one after the other.
    fn values(&mut self, source: &Source, from: PanelRows) -> Result<&[f32]> {
        let mut values = std::mem::take(&mut self.values);
        values.resize(from.count * from.part.tensor.shape[1], 0.0);
        let read = self.read_rows(source, from, &mut values).and_then(|()| self.add_delta(from, &mut values));
        self.values = values;
        read.map(|()| &*self.values)
    }

    /// Reads the rows of `from`, at once where they lie side by side.
    fn read_rows(&mut self, source: &Source, from: PanelRows, values: &mut [f32]) -> Result<()> {
        let PanelRows { part, first, .. } = from;
        let columns = part.tensor.shape[1];
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
        for (values, row) in values.chunks_exact_mut(tensor.shape[1]).zip(from.first..) {
            delta.add_to(row, values, &mut self.sums);
        }
        match values.iter().find(|value| value.abs() > bf16::MAX.to_f32()) {
            Some(value) => Err(Error::tensor(
                &tensor.name,
                format!("expected finite numbers with the LoRA, found {value}"),
            )),
            None => Ok(()),
        }
    }

    /// Reads elements of `tensor` from index `first`, which begins a block, until `values`, whole blocks, is full.
    fn read(&mut self, source: &Source, tensor: &Tensor, first: usize, values: &mut [f32]) -> Result<()> {
        let (block_len, block_bytes) = (tensor.dtype.block_len(), tensor.dtype.block_bytes());
        self.bytes.resize(values.len() / block_len * block_bytes, 0);
        // Both stay inside the tensor, whose byte range was checked to lie in the file.
        let offset = tensor.offset + (first / block_len * block_bytes) as u64;
        source.files[tensor.file].read_at(&mut self.bytes, offset)?;
        tensor.dtype.decode(&self.bytes, values);
        Ok(())
    }
}
