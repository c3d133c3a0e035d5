//! What a generation can be told.

use super::sampler::{SamplerChain, Sampling};
use crate::cancel::CancelToken;
use crate::error::{Error, Result};
use crate::model::Model;

/// What to generate.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct GenerateOptions {
    /// Most tokens to generate.
    pub max_tokens: usize,
    /// How each is chosen.
    pub sampling: Sampling,
    /// Texts that end the generation. They are not part of its text, and neither is the beginning of the one that came.
    pub stop: Vec<String>,
    /// How many of the most likely tokens to name with each token; `None` for no log-probabilities at all.
    pub logprobs: Option<usize>,
    /// A handle that ends the generation from elsewhere.
    pub cancel: CancelToken,
}

impl Default for GenerateOptions {
    fn default() -> GenerateOptions {
        GenerateOptions {
            max_tokens: 256,
            sampling: Sampling::default(),
            stop: Vec::new(),
            logprobs: None,
            cancel: CancelToken::default(),
        }
    }
}

impl GenerateOptions {
    /// These options with at most `max_tokens` tokens.
    pub fn max_tokens(self, max_tokens: usize) -> GenerateOptions {
        GenerateOptions { max_tokens, ..self }
    }

    /// These options with this way to choose tokens.
    pub fn sampling(self, sampling: Sampling) -> GenerateOptions {
        GenerateOptions { sampling, ..self }
    }

    /// These options with these stop strings, see [`GenerateOptions::stop`].
    pub fn stop(self, stop: impl IntoIterator<Item = impl Into<String>>) -> GenerateOptions {
        GenerateOptions { stop: stop.into_iter().map(Into::into).collect(), ..self }
    }

    /// These options with log-probabilities, and the `top` most likely tokens in the place of each.
    pub fn logprobs(self, top: usize) -> GenerateOptions {
        GenerateOptions { logprobs: Some(top), ..self }
    }

    /// These options with a handle that ends the generation.
    pub fn cancel(self, cancel: &CancelToken) -> GenerateOptions {
        GenerateOptions { cancel: cancel.clone(), ..self }
    }

    /// An error where they make no sense for `model`. Every generation begins with this; it is for hosts that change
    /// something of their own before.
    pub fn check(&self, model: &Model) -> Result<()> {
        if self.stop.iter().any(String::is_empty) {
            let (expected, found) = ("texts that are not empty".into(), "an empty one".into());
            return Err(Error::Argument { name: "stop", expected, found });
        }
        SamplerChain::check(&self.sampling, model.config().vocab_size)
    }
}
