//! Matrices quantized for the least error of what they put out, on a text: see [`super::Calibrated`].
//!
//! The model runs with 8 bits, which is close enough to its checkpoint and faster. Every matrix is quantized by what its
//! inputs were then, on its own: nothing depends on the order of the matrices.

pub(crate) mod samples;
mod sessions;
mod sums;

use std::collections::HashMap;

use rayon::prelude::*;
use smolrun::format::{Kind, PANEL};
use smolrun::{Activations, Kernels, Model};

use self::samples::Samples;
use self::sessions::Sessions;
use self::sums::Sums;
use super::matrix::{Quantized, panels_len, quantize_calibrated};
use super::text::Text;
use super::{Calibrated, Codes, Moments, Quantizer};
use crate::checkpoint::binding::Binding;
use crate::error::{Error, Result};
use crate::progress::Progress;
use crate::source::Source;

/// Columns whose moments may still be factored: 4 GB of numbers.
const MOST_COLUMNS: usize = 16_384;

/// Quantizes those of `bindings` that are to be and whose inputs are products' inputs: all but the embedding of a model
/// that has an output matrix beside it. `model` is the same model, close to its checkpoint. Each goes to `keep`.
///
/// Consecutive bindings of one kind and layer are one matrix that is stored as several dtypes.
pub fn quantize(
    source: &Source,
    bindings: &[Binding],
    model: &Model,
    text: &Text,
    progress: &Progress,
    mut keep: impl FnMut(&Binding, &Quantized) -> Result<()>,
) -> Result<()> {
    let failed = Error::text(&text.path);
    let samples = Samples::new(model, &text.text).map_err(&failed)?;
    let matrices = bindings.chunk_by(|one, other| (one.kind, one.layer) == (other.kind, other.layer));
    let targets = matrices.filter_map(|bindings| Target::new(bindings, model).transpose());
    let mut targets: Vec<Target> = targets.collect::<Result<_>>()?;
    targets.sort_by_key(Target::after_layers); // stable
    let sessions = Sessions::new(model, Sums::PASSES, progress).map_err(&failed)?;
    let mut streams = Streams::new(&samples);
    progress.start("quantizing", targets.iter().map(Target::bytes).sum());
    for targets in targets.chunk_by(|one, other| one.after_layers() == other.after_layers()) {
        let observed = streams.observe(&sessions, targets, progress).map_err(&failed)?;
        for (targets, observed) in by_inputs(targets).zip(observed) {
            let Some(Target { columns, recipe, .. }) = targets.first() else { continue };
            let mut inputs = observed.into_inputs(*columns, recipe, sessions.kernels);
            for target in targets {
                target.quantize(source, &mut inputs, progress, &mut keep)?;
            }
        }
        let storage = model.storage();
        storage.release(0..storage.bytes().len()); // layers are read once
    }
    Ok(())
}

/// A matrix to be quantized.
struct Target<'a> {
    /// The same matrix with each of its dtypes.
    choices: Vec<(&'a Binding<'a>, Codes)>,
    columns: usize,
    /// Whose inputs the model shows.
    product: (Kind, Option<usize>),
    /// How many layers the model has.
    all_layers: usize,
    recipe: Recipe,
}

/// How a kind of matrix is best calibrated: see `docs/quantization.md`.
struct Recipe {
    /// How many times the mean over first tokens counts that over all.
    firsts: f32,
    /// What part of their mean is added to the moments' diagonal.
    ridge: f32,
    /// The same where early columns' errors are made up for, beside the mean over first tokens.
    damping: f32,
    sweeps: usize,
}

impl Recipe {
    fn of(product: Kind) -> Recipe {
        let layer = |firsts| Recipe { firsts, ridge: 0.0, damping: 0.005, sweeps: 3 };
        match product {
            Kind::QkvProj | Kind::OProj => layer(1.0),
            Kind::GateUpProj => layer(0.1),
            Kind::DownProj => layer(0.01),
            _ => Recipe { firsts: 0.0, ridge: 0.05, damping: 0.001, sweeps: 1 },
        }
    }
}

