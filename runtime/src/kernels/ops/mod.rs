//! The operations, each defined once for all instruction sets: see [`super::simd::Op`].

mod attention;
pub(super) mod bf16;
mod columns;
mod features;
pub(super) mod integers;
pub(super) mod math;
mod matmul;
mod peak;
mod quantize;
mod values;
mod widen;

pub(crate) use self::attention::{HeadBlock, HeadBlocks, MixValues, ScoreKeys};
pub(crate) use self::bf16::{MatmulBf16, RoundToBf16};
pub(crate) use self::columns::AddColumns;
pub(crate) use self::features::RoundFeatures;
pub(crate) use self::integers::{MatmulQuantized, MatmulRounded, MatmulTiles};
pub(crate) use self::math::{Add, InverseRms, ScaleLanes, ScaleRows, SiluMul, Softmax};
pub(super) use self::matmul::Matmul;
pub(super) use self::peak::{MultiplyAdds, Read, STREAMS, SUMS};
pub(crate) use self::quantize::{QuantizeBlocks, QuantizeTiles};
pub(crate) use self::values::RoundValues;
pub(super) use self::widen::Widen;
