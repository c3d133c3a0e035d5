//! How far a blob is from its checkpoint, on a text: what `smolrun perplexity --against` says, kept in the metadata.

use serde::Serialize;
use smolrun::eval::{Comparison, PerplexityOptions};
use smolrun::{Model, Session, SessionOptions, SpecialTokens};

use super::text::Text;
use crate::error::{Error, Result};
use crate::files::SourceRecord;
use crate::progress::Progress;

/// What two models make of a text. Fields are named as `smolrun perplexity --json` names them.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    pub(crate) text: SourceRecord,
    window: usize,
    /// Tokens that were scored.
    pub(crate) tokens: usize,
    pub(crate) perplexity: f64,
    /// That of the checkpoint.
    pub(crate) against_perplexity: f64,
    pub(crate) mean_kl: f64,
    kl_99: f64,
    pub(crate) top_1_agreement: f64,
}

impl Report {
    /// An error if `text` is too short for one: minutes before [`Report::new`] would say so.
    pub fn check(exact: &Model, text: &Text) -> Result<()> {
        let check = || {
            let tokens = tokens(exact, text)?;
            let mut session = Session::new(exact, SessionOptions::default())?;
            session.perplexity(&tokens, options(exact)).map(drop)
        };
        check().map_err(Error::text(&text.path))
    }

    /// Of `model`, made of what `exact` has as the checkpoint has it.
    pub fn new(model: &Model, exact: &Model, text: &Text, progress: &Progress) -> Result<Report> {
        let comparison = compare(model, exact, text, progress).map_err(Error::text(&text.path))?;
        Ok(Report {
            text: SourceRecord::new(&text.path, text.text.as_bytes()),
            window: options(model).window,
            tokens: comparison.perplexity.tokens,
            perplexity: comparison.perplexity.perplexity(),
            against_perplexity: comparison.reference.perplexity(),
            mean_kl: comparison.mean_divergence(),
            kl_99: comparison.divergence_at(0.99),
            top_1_agreement: comparison.agreement(),
        })
    }

    /// One on `text` that takes as many bytes as any.
    pub fn longest(text: &Text) -> Report {
        let longest = -1.234_567_890_123_456_7e-100; // as many digits as an f64 has
        Report {
            text: SourceRecord::new(&text.path, text.text.as_bytes()),
            window: usize::MAX,
            tokens: usize::MAX,
            perplexity: longest,
            against_perplexity: longest,
            mean_kl: longest,
            kl_99: longest,
            top_1_agreement: longest,
        }
    }

    /// By how many percent the perplexity is higher than the checkpoint's.
    pub(crate) fn change(&self) -> f64 {
        (self.perplexity / self.against_perplexity - 1.0) * 100.0
    }

    /// In one line for people.
    pub fn summary(&self) -> String {
        let Report { perplexity, against_perplexity, mean_kl, top_1_agreement, .. } = self;
        let change = self.change();
        let agreement = top_1_agreement * 100.0;
        format!(
            "perplexity {perplexity:.4}, the checkpoint's {against_perplexity:.4} ({change:+.2} %), \
             mean KL divergence {mean_kl:.5}, likeliest token the same at {agreement:.1} %"
        )
    }
}

fn compare(model: &Model, exact: &Model, text: &Text, progress: &Progress) -> smolrun::Result<Comparison> {
    let (tokens, options) = (tokens(model, text)?, options(model));
    let session = |model| Session::new(model, SessionOptions::default().cancel(progress.cancel_token()));
    let (mut session, mut reference) = (session(model)?, session(exact)?);
    let window = options.window as u64;
    progress.start_tokens("comparing", tokens.len() as u64 / window * window);
    let mut sum = Comparison::default();
    for comparison in session.compare(&mut reference, &tokens, options)? {
        sum += comparison?;
        progress.add(window)?;
    }
    Ok(sum)
}

fn tokens(model: &Model, text: &Text) -> smolrun::Result<Vec<u32>> {
    model.tokenizer().encode(&text.text, SpecialTokens::AsText)
}

/// Those of the program, with windows that fit the model.
fn options(model: &Model) -> PerplexityOptions {
    let options = PerplexityOptions::default();
    let window = options.window.min(model.config().max_position_embeddings);
    options.window(window)
}
