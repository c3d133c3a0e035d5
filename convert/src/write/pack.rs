//! Tensor bytes to panels: sixteen rows side by side, `[out/16][in][16]`; of bf16, the numbers of two columns lie
//! together, `[out/16][in/2][16][2]`; quantized ones are made by `quantize`.

use std::ops::Range;

use half::bf16;
use rayon::prelude::*;
use smolrun::format::{PANEL, QuantizedPanels};

use crate::checkpoint::binding::{Arrangement, Binding, PanelRows};
use crate::checkpoint::rows::Rows;
use crate::error::Result;
use crate::source::Source;

/// Bytes packed at a time: enough to keep all cores busy, little enough to stay small in memory.
const CHUNK_LEN: usize = 8 << 20;

/// A section's pieces in file order: ranges of its panels that make about 8 MB. A vector is one piece.
pub fn pieces(binding: &Binding) -> Vec<Range<usize>> {
    if binding.arrangement == Arrangement::Vector {
        return std::iter::once(0..1).collect();
    }
    let quantized = QuantizedPanels::new(binding.dtype, binding.columns());
    let panel_len = quantized.map_or(binding.columns() * PANEL * size_of::<f32>(), |panels| panels.panel_len);
    let step = (CHUNK_LEN / panel_len).max(1);
    let panels = binding.panels();
    (0..panels).step_by(step).map(|start| start..panels.min(start + step)).collect()
}

/// The numbers of one of a section's [`pieces`].
pub fn pack(source: &Source, binding: &Binding, piece: Range<usize>) -> Result<Vec<f32>> {
    if binding.arrangement == Arrangement::Vector {
        let (mut packed, mut rows) = (Vec::new(), Rows::default());
        for &part in &binding.tensors {
            let all = PanelRows { part, first: part.first, count: part.rows };
            packed.extend_from_slice(rows.values(source, all)?);
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
    for (row, values) in values.chunks_exact(from.part.columns()).enumerate() {
        for (column, &value) in panel.chunks_exact_mut(PANEL).zip(values) {
            column[row] = value;
        }
    }
    Ok(())
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
