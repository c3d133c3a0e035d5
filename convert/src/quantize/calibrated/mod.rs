//! Numbers to quantized panels with the least error of a matrix's outputs, on inputs of which the second moments are
//! known.
//!
//! Scales and codes are found block after block, each column making up for what those before it lost (GPTQ). Then come all
//! scales of a row by least squares, a few sweeps over the codes, each for the least cost, and the scales once more.
//!
//! All is computed for sixteen rows at once, in f32 and f64, in a fixed order, large products by the runtime's exact kernels
//! and the rest compiled for each instruction set as these are: the bytes do not depend on threads or processors.

mod curvature;
mod descent;
mod factor;
mod gptq;
mod scales;
mod state;
mod strips;

use bytemuck::zeroed_vec;
use smolrun::Kernels;
use smolrun::format::{PANEL, QuantizedPanels};

use self::curvature::Curvature;
pub use self::curvature::Moments;
use self::scales::OutputLoss;
use self::state::State;
use super::lanes::Lanes;
use super::panel::Panel;
use super::row::Row;
use super::{Loss, Quantizer};

/// Makes the panels of one matrix whose inputs are known.
#[derive(Debug)]
pub struct Calibrated {
    quantizer: Quantizer,
    curvature: Curvature,
    sweeps: usize,
    kernels: Kernels,
}

impl Calibrated {
    /// Panels that are best made together, so that the moments are read once for all of them.
    pub const PANELS: usize = 4;

    /// Codes are improved in so many `sweeps`, and scales after the last one; where there are several sweeps, scales are
    /// improved before the first one, too. `None` where the moments are not finite, or all zero: `quantizer` alone is
    /// for those.
    ///
    /// # Panics
    /// If the moments are not of the quantizer's columns.
    pub fn new(
        quantizer: Quantizer,
        moments: Moments,
        sweeps: usize,
        kernels: Kernels,
    ) -> Option<Calibrated> {
        assert_eq!(moments.columns, quantizer.columns);
        assert_eq!(moments.numbers.len(), moments.columns * moments.columns);
        Some(Calibrated { curvature: Curvature::new(moments, kernels)?, quantizer, sweeps, kernels })
    }

    /// The same matrix with the codes of `quantizer`, which is of as many columns.
    pub(super) fn with(self, quantizer: Quantizer) -> Calibrated {
        Calibrated { quantizer, ..self }
    }

    /// What lies where in the section.
    pub fn layout(&self) -> QuantizedPanels {
        self.quantizer.layout
    }

    /// The bytes of the section before its panels.
    pub fn values(&self) -> Vec<u8> {
        self.quantizer.values()
    }

    /// Fills `panels`, which are zero and of `panel_len` bytes each, with `numbers`, 16 rows of finite ones for each.
    pub fn quantize(&self, numbers: &[f32], panels: &mut [u8]) -> Loss {
        let Calibrated { quantizer, curvature, sweeps, kernels } = self;
        let (kernels, Quantizer { codes, layout, columns, importance }) = (*kernels, quantizer);
        let panel_rows = || numbers.chunks(PANEL * columns);
        let mut states: Vec<State> =
            panel_rows().map(|rows| State::new(codes, curvature, rows, *columns)).collect();
        let mut work: Vec<Lanes> = zeroed_vec(states.len() * curvature.places());
        let (states, work) = (states.as_mut_slice(), work.as_mut_slice());
        gptq::quantize(codes, curvature, kernels, states, work);
        descent::gradient(curvature, states, work);
        if *sweeps > 1 {
            scales::fit(curvature, kernels, states, work);
            descent::gradient(curvature, states, work);
        }
        let losses = match *sweeps {
            0 => scales::losses(curvature, kernels, states, work),
            _ => {
                (0..*sweeps).for_each(|_| descent::sweep(codes, curvature, kernels, states, work));
                scales::fit(curvature, kernels, states, work)
            }
        };

        let (mut loss, mut row) = (Loss::default(), Row::default());
        let panels = panels.chunks_exact_mut(layout.panel_len);
        let states = states.iter().zip(losses);
        for (((state, OutputLoss { lost, all }), numbers), bytes) in states.zip(panel_rows()).zip(panels) {
            let mut panel = Panel::new(*layout, codes.dtype(), bytes);
            for (lane, numbers) in numbers.chunks_exact(*columns).enumerate() {
                if !state.take(lane, curvature, &mut row) {
                    row.quantize(codes, numbers, importance);
                }
                panel.put(lane, &row, codes);
                loss += row.loss(numbers);
                let [output_differences, outputs] = [lost, all].map(|of| state.square(lane, of[lane]));
                loss += Loss { output_differences, outputs, ..Loss::default() };
            }
        }
        loss
    }
}
