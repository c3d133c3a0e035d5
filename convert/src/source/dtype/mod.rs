//! How the numbers of a tensor are stored in its file.

mod dequantize;

use std::fmt;

use half::{bf16, f16};

/// How the numbers of a tensor are stored. The quantized ones are those of GGUF, under its names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(non_camel_case_types)]
pub enum Dtype {
    /// IEEE binary32.
    F32,
    /// IEEE binary16.
    F16,
    /// The upper half of a binary32.
    BF16,
    /// 4 bits, a scale for 32 numbers.
    Q4_0,
    /// 4 bits, a scale and a minimum for 32 numbers.
    Q4_1,
    /// 5 bits, a scale for 32 numbers.
    Q5_0,
    /// 5 bits, a scale and a minimum for 32 numbers.
    Q5_1,
    /// 8 bits, a scale for 32 numbers.
    Q8_0,
    /// 2 bits, scales and minima of 4 bits in blocks of 256.
    Q2_K,
    /// 3 bits, scales of 6 bits in blocks of 256.
    Q3_K,
    /// 4 bits, scales and minima of 6 bits in blocks of 256.
    Q4_K,
    /// 5 bits, scales and minima of 6 bits in blocks of 256.
    Q5_K,
    /// 6 bits, scales of 8 bits in blocks of 256.
    Q6_K,
    /// 4 bits that stand for uneven steps, a scale for 32 numbers.
    IQ4_NL,
    /// The same with scales of 6 bits in blocks of 256.
    IQ4_XS,
    /// Floats of 4 bits, a power of two for 32 numbers.
    MXFP4,
    /// What no weight may be, such as the integers of a SafeTensors file.
    Other(safetensors::Dtype),
}

impl Dtype {
    /// Numbers in a block, the least that can be read by itself: 1 where nothing is quantized.
    pub fn block_len(self) -> usize {
        match self {
            Dtype::Q4_0 | Dtype::Q4_1 | Dtype::Q5_0 | Dtype::Q5_1 | Dtype::Q8_0 => 32,
            Dtype::IQ4_NL | Dtype::MXFP4 => 32,
            Dtype::Q2_K | Dtype::Q3_K | Dtype::Q4_K | Dtype::Q5_K | Dtype::Q6_K | Dtype::IQ4_XS => 256,
            Dtype::F32 | Dtype::F16 | Dtype::BF16 | Dtype::Other(_) => 1,
        }
    }

    /// Bytes of a block; none for what has numbers smaller than a byte.
    pub fn block_bytes(self) -> usize {
        match self {
            Dtype::F32 => 4,
            Dtype::F16 | Dtype::BF16 => 2,
            Dtype::Q4_0 => 18,
            Dtype::Q4_1 => 20,
            Dtype::Q5_0 => 22,
            Dtype::Q5_1 => 24,
            Dtype::Q8_0 => 34,
            Dtype::Q2_K => 84,
            Dtype::Q3_K => 110,
            Dtype::Q4_K => 144,
            Dtype::Q5_K => 176,
            Dtype::Q6_K => 210,
            Dtype::IQ4_NL => 18,
            Dtype::IQ4_XS => 136,
            Dtype::MXFP4 => 17,
            Dtype::Other(dtype) => dtype.bitsize() / 8,
        }
    }

    /// Whether it holds numbers that can be a model's weights.
    pub fn is_weight(self) -> bool {
        !matches!(self, Dtype::Other(_))
    }

    /// The numbers of the blocks in `bytes` as f32: exactly for what is not quantized, and with the roundings of GGUF's
    /// own reference for what is. `values` has room for whole blocks.
    pub fn decode(self, bytes: &[u8], values: &mut [f32]) {
        match self {
            Dtype::F32 => blocks(bytes, values, |bytes, [value]| *value = f32::from_le_bytes(*bytes)),
            Dtype::F16 => {
                blocks(bytes, values, |bytes, [value]| *value = f16::from_le_bytes(*bytes).to_f32())
            }
            Dtype::BF16 => {
                blocks(bytes, values, |bytes, [value]| *value = bf16::from_le_bytes(*bytes).to_f32());
            }
            Dtype::Q4_0 => blocks(bytes, values, dequantize::q4_0),
            Dtype::Q4_1 => blocks(bytes, values, dequantize::q4_1),
            Dtype::Q5_0 => blocks(bytes, values, dequantize::q5_0),
            Dtype::Q5_1 => blocks(bytes, values, dequantize::q5_1),
            Dtype::Q8_0 => blocks(bytes, values, dequantize::q8_0),
            Dtype::Q2_K => blocks(bytes, values, dequantize::q2_k),
            Dtype::Q3_K => blocks(bytes, values, dequantize::q3_k),
            Dtype::Q4_K => blocks(bytes, values, dequantize::q4_k),
            Dtype::Q5_K => blocks(bytes, values, dequantize::q5_k),
            Dtype::Q6_K => blocks(bytes, values, dequantize::q6_k),
            Dtype::IQ4_NL => blocks(bytes, values, dequantize::iq4_nl),
            Dtype::IQ4_XS => blocks(bytes, values, dequantize::iq4_xs),
            Dtype::MXFP4 => blocks(bytes, values, dequantize::mxfp4),
            Dtype::Other(_) => {} // `tensor_map` takes none for a weight
        }
    }
}

impl From<safetensors::Dtype> for Dtype {
    fn from(dtype: safetensors::Dtype) -> Dtype {
        match dtype {
            safetensors::Dtype::F32 => Dtype::F32,
            safetensors::Dtype::F16 => Dtype::F16,
            safetensors::Dtype::BF16 => Dtype::BF16,
            other => Dtype::Other(other),
        }
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Dtype::Other(dtype) => dtype.fmt(f),
            other => write!(f, "{other:?}"),
        }
    }
}

/// Decodes block after block, each of `B` bytes and `N` numbers.
fn blocks<const B: usize, const N: usize>(
    bytes: &[u8],
    values: &mut [f32],
    decode: impl Fn(&[u8; B], &mut [f32; N]),
) {
    let (bytes, _) = bytes.as_chunks::<B>();
    let (values, _) = values.as_chunks_mut::<N>();
    bytes.iter().zip(values).for_each(|(bytes, values)| decode(bytes, values));
}
