//! Asks for memory before it is used.

/// Lines that are asked for: by then the processor sees that they follow one another, and goes on by itself.
const LINES: usize = 32;
/// Bytes of a line.
const LINE: usize = 64;

/// Starts to fetch the beginning of `bytes` into the caches: it changes speed and nothing else.
#[inline(always)]
pub(in crate::kernels) fn prefetch(bytes: &[u8]) {
    for line in bytes.chunks(LINE).take(LINES) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a prefetch reads nothing that the program sees, and faults at no address; every x86-64 processor
        // has it.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast());
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = line;
    }
}
