//! Products with quantized weights: against the document's formulas in f64, and every set bit for bit.

use std::array;

use super::{INPUTS, Kernels, LANES, Noise, OUTPUTS, ROWS, assert_same_bits, at, sets};
use crate::format::{BLOCK, Dtype, QuantizedPanels};
use crate::kernels::half::Bf16Pair;
use crate::kernels::panels::Element;
use crate::kernels::quantized::Encoding;
use crate::kernels::{
    ActivationBits, ActivationBlock, ActivationTile, Elements, FastUnit, MatmulQuantized, MatmulRounded,
    MatmulTiles, Panels, QuantizeBlocks, QuantizeTiles, Quantized, QuantizedTile, RoundToBf16, RoundValues,
    SplitTile, activation_blocks, quantized_tiles, tiles,
};

const BITS: [ActivationBits; 2] = [ActivationBits::Eight, ActivationBits::Twelve];
const DTYPES: [Dtype; 5] = [Dtype::Q8, Dtype::Q6, Dtype::Q5, Dtype::Q4, Dtype::Q3];

/// A section of noise, which is a valid one but for the row scales: these are numbers between 1/256 and 1/128.
fn section(noise: &mut Noise, dtype: Dtype, outputs: usize, inputs: usize) -> Vec<u8> {
    let lens = QuantizedPanels::new(dtype, inputs).unwrap();
    let panels = outputs.div_ceil(LANES);
    let len = lens.values_len + panels * lens.panel_len;
    let mut bytes: Vec<u8> = noise.vec(len).into_iter().map(|x| (x * 128.0).floor() as i8 as u8).collect();
    for panel in bytes[lens.values_len..].chunks_exact_mut(lens.panel_len) {
        for scale in panel[QuantizedPanels::ROW_SCALES].as_chunks_mut().0 {
            *scale = (0x3b80 | u16::from(scale[0] & 0x7f)).to_le_bytes();
        }
    }
    bytes
}

/// An element by the formulas of `format-spec.md`: row scale, block scale, value.
fn element(section: &[u8], dtype: Dtype, inputs: usize, row: usize, column: usize) -> [f64; 3] {
    let (bits, table) = match dtype {
        Dtype::Q8 => (8, 0),
        Dtype::Q6 => (6, 0),
        Dtype::Q5 => (5, 0),
        Dtype::Q4 => (4, 64),
        _ => (3, 64),
    };
    let blocks = inputs.div_ceil(32);
    let scales_len = (32 + 16 * blocks).next_multiple_of(64);
    let panel = &section[table + row / 16 * (scales_len + 64 * bits * blocks)..];
    let row_scale = u32::from(u16::from_le_bytes([panel[row % 16 * 2], panel[row % 16 * 2 + 1]]));
    let block_scale = panel[32 + column / 32 * 16 + row % 16];
    let codes = &panel[scales_len + column / 32 * 64 * bits..];
    let (group, place) = (column / 4 % 8, row % 16 * 4 + column % 4);
    let low = || i32::from(codes[group / 2 * 64 + place] >> (4 * (group % 2)) & 15);
    let value = match dtype {
        Dtype::Q8 => i32::from(codes[group * 64 + place] as i8),
        Dtype::Q6 => {
            low() + 16 * i32::from(codes[256 + group / 4 * 64 + place] >> (2 * (group % 4)) & 3) - 32
        }
        Dtype::Q5 => low() + 16 * i32::from(codes[256 + place] >> group & 1) - 16,
        Dtype::Q4 => i32::from(section[low() as usize] as i8),
        _ => {
            let low = codes[group / 4 * 64 + place] >> (2 * (group % 4)) & 3;
            i32::from(section[usize::from(low + 4 * (codes[128 + place] >> group & 1))] as i8)
        }
    };
    [f64::from(f32::from_bits(row_scale << 16)), f64::from(block_scale), f64::from(value)]
}

