//! `a * b + c` of one number and, in WebAssembly, of four: rounded once, but for WebAssembly without relaxed SIMD, which has
//! no instruction for it.

#[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
use std::arch::wasm32::*;

/// `a * b + c`, as `four` does it where there is that.
#[inline(always)]
pub(in crate::kernels) fn multiply_add(a: f32, b: f32, c: f32) -> f32 {
    #[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
    return f32x4_extract_lane::<0>(four(f32x4_splat(a), f32x4_splat(b), f32x4_splat(c)));
    #[cfg(not(all(target_arch = "wasm32", target_feature = "simd128")))]
    a.mul_add(b, c)
}

/// `a * b + sum`
#[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
#[inline(always)]
pub(in crate::kernels) fn four(a: v128, b: v128, sum: v128) -> v128 {
    #[cfg(target_feature = "relaxed-simd")]
    return f32x4_relaxed_madd(a, b, sum);
    #[cfg(not(target_feature = "relaxed-simd"))]
    return f32x4_add(f32x4_mul(a, b), sum);
}
