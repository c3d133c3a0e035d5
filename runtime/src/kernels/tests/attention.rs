//! Attention's products over KV blocks.

use std::ops::Range;

use super::{Noise, assert_same_bits, at, sets};
use crate::kernels::panels::Element;
use crate::kernels::{F16, HeadBlock, HeadBlocks, Kernels, LANES, MixValues, ScoreKeys};

const POSITIONS: usize = 64;

/// KV blocks that lie apart. What is in them for others is no number.
struct Cache<E> {
    blocks: Vec<Vec<[E; LANES]>>,
    scales: Vec<Vec<f32>>,
    /// Where the head's numbers begin in a KV block.
    start: usize,
    head_dim: usize,
}

impl<E: Element> HeadBlocks for &Cache<E> {
    type Element = E;
    const POSITIONS: usize = POSITIONS;

    fn block(&self, index: usize) -> HeadBlock<'_, E> {
        let numbers = &self.blocks[index][self.start..][..POSITIONS / LANES * self.head_dim];
        HeadBlock { numbers, scales: self.scales.get(index).map_or(&[], |scales| scales) }
    }
}

impl<E: Element> Cache<E> {
    /// So many KV blocks of what `number` makes of numbers in [-1, 1).
    fn new(noise: &mut Noise, blocks: usize, head_dim: usize, number: impl Fn(f32) -> E) -> Cache<E> {
        let start = 3;
        let mut block = || {
            let mut block = vec![[number(f32::NAN); LANES]; start + POSITIONS / LANES * head_dim + 2];
            let numbers = &mut block[start..][..POSITIONS / LANES * head_dim];
            numbers.as_flattened_mut().iter_mut().for_each(|x| *x = number(noise.next()));
            block
        };
        Cache { blocks: (0..blocks).map(|_| block()).collect(), scales: Vec::new(), start, head_dim }
    }

    fn with_scales(mut self, noise: &mut Noise) -> Cache<E> {
        self.scales = self.blocks.iter().map(|_| noise.vec(POSITIONS)).collect();
        self
    }

    fn number(&self, block: usize, index: usize, lane: usize) -> f64 {
        self.blocks[block][self.start + index][lane].widen().as_ref()[0].into()
    }

    /// Of a key, times its scale.
    fn key(&self, position: usize, feature: usize) -> f64 {
        let (block, inside) = (position / POSITIONS, position % POSITIONS);
        let scale = self.scales.get(block).map_or(1.0, |scales| scales[inside]);
        self.number(block, inside / LANES * self.head_dim + feature, inside % LANES) * f64::from(scale)
    }

    fn value(&self, position: usize, feature: usize) -> f64 {
        let inside = position % POSITIONS;
        self.number(position / POSITIONS, feature / LANES * POSITIONS + inside, feature % LANES)
    }

    /// That scores are products of queries and keys, and have the same bits in every set.
    fn assert_scores(&self, noise: &mut Noise, panels: Range<usize>, rows: usize) {
        let head_dim = self.head_dim;
        let queries = noise.vec(head_dim * rows);
        let results = exact_sets().map(|set| {
            let mut scores = vec![f32::NAN; panels.len() * rows * LANES];
            let (panels, queries) = (panels.clone(), &queries);
            set.run(ScoreKeys { keys: self, panels, head_dim, queries, rows, scores: &mut scores });
            scores
        });
        let results: Vec<_> = results.collect();
        for (i, row) in (0..panels.len() * LANES).flat_map(|i| (0..rows).map(move |row| (i, row))) {
            let products = (0..head_dim).map(|feature| {
                f64::from(queries[at(feature, row, rows)]) * self.key(panels.start * LANES + i, feature)
            });
            assert_near(results[0][at(i, row, rows)], products);
        }
        assert_same_bits(&results);
    }

