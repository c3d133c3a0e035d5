//! Keys and values as numbers.

use crate::kernels::LANES;
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
        let to = self.to.as_chunks_mut::<LANES>().0;
        for (lanes, to) in self.w.as_chunks().0.iter().zip(to.chunks_exact_mut(E::INPUTS)) {
            for (numbers, to) in E::load(simd, lanes).as_ref().iter().zip(to) {
                simd.store(*numbers, to);
            }
        }
    }
}
