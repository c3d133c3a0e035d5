//! The arithmetic, once per instruction set.
//!
//! **Layout.** A matrix `[out, in]` lies in panels: 16 output rows side by side, `[out/16][in][16]`; of bf16, the weights
//! of two inputs lie together, `[out/16][in/2][16][2]`. Activations lie the same way, `[features/16][rows][16]`, one row per token: the output of one product is the input of the next as it
//! is, a worker that owns some panels owns one contiguous piece of the output, and for one row it is a plain vector.
//! Features past the last are zero. Quantised matrices, which have their own layout and numbers: see [`quantised`].
//!
//! **Numbers.** An output element is one chain of fused multiply-adds over `in`, in ascending order, from zero.
//! Reductions keep 16 running values, one per lane, and join them in the order of [`math::join_lanes`]. Every set
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

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod avx512_amx;
#[cfg(target_arch = "x86_64")]
mod avx512_bf16;
mod half;
mod integers;
mod math;
mod matmul;
#[cfg(target_arch = "aarch64")]
mod neon;
mod peak;
mod quantised;
mod rounded;
mod scalar;
mod simd;
#[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
mod simd128;
#[cfg(test)]
mod tests;

use self::simd::Simd;

pub(crate) use self::half::{Bf16Pair, F16};
pub(crate) use self::math::sin_cos;
pub(crate) use self::quantised::{Quantised, RoundedBlock, RoundedTile, rounded_blocks, rounded_tiles};
pub(crate) use self::rounded::{Bf16Unit, Tile, tiles, tiles_of_row};
use crate::error::{Error, Result};

/// Lanes of a panel.
pub(crate) const LANES: usize = crate::format::PANEL;

/// An instruction set that this processor has. Only [`Kernels::available`] makes them, so holding one is the proof that
/// its code may run.
#[derive(Clone, Copy, Debug)]
pub struct Kernels(Set);

#[derive(Clone, Copy, Debug)]
enum Set {
    Scalar,
    #[cfg(target_arch = "x86_64")]
    Avx2(avx2::Avx2),
    #[cfg(target_arch = "x86_64")]
    Avx512(avx512::Avx512<false>),
    #[cfg(target_arch = "x86_64")]
    Avx512Vnni(avx512::Avx512<true>),
    #[cfg(target_arch = "x86_64")]
    Avx512Amx(avx512_amx::Avx512Amx),
    #[cfg(target_arch = "aarch64")]
    Neon(neon::Neon),
    #[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
    Simd128(simd128::Simd128),
}

/// Calls the function of the same name in the instruction set's file.
macro_rules! dispatch {
    ($set:expr, $function:ident ( $($argument:expr),* )) => {
        match $set {
            Set::Scalar => scalar::$function($($argument),*),
            #[cfg(target_arch = "x86_64")]
            Set::Avx2(set) => set.$function($($argument),*),
            #[cfg(target_arch = "x86_64")]
            Set::Avx512(set) => set.$function($($argument),*),
            #[cfg(target_arch = "x86_64")]
            Set::Avx512Vnni(set) => set.$function($($argument),*),
            #[cfg(target_arch = "x86_64")]
            Set::Avx512Amx(set) => set.$function($($argument),*),
            #[cfg(target_arch = "aarch64")]
            Set::Neon(set) => set.$function($($argument),*),
            #[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
            Set::Simd128(set) => set.$function($($argument),*),
        }
    };
}

impl Kernels {
    /// Every set that this processor has, slowest first.
    pub fn available() -> Vec<Kernels> {
        let sets = [
            Some(Set::Scalar),
            #[cfg(target_arch = "x86_64")]
            avx2::Avx2::detect().map(Set::Avx2),
            #[cfg(target_arch = "x86_64")]
            avx512::Avx512::<false>::detect().map(Set::Avx512),
            #[cfg(target_arch = "x86_64")]
            avx512::Avx512::<true>::detect().map(Set::Avx512Vnni),
            #[cfg(target_arch = "x86_64")]
            avx512_amx::Avx512Amx::detect().map(Set::Avx512Amx),
            #[cfg(target_arch = "aarch64")]
            neon::Neon::detect().map(Set::Neon),
            #[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
            simd128::Simd128::detect().map(Set::Simd128),
        ];
        sets.into_iter().flatten().map(Kernels).collect()
    }

