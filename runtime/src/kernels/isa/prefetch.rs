//! Asks for memory before it is used: it changes speed and nothing else.

/// Bytes of a line of the caches.
const LINE: usize = 64;
/// Lines that are asked for: by then the processor sees that they follow one another, and goes on by itself.
const LINES: usize = 32;

/// Starts to fetch the beginning of `bytes` into the caches.
#[inline(always)]
pub(in crate::kernels) fn beginning(bytes: &[u8]) {
    bytes.chunks(LINE).take(LINES).for_each(|line| address(line.as_ptr()));
}

/// Starts to fetch the line that holds an address, which may be anyone's.
#[inline(always)]
pub(in crate::kernels) fn address<T>(address: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch reads nothing that the program sees, and faults at no address; every x86-64 processor has it.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}