/// The activations of a block as the document rounds them, to so many bits, and what they are multiples of.
fn rounded(x: [f32; 32], bits: ActivationBits) -> ([f64; 32], f64) {
    let (largest, most) = (x.iter().fold(0f32, |largest, x| largest.max(x.abs())), most(bits));
    let factor = if largest < 2f32.powi(-100) { 0.0 } else { most / largest };
    (x.map(|x| f64::from((x * factor).round_ties_even())), f64::from(largest / most))
}

fn most(bits: ActivationBits) -> f32 {
    match bits {
        ActivationBits::Eight => 127.0,
        ActivationBits::Twelve => 2047.0,
    }
}

fn quantize(
    set: Kernels,
    x: &[f32],
    bits: ActivationBits,
    inputs: usize,
    rows: usize,
) -> Vec<ActivationBlock> {
    let mut blocks = vec![<ActivationBlock as bytemuck::Zeroable>::zeroed(); activation_blocks(inputs, rows)];
    // In two parts, as two threads do it.
    let (first, second) = blocks.split_at_mut(inputs.div_ceil(32) / 2 * rows);
    set.run(QuantizeBlocks { x, rows, first: 0, bits, blocks: first });
    set.run(QuantizeBlocks { x, rows, first: inputs.div_ceil(32) / 2, bits, blocks: second });
    blocks
}

/// The product by each of the set's ways: with blocks of activations, and with tiles of them, if it takes any of so many
/// bits.
fn products(
    set: Kernels,
    noise: &mut Noise,
    w: Quantized<'_>,
    x: &[f32],
    bits: ActivationBits,
    inputs: usize,
    rows: usize,
) -> Vec<Vec<f32>> {
    let outputs = w.count() * LANES;
    let mut products = vec![noise.vec(outputs * rows)];
    let blocks = quantize(set, x, bits, inputs, rows);
    set.run(MatmulQuantized { w, x: &blocks, bits, rows, y: &mut products[0] });
    if !set.multiplies_byte_tiles() {
        return products;
    }
    let mut product = |multiply: &dyn Fn(&mut [f32])| {
        let mut y = noise.vec(outputs * rows);
        multiply(&mut y);
        products.push(y);
    };
    match bits {
        ActivationBits::Twelve => {
            let (whole, split) = (quantize_tiles(set, x, inputs, rows), quantize_tiles(set, x, inputs, rows));
            product(&|y| set.matmul_tiles(MatmulTiles { w, x: &whole, rows, y }));
            product(&|y| set.matmul_split_tiles(MatmulTiles { w, x: &split, rows, y }));
        }
        ActivationBits::Eight if w.dtype == Dtype::Q8 => {
            let tiles = quantize_tiles(set, x, inputs, rows);
            product(&|y| set.matmul_byte_tiles(MatmulTiles { w, x: &tiles, rows, y }));
        }
        ActivationBits::Eight => {}
    }
    products
}

fn quantize_tiles<T: QuantizedTile>(set: Kernels, x: &[f32], inputs: usize, rows: usize) -> Vec<T> {
    let mut tiles = vec![T::zeroed(); quantized_tiles::<T>(inputs, rows)];
    // Rows that there are not stay as they were: NaN here, of which nothing may be seen.
    bytemuck::cast_slice_mut::<_, u8>(&mut tiles).fill(0xff);
    // In two parts, as two threads do it.
    let half = rows.div_ceil(T::ROWS) / 2;
    let (first, second) = tiles.split_at_mut(half * quantized_tiles::<T>(inputs, 1));
    set.run(QuantizeTiles { x, inputs, rows, first: 0, tiles: first });
    set.run(QuantizeTiles { x, inputs, rows, first: half, tiles: second });
    tiles
}

#[test]
fn products_are_those_of_the_document() {
    let mut noise = Noise(11);
    for (outputs, inputs) in OUTPUTS.into_iter().flat_map(|o| INPUTS.map(|i| (o, i))) {
        assert_products(&mut noise, outputs, inputs, &ROWS);
    }
}

