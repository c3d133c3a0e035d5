//! Whole matrices of a checkpoint to quantized panels, several at a time.

use std::ops::Range;

use rayon::prelude::*;
use smolrun::format::PANEL;

use super::{Calibrated, Loss, Quantizer, Scratch};
use crate::checkpoint::binding::Binding;
use crate::checkpoint::rows::Rows;
use crate::error::Result;
use crate::progress::Progress;
use crate::source::Source;

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
