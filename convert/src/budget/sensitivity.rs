//! What each group alone makes the model lose: measured as one dtype, and scaled by the errors of outputs as others.

use smolrun::eval::{Comparison, PerplexityOptions};
use smolrun::format::Dtype;
use smolrun::{Model, Session, SessionOptions};

use super::groups::{CHOICES, Group, Groups};
use crate::checkpoint::binding::Binding;
use crate::error::{Error, Result};
use crate::progress::Progress;
use crate::quantize::Loss;
use crate::quantize::calibration::samples::Samples;
use crate::quantize::text::Text;
use crate::write::blobs::Blobs;
use crate::write::metadata::Metadata;
use crate::write::shelf::Shelf;

/// Windows of the text that are read for each group ...
const WINDOWS: usize = 4;
/// ... and tokens of each, at most.
const WINDOW: usize = 256;
/// As what groups are measured: in the middle of what they may become.
const MEASURED: Dtype = Dtype::Q4;

/// The mean Kullback-Leibler divergence that each group alone causes as each of [`CHOICES`].
pub(super) fn measure(
    groups: &Groups,
    shelf: &Shelf,
    blobs: &Blobs,
    metadata: &Metadata,
    text: &Text,
    progress: &Progress,
) -> Result<Vec<[f64; CHOICES.len()]>> {
    let silent = progress.silent();
    let model = |bindings| blobs.model(bindings, Some(shelf), metadata, &silent);
    let close = model(groups.in_8_bits())?;
    let windows = Windows::new(&close.model, text).map_err(Error::text(&text.path))?;
    progress.start_tokens("measuring", (groups.groups.len() * windows.tokens.len()) as u64);
    let measured = groups.groups.iter().map(|group| {
        let mut bindings = groups.in_8_bits();
        group.members.iter().for_each(|&member| bindings[member].dtype = MEASURED);
        let found = windows.compare(&model(bindings)?.model, &close.model, progress);
        let measured = found.map_err(Error::text(&text.path))?;
        Ok(CHOICES.map(|dtype| measured * ratio(groups, group, shelf, dtype)))
    });
    measured.collect()
}

/// How much larger the group's squared errors are as `dtype` than as it was measured. None as 8 bits, with which all are
/// compared.
fn ratio(groups: &Groups, group: &Group, shelf: &Shelf, dtype: Dtype) -> f64 {
    let error = |dtype: Dtype| -> f64 {
        let losses = group.members.iter().filter_map(|&member| {
            let binding = &groups.parts[member].binding;
            Some(squared_error(shelf.get(&Binding { dtype, ..binding.clone() })?.loss))
        });
        losses.sum()
    };
    let measured = error(MEASURED);
    if dtype == CHOICES[CHOICES.len() - 1] || measured == 0.0 { 0.0 } else { error(dtype) / measured }
}

/// Of the outputs if they are known, as a part of them.
fn squared_error(loss: Loss) -> f64 {
    let error = loss.output_error().unwrap_or_else(|| loss.relative_error());
    error * error
}

/// Some of a text.
struct Windows {
    tokens: Vec<u32>,
    length: usize,
}

impl Windows {
    fn new(model: &Model, text: &Text) -> smolrun::Result<Windows> {
        let samples = Samples::new(model, &text.text)?;
        let windows = samples.some_windows(WINDOWS).map(|window| &window[..window.len().min(WINDOW)]);
        let windows: Vec<&[u32]> = windows.collect();
        Ok(Windows { tokens: windows.concat(), length: windows.first().map_or(0, |window| window.len()) })
    }

    /// The mean divergence of `model` from `reference`.
    fn compare(&self, model: &Model, reference: &Model, progress: &Progress) -> smolrun::Result<f64> {
        let session = |model| Session::new(model, SessionOptions::default().cancel(progress.cancel_token()));
        let (mut session, mut reference) = (session(model)?, session(reference)?);
        let options = PerplexityOptions::default().window(self.length);
        let mut sum = Comparison::default();
        for comparison in session.compare(&mut reference, &self.tokens, options)? {
            sum += comparison?;
            progress.add(self.length as u64)?;
        }
        Ok(sum.mean_divergence())
    }
}
