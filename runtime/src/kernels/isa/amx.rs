//! AMX-BF16 and AMX-INT8: a register is a tile of up to 16 rows of 64 bytes, and an instruction multiplies two of them.
//!
//! The intrinsics are not stable, so these are blocks of assembly. What they rely on from one to the next is the tile
//! configuration only: a thread's own, which the system keeps for it, and which nothing else in the process changes.

use std::arch::asm;
use std::arch::x86_64::__cpuid_count;
use std::marker::PhantomData;

use super::avx512_bf16::AfterTiles;
use crate::format::BLOCK;
use crate::kernels::LANES;
use crate::kernels::half::Bf16Pair;
use crate::kernels::ops::bf16::MatmulBf16;
use crate::kernels::quantized::{GROUPS, Group};
use crate::kernels::tiles::{TILE_ROWS, Tile, tiles_of_row};

/// The proof that this processor has both, as all with either do, and that the system lets this process use it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Amx(());

impl Amx {
    /// Only for processors with AVX-512: those have the CPUID leaves 7 and 0xD, and XGETBV.
    pub(in crate::kernels) fn detect() -> Option<Amx> {
        const UNITS: u32 = 1 << 22 | 1 << 24 | 1 << 25; // BF16, TILE, INT8
        const TILE_STATE: u32 = 1 << 17 | 1 << 18;
        let has_unit = __cpuid_count(7, 0).edx & UNITS == UNITS;
        (has_unit && xcr0() & TILE_STATE == TILE_STATE && is_permitted()).then_some(Amx(()))
    }

