//! How well a model foresees a text: scores of continuations, perplexity, and the distance from another model.

mod comparison;
mod options;
mod perplexity;
mod rows;
mod score;
mod windows;

pub use self::comparison::{Comparison, ComparisonWindows};
pub use self::options::PerplexityOptions;
pub use self::perplexity::{Perplexity, PerplexityWindows};
pub use self::score::Score;
use crate::error::{Error, Result};

/// `logits`, or an error if one of them is none.
fn finite(logits: &[f32]) -> Result<&[f32]> {
    match logits.iter().all(|logit| logit.is_finite()) {
        true => Ok(logits),
        false => Err(Error::NotFinite),
    }
}
