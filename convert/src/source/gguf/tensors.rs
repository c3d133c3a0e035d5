//! The tensors of a GGUF file: names, dimensions, types, and where the bytes of each lie.

use super::cursor::Cursor;
use crate::error::{Error, Result};
use crate::source::{Dtype, MAX_TENSORS, Tensor};

/// Longest name that the format allows.
const MAX_NAME_LEN: u64 = 64;
/// Most dimensions that the format allows.
const MAX_DIMENSIONS: u32 = 4;

/// The types of the format that can be read, by their codes.
const TYPES: [(u32, Dtype); 16] = [
    (0, Dtype::F32),
    (1, Dtype::F16),
    (2, Dtype::Q4_0),
    (3, Dtype::Q4_1),
    (6, Dtype::Q5_0),
    (7, Dtype::Q5_1),
    (8, Dtype::Q8_0),
    (10, Dtype::Q2_K),
    (11, Dtype::Q3_K),
    (12, Dtype::Q4_K),
    (13, Dtype::Q5_K),
    (14, Dtype::Q6_K),
    (20, Dtype::IQ4_NL),
    (23, Dtype::IQ4_XS),
    (30, Dtype::BF16),
    (39, Dtype::MXFP4),
];
/// The names of those that cannot.
const UNSUPPORTED: [(u32, &str); 21] = [
    (4, "Q4_2"),
    (5, "Q4_3"),
    (9, "Q8_1"),
    (15, "Q8_K"),
    (16, "IQ2_XXS"),
    (17, "IQ2_XS"),
    (18, "IQ3_XXS"),
    (19, "IQ1_S"),
    (21, "IQ3_S"),
    (22, "IQ2_S"),
    (24, "I8"),
    (25, "I16"),
    (26, "I32"),
    (27, "I64"),
    (28, "F64"),
    (29, "IQ1_M"),
    (34, "TQ1_0"),
    (35, "TQ2_0"),
    (40, "NVFP4"),
    (41, "Q1_0"),
    (42, "Q2_0"),
];

/// Reads what describes `count` tensors of file `file`. Their offsets count from the end of the header, which is not known
/// yet.
pub(super) fn read(cursor: &mut Cursor, count: u64, file: usize) -> Result<Vec<Tensor>> {
    if count > MAX_TENSORS as u64 {
        return Err(cursor.wrong(format!("tensor count: expected at most {MAX_TENSORS}, found {count}")));
    }
    (0..count).map(|index| read_one(cursor, index, file)).collect()
}

fn read_one(cursor: &mut Cursor, index: u64, file: usize) -> Result<Tensor> {
    let name = cursor.string(MAX_NAME_LEN, &format!("name of tensor {index}"))?;
    if name.is_empty() {
        return Err(cursor.wrong(format!("name of tensor {index}: expected a name, found an empty one")));
    }
    let shape = read_shape(cursor, &name)?;
    let dtype = dtype(&name, cursor.u32(&name)?)?;
    let offset = cursor.u64(&name)?;
    let len = byte_len(&name, dtype, &shape)?;
    Ok(Tensor { name, file, dtype, shape, offset, len })
}

/// GGUF names the fastest dimension first, checkpoints name it last.
fn read_shape(cursor: &mut Cursor, name: &str) -> Result<Vec<usize>> {
    let dimensions = cursor.u32(name)?;
    if !(1..=MAX_DIMENSIONS).contains(&dimensions) {
        let problem = format!("expected 1 to {MAX_DIMENSIONS} dimensions, found {dimensions}");
        return Err(Error::tensor(name, problem));
    }
    let mut shape = Vec::new();
    for _ in 0..dimensions {
        let width = cursor.u64(name)?;
        let fits = usize::try_from(width).ok().filter(|&width| width > 0 && isize::try_from(width).is_ok());
        let wrong = || Error::tensor(name, format!("expected a dimension from 1 to 2^63 - 1, found {width}"));
        shape.push(fits.ok_or_else(wrong)?);
    }
    shape.reverse();
    Ok(shape)
}

fn dtype(name: &str, code: u32) -> Result<Dtype> {
    if let Some((_, dtype)) = TYPES.iter().find(|(known, _)| *known == code) {
        return Ok(*dtype);
    }
    let found = UNSUPPORTED.iter().find(|(known, _)| *known == code);
    let found = found.map_or_else(|| format!("the unknown type {code}"), |(_, name)| (*name).to_owned());
    let known: Vec<String> = TYPES.iter().map(|(_, dtype)| dtype.to_string()).collect();
    Err(Error::tensor(name, format!("type: expected one of {}, found {found}", known.join(", "))))
}

/// Bytes of a tensor whose rows are whole blocks.
fn byte_len(name: &str, dtype: Dtype, shape: &[usize]) -> Result<u64> {
    let row = shape.last().copied().unwrap_or(0);
    if !row.is_multiple_of(dtype.block_len()) {
        let problem = format!("expected rows of whole blocks of {}, found rows of {row}", dtype.block_len());
        return Err(Error::tensor(name, problem));
    }
    let count = shape.iter().try_fold(1u64, |count, &width| count.checked_mul(width as u64));
    let bytes =
        count.and_then(|count| (count / dtype.block_len() as u64).checked_mul(dtype.block_bytes() as u64));
    bytes.ok_or_else(|| Error::tensor(name, format!("expected fewer than 2^64 bytes, found shape {shape:?}")))
}

/// Makes offsets count from the start of the file, after checking that the tensors follow one another in order, each
/// on the next multiple of `alignment`, and end where the file does. So none overlap, and no byte is left over.
pub(super) fn place(
    cursor: &Cursor,
    tensors: &mut [Tensor],
    alignment: u64,
    data_start: u64,
    file_len: u64,
) -> Result<()> {
    let mut end = 0u64;
    for tensor in tensors {
        let expected = end.checked_next_multiple_of(alignment);
        if expected != Some(tensor.offset) {
            let expected = expected.map_or_else(|| "below 2^64".to_owned(), |offset| offset.to_string());
            let problem =
                format!("expected offset {expected}, after the tensor before, found {}", tensor.offset);
            return Err(Error::tensor(&tensor.name, problem));
        }
        end = tensor.offset.saturating_add(tensor.len);
        let in_file = data_start.checked_add(end).filter(|&end| end <= file_len);
        if in_file.is_none() {
            let (len, offset) = (tensor.len, tensor.offset);
            let problem = format!(
                "{len} bytes at offset {offset} go past the end of the file, {file_len} bytes: it is incomplete"
            );
            return Err(Error::tensor(&tensor.name, problem));
        }
        tensor.offset += data_start;
    }
    let left = file_len.saturating_sub(data_start.saturating_add(end));
    match left < alignment {
        true => Ok(()),
        false => {
            Err(cursor
                .wrong(format!("expected the file to end with its last tensor, found {left} bytes more")))
        }
    }
}
