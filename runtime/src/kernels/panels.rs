//! Matrices in panels of 16 outputs, as they are stored.

use super::LANES;
use super::half::{Bf16Pair, F16};
use super::quantized::Quantized;
use super::simd::Simd;

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
    I8(&'a [i8]),
    Quantized(Quantized<'a>),
}

/// What a kernel can read weights from: the numbers of one input, or of several in turn, for one output.
pub(crate) trait Element: Copy {
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
        Self::write(simd, panel, wide);
        wide
    }
    /// Writes panel rows as f32, `[inputs][16]`.
    #[inline(always)]
    fn write<S: Simd>(simd: S, panel: &[[Self; LANES]], to: &mut [[f32; LANES]]) {
        for (lanes, to) in panel.iter().zip(to.chunks_exact_mut(Self::INPUTS)) {
            let numbers = Self::load(simd, lanes);
            for (numbers, to) in numbers.as_ref().iter().zip(to) {
                simd.store(*numbers, to);
            }
        }
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

impl Element for Bf16Pair {
    const INPUTS: usize = 2;
    type Numbers<T: Copy> = [T; 2];

    #[inline(always)]
    fn widen(self) -> [f32; 2] {
        self.to_f32()
    }

    #[inline(always)]
    fn load<S: Simd>(simd: S, lanes: &[Bf16Pair; LANES]) -> [S::Lanes; 2] {
        simd.load_bf16(lanes)
    }
}

impl Element for F16 {
    const INPUTS: usize = 1;
    type Numbers<T: Copy> = [T; 1];

    #[inline(always)]
    fn widen(self) -> [f32; 1] {
        [self.to_f32()]
    }

    #[inline(always)]
    fn load<S: Simd>(simd: S, lanes: &[F16; LANES]) -> [S::Lanes; 1] {
        [simd.load_f16(lanes)]
    }
}

impl Element for i8 {
    const INPUTS: usize = 1;
    type Numbers<T: Copy> = [T; 1];

    #[inline(always)]
    fn widen(self) -> [f32; 1] {
        [f32::from(self)]
    }

    #[inline(always)]
    fn load<S: Simd>(simd: S, lanes: &[i8; LANES]) -> [S::Lanes; 1] {
        [simd.load_i8(lanes)]
    }
}

impl<'a> Panels<'a> {
    /// How many panels.
    pub(crate) fn count(self) -> usize {
        match self.data {
            Elements::Quantized(data) => data.count(),
            _ => self.len() / (self.inputs * LANES),
        }
    }

    /// How many numbers, those of the rows that pad the last panel included.
    pub(crate) fn len(self) -> usize {
        match self.data {
            Elements::F32(data) => data.len(),
            Elements::Bf16(data) => 2 * data.len(),
            Elements::F16(data) => data.len(),
            Elements::I8(data) => data.len(),
            Elements::Quantized(data) => data.count() * LANES * self.inputs,
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
            Elements::I8(data) => Elements::I8(&data[range]),
            Elements::Quantized(data) => Elements::Quantized(data.slice(first, count)),
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
            Elements::I8(panel) => copy(&mut values(panel, lane)),
            Elements::Quantized(panel) => copy(&mut panel.row(lane)),
        }
    }
}

/// The numbers of one row of a panel.
fn values<E: Element>(panel: &[E], lane: usize) -> impl Iterator<Item = f32> {
    panel.as_chunks::<LANES>().0.iter().flat_map(move |lanes| lanes[lane].widen())
}
