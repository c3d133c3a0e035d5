//! Element types of sections.

/// How the elements of a section are stored. All are little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
#[non_exhaustive]
pub enum Dtype {
    /// Bytes: text, records, compiled tables.
    U8 = 1,
    /// Unsigned 32-bit integers: ids, offsets, flags.
    U32 = 2,
    /// IEEE 754 binary32.
    F32 = 3,
    /// bfloat16: the upper half of a binary32. In a matrix, those of two columns lie together.
    Bf16 = 4,
    /// Codes of 8 bits with scales, see "Quantized panels" in `format-spec.md`. Only matrices are quantized.
    Q8 = 5,
    /// Codes of 6 bits with scales.
    Q6 = 6,
    /// Codes of 5 bits with scales.
    Q5 = 7,
    /// Codes of 4 bits with scales and a table of values.
    Q4 = 8,
    /// Codes of 3 bits with scales and a table of values.
    Q3 = 9,
}

impl Dtype {
    /// Every type, in ascending order of its code.
    pub const ALL: &[Dtype] = {
        use Dtype::*;
        &[U8, U32, F32, Bf16, Q8, Q6, Q5, Q4, Q3]
    };

    /// The type with this code, if this version knows it.
    pub fn from_code(code: u32) -> Option<Dtype> {
        Self::ALL.iter().copied().find(|dtype| dtype.code() == code)
    }

    /// The code written in the directory.
    pub fn code(self) -> u32 {
        self as u32
    }

    /// The name used in messages and by `smolconv inspect`.
    pub fn name(self) -> &'static str {
        match self {
            Dtype::U8 => "u8",
            Dtype::U32 => "u32",
            Dtype::F32 => "f32",
            Dtype::Bf16 => "bf16",
            Dtype::Q8 => "q8",
            Dtype::Q6 => "q6",
            Dtype::Q5 => "q5",
            Dtype::Q4 => "q4",
            Dtype::Q3 => "q3",
        }
    }

    /// Bytes of one element; `None` where elements are codes of several bits.
    pub fn size(self) -> Option<u64> {
        match self {
            Dtype::U8 => Some(1),
            Dtype::Bf16 => Some(2),
            Dtype::U32 | Dtype::F32 => Some(4),
            Dtype::Q8 | Dtype::Q6 | Dtype::Q5 | Dtype::Q4 | Dtype::Q3 => None,
        }
    }

    /// Bits of one code; `None` where elements are numbers.
    pub fn code_bits(self) -> Option<u64> {
        match self {
            Dtype::Q8 => Some(8),
            Dtype::Q6 => Some(6),
            Dtype::Q5 => Some(5),
            Dtype::Q4 => Some(4),
            Dtype::Q3 => Some(3),
            Dtype::U8 | Dtype::U32 | Dtype::F32 | Dtype::Bf16 => None,
        }
    }

    /// Whether codes are places in a table of values.
    pub fn has_table(self) -> bool {
        matches!(self, Dtype::Q4 | Dtype::Q3)
    }
}