impl<'a> Target<'a> {
    /// `None` of what is not quantized, or has no inputs.
    fn new(bindings: &'a [Binding<'a>], model: &Model) -> Result<Option<Target<'a>>> {
        let with_codes = |binding: &'a Binding<'a>| Some((binding, Codes::of(binding.dtype)?));
        let choices: Vec<_> = bindings.iter().filter_map(with_codes).collect();
        let Some(&(binding, _)) = choices.first() else { return Ok(None) };
        let product = match binding.kind {
            Kind::EmbedTokens | Kind::EmbedTokensRare if model.config().tie_word_embeddings => Kind::LmHead,
            Kind::EmbedTokens | Kind::EmbedTokensRare => return Ok(None),
            Kind::LmHeadRare => Kind::LmHead,
            kind => kind,
        };
        let columns = binding.columns();
        if columns > MOST_COLUMNS {
            let expected = format!("columns: expected at most {MOST_COLUMNS} to calibrate");
            let problem = format!("{expected}, found {columns} (--calibrate none does without)");
            return Err(Error::tensor(&binding.tensors[0].tensor.name, problem));
        }
        let layer = if product == Kind::LmHead { None } else { binding.layer.map(|layer| layer as usize) };
        let all_layers = model.config().num_hidden_layers;
        Ok(Some(Target {
            choices,
            columns,
            product: (product, layer),
            all_layers,
            recipe: Recipe::of(product),
        }))
    }

    /// How many layers show its inputs.
    fn after_layers(&self) -> usize {
        self.product.1.map_or(self.all_layers, |layer| layer + 1)
    }

    fn bytes(&self) -> u64 {
        self.choices.iter().map(|(binding, _)| panels_len(binding)).sum()
    }

    fn quantize(
        &self,
        source: &Source,
        inputs: &mut Inputs,
        progress: &Progress,
        keep: &mut impl FnMut(&Binding, &Quantized) -> Result<()>,
    ) -> Result<()> {
        for (binding, codes) in &self.choices {
            let quantizer = Quantizer::new(codes.clone(), self.columns, None);
            let calibrated = quantizer.and_then(|quantizer| inputs.calibrate(quantizer)).ok_or_else(|| {
                let problem =
                    "expected inputs on the calibration text that are finite and not all zero, found others \
                     (--calibrate none does without)";
                Error::tensor(&binding.tensors[0].tensor.name, problem)
            })?;
            let (panels, loss) = quantize_calibrated(source, binding, calibrated, progress)?;
            keep(binding, &Quantized { bytes: [calibrated.values(), panels].concat(), loss })?;
        }
        Ok(())
    }
}

/// What is known of the inputs of one or several matrices.
struct Inputs {
    /// Until the first of them is quantized.
    moments: Option<Moments>,
    /// From then on.
    calibrated: Option<Calibrated>,
    sweeps: usize,
    kernels: Kernels,
}

impl Inputs {
    /// What quantizes the next matrix, or the same one with other codes. `None` where the moments are good for nothing.
    fn calibrate(&mut self, quantizer: Quantizer) -> Option<&Calibrated> {
        self.calibrated = match self.calibrated.take() {
            Some(calibrated) => Some(calibrated.with(quantizer)),
            None => Calibrated::new(quantizer, self.moments.take()?, self.sweeps, self.kernels),
        };
        self.calibrated.as_ref()
    }
}

/// Those that have the same inputs, as the parts of an output matrix have.
fn by_inputs<'t, 'a>(targets: &'t [Target<'a>]) -> impl Iterator<Item = &'t [Target<'a>]> {
    targets.chunk_by(|one, other| one.product == other.product)
}

/// What a matrix's inputs are.
struct Observed {
    sums: Sums,
    /// Those of single first tokens, `[features/16, rounded up][tokens][16]`, each times the square root of its weight.
    firsts: Vec<f32>,
    /// The mean of the sums' diagonal without these.
    mean: f64,
}

