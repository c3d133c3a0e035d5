//! What a model makes of tokens before it names the next one: for embeddings.

use super::Session;
use crate::error::{Error, Result};

/// How the hidden states of a text become one vector.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Pooling {
    /// That of the last token, which has seen all others.
    #[default]
    Last,
    /// Their mean.
    Mean,
}

impl Session {
    /// Appends `tokens` and returns the last layer's hidden states after the final norm, `[tokens][hidden_size]`: what
    /// transformers calls `last_hidden_state`.
    pub fn hidden(&mut self, tokens: &[u32]) -> Result<Vec<f32>> {
        let (mut states, len) = (Vec::new(), tokens.len().saturating_mul(self.model().config().hidden_size));
        let bytes = len.saturating_mul(size_of::<f32>());
        let out_of_memory = |_| Error::OutOfMemory { what: "hidden states", bytes };
        self.check(tokens)?;
        states.try_reserve_exact(len).map_err(out_of_memory)?;
        self.feed_hidden(tokens, &mut |_, state| states.extend_from_slice(state))?;
        Ok(states)
    }

    /// Appends `tokens` and returns their hidden states as one vector, `[hidden_size]`: see [`Session::hidden`].
    /// [`Error::NotFinite`] if a number is none. For a text by itself, empty the session first:
    /// [`Session::truncate`] to 0.
    pub fn embed(&mut self, tokens: &[u32], pooling: Pooling) -> Result<Vec<f32>> {
        let mut pooled = vec![0.0; self.model().config().hidden_size];
        self.feed_hidden(tokens, &mut |index, state| match pooling {
            Pooling::Last if index + 1 < tokens.len() => {}
            Pooling::Last => pooled.copy_from_slice(state),
            Pooling::Mean => pooled.iter_mut().zip(state).for_each(|(sum, x)| *sum += x),
        })?;
        if pooling == Pooling::Mean {
            let count = tokens.len() as f32;
            pooled.iter_mut().for_each(|x| *x /= count);
        }
        match pooled.iter().all(|x| x.is_finite()) {
            true => Ok(pooled),
            false => Err(Error::NotFinite),
        }
    }
}