/// Of more blocks than any set takes apart at a time.
#[test]
fn products_of_long_rows_are_those_of_the_document() {
    assert_products(&mut Noise(12), 33, 1700, &[2, 7, 8, 30, 67]);
}

/// All sets' products of all dtypes with so many rows.
fn assert_products(noise: &mut Noise, outputs: usize, inputs: usize, rows: &[usize]) {
    for dtype in DTYPES {
        let section = section(noise, dtype, outputs, inputs);
        let w = Quantized::new(&section, dtype, inputs).unwrap();
        for (&rows, bits) in rows.iter().flat_map(|rows| BITS.map(|bits| (rows, bits))) {
            let x = activations(noise, inputs, rows);
            let mut exact = Vec::new();
            for set in sets() {
                for y in products(set, noise, w, &x, bits, inputs, rows) {
                    assert_product(&section, dtype, bits, [outputs, inputs, rows], &x, &y);
                    if set.is_exact() {
                        exact.push(y);
                    }
                }
            }
            assert_same_bits(&exact);
        }
    }
}

/// Noise whose blocks differ in size, and zero for what pads the features.
fn activations(noise: &mut Noise, inputs: usize, rows: usize) -> Vec<f32> {
    let mut x = noise.vec(inputs.next_multiple_of(LANES) * rows);
    for (feature, row) in (0..inputs.next_multiple_of(LANES)).flat_map(|f| (0..rows).map(move |r| (f, r))) {
        let size = if feature < inputs { 10f32.powi((feature / 32 % 3) as i32) } else { 0.0 };
        x[at(feature, row, rows)] *= size;
    }
    x
}

fn assert_product(
    section: &[u8],
    dtype: Dtype,
    bits: ActivationBits,
    [outputs, inputs, rows]: [usize; 3],
    x: &[f32],
    y: &[f32],
) {
    // Some of many: each element costs a sum over all inputs.
    let some = (0..outputs).step_by(outputs.div_ceil(5)).flat_map(|out| (0..rows).map(move |row| (out, row)));
    for (out, row) in some.step_by(rows.div_ceil(3)) {
        let (mut expected, mut size) = (0.0, 1e-30);
        for block in 0..inputs.div_ceil(32) {
            let input =
                |i: usize| if 32 * block + i < inputs { x[at(32 * block + i, row, rows)] } else { 0.0 };
            let (numbers, unit) = rounded(array::from_fn(input), bits);
            for (i, number) in numbers.into_iter().enumerate() {
                let [row_scale, block_scale, value] = element(section, dtype, inputs, out, 32 * block + i);
                expected += row_scale * block_scale * value * number * unit;
                size += (row_scale * block_scale * value * number * unit).abs();
            }
        }
        let found = f64::from(y[at(out, row, rows)]);
        assert!(
            (found - expected).abs() < 1e-5 * size,
            "{dtype:?} [{outputs}, {inputs}] x {rows}, {bits:?} bits: {found}, not {expected}"
        );
    }
}

