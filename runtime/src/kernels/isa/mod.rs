//! One file for each instruction set: what [`super::simd`] asks for, and the proof that the processor has it.

#[cfg(target_arch = "x86_64")]
pub(super) mod amx;
#[cfg(target_arch = "x86_64")]
pub(super) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(super) mod avx512;
#[cfg(target_arch = "x86_64")]
pub(super) mod avx512_amx;
#[cfg(target_arch = "x86_64")]
pub(super) mod avx512_bf16;
#[cfg(target_arch = "aarch64")]
pub(super) mod neon;
pub(super) mod scalar;
#[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
pub(super) mod simd128;
#[cfg(target_arch = "x86_64")]
mod vendor;
