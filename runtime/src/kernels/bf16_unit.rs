//! What multiplies pairs of bf16: see [`super::ops::bf16`].

use super::isa::scalar::Scalar;
#[cfg(target_arch = "x86_64")]
use super::isa::{amx::Amx, avx512_bf16::Avx512Bf16};
use super::ops::bf16::{MatmulBf16, RoundToBf16};
use super::simd::RunOn;

/// What multiplies pairs of bf16 in this processor. Only [`super::Kernels::bf16_units`] makes them, so holding one is the
/// proof that its code may run.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Bf16Unit {
    /// Imitates AVX512-BF16 bit for bit, slowly: the oracle, for where the set is `scalar`.
    Scalar,
    #[cfg(target_arch = "x86_64")]
    Avx512Bf16(Avx512Bf16),
    #[cfg(target_arch = "x86_64")]
    Amx(Amx, Avx512Bf16),
}

/// What multiplies weights with activations that may be rounded more than exact products have them.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FastUnit {
    /// Activations of 8 bits, with quantized weights: see [`super::ActivationBits`].
    Int8,
    /// Activations rounded to bf16, in tiles; quantized weights, too: see [`super::Kernels::matmul_rounded`].
    Bf16(Bf16Unit),
}

impl Bf16Unit {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Bf16Unit::Scalar => "scalar",
            #[cfg(target_arch = "x86_64")]
            Bf16Unit::Avx512Bf16(_) => "avx512bf16",
            #[cfg(target_arch = "x86_64")]
            Bf16Unit::Amx(..) => "amx",
        }
    }

    /// Whether it is faster than exact products; its imitation counts as if it were.
    pub(crate) fn is_fast(self) -> bool {
        match self {
            Bf16Unit::Scalar => true,
            #[cfg(target_arch = "x86_64")]
            Bf16Unit::Avx512Bf16(unit) => unit.is_fast(),
            #[cfg(target_arch = "x86_64")]
            Bf16Unit::Amx(..) => true,
        }
    }

    /// Of this unit for bf16 matrices and [`FastUnit::Int8`] for quantized ones.
    pub(crate) fn name_with_int8(self) -> &'static str {
        match self {
            Bf16Unit::Scalar => "scalar+int8",
            #[cfg(target_arch = "x86_64")]
            Bf16Unit::Avx512Bf16(_) => "avx512bf16+int8",
            #[cfg(target_arch = "x86_64")]
            Bf16Unit::Amx(..) => "amx+int8",
        }
    }

    pub(crate) fn round(self, op: RoundToBf16<'_>) {
        match self {
            Bf16Unit::Scalar => op.run_on(Scalar),
            #[cfg(target_arch = "x86_64")]
            Bf16Unit::Avx512Bf16(unit) | Bf16Unit::Amx(_, unit) => unit.run(op),
        }
    }

    pub(crate) fn matmul(self, op: MatmulBf16<'_>) {
        op.check();
        match self {
            Bf16Unit::Scalar => op.run_on(Scalar),
            #[cfg(target_arch = "x86_64")]
            Bf16Unit::Avx512Bf16(unit) => unit.run(op),
            #[cfg(target_arch = "x86_64")]
            Bf16Unit::Amx(amx, unit) => unit.run(amx.matmul(op)),
        }
    }
}
