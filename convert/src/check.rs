//! The first pass over the weights: hashes every file and refuses numbers that are not finite, or would not be as the
//! blob stores them, before a byte is written.

use half::{bf16, f16};
use sha2::{Digest, Sha256};
use smolrun::format;

use crate::error::{Error, Result};
use crate::progress::Progress;
use crate::source::{Dtype, Source, SourceFile, Tensor};

/// Bytes read at a time; a multiple of every element size.
const CHUNK_LEN: u64 = 8 << 20;

/// SHA-256 of each file of `source`, whose numbers are all finite, also when stored as `dtype`.
pub fn check(source: &Source, dtype: format::Dtype, progress: &Progress) -> Result<Vec<[u8; 32]>> {
    progress.start("checking", source.files.iter().map(|file| file.len).sum());
    let files = source.files.iter().enumerate();
    files.map(|(index, file)| check_file(file, &source.tensors_of(index), dtype, progress)).collect()
}

/// Tensors fill a file without gaps, so that reading them in order reads and hashes all of it.
fn check_file(
    file: &SourceFile,
    tensors: &[&Tensor],
    dtype: format::Dtype,
    progress: &Progress,
) -> Result<[u8; 32]> {
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; file.data_start as usize];
    file.read_at(&mut buffer, 0)?;
    hasher.update(&buffer);
    for tensor in tensors {
        let mut done = 0;
        while done < tensor.len {
            buffer.resize(CHUNK_LEN.min(tensor.len - done) as usize, 0);
            file.read_at(&mut buffer, tensor.offset + done)?;
            let find = || first_not_finite(tensor.dtype, dtype, &buffer);
            let (_, bad) = rayon::join(|| hasher.update(&buffer), find);
            if let Some((index, value)) = bad {
                return Err(not_finite(tensor, done, index, value));
            }
            done += buffer.len() as u64;
            progress.add(buffer.len() as u64);
        }
    }
    Ok(hasher.finalize().into())
}

/// The first NaN or infinity of `bytes` and its index. Only numbers of f32 can be too large for what they are stored as.
fn first_not_finite(from: Dtype, to: format::Dtype, bytes: &[u8]) -> Option<(usize, f32)> {
    match (from, to) {
        (Dtype::BF16, _) => find(bytes, |x| bf16::from_le_bytes(x).to_f32()),
        (Dtype::F16, _) => find(bytes, |x| f16::from_le_bytes(x).to_f32()),
        (Dtype::F32, format::Dtype::Bf16) => find(bytes, |x| bf16::from_f32(f32::from_le_bytes(x)).to_f32()),
        (Dtype::F32, _) => find(bytes, f32::from_le_bytes),
        _ => None, // a buffer that `tensor_map` ignores
    }
}

fn find<const N: usize>(bytes: &[u8], decode: impl Fn([u8; N]) -> f32) -> Option<(usize, f32)> {
    let (elements, _) = bytes.as_chunks::<N>();
    // Whole blocks without an exit inside are compiled to vector code; the search follows only in a bad one.
    let mut blocks = elements.chunks(1024).enumerate();
    let bad = |block: &[[u8; N]]| block.iter().fold(false, |bad, &x| bad | !decode(x).is_finite());
    let (index, block) = blocks.find(|(_, block)| bad(block))?;
    let inside = block.iter().position(|&x| !decode(x).is_finite())?;
    Some((index * 1024 + inside, decode(block[inside])))
}

/// Names the element by its index in every dimension.
fn not_finite(tensor: &Tensor, done: u64, index: usize, value: f32) -> Error {
    let size = tensor.dtype.bitsize() / 8;
    let mut rest = done as usize / size + index;
    let mut position = vec![0; tensor.shape.len()];
    for (slot, &width) in position.iter_mut().zip(&tensor.shape).rev() {
        *slot = rest % width;
        rest /= width;
    }
    Error::tensor(&tensor.name, format!("element {position:?}: expected a finite number, found {value}"))
}
