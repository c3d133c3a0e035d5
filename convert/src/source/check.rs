//! The first pass over the weights: hashes every file and refuses numbers that are not finite, or would not be as the
//! blob stores them, before a byte is written.

use std::collections::HashSet;

use half::bf16;
use rayon::prelude::*;
use sha2::{Digest, Sha256};

use super::{Dtype, Source, SourceFile, Tensor};
use crate::error::{Error, Result};
use crate::progress::Progress;

/// Bytes read at a time, at most.
const CHUNK_LEN: u64 = 8 << 20;
/// Numbers looked at in one go: whole blocks of every dtype.
const BLOCK: usize = 1024;

/// SHA-256 of each file of `source`, whose numbers are all finite, those of tensors whose names are `in_bf16` also when
/// rounded to bf16.
pub fn check(source: &Source, in_bf16: &HashSet<&str>, progress: &Progress) -> Result<Vec<[u8; 32]>> {
    progress.start("checking", source.files.iter().map(|file| file.len).sum());
    let files = source.files.iter().enumerate();
    let check = |(index, file): (_, &SourceFile)| {
        check_file(file, &source.tensors_of(index), in_bf16, progress).map_err(Error::within(&file.path))
    };
    files.map(check).collect()
}

/// Reads all of a file, in order, so that its hash is made on the way.
fn check_file(
    file: &SourceFile,
    tensors: &[&Tensor],
    in_bf16: &HashSet<&str>,
    progress: &Progress,
) -> Result<[u8; 32]> {
    let mut pass = Pass { file, hasher: Sha256::new(), position: 0, buffer: Vec::new() };
    for tensor in tensors {
        pass.skip_to(tensor.offset)?;
        pass.check(tensor, in_bf16.contains(tensor.name.as_str()), progress)?;
    }
    pass.skip_to(file.len)?;
    Ok(pass.hasher.finalize().into())
}

/// One file on its way through the hash.
struct Pass<'a> {
    file: &'a SourceFile,
    hasher: Sha256,
    /// Bytes read.
    position: u64,
    buffer: Vec<u8>,
}

impl Pass<'_> {
    /// Hashes what lies before `offset` and is no tensor: the header, or padding.
    fn skip_to(&mut self, offset: u64) -> Result<()> {
        while self.position < offset {
            self.read(CHUNK_LEN.min(offset - self.position))?;
            self.hasher.update(&self.buffer);
        }
        Ok(())
    }

    /// Hashes `tensor`, which begins here, and looks at its numbers.
    fn check(&mut self, tensor: &Tensor, in_bf16: bool, progress: &Progress) -> Result<()> {
        let whole_blocks = CHUNK_LEN - CHUNK_LEN % tensor.dtype.block_bytes().max(1) as u64;
        let mut done = 0;
        while done < tensor.len {
            self.read(whole_blocks.min(tensor.len - done))?;
            let Pass { hasher, buffer, .. } = self;
            let find = || first_not_finite(tensor.dtype, in_bf16, buffer);
            let (_, bad) = rayon::join(|| hasher.update(&buffer), find);
            if let Some((index, value)) = bad {
                return Err(not_finite(tensor, done, index, value));
            }
            done += self.buffer.len() as u64;
            progress.add(self.buffer.len() as u64)?;
        }
        Ok(())
    }

    fn read(&mut self, len: u64) -> Result<()> {
        self.buffer.resize(len as usize, 0); // at most a chunk
        self.file.read_at(&mut self.buffer, self.position)?;
        self.position += len;
        Ok(())
    }
}

/// The first NaN or infinity of `bytes` and its index, also of those that only the rounding to bf16 makes infinite.
fn first_not_finite(from: Dtype, in_bf16: bool, bytes: &[u8]) -> Option<(usize, f32)> {
    if !from.is_weight() {
        return None; // a buffer that `tensor_map` ignores
    }
    match in_bf16 {
        true => find(from, bytes, |value| bf16::from_f32(value).to_f32()),
        false => find(from, bytes, |value| value),
    }
}

fn find(from: Dtype, bytes: &[u8], store: impl Fn(f32) -> f32 + Sync) -> Option<(usize, f32)> {
    let chunk_bytes = BLOCK / from.block_len() * from.block_bytes();
    let chunks = bytes.par_chunks(chunk_bytes).enumerate();
    chunks.find_map_first(|(chunk, bytes)| {
        let mut values = [0.0; BLOCK];
        let values = &mut values[..bytes.len() / from.block_bytes() * from.block_len()];
        from.decode(bytes, values);
        // Without an exit inside this is vector code; the search follows only in a bad chunk.
        values.iter_mut().for_each(|value| *value = store(*value));
        let bad = values.iter().fold(false, |bad, value| bad | !value.is_finite());
        let inside = bad.then(|| values.iter().position(|value| !value.is_finite())).flatten()?;
        Some((chunk * BLOCK + inside, values[inside]))
    })
}

/// Names the element by its index in every dimension.
fn not_finite(tensor: &Tensor, done: u64, index: usize, value: f32) -> Error {
    let blocks_done = done as usize / tensor.dtype.block_bytes();
    let mut rest = blocks_done * tensor.dtype.block_len() + index;
    let mut position = vec![0; tensor.shape.len()];
    for (slot, &width) in position.iter_mut().zip(&tensor.shape).rev() {
        *slot = rest % width;
        rest /= width;
    }
    Error::tensor(&tensor.name, format!("element {position:?}: expected a finite number, found {value}"))
}