    /// That mixed values are products of probabilities and values, and have the same bits in every set.
    fn assert_mixed(&self, noise: &mut Noise, positions: Range<usize>, panels: Range<usize>, rows: usize) {
        let mut probabilities = noise.vec(positions.len().next_multiple_of(LANES) * rows);
        // Those past the last position are never read.
        for i in positions.len()..positions.len().next_multiple_of(LANES) {
            (0..rows).for_each(|row| probabilities[at(i, row, rows)] = f32::NAN);
        }
        let results = exact_sets().map(|set| {
            let mut mixed = vec![f32::NAN; panels.len() * rows * LANES];
            let (positions, probabilities, first) = (positions.clone(), &probabilities, panels.start);
            set.run(MixValues { values: self, positions, probabilities, rows, first, mixed: &mut mixed });
            mixed
        });
        let results: Vec<_> = results.collect();
        for (i, row) in (0..panels.len() * LANES).flat_map(|i| (0..rows).map(move |row| (i, row))) {
            let products = positions.clone().enumerate().map(|(place, position)| {
                f64::from(probabilities[at(place, row, rows)])
                    * self.value(position, panels.start * LANES + i)
            });
            assert_near(results[0][at(i, row, rows)], products);
        }
        assert_same_bits(&results);
    }
}

/// Those that give the same bits, of which the scalar set is one.
fn exact_sets() -> impl Iterator<Item = Kernels> {
    sets().into_iter().filter(|set| set.is_exact())
}

/// That a number is the sum up to a few roundings of its terms.
fn assert_near(found: f32, terms: impl Iterator<Item = f64>) {
    let (sum, size) = terms.fold((0.0, 1.0), |(sum, size), term| (sum + term, size + term.abs()));
    assert!((f64::from(found) - sum).abs() < 1e-6 * size, "{found}, not {sum}");
}

/// Around the rows whose sums stay in registers, and those of tiles.
const ROWS: [usize; 15] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 16, 24, 25, 48];

fn to_i8(x: f32) -> i8 {
    (x * 127.0) as i8
}

#[test]
fn scores_are_products_of_queries_and_keys() {
    let mut noise = Noise(31);
    for (blocks, head_dim) in [(1, 64), (3, 64), (2, 16), (2, 80), (2, 256)] {
        let exact = Cache::new(&mut noise, blocks, head_dim, |x| x);
        let halves = Cache::new(&mut noise, blocks, head_dim, F16::from_f32);
        let integers = Cache::new(&mut noise, blocks, head_dim, to_i8).with_scales(&mut noise);
        let all = 4 * blocks;
        for panels in [0..all, 0..1, 1..3, all - 3..all, all - 1..all] {
            for rows in ROWS {
                exact.assert_scores(&mut noise, panels.clone(), rows);
                halves.assert_scores(&mut noise, panels.clone(), rows);
                integers.assert_scores(&mut noise, panels.clone(), rows);
            }
        }
    }
}

#[test]
fn mixed_values_are_products_of_probabilities_and_values() {
    let mut noise = Noise(32);
    for (blocks, head_dim) in [(1, 64), (3, 64), (2, 16), (2, 80), (2, 112)] {
        let exact = Cache::new(&mut noise, blocks, head_dim, |x| x);
        let halves = Cache::new(&mut noise, blocks, head_dim, F16::from_f32);
        let integers = Cache::new(&mut noise, blocks, head_dim, to_i8);
        let (end, panels) = (POSITIONS * blocks, head_dim / LANES);
        for positions in [0..end, 0..1, 16..49, 48..end - 1, end - 16..end - 15] {
            for panels in [0..panels, panels / 2..panels] {
                for rows in ROWS {
                    exact.assert_mixed(&mut noise, positions.clone(), panels.clone(), rows);
                    halves.assert_mixed(&mut noise, positions.clone(), panels.clone(), rows);
                    integers.assert_mixed(&mut noise, positions.clone(), panels.clone(), rows);
                }
            }
        }
    }
}
