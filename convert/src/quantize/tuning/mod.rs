//! Scales and norms tuned by gradients: those of a quantized model follow the KL divergence of its predictions from those of
//! its checkpoint, on windows of a text. Codes stay as they are, and so do all lengths.
//!
//! Each step is the gradient of one window, and Adam. All is computed in f32, in a fixed order, by the runtime's exact kernels
//! and by plain code that is compiled for each instruction set: the bytes do not depend on threads or processors.

mod adam;
mod attention;
mod divergence;
mod feed_forward;

mod matrix;
mod network;
mod norm;
mod panels;
mod rope;
mod scales;
mod vector;

use smolrun::format::Kind;
use smolrun::{CancelToken, Kernels, Model};

use self::adam::Rate;
use self::divergence::Logits;
use self::network::Network;
use super::calibration::samples::Samples;
use super::text::Text;
use crate::error::{Error, Result};
use crate::progress::Progress;

/// By which part of a window each epoch begins later than the one before: so windows are new ones each time.
const SHIFT: f32 = 0.618;

/// Tunes the scales and norms of `student` towards the predictions of `teacher`, which is the same model as its checkpoint has
/// it, in so many `epochs` over the text. Each section that is tuned goes to `keep`.
pub fn tune(
    student: &Model,
    teacher: &Model,
    text: &Text,
    epochs: usize,
    progress: &Progress,
    mut keep: impl FnMut(Kind, Option<u32>, &[u8]) -> Result<()>,
) -> Result<()> {
    let failed = Error::text(&text.path);
    let kernels = Kernels::from_env().map_err(&failed)?;
    let mut windows = Vec::new();
    for epoch in 0..epochs {
        let part = (epoch as f32 * SHIFT).fract();
        let samples = Samples::skipping(part, teacher, &text.text).map_err(&failed)?;
        windows.extend(shuffled(samples.windows, epoch as u64));
    }
    let longest = windows.iter().map(Vec::len).max().unwrap_or(0);
    let cancel = progress.cancel_token();
    let teacher = Network::new(teacher, kernels, longest, cancel);
    let mut student = Network::new(student, kernels, longest, cancel);
    progress.start_tokens("tuning", windows.iter().map(|window| window.len() as u64).sum());
    for (step, window) in windows.iter().enumerate() {
        let divergence = follow(&mut student, &teacher, window);
        progress.add(window.len() as u64)?;
        if !divergence.is_finite() {
            let problem = "expected predictions on it that are finite, found others (leave out --tune)";
            return Err(Error::file(&text.path, problem));
        }
        student.step(Rate::of(step, windows.len()));
    }
    student.visit(&mut |kind, layer, tuned| keep(kind, layer, tuned.bytes()))
}

/// What [`tune`] goes down by.
#[derive(Clone, Debug)]
pub struct Gradients {
    /// The mean KL divergence over a window, in nats.
    pub divergence: f64,
    /// Of each section, its gradient: of a norm at its weights, of a quantized matrix at the logarithms of its blocks' scales,
    /// `[panels][blocks][16]`.
    pub sections: Vec<(Kind, Option<u32>, Vec<f32>)>,
}

/// The gradients over a window of tokens.
pub fn gradients(student: &Model, teacher: &Model, tokens: &[u32]) -> Result<Gradients> {
    let kernels = Kernels::detect();
    let cancel = CancelToken::default();
    let teacher = Network::new(teacher, kernels, tokens.len(), &cancel);
    let mut student = Network::new(student, kernels, tokens.len(), &cancel);
    let divergence = follow(&mut student, &teacher, tokens);
    let mut sections = Vec::new();
    student.visit(&mut |kind, layer, tuned| {
        sections.push((kind, layer, tuned.gradient().to_vec()));
        Ok(())
    })?;
    Ok(Gradients { divergence, sections })
}

/// Adds up the gradients over a window, and returns the divergence.
fn follow(student: &mut Network, teacher: &Network, tokens: &[u32]) -> f64 {
    let target = teacher.forward(tokens).hidden;
    let trace = student.forward(tokens);
    let logits = |network: &Network, hidden: &[f32]| network.logits(hidden, tokens.len());
    let mut logits = Logits { student: logits(student, &trace.hidden), teacher: logits(teacher, &target) };
    let divergence = logits.divergence(student.kernels, tokens.len(), student.vocab_size());
    drop(logits.teacher); // large
    student.backward(tokens, trace, logits.student);
    teacher.release();
    divergence
}

/// In an order that looks like none (Fisher and Yates, with the random numbers of Knuth's MMIX).
fn shuffled<T>(mut items: Vec<T>, seed: u64) -> Vec<T> {
    let mut state = seed;
    for count in (2..=items.len()).rev() {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        items.swap(count - 1, (state >> 33) as usize % count);
    }
    items
}
