//! The header of a `.safetensors` file: a length, then JSON that places every tensor in the bytes after it.

use std::path::Path;

use safetensors::tensor::Metadata;

use super::{MAX_TENSORS, SourceFile, Tensor, read_exact_at};
use crate::error::{Error, Result};
use crate::files::open_regular;
use crate::json::Count;

/// Longest header that is read. The format allows 100,000,000 bytes; the largest models there are have a tenth of this.
pub const MAX_HEADER_LEN: u64 = 64 << 20;
/// Most JSON values of a header: for each tensor there are about eight.
const MAX_VALUES: usize = 1 << 20;
/// Bytes of the length before the header.
const LEN_BYTES: u64 = 8;

/// Opens the file at `path`, which becomes file `index` of its checkpoint, and reads where its tensors lie.
///
/// `Metadata` checks that they follow one another from the first byte without gap or overlap, and that each has the
/// length of its shape and dtype; what is left to check is that the last one ends where the file does.
pub(super) fn open(path: &Path, index: usize) -> Result<(SourceFile, Vec<Tensor>)> {
    let file = open_regular(path)?;
    let len = file.metadata().map_err(Error::io(path))?.len();
    let wrong = |problem: String| Error::file(path, format!("not a safetensors file: {problem}"));
    if len < LEN_BYTES {
        return Err(wrong(format!("expected at least {LEN_BYTES} bytes, found {len}")));
    }
    let mut header_len = [0; LEN_BYTES as usize];
    read_exact_at(&file, &mut header_len, 0).map_err(Error::io(path))?;
    let header_len = u64::from_le_bytes(header_len);
    let most = MAX_HEADER_LEN.min(len - LEN_BYTES);
    if header_len > most {
        return Err(wrong(format!("header length: expected at most {most}, found {header_len}")));
    }
    let mut header = vec![0; header_len as usize];
    read_exact_at(&file, &mut header, LEN_BYTES).map_err(Error::io(path))?;
    check_size(&header).map_err(&wrong)?;
    let metadata: Metadata =
        serde_json::from_slice(&header).map_err(|error| wrong(format!("header: {error}")))?;
    let data_start = LEN_BYTES + header_len;
    let expected = data_start.checked_add(metadata.data_len() as u64);
    if expected != Some(len) {
        let expected = expected.map_or("a length below 2^64".to_owned(), |len| format!("{len} bytes"));
        return Err(wrong(format!("its header announces {expected}, found {len}")));
    }
    let tensors = metadata.tensors().into_iter().map(|(name, info)| {
        let (start, end) = info.data_offsets;
        let offset = data_start + start as u64;
        Tensor {
            name,
            file: index,
            dtype: info.dtype.into(),
            shape: info.shape.clone(),
            offset,
            len: (end - start) as u64,
        }
    });
    let tensors = tensors.collect();
    Ok((SourceFile { path: path.to_owned(), len, data_start, file }, tensors))
}

/// What is wrong with a header that would take hundreds of megabytes when parsed.
fn check_size(header: &[u8]) -> std::result::Result<(), String> {
    let Count { values, outermost } = Count::of(header);
    let entries = MAX_TENSORS + 1; // the metadata may be one
    let wrong = |what, most, found| Err(format!("header: expected at most {most} {what}, found {found}"));
    match (outermost > entries, values > MAX_VALUES) {
        (true, _) => wrong("entries", entries, outermost),
        (_, true) => wrong("JSON values", MAX_VALUES, values),
        _ => Ok(()),
    }
}
