//! Zeroed memory on a cache-line boundary, allocated without ever aborting the process.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use bytemuck::Zeroable;

/// Alignment of every buffer in bytes: one cache line, and the widest vector register.
const ALIGN: usize = 64;

/// A fixed-size slice of zeroes to begin with, aligned to 64 bytes.
///
/// Large ones come from the operating system as untouched pages, so that memory is only spent where it is written.
pub struct AlignedBuf<T> {
    start: NonNull<T>,
    len: usize,
    owns: PhantomData<T>,
}

// SAFETY: the buffer owns its memory alone and hands it out under the borrow rules of a `Vec<T>`.
unsafe impl<T: Send> Send for AlignedBuf<T> {}
// SAFETY: as above; a shared buffer only gives shared slices.
unsafe impl<T: Sync> Sync for AlignedBuf<T> {}

impl<T: Zeroable + Copy> AlignedBuf<T> {
    /// `len` zeroes, or `None` when there is no memory for them.
    pub fn zeroed(len: usize) -> Option<AlignedBuf<T>> {
        let layout = layout::<T>(len)?;
        if layout.size() == 0 {
            return Some(AlignedBuf { start: NonNull::dangling(), len, owns: PhantomData });
        }
        // SAFETY: the layout's size is not zero.
        let start = unsafe { alloc_zeroed(layout) };
        NonNull::new(start.cast()).map(|start| AlignedBuf { start, len, owns: PhantomData })
    }
}

impl<T> Deref for AlignedBuf<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: `start` points to `len` elements that `zeroed` allocated and initialised (zeroes are a `T` by
        // `Zeroable`), or dangles, aligned, with a size of zero; they live as long as `self`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl<T> DerefMut for AlignedBuf<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`; `&mut self` makes this the only slice.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl<T> Drop for AlignedBuf<T> {
    fn drop(&mut self) {
        let Some(layout) = layout::<T>(self.len).filter(|layout| layout.size() != 0) else { return };
        // SAFETY: `zeroed` allocated `start` with this very layout; `T: Copy` there, so there is nothing to drop.
        unsafe { dealloc(self.start.as_ptr().cast(), layout) }
    }
}

fn layout<T>(len: usize) -> Option<Layout> {
    Layout::array::<T>(len).ok()?.align_to(ALIGN).ok()
}

#[cfg(test)]
mod tests {
    use super::AlignedBuf;

    #[test]
    fn buffers_are_zeroed_aligned_and_writable() {
        for len in [0, 1, 15, 16, 1000, 1 << 20] {
            let mut buffer = AlignedBuf::<f32>::zeroed(len).unwrap();
            assert_eq!(buffer.len(), len);
            assert!(buffer.iter().all(|&x| x == 0.0));
            assert!(len == 0 || buffer.as_ptr().addr().is_multiple_of(64));
            buffer.fill(1.5);
            assert!(buffer.iter().all(|&x| x == 1.5));
        }
    }

    #[test]
    fn an_impossible_size_is_none() {
        assert!(AlignedBuf::<f32>::zeroed(usize::MAX / 4).is_none());
        assert!(AlignedBuf::<f32>::zeroed(usize::MAX).is_none());
    }
}
