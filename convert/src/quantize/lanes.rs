//! Sixteen numbers side by side: one for each row, or feature, of a panel.

use std::ops::{Deref, DerefMut};

use bytemuck::{Pod, Zeroable};
use smolrun::format::PANEL;

/// One number for each, in one cache line: those that lie in two take longer to read.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C, align(64))]
pub(super) struct Lanes(pub(super) [f32; PANEL]);

impl Lanes {
    pub(super) const ZERO: Lanes = Lanes([0.0; PANEL]);
}

impl Deref for Lanes {
    type Target = [f32; PANEL];

    #[inline(always)]
    fn deref(&self) -> &[f32; PANEL] {
        &self.0
    }
}

impl DerefMut for Lanes {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [f32; PANEL] {
        &mut self.0
    }
}

/// The same in f64.
pub(super) type Doubles = [f64; PANEL];

/// What `term` makes of each.
#[inline(always)]
pub(super) fn doubles(term: impl Fn(usize) -> f64) -> Doubles {
    let mut doubles = [0.0; PANEL];
    for (lane, to) in doubles.iter_mut().enumerate() {
        *to = term(lane);
    }
    doubles
}

/// The same in f32.
#[inline(always)]
pub(super) fn lanes(term: impl Fn(usize) -> f32) -> Lanes {
    let mut lanes = Lanes::ZERO;
    for (lane, to) in lanes.iter_mut().enumerate() {
        *to = term(lane);
    }
    lanes
}