    /// The fastest set that this processor has.
    pub fn detect() -> Kernels {
        Self::available().pop().unwrap_or(Kernels(Set::Scalar))
    }

    /// The set of this name, such as `scalar` or `avx2`; an error where this processor does not have it.
    pub fn named(name: &str) -> Result<Kernels> {
        let available = Self::available();
        let names: Vec<_> = available.iter().map(|set| set.name()).collect();
        available.into_iter().find(|set| set.name() == name).ok_or_else(|| Error::Argument {
            name: "SMOLRUN_ISA",
            expected: format!("an instruction set of this processor: {}", names.join(", ")),
            found: name.to_owned(),
        })
    }

    /// The set that the environment variable `SMOLRUN_ISA` names, or the fastest one.
    pub fn from_env() -> Result<Kernels> {
        match std::env::var_os("SMOLRUN_ISA") {
            Some(name) if !name.is_empty() => Self::named(&name.to_string_lossy()),
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
            Set::Avx512(_) => "avx512",
            #[cfg(target_arch = "x86_64")]
            Set::Avx512Vnni(_) => "avx512vnni",
            #[cfg(target_arch = "x86_64")]
            Set::Avx512Amx(_) => "avx512amx",
            #[cfg(target_arch = "aarch64")]
            Set::Neon(_) => "neon",
            #[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
            Set::Simd128(_) => "simd128",
        }
    }

    /// Whether its multiply-adds round once, so that it gives the bits of every other such set. Only a WebAssembly module
    /// may say no: one compiled without relaxed SIMD, or on a processor without fused multiply-add.
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
            Set::Avx512Amx(set) => Some(set.plain()),
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

    /// `y = w x`, or `y += w x` when `accumulate`, continuing each element's chain.
    ///
    /// `w`: `[panels][inputs][16]`, `x`: `[inputs/16, rounded up][rows][16]`, `y`: `[panels][rows][16]`.
    pub(crate) fn matmul(self, w: Panels<'_>, x: &[f32], rows: usize, y: &mut [f32], accumulate: bool) {
        assert_eq!(w.count(), y.len() / (rows * LANES), "one panel of weights for each panel of output");
        assert!(x.len() >= w.inputs.next_multiple_of(LANES) * rows, "a value for each input of each row");
        match w.data {
            Elements::F32(data) => dispatch!(self.0, matmul_f32(data, w.inputs, x, rows, y, accumulate)),
            Elements::Bf16(data) => dispatch!(self.0, matmul_bf16(data, w.inputs, x, rows, y, accumulate)),
            Elements::F16(data) => dispatch!(self.0, matmul_f16(data, w.inputs, x, rows, y, accumulate)),
            Elements::Quantised(_) => unreachable!("products of integers take rounded activations"),
        }
    }

    /// `y += w x`, as the products of models with f32 matrices: each element's chain of fused multiply-adds goes on from what
    /// is in `y`, in the order of the inputs. The calling thread does it; for whoever prepares matrices.
    ///
    /// `w`: `[panels][inputs][16]`, `x`: `[inputs/16, rounded up][rows][16]`, `y`: `[panels][rows][16]`.
    ///
    /// # Panics
    /// If the lengths are not those.
    #[doc(hidden)] // the converter's
    pub fn add_product(self, w: &[f32], inputs: usize, x: &[f32], rows: usize, y: &mut [f32]) {
        if inputs > 0 && rows > 0 {
            self.matmul(Panels { data: Elements::F32(w), inputs }, x, rows, y, true);
        }
    }

