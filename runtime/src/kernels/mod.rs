//! The arithmetic, once per instruction set.
//!
//! **Layout.** A matrix `[out, in]` lies in panels: 16 output rows side by side, `[out/16][in][16]`; of bf16, the weights
//! of two inputs lie together, `[out/16][in/2][16][2]`. Activations lie the same way, `[features/16][rows][16]`, one row per
//! token: the output of one product is the input of the next as it is, a worker that owns some panels owns one contiguous
//! piece of the output, and for one row it is a plain vector. Features past the last are zero. Quantized matrices, which have their own layout and numbers: see [`quantized`].
//!
//! **Numbers.** An output element is one chain of fused multiply-adds over `in`, in ascending order, from zero.
//! Reductions keep 16 running values, one per lane, and join them in the order of `join_lanes`. Every set
//! computes exactly this, so that all give the same bits.

// On other processors there is only the scalar set, which has its own.
#![cfg_attr(
    not(any(
        target_arch = "x86_64",
        target_arch = "aarch64",
        all(target_arch = "wasm32", target_feature = "simd128")
    )),
    allow(dead_code, unused_macros, unused_imports)
)]

mod bf16_unit;
mod features;
mod half;
mod isa;
mod multiply_add;
mod ops;
mod panels;
mod quantized;
mod simd;
#[cfg(test)]
mod tests;
mod tiles;

pub(crate) use self::bf16_unit::{Bf16Unit, FastUnit};
pub use self::features::Features;
pub(crate) use self::features::Line;
pub(crate) use self::half::F16;
#[cfg(target_arch = "aarch64")]
use self::isa::neon;
use self::isa::scalar::Scalar;
#[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
use self::isa::simd128;
#[cfg(target_arch = "x86_64")]
use self::isa::{amx, avx2, avx512, avx512_amx, avx512_bf16};
#[doc(hidden)] // the converter's, too
pub use self::ops::math::{exp, sin_cos};
pub(crate) use self::ops::{
    Add, AddColumns, HeadBlock, HeadBlocks, InverseRms, MatmulBf16, MatmulQuantized, MatmulRounded,
    MatmulTiles, MixValues, QuantizeBlocks, QuantizeTiles, RoundFeatures, RoundToBf16, RoundValues,
    ScaleLanes, ScaleRows, ScoreKeys, SiluMul, Softmax,
};
use self::ops::{Matmul, MultiplyAdds, Read, Widen};
pub(crate) use self::panels::{Element, Elements, Panels};
pub(crate) use self::quantized::{ActivationBits, ActivationBlock, Quantized, activation_blocks};
pub(crate) use self::simd::fetch;
use self::simd::{Op, RunOn};
pub use self::simd::{PlainOp, one_by_one};
pub(crate) use self::tiles::{
    ActivationTile, ByteTile, QuantizedTile, SplitTile, Tile, quantized_tiles, tiles, tiles_of_row,
};
use crate::error::{Error, Result};
use crate::format::Dtype;

/// Lanes of a panel.
pub(crate) const LANES: usize = crate::format::PANEL;

/// From how many rows on a set takes tiles: [`SplitTile`]s, and [`ActivationTile`]s. `usize::MAX` where it has none.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FewestTileRows {
    pub split: usize,
    pub whole: usize,
}

/// An instruction set that this processor has. Only [`Kernels::available`] makes them, so holding one is the proof that
/// its code may run.
#[derive(Clone, Copy, Debug)]
pub struct Kernels(Set);

#[derive(Clone, Copy, Debug)]
enum Set {
    Scalar,
    #[cfg(target_arch = "x86_64")]
    Avx2(avx2::Avx2<false>),
    #[cfg(target_arch = "x86_64")]
    AvxVnni(avx2::Avx2<true>),
    #[cfg(target_arch = "x86_64")]
    Avx512(avx512::Avx512Plain),
    #[cfg(target_arch = "x86_64")]
    Avx512Vnni(avx512::Avx512Vnni),
    #[cfg(target_arch = "x86_64")]
    Avx512Amx(avx512_amx::Avx512Amx),
    #[cfg(target_arch = "aarch64")]
    Neon(neon::Neon<false, false>),
    #[cfg(target_arch = "aarch64")]
    NeonDotprod(neon::Neon<true, false>),
    #[cfg(target_arch = "aarch64")]
    NeonI8mm(neon::Neon<true, true>),
    #[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
    Simd128(simd128::Simd128),
}

/// Runs an operation that only the sets with tiles have. Elsewhere these are not even types, so no trait can say it.
macro_rules! run_on_tiles {
    ($kernels:ident, $op:ident) => {{
        $op.check();
        match $kernels.0 {
            #[cfg(target_arch = "x86_64")]
            Set::Avx512Amx(set) => set.run($op),
            _ => unreachable!("no other set takes tiles"),
        }
    }};
}

