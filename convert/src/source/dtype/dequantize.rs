//! GGUF's quantized blocks as f32, with the roundings of its reference: each product and each sum is rounded once, in
//! the order in which `gguf-py` does them. `tests/gguf.rs` compares every bit.

use half::f16;

/// Reads a little-endian binary16.
fn half(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

/// Number `index` of 32 in 16 bytes: the low halves of the bytes come first, then the high ones.
fn nibble(bytes: &[u8], index: usize) -> u8 {
    if index < 16 { bytes[index] & 15 } else { bytes[index - 16] >> 4 }
}

/// Bit `index` of 32, moved to where the fifth bit of a number is.
fn fifth_bit(bytes: &[u8], index: usize) -> u8 {
    (bytes[index / 8] >> (index % 8) & 1) << 4
}

pub(crate) fn q4_0(block: &[u8; 18], values: &mut [f32; 32]) {
    let scale = half(block, 0);
    for (index, value) in values.iter_mut().enumerate() {
        *value = scale * (f32::from(nibble(&block[2..], index)) - 8.0);
    }
}

pub(crate) fn q4_1(block: &[u8; 20], values: &mut [f32; 32]) {
    let (scale, minimum) = (half(block, 0), half(block, 2));
    for (index, value) in values.iter_mut().enumerate() {
        *value = scale * f32::from(nibble(&block[4..], index)) + minimum;
    }
}

pub(crate) fn q5_0(block: &[u8; 22], values: &mut [f32; 32]) {
    let scale = half(block, 0);
    for (index, value) in values.iter_mut().enumerate() {
        let number = nibble(&block[6..], index) | fifth_bit(&block[2..], index);
        *value = scale * (f32::from(number) - 16.0);
    }
}

pub(crate) fn q5_1(block: &[u8; 24], values: &mut [f32; 32]) {
    let (scale, minimum) = (half(block, 0), half(block, 2));
    for (index, value) in values.iter_mut().enumerate() {
        let number = nibble(&block[8..], index) | fifth_bit(&block[4..], index);
        *value = scale * f32::from(number) + minimum;
    }
}

pub(crate) fn q8_0(block: &[u8; 34], values: &mut [f32; 32]) {
    let scale = half(block, 0);
    for (value, &byte) in values.iter_mut().zip(&block[2..]) {
        *value = f32::from(byte.cast_signed()) * scale;
    }
}

/// Scale and minimum of run `run` of 8: six bits each, in twelve bytes. Of the first four runs they are the low bits of
/// a byte; of the others the low four bits lie in the last four bytes, and the upper two on top of the first eight.
fn scale_and_minimum(packed: &[u8], run: usize) -> (f32, f32) {
    let (scale, minimum) = match run {
        0..4 => (packed[run] & 63, packed[run + 4] & 63),
        _ => {
            let (low, high) = (packed[run + 4], |at: usize| packed[at] >> 6 << 4);
            (low & 15 | high(run - 4), low >> 4 | high(run))
        }
    };
    (f32::from(scale), f32::from(minimum))
}

pub(crate) fn q4_k(block: &[u8; 144], values: &mut [f32; 256]) {
    let (packed, nibbles) = block[4..].split_at(12);
    k_runs(block, packed, values, |run, index| pair_nibble(nibbles, run, index));
}

pub(crate) fn q5_k(block: &[u8; 176], values: &mut [f32; 256]) {
    let (packed, rest) = block[4..].split_at(12);
    let (high, nibbles) = rest.split_at(32);
    k_runs(block, packed, values, |run, index| {
        pair_nibble(nibbles, run, index) | (high[index] >> run & 1) << 4
    });
}

/// Number `index` of run `run`: two runs of 32 share 32 bytes, the first one the low halves.
fn pair_nibble(nibbles: &[u8], run: usize, index: usize) -> u8 {
    let byte = nibbles[run / 2 * 32 + index];
    if run.is_multiple_of(2) { byte & 15 } else { byte >> 4 }
}

/// Eight runs of 32 numbers, each with a scale and a minimum of its own, which the block's two are multiplied with.
fn k_runs(block: &[u8], packed: &[u8], values: &mut [f32; 256], number: impl Fn(usize, usize) -> u8) {
    let (block_scale, block_minimum) = (half(block, 0), half(block, 2));
    for (run, values) in values.chunks_exact_mut(32).enumerate() {
        let (scale, minimum) = scale_and_minimum(packed, run);
        let (scale, minimum) = (block_scale * scale, block_minimum * minimum);
        for (index, value) in values.iter_mut().enumerate() {
            *value = scale * f32::from(number(run, index)) - minimum;
        }
    }
}

/// Two halves of 128 numbers: of each, four runs of 32 share 64 bytes of low bits and 32 bytes of high ones. Every 16
/// numbers have a scale.
pub(crate) fn q6_k(block: &[u8; 210], values: &mut [f32; 256]) {
    let (low, rest) = block.split_at(128);
    let (high, scales) = rest.split_at(64);
    let block_scale = half(block, 208);
    for (position, value) in values.iter_mut().enumerate() {
        let (part, run, index) = (position / 128, position / 32 % 4, position % 32);
        let low = low[part * 64 + run % 2 * 32 + index] >> (run / 2 * 4) & 15;
        let high = high[part * 32 + index] >> (run * 2) & 3;
        let scale = block_scale * f32::from(scales[position / 16].cast_signed());
        *value = scale * (f32::from(low | high << 4) - 32.0);
    }
}

/// Two bits of each of 256 numbers: two halves of 128, and of each, four runs of 32 that share 32 bytes.
fn low_bits(packed: &[u8], position: usize) -> u8 {
    packed[position / 128 * 32 + position % 32] >> (position / 32 % 4 * 2) & 3
}

/// Every 16 numbers have a scale and a minimum, each of four bits, which the block's two are multiplied with.
pub(crate) fn q2_k(block: &[u8; 84], values: &mut [f32; 256]) {
    let (scales, low) = (&block[..16], &block[16..80]);
    let (block_scale, block_minimum) = (half(block, 80), half(block, 82));
    for (position, value) in values.iter_mut().enumerate() {
        let packed = scales[position / 16];
        let (scale, minimum) = (block_scale * f32::from(packed & 15), block_minimum * f32::from(packed >> 4));
        *value = scale * f32::from(low_bits(low, position)) - minimum;
    }
}

/// Every 16 numbers have a scale of six bits. The third bit of a number takes four off it where it is clear.
pub(crate) fn q3_k(block: &[u8; 110], values: &mut [f32; 256]) {
    let (high, low, scales) = (&block[..32], &block[32..96], &block[96..108]);
    let block_scale = half(block, 108);
    for (position, value) in values.iter_mut().enumerate() {
        let scale = block_scale * (f32::from(scale_of_16(scales, position / 16)) - 32.0);
        let offset = if high[position % 32] >> (position / 32) & 1 == 1 { 0.0 } else { 4.0 };
        *value = scale * (f32::from(low_bits(low, position)) - offset);
    }
}

/// Scale `index` of sixteen in twelve bytes: the low four bits lie in the halves of the first eight, the upper two in
/// the quarters of the others.
fn scale_of_16(packed: &[u8], index: usize) -> u8 {
    let low = packed[index % 8] >> (index / 8 * 4) & 15;
    let high = packed[8 + index % 4] >> (index / 4 * 2) & 3;
    low | high << 4
}

/// What the codes of IQ4_NL and IQ4_XS stand for: closer to one another around zero.
const UNEVEN: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

pub(crate) fn iq4_nl(block: &[u8; 18], values: &mut [f32; 32]) {
    looked_up(half(block, 0), &UNEVEN, &block[2..], values);
}

/// Eight runs of 32 numbers, each with a scale of six bits, of which the upper two lie by themselves.
pub(crate) fn iq4_xs(block: &[u8; 136], values: &mut [f32; 256]) {
    let high = u16::from_le_bytes([block[2], block[3]]);
    let (low, codes) = (&block[4..8], &block[8..]);
    let (codes, _) = codes.as_chunks::<16>();
    let (runs, _) = values.as_chunks_mut::<32>();
    for (run, (codes, values)) in codes.iter().zip(runs).enumerate() {
        let scale = low[run / 2] >> (run % 2 * 4) & 15 | ((high >> (run * 2) & 3) as u8) << 4;
        looked_up(half(block, 0) * (f32::from(scale) - 32.0), &UNEVEN, codes, values);
    }
}

/// Twice what the codes of MXFP4 stand for: a sign, two bits of exponent and one of mantissa. GGUF has no negative zero.
const TWICE_E2M1: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

pub(crate) fn mxfp4(block: &[u8; 17], values: &mut [f32; 32]) {
    looked_up(half_power(block[0]), &TWICE_E2M1, &block[1..], values);
}

/// Half of two to the power of `exponent` - 127; of the two smallest, as numbers that are not normal.
fn half_power(exponent: u8) -> f32 {
    f32::from_bits(match exponent {
        0 | 1 => 0x0020_0000 << exponent,
        _ => u32::from(exponent - 1) << 23,
    })
}

/// 32 numbers of a table, at the codes in 16 bytes.
fn looked_up(scale: f32, table: &[i8; 16], codes: &[u8], values: &mut [f32; 32]) {
    for (index, value) in values.iter_mut().enumerate() {
        *value = scale * f32::from(table[usize::from(nibble(codes, index))]);
    }
}
