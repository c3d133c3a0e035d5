//! Keys and values as numbers.

use crate::kernels::panels::Element;
use crate::kernels::simd::{Integers, Op};

/// Writes weights as f32, exactly: one input after the other.
pub(crate) struct Widen<'a, E> {
    /// `[inputs / INPUTS][16]`
    pub w: &'a [E],
    /// `[inputs][16]`
    pub to: &'a mut [f32],
}

impl<E: Element> Op for Widen<'_, E> {
    fn check(&self) {
        assert_eq!(self.w.len() * E::INPUTS, self.to.len(), "a number for each weight");
    }

    #[inline(always)]
    fn run<S: Integers>(self, simd: S) {
        E::write(simd, self.w.as_chunks().0, self.to.as_chunks_mut().0);
    }
}