impl Kernels {
    /// Every set that this processor has, slowest first.
    pub fn available() -> Vec<Kernels> {
        let sets = [
            Some(Set::Scalar),
            #[cfg(target_arch = "x86_64")]
            avx2::Avx2::<false>::detect().map(Set::Avx2),
            #[cfg(target_arch = "x86_64")]
            avx2::Avx2::<true>::detect().map(Set::AvxVnni),
            #[cfg(target_arch = "x86_64")]
            avx512::Avx512Plain::detect().map(Set::Avx512),
            #[cfg(target_arch = "x86_64")]
            avx512::Avx512Vnni::detect().map(Set::Avx512Vnni),
            #[cfg(target_arch = "x86_64")]
            avx512_amx::Avx512Amx::detect().map(Set::Avx512Amx),
            #[cfg(target_arch = "aarch64")]
            neon::Neon::<false, false>::detect().map(Set::Neon),
            #[cfg(target_arch = "aarch64")]
            neon::Neon::<true, false>::detect().map(Set::NeonDotprod),
            #[cfg(target_arch = "aarch64")]
            neon::Neon::<true, true>::detect().map(Set::NeonI8mm),
            #[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
            simd128::Simd128::detect().map(Set::Simd128),
        ];
        sets.into_iter().flatten().map(Kernels).collect()
    }

    /// The same set as it is on each of the processors that it is set for.
    #[cfg(test)]
    fn of_all_processors(self) -> Vec<Kernels> {
        let sets = match self.0 {
            #[cfg(target_arch = "x86_64")]
            Set::Avx2(set) => set.of_all_processors().map(Set::Avx2).into(),
            #[cfg(target_arch = "x86_64")]
            Set::AvxVnni(set) => set.of_all_processors().map(Set::AvxVnni).into(),
            #[cfg(target_arch = "x86_64")]
            Set::Avx512(set) => set.of_all_processors().map(Set::Avx512).into(),
            #[cfg(target_arch = "x86_64")]
            Set::Avx512Vnni(set) => set.of_all_processors().map(Set::Avx512Vnni).into(),
            set => vec![set],
        };
        sets.into_iter().map(Kernels).collect()
    }

    /// The fastest set that this processor has.
    pub fn detect() -> Kernels {
        Self::available().pop().unwrap_or(Kernels(Set::Scalar))
    }

    /// The set of this name, such as `scalar` or `avx2`; an error where this processor does not have it.
    pub fn named(name: &str) -> Result<Kernels> {
        Self::asked("kernels", name)
    }

    /// The set of this name that the option `option` asks for.
    fn asked(option: &'static str, name: &str) -> Result<Kernels> {
        let available = Self::available();
        let names: Vec<_> = available.iter().map(|set| set.name()).collect();
        available.into_iter().find(|set| set.name() == name).ok_or_else(|| Error::Argument {
            name: option,
            expected: format!("an instruction set of this processor: {}", names.join(", ")),
            found: name.to_owned(),
        })
    }

    /// The set that the environment variable `SMOLRUN_ISA` names, or the fastest one.
    pub fn from_env() -> Result<Kernels> {
        const VARIABLE: &str = "SMOLRUN_ISA";
        match std::env::var_os(VARIABLE) {
            Some(name) if !name.is_empty() => Self::asked(VARIABLE, &name.to_string_lossy()),
            _ => Ok(Self::detect()),
        }
    }

