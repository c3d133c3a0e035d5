//! What an instruction set must bring along, what an operation is, and how one is compiled for a set.

use std::hint::black_box;

use super::LANES;
use super::half::{Bf16Pair, F16};
use super::quantized::{ActivationBits, ActivationBlock, Encoding, GROUPS, Group};

/// An operation with its operands, defined once for all instruction sets.
///
/// All that [`Op::run`] calls must be inlined (`#[inline(always)]`): code is compiled for a set only where it ends up in the
/// set's [`entry`].
pub(crate) trait Op {
    /// Whether it computes with [`Integers`]. What does not is the same for sets that differ in these alone, and compiled for
    /// one of them.
    #[cfg_attr(target_family = "wasm", allow(dead_code))] // there is one set
    const INTEGERS: bool = false;

    /// Panics unless the operands go together.
    fn check(&self) {}

    fn run<S: Integers>(self, simd: S);
}

/// An operation in plain Rust, the same for every set, and compiled for each: see [`Kernels::compute`](super::Kernels::compute).
///
/// All that [`PlainOp::compute`] calls must be inlined, too.
#[doc(hidden)] // the converter's
pub trait PlainOp {
    /// Does it. It must be `#[inline(always)]`.
    fn compute(self);
}

impl<O: PlainOp> Op for O {
    #[inline(always)]
    fn run<S: Integers>(self, _: S) {
        self.compute();
    }
}

/// The items in turn. The compiler does not see where the next one lies: if it did, it would work on several of them side by
/// side, lane by lane.
#[doc(hidden)] // the converter's, too
#[inline(always)]
pub fn one_by_one<T>(items: &[T]) -> impl Iterator<Item = &T> {
    items.iter().map(black_box)
}

/// An operation that a set can run: each [`Op`], and what is defined for this set alone.
pub(crate) trait RunOn<S> {
    fn run_on(self, set: S);
}

impl<S: Integers, O: Op> RunOn<S> for O {
    #[inline(always)]
    fn run_on(self, set: S) {
        self.run(set);
    }
}

/// Bytes of a line of the caches.
pub(super) const LINE: usize = 64;

/// How near to a core memory is fetched.
#[derive(Clone, Copy)]
pub(super) enum Cache {
    First,
    Second,
}

/// Starts to fetch the line of memory that holds an address, which may be anyone's: it changes speed and nothing else.
#[inline(always)]
pub(super) fn prefetch<T>(address: *const T, cache: Cache) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch reads nothing that the program sees, and faults at no address; every x86-64 processor has it.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _MM_HINT_T1, _mm_prefetch};
        match cache {
            Cache::First => _mm_prefetch::<_MM_HINT_T0>(address.cast()),
            Cache::Second => _mm_prefetch::<_MM_HINT_T1>(address.cast()),
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (address, cache);
}

/// Starts to fetch all lines that hold some numbers.
pub(crate) fn fetch<T>(numbers: &[T]) {
    numbers.chunks(LINE / size_of::<T>()).for_each(|line| prefetch(line.as_ptr(), Cache::Second));
}

/// Numbers in memory that begin where a line of the caches does, so that no register is loaded from two lines.
#[repr(align(64))]
pub(super) struct Aligned<T>(pub T);

/// Fewest rows that ask for what comes next whatever it is, where a processor [outruns memory](Simd::outruns_memory): fewer ask
/// for codes, and two for bf16.
pub(super) const FEWEST_ROWS_TO_ASK: usize = 4;

/// What [`Simd::tiles_to_fetch`] is where nothing is foreseen.
pub(super) const FEWEST_TILES: usize = 5;

/// The operations on a panel's 16 lanes that the matrix product is made of.
///
/// A value of the type is the proof that this processor has the instructions: that makes the methods safe to call.
/// They must be inlined (`#[inline(always)]`) into a function that is compiled for the set, see [`entry`].
pub(crate) trait Simd: Copy {
    /// 16 f32 in registers.
    type Lanes: Copy;

    /// Rows whose sums the registers hold beside weights: 12 of two panels, or 6 or 2 of one. (A number, not an `enum`: rustc drops
    /// the other arms of a `match const { ... }` over numbers only.)
    const REGISTER_ROWS: usize;
    /// Whether many rows find weights of 16 bits widened in memory: where the units that widen are those that multiply.
    const WIDENS: bool;
    /// Most panels that one row reads side by side: several streams keep the memory busy.
    const STREAMS: usize;
    /// How many bytes ahead of what is multiplied memory is asked for, where processors foresee too little: less comes
    /// too late, more is thrown out before it is used.
    const READ_AHEAD: usize = 0;

    /// Whether it takes so many instructions to take codes or bf16 apart that even a processor which foresees asks for the next
    /// ones: codes wherever there are few rows, bf16 where these are two or more.
    const UNPACKS_SLOWLY: bool = false;

