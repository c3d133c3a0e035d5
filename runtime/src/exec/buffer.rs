//! Memory that steps use again and again.

use std::ops::{Deref, DerefMut};

use bytemuck::Zeroable;

use crate::error::{Error, Result};
use crate::storage::AlignedBuf;

/// A slice whose length changes without giving memory back.
pub(crate) struct Buffer<T = f32> {
    memory: Option<AlignedBuf<T>>,
    len: usize,
}

impl<T> Default for Buffer<T> {
    fn default() -> Buffer<T> {
        Buffer { memory: None, len: 0 }
    }
}

impl<T: Zeroable + Copy> Buffer<T> {
    /// Makes this `len` elements of unspecified value.
    pub(crate) fn resize(&mut self, len: usize) -> Result<()> {
        self.resize_within(len, len)
    }

    /// As [`Buffer::resize`]; where memory is needed, for `capacity` elements, so that more than `len` take none later.
    pub(crate) fn resize_within(&mut self, len: usize, capacity: usize) -> Result<()> {
        if self.memory.as_ref().is_none_or(|memory| memory.len() < len) {
            let capacity = capacity.max(len);
            let bytes = capacity.saturating_mul(size_of::<T>());
            let out_of_memory = Error::OutOfMemory { what: "activations", bytes };
            (self.memory, self.len) = (None, 0); // the old memory is free before the new is asked for
            self.memory = Some(AlignedBuf::zeroed(capacity).ok_or(out_of_memory)?);
        }
        self.len = len;
        Ok(())
    }
}

impl<T> Deref for Buffer<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        self.memory.as_ref().map_or(&[], |memory| &memory[..self.len])
    }
}

impl<T> DerefMut for Buffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        self.memory.as_mut().map_or(&mut [], |memory| &mut memory[..self.len])
    }
}