/// Weights and activations are moved by at most 2^-8 of themselves, and a sum of them in f32 is near the one in f64.
#[test]
fn products_rounded_to_bf16_are_near() {
    let mut noise = Noise(16);
    for set in sets() {
        let Some(FastUnit::Bf16(unit)) = set.fast_unit_for_quantized() else { continue };
        for (outputs, inputs) in OUTPUTS.into_iter().flat_map(|o| INPUTS.map(|i| (o, i))) {
            for (dtype, rows) in DTYPES.into_iter().flat_map(|d| [1, 16, 33, 48].map(|r| (d, r))) {
                let section = section(&mut noise, dtype, outputs, inputs);
                let w = Quantized::new(&section, dtype, inputs).unwrap();
                let x = activations(&mut noise, inputs, rows);
                let mut tiles = vec![[[Bf16Pair(!0); LANES]; LANES]; tiles(inputs, rows)];
                unit.round(RoundToBf16 { x: &x, inputs, rows, first: 0, tiles: &mut tiles });
                let mut y = noise.vec(w.count() * LANES * rows);
                set.matmul_rounded(MatmulRounded { w, x: &tiles, rows, y: &mut y });
                for (out, row) in (0..outputs).flat_map(|out| (0..rows).map(move |row| (out, row))).step_by(7)
                {
                    let (mut expected, mut size) = (0.0, 0.0);
                    for i in 0..inputs {
                        let product = element(&section, dtype, inputs, out, i).iter().product::<f64>()
                            * f64::from(x[at(i, row, rows)]);
                        expected += product;
                        size += product.abs();
                    }
                    let difference = (f64::from(y[at(out, row, rows)]) - expected).abs();
                    assert!(
                        difference <= size * 2f64.powi(-7) * 1.01,
                        "{dtype:?} [{outputs}, {inputs}] x {rows}"
                    );
                }
            }
        }
    }
}

#[test]
fn rows_are_read_as_the_document_says() {
    let mut noise = Noise(12);
    for (dtype, inputs) in DTYPES.into_iter().flat_map(|d| INPUTS.map(|i| (d, i))) {
        let section = section(&mut noise, dtype, 40, inputs);
        let w =
            Panels { data: Elements::Quantized(Quantized::new(&section, dtype, inputs).unwrap()), inputs };
        assert_eq!(w.len(), 48 * inputs);
        for (row, rows, column) in [(0, 1, 0), (17, 3, 2), (39, 2, 0)] {
            let mut out = vec![f32::NAN; inputs.next_multiple_of(LANES) * rows];
            w.copy_row(row, &mut out, rows, column);
            for feature in 0..inputs.next_multiple_of(LANES) {
                let [row_scale, block_scale, value] =
                    element(&section, dtype, inputs, row, feature.min(inputs - 1));
                let expected = if feature < inputs { row_scale * block_scale * value } else { 0.0 };
                assert_eq!(out[at(feature, column, rows)], expected as f32);
            }
        }
    }
}

#[test]
fn largest_codes_and_activations_overflow_nothing() {
    // All codes -128, all activations at either end.
    for (sign, dtype) in
        [1.0, -1.0].into_iter().flat_map(|s| [Dtype::Q8, Dtype::Q4, Dtype::Q3].map(|d| (s, d)))
    {
        let lens = QuantizedPanels::new(dtype, 64).unwrap();
        let mut section = vec![0; lens.values_len + lens.panel_len];
        section[..lens.values_len].fill(0x80);
        let (scales, codes) = section[lens.values_len..].split_at_mut(lens.scales_len);
        codes.fill(if dtype == Dtype::Q8 { 0x80 } else { 0x5a });
        scales.fill(255);
        scales[QuantizedPanels::ROW_SCALES].as_chunks_mut().0.fill(0x3f80u16.to_le_bytes()); // 1
        let w = Quantized::new(&section, dtype, 64).unwrap();
        for (rows, bits) in [1, 2].into_iter().flat_map(|rows| BITS.map(|bits| (rows, bits))) {
            for set in sets() {
                let expected = -128.0 * 255.0 * 64.0 * 3.0 * sign;
                for y in products(set, &mut Noise(14), w, &vec![sign * 3.0; 64 * rows], bits, 64, rows) {
                    assert!(y.iter().all(|y| (y / expected - 1.0).abs() < 1e-6), "{}: {y:?}", set.name());
                }
            }
        }
    }
}