    /// The name that [`Kernels::named`] takes.
    pub fn name(self) -> &'static str {
        match self.0 {
            Set::Scalar => "scalar",
            #[cfg(target_arch = "x86_64")]
            Set::Avx2(_) => "avx2",
            #[cfg(target_arch = "x86_64")]
            Set::AvxVnni(_) => "avxvnni",
            #[cfg(target_arch = "x86_64")]
            Set::Avx512(_) => "avx512",
            #[cfg(target_arch = "x86_64")]
            Set::Avx512Vnni(_) => "avx512vnni",
            #[cfg(target_arch = "x86_64")]
            Set::Avx512Amx(_) => "avx512amx",
            #[cfg(target_arch = "aarch64")]
            Set::Neon(_) => "neon",
            #[cfg(target_arch = "aarch64")]
            Set::NeonDotprod(_) => "neondotprod",
            #[cfg(target_arch = "aarch64")]
            Set::NeonI8mm(_) => "neoni8mm",
            #[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
            Set::Simd128(_) => "simd128",
        }
    }

    /// Whether its multiply-adds round once, so that it gives the bits of every other such set. Only a WebAssembly
    /// module may say no, if it was compiled without relaxed SIMD or the processor has no fused multiply-add.
    pub fn is_exact(self) -> bool {
        match self.0 {
            #[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
            Set::Simd128(set) => set.is_fused(),
            _ => true,
        }
    }

    /// What multiplies activations rounded to bf16 beside this set, slowest first. Not exact: see [`Bf16Unit`].
    pub(crate) fn bf16_units(self) -> Vec<Bf16Unit> {
        #[cfg(target_arch = "x86_64")]
        let avx512 = match self.0 {
            Set::Avx512(set) => Some(set),
            Set::Avx512Vnni(set) => Some(set.plain()),
            Set::Avx512Amx(set) => Some(set.vnni().plain()),
            _ => None,
        };
        #[cfg(target_arch = "x86_64")]
        if let Some(unit) = avx512.and_then(avx512_bf16::Avx512Bf16::detect) {
            let amx = amx::Amx::detect().map(|amx| Bf16Unit::Amx(amx, unit));
            return [Bf16Unit::Avx512Bf16(unit)].into_iter().chain(amx).collect();
        }
        match self.0 {
            Set::Scalar => vec![Bf16Unit::Scalar],
            #[allow(unreachable_patterns)] // some processors have no other set
            _ => Vec::new(),
        }
    }

    /// Runs an operation on this set.
    pub(crate) fn run<O: Op + RunOn<Scalar>>(self, op: O) {
        op.check();
        match self.0 {
            Set::Scalar => op.run_on(Scalar),
            #[cfg(target_arch = "x86_64")]
            Set::Avx2(set) => set.run(op),
            // Floats are computed as without dot products, here and below.
            #[cfg(target_arch = "x86_64")]
            Set::AvxVnni(set) if O::INTEGERS => set.run(op),
            #[cfg(target_arch = "x86_64")]
            Set::AvxVnni(set) => set.plain().run(op),
            #[cfg(target_arch = "x86_64")]
            Set::Avx512(set) => set.run(op),
            #[cfg(target_arch = "x86_64")]
            Set::Avx512Vnni(set) => run_avx512(set, op),
            #[cfg(target_arch = "x86_64")]
            Set::Avx512Amx(set) => run_avx512(set.vnni(), op),
            #[cfg(target_arch = "aarch64")]
            Set::Neon(set) => set.run(op),
            #[cfg(target_arch = "aarch64")]
            Set::NeonDotprod(set) if O::INTEGERS => set.run(op),
            #[cfg(target_arch = "aarch64")]
            Set::NeonDotprod(set) => set.plain().run(op),
            #[cfg(target_arch = "aarch64")]
            Set::NeonI8mm(set) if O::INTEGERS => set.run(op),
            #[cfg(target_arch = "aarch64")]
            Set::NeonI8mm(set) => set.plain().run(op),
            #[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
            Set::Simd128(set) => set.run(op),
        }
    }

    /// Runs plain Rust as it was compiled for this set. The bits are the same on every set.
    #[doc(hidden)] // the converter's
    pub fn compute(self, op: impl PlainOp) {
        self.run(op);
    }

    /// [`Matmul`] for a matrix of floats.
    pub(crate) fn matmul(self, w: Panels<'_>, x: &[f32], rows: usize, y: &mut [f32], accumulate: bool) {
        let (inputs, first_row) = (w.inputs, 0);
        match w.data {
            Elements::F32(w) => self.run(Matmul { w, inputs, x, rows, first_row, y, accumulate }),
            Elements::Bf16(w) => self.run(Matmul { w, inputs, x, rows, first_row, y, accumulate }),
            Elements::F16(_) | Elements::I8(_) => unreachable!("keys and values have products of their own"),
            Elements::Quantized(_) => unreachable!("products of integers take quantized activations"),
        }
    }

    /// The numbers of keys or values, `[panels][inputs][16]`.
    pub(crate) fn widen(self, w: Panels<'_>, to: &mut [f32]) {
        match w.data {
            Elements::F32(w) => self.run(Widen { w, to }),
            Elements::F16(w) => self.run(Widen { w, to }),
            Elements::I8(w) => self.run(Widen { w, to }),
            Elements::Bf16(_) | Elements::Quantized(_) => unreachable!("keys and values are not kept so"),
        }
    }

    /// `y += w x`, like the products of models with f32 matrices. Each element's chain of fused multiply-adds continues
    /// from what is in `y`, in the order of the inputs. It runs on the calling thread. It serves whoever prepares
    /// matrices.
    ///
    /// `w`: `[panels][inputs][16]`, `x`: `[inputs/16, rounded up][rows][16]`, `y`: `[panels][rows][16]`.
    ///
    /// # Panics
    /// If the lengths are not those.
    #[doc(hidden)] // the converter's
    pub fn add_product(self, w: &[f32], inputs: usize, x: &[f32], rows: usize, y: &mut [f32]) {
        self.add_product_from(w, inputs, x, rows, 0, y);
    }

    /// The same for the rows from `first_row` on. What is in `y` for those before it stays.
    ///
    /// # Panics
    /// If the lengths are not those.
    #[doc(hidden)] // the converter's
    pub fn add_product_from(
        self,
        w: &[f32],
        inputs: usize,
        x: &[f32],
        rows: usize,
        first_row: usize,
        y: &mut [f32],
    ) {
        if inputs > 0 && first_row < rows {
            self.run(Matmul { w, inputs, x, rows, first_row, y, accumulate: true });
        }
    }

    /// The same for one panel most of whose weights are zero: only `columns` of them are not, in ascending order.
    ///
    /// `w`: `[inputs][16]`, `x`: `[inputs/16, rounded up][rows][16]`, `y`: `[rows][16]`.
    ///
    /// # Panics
    /// If there are no such columns, or fewer numbers.
    #[doc(hidden)] // the converter's
    pub fn add_columns(self, w: &[[f32; LANES]], columns: &[u8], x: &[[f32; LANES]], y: &mut [[f32; LANES]]) {
        self.run(AddColumns { w, columns, x, y });
    }

    /// From how many rows on quantized weights meet activations of 12 bits in tiles.
    pub(crate) fn fewest_tile_rows(self) -> FewestTileRows {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Set::Avx512Amx(_) => avx512_amx::FEWEST_ROWS,
            _ => FewestTileRows { split: usize::MAX, whole: usize::MAX },
        }
    }

    /// What multiplies activations rounded to bf16 with bf16 weights faster than exact ones, if anything does; the scalar set
    /// imitates it.
    pub(crate) fn fast_unit_for_bf16(self) -> Option<Bf16Unit> {
        self.bf16_units().pop().filter(|unit| unit.is_fast())
    }

    /// What multiplies rounded activations with quantized weights faster than exact ones, if anything does; the scalar set
    /// imitates it.
    pub(crate) fn fast_unit_for_quantized(self) -> Option<FastUnit> {
        match self.0 {
            Set::Scalar => Some(FastUnit::Int8),
            #[cfg(target_arch = "x86_64")]
            Set::AvxVnni(_) | Set::Avx512Vnni(_) => Some(FastUnit::Int8),
            #[cfg(target_arch = "aarch64")]
            Set::NeonDotprod(_) | Set::NeonI8mm(_) => Some(FastUnit::Int8),
            #[cfg(target_arch = "x86_64")]
            Set::Avx512Amx(_) => self.bf16_units().pop().map(FastUnit::Bf16),
            #[allow(unreachable_patterns)] // some processors have no other set
            _ => None,
        }
    }

    /// Whether it multiplies activations of 8 bits in tiles with weights of `q8`.
    pub(crate) fn multiplies_byte_tiles(self) -> bool {
        self.fewest_tile_rows().split < usize::MAX
    }

    /// Runs an operation that only the sets with tiles have.
    pub(crate) fn matmul_tiles(self, op: MatmulTiles<'_, ActivationTile>) {
        run_on_tiles!(self, op);
    }

    /// The same for tiles of a few rows.
    pub(crate) fn matmul_split_tiles(self, op: MatmulTiles<'_, SplitTile>) {
        run_on_tiles!(self, op);
    }

    /// The same for tiles of 8 bits.
    pub(crate) fn matmul_byte_tiles(self, op: MatmulTiles<'_, ByteTile>) {
        assert_eq!(op.w.dtype, Dtype::Q8, "tiles of 8 bits are for codes that are values");
        run_on_tiles!(self, op);
    }

    /// The same for [`MatmulRounded`].
    pub(crate) fn matmul_rounded(self, op: MatmulRounded<'_>) {
        run_on_tiles!(self, op);
    }

    /// Reads all of `data`, whole panels, as fast as memory gives it.
    pub(crate) fn read(self, data: &[f32]) {
        let mut sum = [0.0; ops::STREAMS * LANES];
        self.run(Read { data, sum: &mut sum });
        std::hint::black_box(sum);
    }

    /// Does so many iterations of multiply-adds in registers, [`Kernels::ITERATION`] floating-point operations each.
    pub(crate) fn multiply_adds(self, iterations: usize) {
        let mut sums = [0.0; ops::SUMS * LANES];
        self.run(MultiplyAdds { iterations: std::hint::black_box(iterations), sums: &mut sums });
        std::hint::black_box(sums);
    }

    /// Operations of an iteration of [`Kernels::multiply_adds`]; a multiply-add is two.
    pub(crate) const ITERATION: usize = 2 * ops::SUMS * LANES;
}

/// Floats are computed as without VNNI.
#[cfg(target_arch = "x86_64")]
fn run_avx512<O: Op>(set: avx512::Avx512Vnni, op: O) {
    if O::INTEGERS { set.run(op) } else { set.plain().run(op) }
}
