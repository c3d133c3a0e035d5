//! Memory on a cache-line boundary: zeroes, allocated without ever aborting the process, or what a file has.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::fmt;
use std::fs::File;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use bytemuck::{AnyBitPattern, Zeroable};

/// Alignment of every buffer in bytes: one cache line, and the widest vector register.
const ALIGN: usize = 64;

/// A fixed-size slice, aligned to 64 bytes: of zeroes to begin with, or of what a file has.
///
/// Large ones of zeroes come from the operating system as untouched pages, so that memory is only spent where it is written.
pub struct AlignedBuf<T> {
    memory: Memory,
    start: NonNull<T>,
    len: usize,
    owns: PhantomData<T>,
}

/// Who gives the memory back.
enum Memory {
    /// Allocated, [`layout`] bytes; the buffer's start lies less than [`ALIGN`] bytes after it.
    Heap(NonNull<u8>),
    /// Mapped, for large pages or from a file; the map gives it back itself.
    #[cfg(all(feature = "mmap", unix))]
    Map { _map: memmap2::MmapMut },
}

// SAFETY: the buffer owns its memory alone and hands it out under the borrow rules of a `Vec<T>`.
unsafe impl<T: Send> Send for AlignedBuf<T> {}
// SAFETY: as above; a shared buffer only gives shared slices.
unsafe impl<T: Sync> Sync for AlignedBuf<T> {}

impl<T: Zeroable + Copy> AlignedBuf<T> {
    /// `len` zeroes, or `None` when there is no memory for them.
    pub fn zeroed(len: usize) -> Option<AlignedBuf<T>> {
        // SAFETY: the layout's size is not zero: it has room to align the start in.
        let base = NonNull::new(unsafe { alloc_zeroed(layout::<T>(len)?) })?;
        let offset = base.align_offset(ALIGN);
        // SAFETY: `offset` is below ALIGN, and the layout has so many bytes more than `len` elements take.
        let start = unsafe { base.add(offset) }.cast();
        Some(AlignedBuf { memory: Memory::Heap(base), start, len, owns: PhantomData })
    }

    /// `len` zeroes like [`AlignedBuf::zeroed`]'s, in large pages where the system has them: for what is used as a whole,
    /// since a large page is spent as a whole too.
    pub fn zeroed_in_large_pages(len: usize) -> Option<AlignedBuf<T>> {
        #[cfg(all(feature = "mmap", target_os = "linux"))]
        if let Some(buffer) = Self::mapped(len) {
            return Some(buffer);
        }
        Self::zeroed(len)
    }

    /// The same with all its pages, which the system then gives at once, where it can. Given one by one, each when it is first
    /// written to, they took twice as long (on a Zen 4).
    pub fn with_pages(self) -> AlignedBuf<T> {
        #[cfg(all(feature = "mmap", target_os = "linux"))]
        if let Memory::Map { _map: map } = &self.memory {
            let _ = map.advise(memmap2::Advice::PopulateWrite); // since Linux 5.14
        }
        self
    }

    /// `len` elements that a file has from byte `offset` on, in its own pages: shared with whoever else reads it until they
    /// are written to, which the file does not see. `None` where the system has no such thing.
    ///
    /// As a mapped blob, the file must not be changed in place as long as the buffer lives, see
    /// [`Storage::map`](super::Storage::map).
    #[cfg_attr(not(all(feature = "mmap", unix)), allow(unused_variables))]
    pub(crate) fn of_file(file: &File, offset: u64, len: usize) -> Option<AlignedBuf<T>>
    where
        T: AnyBitPattern,
    {
        #[cfg(all(feature = "mmap", unix))]
        if let Some(size) = mappable::<T>(len)
            && offset.is_multiple_of(ALIGN as u64)
        {
            let mut options = memmap2::MmapOptions::new();
            // SAFETY: a private map, in which others' changes of the file may or may not be seen. That there are none is a
            // promise of whoever owns the file, passed on in the documentation; no code of ours writes to one in place.
            let map = unsafe { options.offset(offset).len(size).map_copy(file) };
            // A map has the bytes of a file from a page's start on, so these are aligned; any bits are a `T`.
            return map.ok().and_then(|map| Self::of_map(map, len));
        }
        None
    }

    #[cfg(all(feature = "mmap", target_os = "linux"))]
    fn mapped(len: usize) -> Option<AlignedBuf<T>> {
        let map = memmap2::MmapMut::map_anon(mappable::<T>(len)?).ok()?;
        map.advise(memmap2::Advice::HugePage).ok()?;
        // It starts on a page and holds zeroes, which are a `T` by `Zeroable`.
        Self::of_map(map, len)
    }

    /// What an aligned map of `len` elements holds.
    #[cfg(all(feature = "mmap", unix))]
    fn of_map(mut map: memmap2::MmapMut, len: usize) -> Option<AlignedBuf<T>> {
        let start = NonNull::new(map.as_mut_ptr().cast())?;
        Some(AlignedBuf { memory: Memory::Map { _map: map }, start, len, owns: PhantomData })
    }
}

/// Bytes of `len` elements, where that is something that can be mapped.
#[cfg(all(feature = "mmap", unix))]
fn mappable<T>(len: usize) -> Option<usize> {
    Layout::array::<T>(len).ok().map(|layout| layout.size()).filter(|&size| size > 0)
}

impl<T> Deref for AlignedBuf<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: `start` points to `len` elements that `zeroed`, `mapped` or `of_file` got, aligned and initialized (zeroes
        // are a `T` by `Zeroable`, a file's bytes by `AnyBitPattern`); they live as long as `self`.
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
        #[allow(irrefutable_let_patterns)] // without maps
        if let Memory::Heap(base) = self.memory
            && let Some(layout) = layout::<T>(self.len)
        {
            // SAFETY: `zeroed` allocated `base` with this very layout; `T: Copy` there, so there is nothing to drop.
            unsafe { dealloc(base.as_ptr(), layout) }
        }
    }
}

/// Room for `len` elements and for aligning them. Asked for the alignment itself, the allocator would clear the memory by
/// hand, and so touch every page of it.
fn layout<T>(len: usize) -> Option<Layout> {
    const { assert!(align_of::<T>() <= ALIGN) };
    let size = Layout::array::<T>(len).ok()?.size().checked_add(ALIGN)?;
    Layout::from_size_align(size, 1).ok()
}

impl<T> fmt::Debug for AlignedBuf<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AlignedBuf").field("len", &self.len).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::AlignedBuf;

    #[test]
    fn buffers_are_zeroed_aligned_and_writable() {
        let buffers = [AlignedBuf::<f32>::zeroed, AlignedBuf::zeroed_in_large_pages];
        for (len, make) in
            [0, 1, 15, 16, 1000, 1 << 20].into_iter().flat_map(|len| buffers.map(|make| (len, make)))
        {
            let mut buffer = make(len).unwrap();
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
