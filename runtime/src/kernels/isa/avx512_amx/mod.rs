//! AVX-512 with VNNI beside AMX, on which quantized weights meet many rows. The bits are the same.

mod products;

use super::amx::Amx;
use super::avx512::Avx512Vnni;
use super::avx512_bf16::Avx512Bf16;
use crate::kernels::FewestTileRows;
use crate::kernels::simd::entry;

/// Fewest rows that tiles are faster for: of bytes, and of bf16, for which taking codes apart costs as much as products of so
/// many rows.
pub(in crate::kernels) const FEWEST_ROWS: FewestTileRows = FewestTileRows { split: 5, whole: 65 };

/// The proof that this processor has both, and AVX512-BF16, which comes before AMX.
#[derive(Clone, Copy, Debug)]
pub(in crate::kernels) struct Avx512Amx(Avx512Vnni, Avx512Bf16, Amx);

impl Avx512Amx {
    pub(in crate::kernels) fn detect() -> Option<Avx512Amx> {
        let vnni = Avx512Vnni::detect()?;
        Some(Avx512Amx(vnni, Avx512Bf16::detect(vnni.plain())?, Amx::detect()?))
    }

    /// What everything is done with that needs no tiles.
    #[inline(always)]
    pub(in crate::kernels) fn vnni(self) -> Avx512Vnni {
        self.0
    }

    #[inline(always)]
    pub(in crate::kernels) fn bf16(self) -> Avx512Bf16 {
        self.1
    }

    #[inline(always)]
    pub(in crate::kernels) fn amx(self) -> Amx {
        self.2
    }
}

entry!(Avx512Amx, "fma,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512bf16");