    /// Rounds activations to whole numbers times a scale, for [`Kernels::matmul_quantised`]: the blocks of 32 inputs for all
    /// `rows` rows, from the `first` such block on.
    ///
    /// `x`: `[inputs/16, rounded up][rows][16]`, `blocks`: `[inputs/32, rounded up][rows]`.
    pub(crate) fn round(self, x: &[f32], rows: usize, first: usize, blocks: &mut [RoundedBlock]) {
        dispatch!(self.0, round(x, rows, first, blocks));
    }

    /// `y = w x` for quantised weights and rounded activations.
    ///
    /// `x`: `[blocks][rows]`, `y`: `[panels][rows][16]`.
    pub(crate) fn matmul_quantised(self, w: Quantised<'_>, x: &[RoundedBlock], rows: usize, y: &mut [f32]) {
        assert_eq!(w.count(), y.len() / (rows * LANES), "one panel of weights for each panel of output");
        assert_eq!(x.len(), w.blocks() * rows, "a block of activations for each block of inputs and row");
        dispatch!(self.0, matmul_quantised(w, x, rows, y));
    }

    /// Fewest rows that quantised weights meet in tiles, see [`Kernels::matmul_tiles`]; no number has so many where they never do.
    pub(crate) fn fewest_tile_rows(self) -> usize {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Set::Avx512Amx(_) => avx512_amx::FEWEST_ROWS,
            _ => usize::MAX,
        }
    }

    /// Rounds activations as [`Kernels::round`] does, for [`Kernels::matmul_tiles`]: the tiles of 16 rows at a time, from the
    /// `first` such on.
    ///
    /// `x`: `[inputs/16, rounded up][rows][16]`, `tiles`: `[rows/16, rounded up][inputs/32, rounded up]`.
    pub(crate) fn round_tiles(
        self,
        x: &[f32],
        inputs: usize,
        rows: usize,
        first: usize,
        tiles: &mut [RoundedTile],
    ) {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Set::Avx512Amx(set) => set.round_tiles(x, inputs, rows, first, tiles),
            _ => quantised::round_tiles(x, inputs, rows, first, tiles),
        }
    }

    /// What [`Kernels::matmul_quantised`] computes, of activations in tiles.
    ///
    /// `x`: `[rows/16, rounded up][blocks]`, `y`: `[panels][rows][16]`.
    pub(crate) fn matmul_tiles(self, w: Quantised<'_>, x: &[RoundedTile], rows: usize, y: &mut [f32]) {
        assert_eq!(w.count(), y.len() / (rows * LANES), "one panel of weights for each panel of output");
        assert_eq!(x.len(), w.blocks() * rows.div_ceil(LANES), "a tile for each block of inputs and 16 rows");
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Set::Avx512Amx(set) => set.matmul_tiles(w, x, rows, y),
            _ => unreachable!("no other set takes tiles"),
        }
    }

    /// Whether [`Kernels::matmul_rounded_quantised`] may be called.
    pub(crate) fn rounds_for_quantised(self) -> bool {
        self.fewest_tile_rows() < usize::MAX
    }

    /// `y = w x` for quantised weights, rounded to bf16 times the scales of their rows, and activations rounded to bf16: see
    /// [`Bf16Unit`].
    ///
    /// `x`: [`tiles`] of them, `y`: `[panels][rows][16]`.
    pub(crate) fn matmul_rounded_quantised(self, w: Quantised<'_>, x: &[Tile], rows: usize, y: &mut [f32]) {
        assert_eq!(w.count(), y.len() / (rows * LANES), "one panel of weights for each panel of output");
        assert_eq!(x.len(), w.blocks() * rows.div_ceil(LANES), "a tile for each block of inputs and 16 rows");
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Set::Avx512Amx(set) => set.matmul_rounded(w, x, rows, y),
            _ => unreachable!("no other set takes tiles"),
        }
    }

    /// Reads all of `data`, whole panels, as fast as memory gives it.
    pub(crate) fn read(self, data: &[f32]) {
        let mut sum = [0.0; 4 * LANES];
        dispatch!(self.0, read(data, &mut sum));
        std::hint::black_box(sum);
    }

    /// Does this many rounds of multiply-adds in registers, [`Kernels::ROUND`] floating-point operations each.
    pub(crate) fn multiply_adds(self, rounds: usize) {
        let mut sums = [0.0; peak::SUMS * LANES];
        dispatch!(self.0, multiply_adds(std::hint::black_box(rounds), &mut sums));
        std::hint::black_box(sums);
    }

    /// Operations of a round of [`Kernels::multiply_adds`]; a multiply-add is two.
    pub(crate) const ROUND: usize = 2 * peak::SUMS * LANES;

    /// `x += delta`, element by element.
    pub(crate) fn add(self, x: &mut [f32], delta: &[f32]) {
        dispatch!(self.0, add(x, delta))
    }

    /// What RMSNorm multiplies each of `y.len()` rows by, from row `first` on: `y = 1 / sqrt(mean(x²) + eps)` (Zhang and
    /// Sennrich 2019).
    ///
    /// `x`: `[features/16, rounded up][rows][16]`.
    pub(crate) fn inverse_rms(
        self,
        x: &[f32],
        rows: usize,
        features: usize,
        eps: f32,
        first: usize,
        y: &mut [f32],
    ) {
        dispatch!(self.0, inverse_rms(x, rows, features, eps, first, y))
    }

    /// `y = x * scales[row] * weight[feature]`, zero for the features that pad the last panel.
    ///
    /// `x`, `y`: `[panels][rows][16]`; `scales`: `[rows]`; `weight`: a value for each feature, 16 a panel.
    pub(crate) fn scale_rows(self, x: &[f32], scales: &[f32], weight: &[f32], y: &mut [f32]) {
        dispatch!(self.0, scale_rows(x, scales, weight, y))
    }

    /// `y = silu(gate) * up` for panels of gate and up in turn: `gate_up`: `[2 n][rows][16]`, `y`: `[n][rows][16]`.
    pub(crate) fn silu_mul(self, gate_up: &[f32], rows: usize, y: &mut [f32]) {
        dispatch!(self.0, silu_mul(gate_up, rows, y))
    }

    /// Softmax of `scale * scores` in each row, over the positions that its token sees, the others set to zero: the first
    /// of `tokens` tokens stands at the end of `len` positions, each next one further, and each sees the last `window` of
    /// those up to its own. Row `r` is token `r % tokens` of some head.
    ///
    /// `scores`: `[positions/16, rounded up][rows][16]`.
    pub(crate) fn softmax(
        self,
        scores: &mut [f32],
        rows: usize,
        tokens: usize,
        len: usize,
        window: usize,
        scale: f32,
    ) {
        dispatch!(self.0, softmax(scores, rows, tokens, len, window, scale))
    }
}