    /// Computes the products of all whole tiles of inputs, and returns what is left to do.
    pub(in crate::kernels) fn matmul(self, op: MatmulBf16<'_>) -> AfterTiles<'_> {
        let steps = op.pairs() / LANES;
        if steps > 0 {
            self.multiply_tiles(op.w.as_chunks().0, op.pairs(), op.x, op.rows, op.y.as_chunks_mut().0);
        }
        AfterTiles { op, done: steps }
    }

    fn multiply_tiles(
        self,
        w: &[[Bf16Pair; LANES]],
        pairs: usize,
        x: &[Tile],
        rows: usize,
        y: &mut [[f32; LANES]],
    ) {
        let (steps, row) = (pairs / LANES, tiles_of_row(2 * pairs));
        let registers = self.configure();
        let mut spare = [[[0.0; LANES]; TILE_ROWS]; 4];
        for (w, y) in w.chunks(2 * pairs).zip(y.chunks_mut(2 * rows)) {
            let panels = [&w[..pairs], &w[w.len() - pairs..]].map(|panel| &panel.as_chunks().0[..steps]);
            for (i, tiles) in x.chunks(2 * row).enumerate() {
                let x = [&tiles[..steps], &tiles[tiles.len() - row..][..steps]];
                registers.products(x, panels, tiles_of(y, rows, i), false, &mut spare);
            }
        }
    }

    /// Gives this thread's eight tile registers their shapes.
    pub(in crate::kernels) fn configure(self) -> Registers<WholeTiles> {
        self.configured([(TILE_ROWS, size_of::<[Bf16Pair; LANES]>()); 8])
    }

    /// The same for blocks of bytes, and for fewer rows of activations if there are not 16: such a row has 32 bytes, and a row of
    /// values has four for each output.
    pub(in crate::kernels) fn configure_for_blocks(self, rows: usize) -> Registers<HalfTiles> {
        let rows = rows.clamp(1, TILE_ROWS);
        let (sums, x, values) =
            ((rows, size_of::<[f32; LANES]>()), (rows, BLOCK), (GROUPS, size_of::<Group>()));
        self.configured([sums, sums, sums, sums, x, x, values, values])
    }

    /// Gives this thread's tile registers so many rows of so many bytes, at most 16 and 64.
    fn configured<T>(self, shapes: [(usize, usize); 8]) -> Registers<T> {
        /// What LDTILECFG reads.
        #[repr(C)]
        struct Config {
            palette: u8,
            start_row: u8,
            reserved: [u8; 14],
            bytes_of_row: [u16; 16],
            rows: [u8; 16],
        }
        let (mut bytes_of_row, mut rows) = ([0; 16], [0; 16]);
        for (register, shape) in shapes.into_iter().enumerate() {
            (rows[register], bytes_of_row[register]) = (shape.0 as u8, shape.1 as u16);
        }
        let config = Config { palette: 1, start_row: 0, reserved: [0; 14], bytes_of_row, rows };
        // SAFETY: `self` proves that the processor and the system allow the instruction, which reads the 64 bytes of
        // `config`, a valid one: palette 1 has eight registers of up to 16 rows of up to 64 bytes.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &config, options(nostack, preserves_flags)) };
        Registers(PhantomData)
    }
}

/// The `i`-th 32 rows of two panels, `[panels][rows][16]`, as `[rows of tiles][panels]`. An odd last panel or row of tiles comes
/// twice where they are multiplied: the copies have no place here.
#[inline(always)]
pub(in crate::kernels) fn tiles_of(
    y: &mut [[f32; LANES]],
    rows: usize,
    i: usize,
) -> [[&mut [[f32; LANES]]; 2]; 2] {
    let (first, second) = y.split_at_mut(rows);
    let [[a, c], [b, d]] = [first, second].map(|panel| {
        let rows = panel.get_mut(2 * i * TILE_ROWS..).unwrap_or_default();
        let (first, rest) = rows.split_at_mut(rows.len().min(TILE_ROWS));
        let len = rest.len().min(TILE_ROWS);
        [first, &mut rest[..len]]
    });
    [[a, b], [c, d]]
}

/// This thread's tile registers, which have the shapes of `T`: they must stay there.
pub(in crate::kernels) struct Registers<T>(PhantomData<*const T>);

/// All of them have 16 rows of 64 bytes.
pub(in crate::kernels) enum WholeTiles {}
/// Four of them have up to 16 rows of 64 bytes, the next two as many rows of 32, and the last two 8 rows of 64.
pub(in crate::kernels) enum HalfTiles {}

/// The sums of a tile of activations with a panel: `[16 rows][16 outputs]`.
pub(in crate::kernels) type Sums = [[f32; LANES]; TILE_ROWS];

impl Registers<WholeTiles> {
    /// Adds the products of two rows of tiles with two panels to `y`, or puts them there unless it `adds`: each a chain over the
    /// tiles of its row. `y`: at most 16 rows for each `[rows of tiles][panels]`; where there are fewer, their tile is in `spare`
    /// meanwhile.
    #[inline(always)]
    pub(in crate::kernels) fn products(
        &self,
        x: [&[Tile]; 2],
        panels: [&[Tile]; 2],
        y: [[&mut [[f32; LANES]]; 2]; 2],
        adds: bool,
        spare: &mut [Sums; 4],
    ) {
        let steps = x[0].len();
        assert!(steps > 0 && [x[1], panels[0], panels[1]].iter().all(|tiles| tiles.len() == steps));
        let [[y0, y1], [y2, y3]] = y;
        let [spare0, spare1, spare2, spare3] = spare;
        let sums = [whole(y0, spare0), whole(y1, spare1), whole(y2, spare2), whole(y3, spare3)];
        let row = size_of::<[Bf16Pair; LANES]>();
        // SAFETY: only `Amx::configure` makes these, which stay on their thread: the registers are tiles of 16
        // rows of 64 bytes. No compiled code uses them, so what is in them stays there from block to block. The first reads each
        // of `sums`, a tile of 1024 bytes, rows 64 bytes apart, and the last writes it. Each of `steps` iterations, one at least,
        // reads a tile where each of the four slices has its next.
        let sums = unsafe {
            if adds {
                asm!(
                    "tileloadd tmm0, [{} + {row}]",
                    "tileloadd tmm1, [{} + {row}]",
                    "tileloadd tmm2, [{} + {row}]",
                    "tileloadd tmm3, [{} + {row}]",
                    in(reg) sums[0].0.as_ptr(), in(reg) sums[1].0.as_ptr(), in(reg) sums[2].0.as_ptr(), in(reg) sums[3].0.as_ptr(),
                    row = in(reg) row,
                    out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                    options(nostack, preserves_flags, readonly),
                );
            } else {
                asm!(
                    "tilezero tmm0",
                    "tilezero tmm1",
                    "tilezero tmm2",
                    "tilezero tmm3",
                    out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                    options(nostack, preserves_flags, nomem),
                );
            }
            asm!(
                "2:",
                "tileloadd tmm4, [{x0} + {row}]",
                "tileloadd tmm5, [{x1} + {row}]",
                "tileloadd tmm6, [{panel0} + {row}]",
                "tileloadd tmm7, [{panel1} + {row}]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "add {x0}, 1024",
                "add {x1}, 1024",
                "add {panel0}, 1024",
                "add {panel1}, 1024",
                "dec {steps}",
                "jnz 2b",
                x0 = inout(reg) x[0].as_ptr() => _,
                x1 = inout(reg) x[1].as_ptr() => _,
                panel0 = inout(reg) panels[0].as_ptr() => _,
                panel1 = inout(reg) panels[1].as_ptr() => _,
                steps = inout(reg) steps => _,
                row = in(reg) row,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack, readonly),
            );
            let [a, b, c, d] = sums;
            asm!(
                "tilestored [{} + {row}], tmm0",
                "tilestored [{} + {row}], tmm1",
                "tilestored [{} + {row}], tmm2",
                "tilestored [{} + {row}], tmm3",
                in(reg) a.0.as_mut_ptr(), in(reg) b.0.as_mut_ptr(), in(reg) c.0.as_mut_ptr(), in(reg) d.0.as_mut_ptr(),
                row = in(reg) row,
                options(nostack, preserves_flags),
            );
            [a, b, c, d]
        };
        for (sums, rest) in sums {
            rest.copy_from_slice(&sums[..rest.len()]);
        }
    }

