//! What the converter calibrates with.

use super::super::{Kernels, LANES};
use super::{Noise, at, sets};
use crate::kernels::Features;

fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|number| number.to_bits()).collect()
}

#[test]
fn few_columns_add_what_a_product_with_zeros_adds() {
    const INPUTS: usize = 32;
    let mut noise = Noise(41);
    for rows in [1, 2, 7, 8, 16, 33] {
        for columns in [&[][..], &[0], &[31], &[3, 4, 15, 16, 30]] {
            let mut w = [[0.0; LANES]; INPUTS];
            columns.iter().for_each(|&column| w[usize::from(column)] = noise.vec(LANES).try_into().unwrap());
            let (x, y) = (noise.vec(INPUTS * rows), noise.vec(LANES * rows));
            let mut expected = y.clone();
            Kernels::named("scalar").unwrap().add_product(w.as_flattened(), INPUTS, &x, rows, &mut expected);
            for kernels in sets().into_iter().filter(|kernels| kernels.is_exact()) {
                let mut found = y.clone();
                kernels.add_columns(&w, columns, x.as_chunks().0, found.as_chunks_mut().0);
                assert_eq!(bits(&found), bits(&expected), "{} {rows} {columns:?}", kernels.name());
            }
        }
    }
}

#[test]
fn rows_before_the_first_one_stay() {
    let mut noise = Noise(43);
    for (panels, inputs, rows, first_row) in
        [(1, 32, 40, 3), (2, 32, 40, 27), (4, 16, 13, 12), (3, 200, 64, 32), (5, 32, 2, 1), (4, 32, 24, 23)]
    {
        let padded = usize::next_multiple_of(inputs, LANES);
        let (w, x) = (noise.vec(panels * inputs * LANES), noise.vec(padded * rows));
        let y = noise.vec(panels * rows * LANES);
        let mut whole = y.clone();
        Kernels::named("scalar").unwrap().add_product(&w, inputs, &x, rows, &mut whole);
        let mut expected = y.clone();
        for (expected, whole) in expected.chunks_exact_mut(rows * LANES).zip(whole.chunks_exact(rows * LANES))
        {
            expected[first_row * LANES..].copy_from_slice(&whole[first_row * LANES..]);
        }
        for kernels in sets().into_iter().filter(|kernels| kernels.is_exact()) {
            let mut found = y.clone();
            kernels.add_product_from(&w, inputs, &x, rows, first_row, &mut found);
            assert_eq!(bits(&found), bits(&expected), "{} {panels} {rows} {first_row}", kernels.name());
        }
    }
}

/// The products of all `count` features, `[features/16][features][16]`.
fn products(kernels: Kernels, features: &Features, count: usize) -> Vec<f32> {
    let mut sums = vec![f32::NAN; count * count];
    kernels.products(features, features, &mut sums);
    sums
}

#[test]
fn features_have_the_products_of_their_numbers() {
    let mut noise = Noise(42);
    for (count, tokens) in [(16, 1), (48, 31), (32, 32), (96, 33), (16, 300)] {
        let mut activations = noise.vec(count * tokens);
        for token in 0..tokens {
            activations[at(3, token, tokens)] *= 1e6; // a large feature
            activations[at(5, token, tokens)] = 0.0;
            activations[at(7, token, tokens)] = activations[at(9, token, tokens)];
        }
        let scalar = Kernels::named("scalar").unwrap();
        let expected = products(scalar, &scalar.round_features(&activations, tokens), count);
        let number = |feature, token| f64::from(activations[at(feature, token, tokens)]);
        let product = |a, b| (0..tokens).map(|token| number(a, token) * number(b, token)).sum::<f64>();
        for a in 0..count {
            for b in 0..count {
                let found = f64::from(expected[at(a, b, count)]);
                let largest = (product(a, a) * product(b, b)).sqrt();
                assert!((found - product(a, b)).abs() <= 0.02 * largest, "{count} {tokens} {a} {b}: {found}");
            }
            assert_eq!(expected[at(a, 7, count)], expected[at(a, 9, count)], "{count} {tokens} {a}");
        }
        for kernels in sets() {
            let found = products(kernels, &kernels.round_features(&activations, tokens), count);
            assert!(
                !kernels.is_exact() || bits(&found) == bits(&expected),
                "{} {count} {tokens}",
                kernels.name()
            );
        }
    }
}

#[test]
fn what_is_not_finite_is_seen_in_the_products() {
    for kernels in sets() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut activations = vec![1.0; 16 * 40];
            activations[at(2, 35, 40)] = bad;
            let found = products(kernels, &kernels.round_features(&activations, 40), 16);
            for (a, b) in [(2, 2), (2, 3), (3, 2)] {
                assert!(found[at(a, b, 16)].is_nan(), "{} {bad}: {a} {b}", kernels.name());
            }
            assert!((found[at(3, 4, 16)] - 40.0).abs() < 0.5);
        }
    }
}
