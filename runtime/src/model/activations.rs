//! What the matrices are multiplied with, shown to whoever studies a model.

use crate::format::Kind;

/// The inputs of one matrix in one pass over some tokens: see [`Session::feed_observed`](crate::Session::feed_observed).
#[derive(Clone, Copy, Debug)]
pub struct Activations<'a> {
    /// The matrix; of a tied embedding, `LmHead`.
    pub kind: Kind,
    /// Its layer, if it is of one.
    pub layer: Option<usize>,
    /// Tokens of the pass: rows of the input.
    pub rows: usize,
    /// `[features/16, rounded up][rows][16]`; the values that fill up features do not matter.
    pub panels: &'a [f32],
}

/// Who looks on.
pub(crate) type Observer<'a> = dyn FnMut(Activations<'_>) + 'a;