    /// Multiplies a block's values of a panel with 16 rows of rounded activations, the multiples of 128 and the rest, in
    /// one of two registers. All sums are whole numbers below 2^24, so they are exact in whatever order.
    #[inline(always)]
    pub(in crate::kernels) fn multiply(&self, which: usize, x: &[Tile; 2], values: &Tile) {
        macro_rules! multiply {
            ($a:tt) => {
                asm!(
                    concat!("tilezero ", $a),
                    "tileloadd tmm6, [{values} + {row}]",
                    "tileloadd tmm4, [{x} + {row}]",
                    concat!("tdpbf16ps ", $a, ", tmm4, tmm6"),
                    "tileloadd tmm5, [{x} + {row} + 1024]",
                    concat!("tdpbf16ps ", $a, ", tmm5, tmm6"),
                    x = in(reg) x.as_ptr(),
                    values = in(reg) values.as_ptr(),
                    row = in(reg) size_of::<[Bf16Pair; LANES]>(),
                    out($a) _, out("tmm4") _, out("tmm5") _, out("tmm6") _,
                    options(nostack, preserves_flags, readonly),
                )
            };
        }
        // SAFETY: as above. Two tiles of activations are read and one of values, 1024 bytes each, rows 64 bytes apart. No compiled
        // code uses these registers, so what is in them stays there for `store`.
        unsafe {
            match which {
                0 => multiply!("tmm0"),
                _ => multiply!("tmm1"),
            }
        }
    }
}

