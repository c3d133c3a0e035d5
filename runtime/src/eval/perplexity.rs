//! How well a model foresees a text.

use std::fmt;
use std::ops::AddAssign;

use super::options::PerplexityOptions;
use super::rows::Rows;
use super::windows::Windows;
use crate::error::Result;
use crate::generate::{LogSoftmax, Session};

/// How well a model predicted some tokens. The values of several windows add up (`+=`).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Perplexity {
    /// The sum of the tokens' negative log-likelihoods, in nats.
    pub nll: f64,
    /// How many tokens were scored.
    pub tokens: usize,
}

impl Perplexity {
    /// The mean negative log-likelihood of a token, in nats; NaN of no tokens.
    pub fn mean_nll(&self) -> f64 {
        self.nll / self.tokens as f64
    }

    /// e to the mean negative log-likelihood: the model is as uncertain as among so many equally likely tokens.
    pub fn perplexity(&self) -> f64 {
        self.mean_nll().exp()
    }
}

impl AddAssign for Perplexity {
    fn add_assign(&mut self, other: Perplexity) {
        self.nll += other.nll;
        self.tokens += other.tokens;
    }
}

/// The perplexities of a text's windows, computed as they are asked for; see [`Session::perplexity`].
pub struct PerplexityWindows<'a> {
    windows: Windows<'a>,
    rows: Rows<'a>,
}

impl Session {
    /// How well the model predicts `tokens`, window by window.
    ///
    /// The text is cut into windows that do not overlap. The rest at its end is dropped. Each window is a sequence of
    /// its own, from position 0, and all its tokens but the first are scored. The sequence so far is forgotten. It is
    /// an error if there is no whole window. The iterator ends early if it is cancelled, and after an error.
    ///
    /// ```no_run
    /// # use smolrun::eval::{Perplexity, PerplexityOptions};
    /// # use smolrun::{Model, Session, SessionOptions, SpecialTokens};
    /// # fn main() -> smolrun::Result<()> {
    /// # let (model, text) = (Model::open("smol.bin")?, "");
    /// let tokens = model.tokenizer().encode(text, SpecialTokens::AsText)?;
    /// let mut session = Session::new(&model, SessionOptions::default())?;
    /// let mut total = Perplexity::default();
    /// for window in session.perplexity(&tokens, PerplexityOptions::default())? {
    ///     total += window?;
    /// }
    /// println!("{}", total.perplexity());
    /// # Ok(())
    /// # }
    /// ```
    pub fn perplexity<'a>(
        &'a mut self,
        tokens: &'a [u32],
        options: PerplexityOptions,
    ) -> Result<PerplexityWindows<'a>> {
        let windows = Windows::new(tokens, options, self.model())?;
        Ok(PerplexityWindows { windows, rows: Rows::new(self)? })
    }
}

impl Iterator for PerplexityWindows<'_> {
    type Item = Result<Perplexity>;

    fn next(&mut self) -> Option<Result<Perplexity>> {
        let PerplexityWindows { windows, rows } = self;
        windows.next(|piece, sum: &mut Perplexity| {
            rows.fill(&piece)?;
            let mut nll = vec![0.0; piece.next.len()];
            rows.map(&mut nll, |row, logits| -LogSoftmax::new(logits).of(piece.next[row]));
            *sum += Perplexity { nll: nll.iter().sum(), tokens: nll.len() };
            Ok(())
        })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.windows.len(), Some(self.windows.len()))
    }
}

impl fmt::Debug for PerplexityWindows<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PerplexityWindows").field("windows", &self.windows.len()).finish_non_exhaustive()
    }
}