impl Observed {
    /// For matrices of so many columns.
    fn into_inputs(self, columns: usize, recipe: &Recipe, kernels: Kernels) -> Inputs {
        let mut numbers = self.sums.times(1.0 / self.mean);
        for column in 0..columns {
            numbers[column * columns + column] += recipe.ridge;
        }
        // The damping is a part of the mean that it was without first tokens, which is 1.
        let moments = Some(Moments { columns, numbers, damping: recipe.damping });
        Inputs { moments, calibrated: None, sweeps: recipe.sweeps, kernels }
    }
}

/// The samples on their way through the model.
struct Streams<'a> {
    samples: &'a Samples,
    /// Layers that they are through.
    layers: usize,
    /// The residual stream of each window, then of each first token: see [`Session::feed_observed`].
    of_samples: Vec<Vec<f32>>,
}

impl<'a> Streams<'a> {
    fn new(samples: &'a Samples) -> Streams<'a> {
        let count = samples.windows.len() + samples.firsts.len();
        Streams { samples, layers: 0, of_samples: vec![Vec::new(); count] }
    }

    /// Takes the samples through the layers of `targets`, and sums up what the inputs of these are, those [`by_inputs`] once.
    fn observe(
        &mut self,
        sessions: &Sessions,
        targets: &[Target],
        progress: &Progress,
    ) -> smolrun::Result<Vec<Observed>> {
        let Streams { samples, layers, of_samples } = self;
        let ahead = *layers..targets.last().map_or(*layers, Target::after_layers);
        *layers = ahead.end;
        let products: Vec<&Target> = by_inputs(targets).filter_map(|targets| targets.first()).collect();
        let places: HashMap<_, usize> =
            (0..).zip(&products).map(|(place, target)| (target.product, place)).collect();
        let new = |target: &&Target| Observed {
            sums: Sums::new(sessions.kernels, target.columns),
            firsts: vec![0.0; target.columns.next_multiple_of(PANEL) * samples.firsts.len()],
            mean: 0.0,
        };
        let mut observed: Vec<Observed> = products.iter().map(new).collect();
        let (of_windows, of_firsts) = of_samples.split_at_mut(samples.windows.len());
        let run = |tokens: &[u32], stream: &mut _, see: &mut dyn FnMut(usize, &Activations<'_>)| {
            sessions.feed_observed(tokens, ahead.clone(), stream, |inputs| {
                if let Some(&place) = places.get(&(inputs.kind, inputs.layer)) {
                    see(place, &inputs);
                }
            })?;
            Ok::<(), smolrun::Error>(progress.add(0)?)
        };
        let passes = samples.windows.chunks(Sums::PASSES).zip(of_windows.chunks_mut(Sums::PASSES));
        for (windows, streams) in passes {
            let passes = windows.par_iter().zip(streams).map(|(window, stream)| {
                let mut rounded = Vec::with_capacity(products.len());
                run(window, stream, &mut |place, inputs| {
                    rounded.push((place, observed[place].sums.round(inputs.panels, inputs.rows)));
                })?;
                Ok(rounded)
            });
            let passes: Vec<Vec<_>> = passes.collect::<smolrun::Result<_>>()?;
            passes.into_iter().flatten().for_each(|(place, rounded)| observed[place].sums.add(rounded));
        }
        let tokens = samples.tokens();
        for (index, (&(first, share), stream)) in samples.firsts.iter().zip(of_firsts).enumerate() {
            run(&[first], stream, &mut |place, inputs| {
                let weight = (products[place].recipe.firsts * share * tokens as f32).sqrt();
                let firsts = observed[place].firsts.as_chunks_mut::<PANEL>().0;
                let panels =
                    firsts.chunks_exact_mut(samples.firsts.len()).zip(inputs.panels.as_chunks::<PANEL>().0);
                panels.for_each(|(firsts, panel)| firsts[index] = panel.map(|number| weight * number));
            })?;
        }
        for Observed { sums, firsts, mean } in &mut observed {
            sums.finish();
            *mean = sums.mean();
            sums.add(sums.round(firsts, samples.firsts.len()));
            sums.finish();
        }
        Ok(observed)
    }
}
