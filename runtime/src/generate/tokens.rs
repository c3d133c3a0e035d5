//! A generation and its session in one: an iterator.

use std::fmt;
use std::iter::FusedIterator;

use super::generation::Generation;
use super::options::GenerateOptions;
use super::session::Session;
use super::token::{FinishReason, Token};
use crate::error::Result;

/// The tokens that [`Session::generate`] makes, one at each call of `next`; after an error or the last token, none.
///
/// The last token stays the caller's: the session holds the tokens before it.
pub struct Tokens<'a> {
    session: &'a mut Session,
    generation: Generation,
}

impl Session {
    /// Appends `prompt` and generates what comes after it. The iterator does the work as it is asked for tokens.
    pub fn generate(&mut self, prompt: &[u32], options: GenerateOptions) -> Result<Tokens<'_>> {
        Ok(Tokens { generation: Generation::new(self, prompt, options)?, session: self })
    }
}

impl Tokens<'_> {
    /// Why they ended, once they have, see [`Generation::finish_reason`].
    pub fn finish_reason(&self) -> Option<FinishReason> {
        self.generation.finish_reason()
    }
}

impl Iterator for Tokens<'_> {
    type Item = Result<Token>;

    fn next(&mut self) -> Option<Result<Token>> {
        self.generation.next(self.session)
    }
}

impl FusedIterator for Tokens<'_> {}

impl fmt::Debug for Tokens<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokens").field("finish_reason", &self.finish_reason()).finish_non_exhaustive()
    }
}