#[test]
fn zero_tiny_and_broken_activations_are_rounded_alike() {
    let mut x = vec![[0.0f32; 32]; 6];
    x[1][5] = 1e-38;
    x[2].fill(f32::MAX);
    x[3][7] = f32::NAN;
    x[4][30] = f32::NEG_INFINITY;
    for (encoding, bits) in [Encoding::I16, Encoding::I8].into_iter().flat_map(|e| BITS.map(|b| (e, b))) {
        x[5] = array::from_fn(|i| (i as f32 - 15.5) / most(bits) * 31.0); // halves of steps, where ties go to even
        let mut blocks = [<ActivationBlock as bytemuck::Zeroable>::zeroed(); 6];
        QuantizeBlocks { x: x.as_flattened(), rows: 1, first: 0, bits, blocks: &mut blocks }.encode(encoding);
        let numbers = |i: usize| blocks[i].in_order(encoding).collect::<Vec<_>>();
        assert!(numbers(0) == [0; 32] && numbers(1) == [0; 32]);
        assert!(numbers(2) == [most(bits) as i16; 32] && blocks[2].scale.is_finite());
        assert!([3, 4].iter().all(|&i| numbers(i) == [0; 32] && blocks[i].scale.is_nan()));
        let (expected, unit) = rounded(x[5], bits);
        assert!(numbers(5).iter().zip(expected).all(|(found, expected)| f64::from(*found) == expected));
        assert_eq!(f64::from(blocks[5].scale) * f64::from(encoding.factor()), unit);
        let sum = |x: &ActivationBlock| x.in_order(encoding).map(i32::from).sum::<i32>();
        assert!(encoding == Encoding::I16 || blocks.iter().all(|x| -128 * sum(x) == x.correction));
        let upper = |x: &ActivationBlock| x.halves[..8] != [0; 8];
        assert_eq!(
            encoding == Encoding::I8 && blocks.iter().any(upper),
            (encoding, bits) == (Encoding::I8, ActivationBits::Twelve)
        );
    }
}

#[test]
fn tiles_hold_the_numbers_of_blocks() {
    let mut noise = Noise(15);
    let decode = |pair: Bf16Pair| pair.widen().map(|part| part as i16);
    for (inputs, rows) in INPUTS.into_iter().flat_map(|i| [1, 16, 21].map(|r| (i, r))) {
        let mut x = activations(&mut noise, inputs, rows);
        x[at(inputs - 1, rows - 1, rows)] = f32::NAN;
        let mut blocks =
            vec![<ActivationBlock as bytemuck::Zeroable>::zeroed(); activation_blocks(inputs, rows)];
        let bits = ActivationBits::Twelve;
        QuantizeBlocks { x: &x, rows, first: 0, bits, blocks: &mut blocks }.encode(Encoding::I8);
        let tiles: Vec<ActivationTile> = quantize_tiles(Kernels::detect(), &x, inputs, rows);
        let split: Vec<SplitTile> = quantize_tiles(Kernels::detect(), &x, inputs, rows);
        let of_row = quantized_tiles::<ActivationTile>(inputs, 1);
        for (block, row) in (0..of_row).flat_map(|b| (0..rows).map(move |r| (b, r))) {
            let (tile, expected) = (&tiles[row / LANES * of_row + block], &blocks[block * rows + row]);
            let [upper, lower] = tile.parts.map(|part| part[row % LANES].map(decode));
            // Of a pair, the second one is the input that lies 16 places on.
            let found = [0, 1].into_iter().flat_map(|i| (0..LANES).map(move |k| upper[k][i] + lower[k][i]));
            assert!(found.eq(expected.in_order(Encoding::I8)), "{upper:?} {lower:?}");
            assert!(upper.iter().flatten().all(|upper| upper % 128 == 0));
            assert_eq!(tile.scales[row % LANES].to_bits(), expected.scale.to_bits());

            // The same bytes as those of blocks.
            let (tile, row) = (&split[row / 8 * of_row + block], row % 8);
            let halves: [[i8; BLOCK]; 2] = bytemuck::cast(expected.halves);
            assert_eq!(tile.bytes[2 * row..][..2], halves);
            assert_eq!(tile.scales[row].to_bits(), expected.scale.to_bits());
        }
    }
}