    /// Whether this processor multiplies so fast that a few rows wait for memory although it foresees. Then the same holds;
    /// [`FEWEST_ROWS_TO_ASK`] or more ask for what comes next whatever it is; all ask further ahead; and a few rows of floats read
    /// one panel after the other, not two side by side, as one long run of memory is foreseen better than two short ones. (The
    /// constant stays beside it: where AVX-VNNI asked a method instead, LLVM moved sums to the stack.)
    #[inline(always)]
    fn outruns_memory(self) -> bool {
        false
    }
    /// Whether this processor foresees by itself what few rows read: asking for memory is in its way then.
    #[inline(always)]
    fn foresees(self) -> bool {
        false
    }
    /// Panels that one row reads side by side on this processor: two are enough for a Zen 4, which foresees.
    #[inline(always)]
    fn streams(self) -> usize {
        if self.foresees() { Self::STREAMS.min(2) } else { Self::STREAMS }
    }
    /// Register tiles of rows from which on it takes longer to multiply weights, so many inputs at each place, than to wait for
    /// them: then the next ones are fetched meanwhile. With fewer tiles, that is in the way of what is waited for.
    #[inline(always)]
    fn tiles_to_fetch(self, _inputs: usize) -> usize {
        if self.foresees() { usize::MAX } else { FEWEST_TILES }
    }
    /// [`Simd::READ_AHEAD`] of this processor: one that outruns memory reads so many bytes before the next ones have come.
    #[inline(always)]
    fn bytes_ahead(self) -> usize {
        if self.outruns_memory() { 4 * Self::READ_AHEAD } else { Self::READ_AHEAD }
    }
    /// Starts to fetch what lies [`Simd::bytes_ahead`] behind `from`.
    #[inline(always)]
    fn read_ahead<T>(self, from: &T) {
        if Self::READ_AHEAD > 0 {
            prefetch(std::ptr::from_ref(from).wrapping_byte_add(self.bytes_ahead()), Cache::First);
        }
    }
    fn zero(self) -> Self::Lanes;
    fn load(self, from: &[f32; LANES]) -> Self::Lanes;
    /// Of the first input, and of the second.
    fn load_bf16(self, from: &[Bf16Pair; LANES]) -> [Self::Lanes; 2];
    fn load_f16(self, from: &[F16; LANES]) -> Self::Lanes;
    fn load_i8(self, from: &[i8; LANES]) -> Self::Lanes;
    fn store(self, lanes: Self::Lanes, to: &mut [f32; LANES]);
    fn mul(self, lanes: Self::Lanes, other: Self::Lanes) -> Self::Lanes;
    /// `sums + weights * x`, rounded once.
    fn fma(self, sums: Self::Lanes, weights: Self::Lanes, x: f32) -> Self::Lanes;
}

/// The operations that take a panel's codes apart.
pub(crate) trait Bytes: Simd {
    /// Parts that a panel's outputs are worked on in, one after the other, so that all of a part is in registers.
    const PARTS: usize;

    /// A part's share of 64 bytes: one for each of four inputs of an output.
    type Bytes: Copy;

    fn bytes(self, from: &Group, part: usize) -> Self::Bytes;
    fn and(self, bytes: Self::Bytes, mask: u8) -> Self::Bytes;
    fn or(self, bytes: Self::Bytes, other: Self::Bytes) -> Self::Bytes;
    /// Moves bits up, within bytes or beyond: what comes from a neighbour is in the lowest `n` bits.
    fn shift_left(self, bytes: Self::Bytes, n: u32) -> Self::Bytes;
    /// Moves bits down, within bytes or beyond: what comes from a neighbour is in the highest `n` bits.
    fn shift_right(self, bytes: Self::Bytes, n: u32) -> Self::Bytes;
    fn minus(self, bytes: Self::Bytes, n: u8) -> Self::Bytes;
    /// What the table has for each byte, all of which are below 16.
    fn look_up(self, values: &[u8; 16], bytes: Self::Bytes) -> Self::Bytes;
    fn bytes_as_floats(self, bytes: &[u8; LANES]) -> Self::Lanes;
}

/// How a set multiplies a panel's values with quantized activations: four inputs at a time, in two halves.
pub(crate) trait Integers: Bytes {
    /// How the activations of four inputs are given.
    const ENCODING: Encoding;
    /// Whether values are multiplied as unsigned bytes, 128 more than they are.
    const UNSIGNED: bool;
    /// Most panels that few rows read side by side, 1, 2 or 4: as many as have sums in registers.
    const PANELS: usize;
    /// Most rows that codes are taken apart for in registers, at a time: as many as have sums in these, too.
    const ROWS: usize;
    /// Where the units that take apart are those that multiply, codes are taken apart once for many rows, in memory: then this
    /// is the rows of a register tile, 2, 4 or 6, else 0.
    const STORED_ROWS: usize;
    /// The panels of such a tile of 6 rows, 1 or 2.
    const STORED_PANELS: usize;
    /// Whether registers hold the sums of such a tile over blocks, beside those within one.
    const KEEPS_SUMS: bool = false;
    /// Whether values in memory are multiplied for two rows and eight inputs at a time, by [`Integers::products_of_pairs`]: that
    /// is faster than to take codes apart again.
    const PAIRS: bool = false;