/// Some panels of a matrix: `[out/16][inputs][16]`, or `[out/16][inputs/2][16]` pairs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Panels<'a> {
    /// The numbers.
    pub data: Elements<'a>,
    /// Columns of the matrix; an even number where they lie in pairs.
    pub inputs: usize,
}

/// A matrix's numbers as they are stored.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Elements<'a> {
    F32(&'a [f32]),
    Bf16(&'a [Bf16Pair]),
    F16(&'a [F16]),
    Quantised(Quantised<'a>),
}

/// What a kernel can read weights from: the numbers of one input, or of several in turn, for one output.
trait Element: Copy {
    /// How many inputs.
    const INPUTS: usize;
    /// One `T` for each of them.
    type Numbers<T: Copy>: Copy + AsRef<[T]> + IntoIterator<Item = T>;

    /// The same numbers as f32, exactly.
    fn widen(self) -> Self::Numbers<f32>;
    /// Those of a panel's 16 outputs in registers.
    fn load<S: Simd>(simd: S, lanes: &[Self; LANES]) -> Self::Numbers<S::Lanes>;
    /// Many panel rows as f32, `[inputs][16]`: themselves, or written to `buffer`, which is at least as long.
    #[inline(always)]
    fn widened<'a, S: Simd>(
        simd: S,
        panel: &'a [[Self; LANES]],
        buffer: &'a mut [[f32; LANES]],
    ) -> &'a [[f32; LANES]] {
        let wide = &mut buffer[..panel.len() * Self::INPUTS];
        for (lanes, wide) in panel.iter().zip(wide.chunks_exact_mut(Self::INPUTS)) {
            let numbers = Self::load(simd, lanes);
            for (numbers, wide) in numbers.as_ref().iter().zip(wide) {
                simd.store(*numbers, wide);
            }
        }
        wide
    }
}

impl Element for f32 {
    const INPUTS: usize = 1;
    type Numbers<T: Copy> = [T; 1];

    #[inline(always)]
    fn widen(self) -> [f32; 1] {
        [self]
    }

    #[inline(always)]
    fn load<S: Simd>(simd: S, lanes: &[f32; LANES]) -> [S::Lanes; 1] {
        [simd.load(lanes)]
    }

    #[inline(always)]
    fn widened<'a, S: Simd>(
        _: S,
        panel: &'a [[f32; LANES]],
        _: &'a mut [[f32; LANES]],
    ) -> &'a [[f32; LANES]] {
        panel
    }
}

