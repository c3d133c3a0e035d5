//! How a text is measured.

use crate::cancel::CancelToken;

/// How a text is cut for [`Session::perplexity`](crate::Session::perplexity) and
/// [`Session::compare`](crate::Session::compare).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PerplexityOptions {
    /// Tokens of a window, from 2 to the model's context.
    pub window: usize,
    /// Ends the work from elsewhere.
    pub cancel: CancelToken,
}

impl Default for PerplexityOptions {
    fn default() -> PerplexityOptions {
        PerplexityOptions { window: 1024, cancel: CancelToken::default() }
    }
}

impl PerplexityOptions {
    /// These options with windows of `window` tokens.
    pub fn window(self, window: usize) -> PerplexityOptions {
        PerplexityOptions { window, ..self }
    }

    /// These options with a handle that ends the work.
    pub fn cancel(self, cancel: &CancelToken) -> PerplexityOptions {
        PerplexityOptions { cancel: cancel.clone(), ..self }
    }
}
