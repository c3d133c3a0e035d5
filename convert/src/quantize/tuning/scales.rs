//! The scales of a quantized matrix, which are tuned. Its codes stay as they are.

use half::bf16;
use rayon::prelude::*;
use smolrun::format::{PANEL, QuantizedPanels};

use super::adam::{Moments, Rate};
use super::panels::Lanes;

/// How far a scale goes in a step at most, about, as a part of itself: of a row, and of a block.
const STEP: f32 = 2.5e-4;
/// The largest scale of a block.
const LARGEST: f32 = 255.0;

/// A panel's scales as numbers that go on where the format rounds.
#[derive(Debug)]
struct PanelScales {
    rows: [Scale; PANEL],
    /// `[blocks]`, in units of the row's.
    blocks: Vec<[Scale; PANEL]>,
}

#[derive(Clone, Copy, Debug)]
struct Scale {
    number: f32,
    moments: Moments,
}

impl Scale {
    fn new(number: f32) -> Scale {
        Scale { number, moments: Moments::default() }
    }

    /// Follows the gradient at the scale's logarithm, unless it is not finite.
    fn step(&mut self, gradient: f32, rate: Rate) {
        if gradient.is_finite() {
            self.number *= 1.0 - STEP * self.moments.step(gradient, rate);
        }
    }
}

/// The scales of a matrix, and the gradient of a window.
#[derive(Debug)]
pub(super) struct Scales {
    layout: QuantizedPanels,
    panels: Vec<PanelScales>,
    /// `[panels][blocks]`: at the logarithm of what a block's values are multiplied with.
    pub(super) gradient: Vec<Lanes>,
}

impl Scales {
    /// Those of a section's panels.
    pub(super) fn new(layout: QuantizedPanels, panels: &[u8]) -> Scales {
        let panels: Vec<_> = panels.chunks_exact(layout.panel_len).map(|panel| read(layout, panel)).collect();
        Scales { gradient: vec![[0.0; PANEL]; panels.len() * layout.blocks], panels, layout }
    }

    /// Follows the gradient and forgets it, and writes what comes of it to the section's `panels`.
    pub(super) fn step(&mut self, rate: Rate, panels: &mut [u8]) {
        let Scales { layout, panels: scales, gradient } = self;
        let bytes = panels.par_chunks_exact_mut(layout.panel_len);
        let gradient = gradient.par_chunks_exact_mut(layout.blocks);
        scales.par_iter_mut().zip(gradient).zip(bytes).for_each(|((scales, gradient), bytes)| {
            scales.step(gradient, rate);
            scales.write(*layout, bytes);
            gradient.fill([0.0; PANEL]);
        });
    }
}

fn read(layout: QuantizedPanels, panel: &[u8]) -> PanelScales {
    let rows = panel[QuantizedPanels::ROW_SCALES].as_chunks::<2>().0;
    let blocks = panel[layout.block_scales()].as_chunks::<PANEL>().0;
    PanelScales {
        rows: std::array::from_fn(|row| Scale::new(bf16::from_le_bytes(rows[row]).to_f32())),
        blocks: blocks.iter().map(|block| block.map(|scale| Scale::new(scale.into()))).collect(),
    }
}

impl PanelScales {
    fn step(&mut self, gradient: &[Lanes], rate: Rate) {
        for (block, gradient) in self.blocks.iter_mut().zip(gradient) {
            block.iter_mut().zip(gradient).for_each(|(scale, &gradient)| scale.step(gradient, rate));
        }
        for (row, scale) in self.rows.iter_mut().enumerate() {
            scale.step(gradient.iter().map(|lanes| lanes[row]).sum(), rate);
        }
    }

    /// Rounds a row's scale to bf16, and those of its blocks to whole numbers that make up for it. Blocks of zeroes stay so.
    fn write(&self, layout: QuantizedPanels, panel: &mut [u8]) {
        let mut lost = [1.0; PANEL];
        let rows = panel[QuantizedPanels::ROW_SCALES].as_chunks_mut::<2>().0;
        for ((scale, bytes), lost) in self.rows.iter().zip(rows).zip(&mut lost) {
            let rounded = bf16::from_f32(scale.number);
            *bytes = rounded.to_le_bytes();
            *lost = if rounded == bf16::ZERO { 1.0 } else { scale.number / rounded.to_f32() };
        }
        let blocks = panel[layout.block_scales()].as_chunks_mut::<PANEL>().0;
        for (scales, bytes) in self.blocks.iter().zip(blocks) {
            for ((scale, byte), lost) in scales.iter().zip(bytes).zip(lost) {
                if *byte > 0 {
                    *byte = (scale.number * lost).round_ties_even().clamp(1.0, LARGEST) as u8;
                }
            }
        }
    }
}
