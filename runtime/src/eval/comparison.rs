//! Two models' predictions of one text, side by side.

use std::fmt;
use std::ops::AddAssign;

use super::options::PerplexityOptions;
use super::perplexity::Perplexity;
use super::rows::Rows;
use super::windows::Windows;
use crate::error::{Error, Result};
use crate::generate::{LogSoftmax, Session, first_largest};

/// How far a model's predictions are from those of a reference. The values of several windows add up (`+=`).
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Comparison {
    /// How well the model predicted the tokens.
    pub perplexity: Perplexity,
    /// How well the reference did.
    pub reference: Perplexity,
    /// For each token the Kullback-Leibler divergence of the model from the reference before it, in nats: the sum of
    /// p ln(p / q) over the vocabulary, p being the reference's probabilities and q the model's.
    pub divergences: Vec<f64>,
    /// For how many tokens both found the same one most likely.
    pub agreements: usize,
}

impl Comparison {
    /// The mean of the divergences; NaN of none.
    pub fn mean_divergence(&self) -> f64 {
        self.divergences.iter().sum::<f64>() / self.divergences.len() as f64
    }

    /// The quantile of the divergences at this fraction, from 0 to 1, interpolated between two of them; NaN of none.
    pub fn divergence_at(&self, fraction: f64) -> f64 {
        let mut sorted = self.divergences.clone();
        sorted.sort_unstable_by(f64::total_cmp);
        let Some(last) = sorted.len().checked_sub(1) else { return f64::NAN };
        let place = fraction.clamp(0.0, 1.0) * last as f64;
        let (below, above) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
        below + (above - below) * place.fract()
    }

    /// The part of the tokens, from 0 to 1, for which both found the same one most likely; NaN of none.
    pub fn agreement(&self) -> f64 {
        self.agreements as f64 / self.divergences.len() as f64
    }
}

impl AddAssign for Comparison {
    fn add_assign(&mut self, other: Comparison) {
        self.perplexity += other.perplexity;
        self.reference += other.reference;
        self.divergences.extend(other.divergences);
        self.agreements += other.agreements;
    }
}

/// The comparisons over a text's windows, computed as they are asked for; see [`Session::compare`].
pub struct ComparisonWindows<'a> {
    windows: Windows<'a>,
    rows: Rows<'a>,
    reference: Rows<'a>,
}

impl Session {
    /// How far the model's predictions of `tokens` are from those of `reference`'s model, window by window.
    ///
    /// It works like [`Session::perplexity`]. The two models must have the same vocabulary; only its size is checked.
    pub fn compare<'a>(
        &'a mut self,
        reference: &'a mut Session,
        tokens: &'a [u32],
        options: PerplexityOptions,
    ) -> Result<ComparisonWindows<'a>> {
        let (model, other) = (self.model(), reference.model());
        let (vocab_size, found) = (model.config().vocab_size, other.config().vocab_size);
        if vocab_size != found {
            let (expected, found) = (format!("a vocabulary of {vocab_size}"), found.to_string());
            return Err(Error::Argument { name: "reference", expected, found });
        }
        Windows::new(tokens, options.clone(), other)?;
        let windows = Windows::new(tokens, options, model)?;
        Ok(ComparisonWindows { windows, rows: Rows::new(self)?, reference: Rows::new(reference)? })
    }
}

/// What two rows of logits, before one token, say of it and of each other.
#[derive(Clone, Default)]
struct Difference {
    nll: f64,
    reference_nll: f64,
    divergence: f64,
    agree: bool,
}

impl Difference {
    fn new(logits: &[f32], reference: &[f32], next: u32) -> Difference {
        let agree = first_largest(logits) == first_largest(reference);
        let (model, reference) = (LogSoftmax::new(logits), LogSoftmax::new(reference));
        Difference {
            nll: -model.of(next),
            reference_nll: -reference.of(next),
            divergence: reference.divergence(&model),
            agree,
        }
    }
}

impl Comparison {
    fn add(&mut self, difference: &Difference) {
        self.perplexity += Perplexity { nll: difference.nll, tokens: 1 };
        self.reference += Perplexity { nll: difference.reference_nll, tokens: 1 };
        self.divergences.push(difference.divergence);
        self.agreements += usize::from(difference.agree);
    }
}

impl Iterator for ComparisonWindows<'_> {
    type Item = Result<Comparison>;

    fn next(&mut self) -> Option<Result<Comparison>> {
        let ComparisonWindows { windows, rows, reference } = self;
        windows.next(|piece, sum: &mut Comparison| {
            rows.fill(&piece)?;
            reference.fill(&piece)?;
            let mut differences = vec![Difference::default(); piece.next.len()];
            rows.map(&mut differences, |row, logits| {
                Difference::new(logits, reference.row(row), piece.next[row])
            });
            differences.iter().for_each(|difference| sum.add(difference));
            Ok(())
        })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.windows.len(), Some(self.windows.len()))
    }
}

impl fmt::Debug for ComparisonWindows<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ComparisonWindows").field("windows", &self.windows.len()).finish_non_exhaustive()
    }
}
