//! For tests with random damage: an allocator that counts, and numbers that a seed makes again.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Counts what the system's allocator hands out.
pub struct Counting;

static ALIVE: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);
static LARGEST: AtomicUsize = AtomicUsize::new(0);

fn count(size: usize) {
    LARGEST.fetch_max(size, Relaxed);
    MOST.fetch_max(ALIVE.fetch_add(size, Relaxed) + size, Relaxed);
}

// SAFETY: every call goes to the system's allocator as it came; counting touches nothing but three numbers.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, start: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size);
        ALIVE.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.realloc(start, layout, size) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        ALIVE.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(start, layout) }
    }
}

/// What the tests of one program hold while they look at [`Memory`], which is of the whole program.
pub fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What was allocated.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    /// Bytes at this moment.
    pub alive: usize,
    /// Most bytes at a time since [`Memory::begin`].
    pub most: usize,
    /// Most bytes in one allocation since [`Memory::begin`].
    pub largest: usize,
}

impl Memory {
    /// The counts, if [`Counting`] is the program's allocator.
    pub fn now() -> Memory {
        Memory { alive: ALIVE.load(Relaxed), most: MOST.load(Relaxed), largest: LARGEST.load(Relaxed) }
    }

    /// Counts anew.
    pub fn begin() {
        MOST.store(ALIVE.load(Relaxed), Relaxed);
        LARGEST.store(0, Relaxed);
    }
}

/// SplitMix64: a seed is all that it takes to make a mutation again.
pub struct Random(pub u64);

impl Random {
    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        (self.bits() % end.max(1) as u64) as usize
    }

    /// One of several.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }
}
