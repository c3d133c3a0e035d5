//! Element types of sections.

/// How the elements of a section are stored. All are little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Dtype {
    /// Bytes: text, records, compiled tables.
    U8 = 1,
    /// Unsigned 32-bit integers: ids, offsets, flags.
    U32 = 2,
    /// IEEE 754 binary32.
    F32 = 3,
    /// bfloat16: the upper half of a binary32. In a matrix, those of two columns lie together.
    Bf16 = 4,
}

impl Dtype {
    /// The type with this code, if this version knows it.
    pub fn from_code(code: u32) -> Option<Dtype> {
        [Dtype::U8, Dtype::U32, Dtype::F32, Dtype::Bf16].into_iter().find(|dtype| dtype.code() == code)
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
        }
    }

    /// Bytes of one element.
    pub fn size(self) -> u64 {
        match self {
            Dtype::U8 => 1,
            Dtype::Bf16 => 2,
            Dtype::U32 | Dtype::F32 => 4,
        }
    }
}
