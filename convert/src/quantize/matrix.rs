//! Whole matrices of a checkpoint to quantized panels, several at a time.

use std::ops::Range;

use rayon::prelude::*;
use smolrun::format::{PANEL, QuantizedPanels};

use super::{Calibrated, Codes, Loss, Quantizer, Scratch, panel};
use crate::checkpoint::binding::Binding;
use crate::checkpoint::rows::Rows;
use crate::error::{Error, Result};
use crate::progress::Progress;
use crate::source::Source;

/// A quantized section.
#[derive(Clone, Debug)]
pub struct Quantized {
    /// All its bytes.
    pub bytes: Vec<u8>,
    /// What it lost.
    pub loss: Loss,
}

/// Bytes of all panels of a quantized section.
pub fn panels_len(binding: &Binding) -> u64 {
    let layout = QuantizedPanels::new(binding.dtype, binding.columns());
    layout.map_or(0, |layout| (layout.panel_len * binding.panels()) as u64)
}

/// Makes the panels of a section with these `codes`.
pub fn quantizer(binding: &Binding, codes: Codes) -> Result<Quantizer> {
    let columns = binding.columns();
    let too_many = || {
        let problem = format!("columns: expected as many as memory holds, found {columns}");
        Error::tensor(&binding.tensors[0].tensor.name, problem)
    };
    Quantizer::new(codes, columns, None).ok_or_else(too_many)
}

/// A section of the nearest values; `None` if it is not quantized.
pub fn nearest(source: &Source, binding: &Binding) -> Result<Option<Quantized>> {
    let Some(codes) = Codes::of(binding.dtype) else { return Ok(None) };
    let quantizer = quantizer(binding, codes)?;
    let (panels, loss) = quantize(source, binding, &quantizer, 0..binding.panels())?;
    Ok(Some(Quantized { bytes: [quantizer.values(), panels].concat(), loss }))
}

/// The bytes of one of a quantized section's `pieces` (`write/pack.rs`), and what its numbers lost.
pub fn quantize(
    source: &Source,
    binding: &Binding,
    quantizer: &Quantizer,
    piece: Range<usize>,
) -> Result<(Vec<u8>, Loss)> {
    let panel_len = quantizer.layout().panel_len;
    let mut packed = vec![0; piece.len() * panel_len];
    let panels = packed.par_chunks_exact_mut(panel_len).zip(piece);
    let memory = <(Rows, Scratch)>::default;
    let losses = panels.map_init(memory, |(rows, scratch), (panel, index)| {
        let values = rows.values(source, binding.panel_rows(index))?;
        Ok(quantizer.quantize(values, scratch, panel))
    });
    let losses: Vec<Loss> = losses.collect::<Result<_>>()?; // in the order of the panels
    Ok((packed, losses.into_iter().sum()))
}

/// What a quantized section with these `bytes` lost.
pub fn loss(source: &Source, binding: &Binding, bytes: &[u8]) -> Result<Loss> {
    let Some(layout) = QuantizedPanels::new(binding.dtype, binding.columns()) else {
        return Ok(Loss::default());
    };
    let (table, panels) = bytes.split_at(layout.values_len);
    let panels = panels.par_chunks_exact(layout.panel_len).enumerate();
    let losses = panels.map_init(Rows::default, |rows, (index, bytes)| {
        let values = rows.values(source, binding.panel_rows(index))?;
        Ok(panel::loss(layout, binding.dtype, table, bytes, values.chunks_exact(binding.columns())))
    });
    let losses: Vec<Loss> = losses.collect::<Result<_>>()?; // in the order of the panels
    Ok(losses.into_iter().sum())
}

/// The bytes of all panels of a quantized section whose inputs are known, and what it lost.
pub fn quantize_calibrated(
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
        let loss = calibrated.quantize(numbers, packed);
        progress.add(packed.len() as u64)?;
        Ok(loss)
    });
    let losses: Vec<Loss> = losses.collect::<Result<_>>()?; // in the order of the panels
    Ok((packed, losses.into_iter().sum()))
}