    /// The same set with the parts that suit one row.
    type OneRow: Integers<Lanes = Self::Lanes>;
    /// The same set with the products that suit many rows.
    type ManyRows: Integers<Lanes = Self::Lanes>;
    /// What a half multiplies, of a part's outputs.
    type Factors: Copy;
    /// That of both halves in memory, of a whole panel.
    type Stored: Copy;
    /// A sum of products for each of a part's outputs, or one for each half.
    type Sums: Copy;

    const NOTHING_STORED: Self::Stored;

    fn one_row(self) -> Self::OneRow;
    /// [`Integers::ManyRows`], if so many rows of such activations are multiplied, and encoded, by it on this processor.
    #[inline(always)]
    fn many_rows(self, _rows: usize, _bits: ActivationBits) -> Option<Self::ManyRows> {
        None
    }

    fn factors(self, values: Self::Bytes, half: usize) -> Self::Factors;
    /// Those of the `group`-th four inputs.
    fn load_factors(
        self,
        from: &[Self::Stored; GROUPS],
        group: usize,
        half: usize,
        part: usize,
    ) -> Self::Factors;
    fn store_factors(self, values: Self::Bytes, to: &mut Self::Stored, part: usize);
    /// Values of four inputs and of four more, in the order in which they are stored.
    #[inline(always)]
    fn in_memory(self, values: [Self::Bytes; 2]) -> [Self::Bytes; 2] {
        values
    }
    /// What a block's stored values come to with the halves from `H` on of `R` rows, in `steps` steps of eight inputs.
    #[inline(always)]
    fn products_of_pairs<const R: usize, const P: usize, const H: usize>(
        self,
        _values: &[[Self::Stored; GROUPS]; P],
        _x: &[ActivationBlock; R],
        _steps: usize,
    ) -> [[Self::Lanes; P]; R] {
        unreachable!("no other set multiplies pairs")
    }

    /// What sums with such activations begin with: zero, or less where values are more than they are.
    fn sums(self, x: &ActivationBlock) -> Self::Sums;
    /// `sums` and the products of a half.
    fn add_products(self, sums: Self::Sums, factors: Self::Factors, x: i32, half: usize) -> Self::Sums;
    /// `sums` of products of first halves, to add those of second halves to: where that makes one sum of two.
    #[inline(always)]
    fn second_half(self, sums: Self::Sums) -> Self::Sums {
        sums
    }
    /// Puts a part's sums where they belong. Exact for sums below 2^24 times a power of two.
    fn set_floats(self, floats: &mut Self::Lanes, part: usize, sums: Self::Sums);
}

/// Writes out a loop with a constant number of steps, at most so many, so that every index is a constant in the code that LLVM is
/// given. Arrays of sums then are registers. LLVM writes loops out, too, but after it has decided which arrays stay in memory.
/// (Steps past the last are not compiled.)
macro_rules! unrolled {
    ($i:ident < 2 => $step:block) => { $crate::kernels::simd::unrolled!(@ $i, 2, $step, 0 1) };
    ($i:ident < 4 => $step:block) => { $crate::kernels::simd::unrolled!(@ $i, 4, $step, 0 1 2 3) };
    ($i:ident < $count:tt of 2 => $step:block) => { $crate::kernels::simd::unrolled!(@ $i, $count, $step, 0 1) };
    ($i:ident < $count:tt of 4 => $step:block) => { $crate::kernels::simd::unrolled!(@ $i, $count, $step, 0 1 2 3) };
    ($i:ident < $count:tt of 8 => $step:block) => {
        $crate::kernels::simd::unrolled!(@ $i, $count, $step, 0 1 2 3 4 5 6 7)
    };
    ($i:ident < $count:tt of 16 => $step:block) => {
        $crate::kernels::simd::unrolled!(@ $i, $count, $step, 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15)
    };
    ($i:ident < $count:tt of 24 => $step:block) => {
        $crate::kernels::simd::unrolled!(@ $i, $count, $step, 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23)
    };
    (@ $i:ident, $count:tt, $step:block, $($index:literal)*) => {{
        $(if const { $index < $count } {
            let $i: usize = $index;
            $step
        })*
    }};
}

/// An operation as it is compiled for a set: a method of the operation's, by which rustc takes it for a part of the operation's
/// module. As a function of the set's, all operations of a set would be compiled one after the other.
pub(crate) trait Compiled<S> {
    /// # Safety
    /// This processor has the features of `set`.
    unsafe fn compiled(self, set: S);
}

/// The entry of one instruction set: a method of its proof value that runs an operation, compiled for the set's target
/// features. The only one, and the only `unsafe` call.
macro_rules! entry {
    ($set:ty, $features:literal) => {
        impl<O: $crate::kernels::simd::RunOn<$set>> $crate::kernels::simd::Compiled<$set> for O {
            #[target_feature(enable = $features)]
            unsafe fn compiled(self, set: $set) {
                self.run_on(set);
            }
        }

        impl $set {
            pub(in $crate::kernels) fn run<O: $crate::kernels::simd::RunOn<$set>>(self, op: O) {
                // SAFETY: `self` exists only if its `detect` found these features on this processor.
                unsafe { $crate::kernels::simd::Compiled::compiled(op, self) }
            }
        }
    };
}

pub(super) use {entry, unrolled};