#[test]
fn sets_round_as_plain_rust_does() {
    let mut noise = Noise(13);
    let sizes = INPUTS.into_iter().flat_map(|i| [1, 2, 5].map(|r| (i, r)));
    for ((inputs, rows), bits) in sizes.flat_map(|size| BITS.map(|bits| (size, bits))) {
        let x = activations(&mut noise, inputs, rows);
        let of = |set| quantize(set, &x, bits, inputs, rows);
        let plain = |encoding| {
            let mut blocks =
                vec![<ActivationBlock as bytemuck::Zeroable>::zeroed(); activation_blocks(inputs, rows)];
            QuantizeBlocks { x: &x, rows, first: 0, bits, blocks: &mut blocks }.encode(encoding);
            blocks
        };
        for set in sets() {
            let found = of(set);
            let same = |encoding| {
                bytemuck::cast_slice::<_, u8>(&plain(encoding)) == bytemuck::cast_slice::<_, u8>(&found)
            };
            assert!(same(Encoding::I16) || same(Encoding::I8), "{}", set.name());
        }
    }
}

#[test]
fn values_become_whole_numbers_with_a_scale_for_each_position() {
    const FEATURES: usize = 48;
    let mut noise = Noise(43);
    for positions in [1, 31, 32, 37, 100] {
        let layout = QuantizedPanels::new(Dtype::Q8, positions).unwrap();
        let mut values = noise.vec(FEATURES * positions);
        for feature in 0..FEATURES {
            values[at(feature, 0, positions)] *= 1e-3; // next to large ones
            values[at(feature, positions / 2, positions)] = 0.0;
            values[at(feature, positions - 1, positions)] *= 1e20;
        }
        let round = |set: Kernels| {
            let (mut panels, mut scales) =
                (vec![0xff; layout.panel_len * FEATURES / LANES], vec![f32::NAN; positions]);
            let (values, panels_of) = (&values, &mut panels);
            set.run(RoundValues { values, layout, panels: panels_of, scales: &mut scales });
            (panels, scales)
        };
        let (panels, scales) = round(Kernels::named("scalar").unwrap());
        let rounded = Quantized::new(&panels, Dtype::Q8, positions).unwrap();
        for feature in 0..FEATURES {
            let row: Vec<f32> = rounded.row(feature).collect();
            for (position, (number, scale)) in row.iter().zip(&scales).enumerate() {
                let error = (number * scale - values[at(feature, position, positions)]).abs();
                assert!(error <= scale * 0.500_01, "{positions} {feature} {position}: {number} {scale}");
            }
            assert!(row[positions..].iter().all(|&number| number == 0.0), "beyond the last");
        }
        for set in sets() {
            assert!(round(set) == (panels.clone(), scales.clone()), "{} {positions}", set.name());
        }
    }
}

#[test]
fn a_part_of_the_inputs_gives_the_product_of_what_lies_in_its_blocks() {
    let (mut noise, rows) = (Noise(44), 5);
    let layout = QuantizedPanels::new(Dtype::Q8, 96).unwrap();
    let mut panels = vec![0; 2 * layout.panel_len];
    let numbers = noise.vec(96 * 2 * LANES);
    Kernels::detect().round_panels(&numbers, layout, 96, &mut panels);
    let whole = Quantized::new(&panels, Dtype::Q8, 96).unwrap();
    for inputs in [1_usize, 32, 33, 64, 96] {
        let padded = inputs.next_multiple_of(32);
        let x = noise.vec(padded * rows);
        let zeros = vec![0.0; (96 - padded) * rows];
        let all_x = [&x[..], &zeros].concat();
        for set in sets() {
            let product = |w, x: &[f32], inputs| {
                products(set, &mut Noise(45), w, x, ActivationBits::Eight, inputs, rows)
            };
            let (part, all) = (product(whole.first_inputs(inputs), &x, padded), product(whole, &all_x, 96));
            assert_eq!(part, all, "{} {inputs}", set.name());
        }
    }
}