impl Registers<HalfTiles> {
    /// Multiplies a block's values of a panel with rows of activations, in one of two registers.
    #[inline(always)]
    pub(in crate::kernels) fn multiply(
        &self,
        which: usize,
        x: &[[i8; BLOCK]; TILE_ROWS],
        values: &[Group; GROUPS],
    ) {
        macro_rules! multiply {
            ($a:tt) => {
                asm!(
                    concat!("tilezero ", $a),
                    "tileloadd tmm6, [{values} + {group}]",
                    "tileloadd tmm4, [{x} + {row}]",
                    concat!("tdpbssd ", $a, ", tmm4, tmm6"),
                    x = in(reg) x.as_ptr(),
                    values = in(reg) values.as_ptr(),
                    row = in(reg) BLOCK,
                    group = in(reg) size_of::<Group>(),
                    out($a) _, out("tmm4") _, out("tmm6") _,
                    options(nostack, preserves_flags, readonly),
                )
            };
        }
        // SAFETY: only `Amx::configure_for_blocks` makes these, which stay on their thread. So the tiles that are read are at most
        // `x` and `values`, 512 bytes each, rows 32 and 64 bytes apart. No compiled code uses these registers, so what is in them
        // stays there for `store`.
        unsafe {
            match which {
                0 => multiply!("tmm0"),
                _ => multiply!("tmm1"),
            }
        }
    }
}

impl<T> Registers<T> {
    /// What [`Registers::multiply`] has made in its register.
    #[inline(always)]
    pub(in crate::kernels) fn store(&self, which: usize, sums: &mut Sums) {
        macro_rules! store {
            ($a:tt) => {
                asm!(
                    concat!("tilestored [{sums} + {row}], ", $a),
                    sums = in(reg) sums.as_mut_ptr(),
                    row = in(reg) size_of::<[f32; LANES]>(),
                    options(nostack, preserves_flags),
                )
            };
        }
        // SAFETY: the register has at most 16 rows of 64 bytes, whichever shapes there are; these are written to `sums`.
        unsafe {
            match which {
                0 => store!("tmm0"),
                _ => store!("tmm1"),
            }
        }
    }
}

/// A tile for some rows, at most 16, and those to copy back from it: it is these rows themselves, which leaves none, or where
/// there are fewer, `spare` with a copy of them.
#[inline(always)]
pub(in crate::kernels) fn whole<'a, const R: usize>(
    y: &'a mut [[f32; LANES]],
    spare: &'a mut [[f32; LANES]; R],
) -> (&'a mut [[f32; LANES]; R], &'a mut [[f32; LANES]]) {
    let (tiles, rest) = y.as_chunks_mut();
    match tiles.first_mut() {
        Some(tile) => (tile, rest),
        None => {
            spare[..rest.len()].copy_from_slice(rest);
            (spare, rest)
        }
    }
}

impl<T> Drop for Registers<T> {
    /// Lets the system forget the registers when it next switches threads.
    fn drop(&mut self) {
        // SAFETY: whoever holds a `Registers` had an `Amx`; nothing relies on what is in the registers.
        unsafe { asm!("tilerelease", options(nostack, preserves_flags)) };
    }
}

/// The register states that the system saves for its threads.
fn xcr0() -> u32 {
    let low;
    // SAFETY: a processor whose AVX-512 was detected has XGETBV, and its system enabled it.
    unsafe {
        asm!("xgetbv", in("ecx") 0, out("eax") low, out("edx") _, options(nomem, nostack, preserves_flags));
    }
    low
}

/// Asks Linux for the tile registers, which it gives to processes on demand (since 5.16; for good, and for all threads).
/// A processor that cannot be told to withhold them (XFD) lets every process use them.
fn is_permitted() -> bool {
    const XFD: u32 = 1 << 4;
    cfg!(target_os = "linux") && (__cpuid_count(0xd, 1).eax & XFD == 0 || request_permission())
}

fn request_permission() -> bool {
    const ARCH_PRCTL: i64 = 158;
    const ARCH_REQ_XCOMP_PERM: i64 = 0x1023;
    const TILE_DATA: i64 = 18;
    let result: i64;
    // SAFETY: a system call of Linux, which changes `rax`, `rcx` and `r11`; this one takes two numbers, no address.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") ARCH_PRCTL => result,
            in("rdi") ARCH_REQ_XCOMP_PERM,
            in("rsi") TILE_DATA,
            out("rcx") _,
            out("r11") _,
            options(nostack),
        );
    }
    result == 0
}
