//! Symmetric matrices as the runtime's kernels multiply them.

use bytemuck::{cast_slice, cast_slice_mut, zeroed_vec};
use rayon::prelude::*;
use smolrun::Kernels;
use smolrun::format::{BLOCK, PANEL};

use super::super::lanes::{Lanes, lanes};

/// A symmetric matrix in strips of 16 columns, `[columns/16][rows][16]`.
#[derive(Debug)]
pub(super) struct Strips {
    /// What multiplies them.
    kernels: Kernels,
    rows: usize,
    numbers: Vec<Lanes>,
}

impl Strips {
    /// Of so many rows and columns, a multiple of 16.
    pub(super) fn new(kernels: Kernels, size: usize, at: impl Fn(usize, usize) -> f32 + Sync) -> Strips {
        /// Strips that are filled together, a few rows at a time: what `at` reads for one is in the cache for the next.
        const TOGETHER: usize = 8;
        let mut numbers: Vec<Lanes> = zeroed_vec(size / PANEL * size);
        numbers.par_chunks_mut(TOGETHER * size).enumerate().for_each(|(run, strips)| {
            for rows in (0..size).step_by(BLOCK) {
                for (strip, lines) in (run * TOGETHER..).zip(strips.chunks_exact_mut(size)) {
                    for (row, line) in (rows..).zip(lines[rows..].iter_mut().take(BLOCK)) {
                        *line = lanes(|column| at(row, strip * PANEL + column));
                    }
                }
            }
        });
        Strips { kernels, rows: size, numbers }
    }

    /// How many rows and columns.
    pub(super) fn size(&self) -> usize {
        self.rows
    }

    /// What multiplies it.
    pub(super) fn kernels(&self) -> Kernels {
        self.kernels
    }

    /// All rows of 16 columns.
    pub(super) fn strip(&self, strip: usize) -> &[Lanes] {
        &self.numbers[strip * self.rows..][..self.rows]
    }

    /// The columns of a block in its own rows.
    pub(super) fn diagonal_block(&self, block: usize) -> [[f32; BLOCK]; BLOCK] {
        let mut numbers = [[0.0; BLOCK]; BLOCK];
        for part in 0..BLOCK / PANEL {
            let lines = &self.strip(block * BLOCK / PANEL + part)[block * BLOCK..];
            for (row, line) in numbers.iter_mut().zip(lines) {
                row[part * PANEL..][..PANEL].copy_from_slice(&**line);
            }
        }
        numbers
    }

    /// `to[k] += sum over the columns j of block of from[j] * strips[k][j]`, for the rows k from `first` on; fused, in the
    /// order of j. So for each of some `from`, and as many `to`, of all rows each.
    pub(super) fn add_products(&self, block: usize, from: &[[Lanes; BLOCK]], first: usize, to: &mut [Lanes]) {
        let (from, strips) = (cast_slice(from), cast_slice(self.block(block)));
        self.kernels.add_product_from(from, BLOCK, strips, self.rows, first, cast_slice_mut(to));
    }

    /// The same for one `from`, of which most is zero, and all rows.
    pub(super) fn add_few(&self, block: usize, from: &[Lanes; BLOCK], to: &mut [Lanes]) {
        let (mut columns, mut count) = ([0; BLOCK], 0);
        for (column, lanes) in (0..).zip(from) {
            if lanes.iter().any(|&lane| lane != 0.0) {
                columns[count] = column;
                count += 1;
            }
        }
        let strips = cast_slice(self.block(block));
        self.kernels.add_columns(cast_slice(from), &columns[..count], strips, cast_slice_mut(to));
    }

    /// All rows of a block's columns.
    fn block(&self, block: usize) -> &[Lanes] {
        &self.numbers[block * BLOCK / PANEL * self.rows..][..BLOCK / PANEL * self.rows]
    }
}