impl<'a> Panels<'a> {
    /// How many panels.
    pub(crate) fn count(self) -> usize {
        match self.data {
            Elements::Quantised(data) => data.count(),
            _ => self.len() / (self.inputs * LANES),
        }
    }

    /// How many numbers, those of the rows that pad the last panel included.
    pub(crate) fn len(self) -> usize {
        match self.data {
            Elements::F32(data) => data.len(),
            Elements::Bf16(data) => 2 * data.len(),
            Elements::F16(data) => data.len(),
            Elements::Quantised(data) => data.count() * LANES * self.inputs,
        }
    }

    /// `count` panels from `first` on.
    pub(crate) fn slice(self, first: usize, count: usize) -> Panels<'a> {
        let panel = self.inputs * LANES;
        let range = first * panel..(first + count) * panel;
        let data = match self.data {
            Elements::F32(data) => Elements::F32(&data[range]),
            Elements::Bf16(data) => Elements::Bf16(&data[range.start / 2..range.end / 2]),
            Elements::F16(data) => Elements::F16(&data[range]),
            Elements::Quantised(data) => Elements::Quantised(data.slice(first, count)),
        };
        Panels { data, ..self }
    }

    /// Writes row `row` of the matrix into `column` of the activations `out`, `[inputs/16, rounded up][rows][16]`, and
    /// zero into the features past the last.
    pub(crate) fn copy_row(self, row: usize, out: &mut [f32], rows: usize, column: usize) {
        let lane = row % LANES;
        let mut copy = |row: &mut dyn Iterator<Item = f32>| {
            // What `out` held before may have been laid out for another number of rows: nothing of it may stay.
            let padding = std::iter::repeat_n(0.0, self.inputs.next_multiple_of(LANES) - self.inputs);
            for (i, value) in row.take(self.inputs).chain(padding).enumerate() {
                out[(i / LANES * rows + column) * LANES + i % LANES] = value;
            }
        };
        match self.slice(row / LANES, 1).data {
            Elements::F32(panel) => copy(&mut values(panel, lane)),
            Elements::Bf16(panel) => copy(&mut values(panel, lane)),
            Elements::F16(panel) => copy(&mut values(panel, lane)),
            Elements::Quantised(panel) => copy(&mut panel.row(lane)),
        }
    }
}

/// The numbers of one row of a panel.
fn values<E: Element>(panel: &[E], lane: usize) -> impl Iterator<Item = f32> {
    panel.as_chunks::<LANES>().0.iter().flat_map(move |lanes| lanes[lane].widen())
}
