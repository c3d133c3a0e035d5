//! The directory: one 96-byte entry per section.

use std::ops::Range;

use bytemuck::{Pod, Zeroable};

use super::dtype::Dtype;
use super::error::{FormatError, Place};
use super::layout::{ENTRY_LEN, FLAG_REQUIRED, HEADER_LEN, Kind, NO_LAYER};

/// A directory entry as it lies in the file, all fields little-endian.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct Entry {
    /// [`Kind`] code.
    pub kind: u32,
    /// Layer from 0, or [`NO_LAYER`].
    pub layer: u32,
    /// [`Dtype`] code.
    pub dtype: u32,
    /// [`FLAG_REQUIRED`] or 0.
    pub flags: u32,
    /// Elements: `[out, in]` for a matrix, `[n, 1]` for a table with one column.
    pub shape: [u64; 2],
    /// Where the section starts, from the start of the file.
    pub offset: u64,
    /// Bytes of the section, without the padding after it.
    pub length: u64,
    /// Zero.
    pub reserved: [u8; 16],
    /// SHA-256 of the section's bytes.
    pub sha256: [u8; 32],
}

const _: () = assert!(size_of::<Entry>() == ENTRY_LEN);

/// A section whose entry was checked: known kind, fitting dtype, and bytes inside the file.
#[derive(Clone, Debug)]
pub struct Section {
    /// Index in the directory.
    pub index: u32,
    /// What it holds; `None` for an optional section of a newer minor version, which is skipped.
    pub kind: Option<Kind>,
    /// The type of its elements, if its kind is known.
    pub dtype: Option<Dtype>,
    /// The entry itself.
    pub entry: Entry,
    /// Where its bytes lie in the file.
    pub range: Range<usize>,
}

impl Section {
    /// Where this section is, for messages.
    pub fn place(&self) -> Place {
        self.entry.place(self.index)
    }

    /// This section is not what it should be: `problem` in words.
    pub(super) fn error(&self, problem: impl Into<String>) -> FormatError {
        FormatError::Entry { place: self.place(), problem: problem.into() }
    }
}

impl Entry {
    /// The entry of a section whose hash and offset are not known yet.
    ///
    /// `None` when the shape's byte count does not fit 64 bits.
    #[doc(hidden)] // the converter's
    pub fn new(kind: Kind, layer: Option<u32>, dtype: Dtype, shape: [u64; 2]) -> Option<Entry> {
        Some(Entry {
            kind: kind.code(),
            layer: layer.unwrap_or(NO_LAYER),
            dtype: dtype.code(),
            flags: if kind.is_optional() { 0 } else { FLAG_REQUIRED },
            shape,
            offset: 0,
            length: kind.byte_len(dtype, shape)?,
            reserved: [0; 16],
            sha256: [0; 32],
        })
    }

    fn place(&self, index: u32) -> Place {
        Place::Section { index, kind: self.kind, layer: self.layer }
    }
}

/// Reads `directory` and checks each entry by itself and against its predecessor: bounds, order, alignment, dtype,
/// layer and length. What a section's shape must be depends on the config and is checked after this.
pub(super) fn parse(directory: &[u8], file_len: usize) -> Result<Vec<Section>, FormatError> {
    let mut end = (HEADER_LEN as u64).saturating_add(directory.len() as u64);
    let mut sections = Vec::with_capacity(directory.len() / ENTRY_LEN);
    for (index, bytes) in (0u32..).zip(directory.chunks_exact(ENTRY_LEN)) {
        let entry: Entry = bytemuck::pod_read_unaligned(bytes);
        let section = check_entry(index, entry, end, file_len as u64)?;
        end = section.range.end as u64;
        sections.push(section);
    }
    if end != file_len as u64 {
        return Err(FormatError::Header {
            field: "file_len",
            expected: format!("{end}, the end of the last section"),
            found: file_len as u64,
        });
    }
    Ok(sections)
}

fn check_entry(index: u32, entry: Entry, previous_end: u64, file_len: u64) -> Result<Section, FormatError> {
    let place = entry.place(index);
    let error = |problem: String| FormatError::Entry { place, problem };
    if entry.reserved != [0; 16] {
        return Err(FormatError::Reserved { place });
    }
    if entry.flags & !FLAG_REQUIRED != 0 {
        return Err(error(format!("flags: expected 0 or {FLAG_REQUIRED}, found {}", entry.flags)));
    }
    let end = entry.offset.checked_add(entry.length).filter(|&end| end <= file_len).ok_or_else(|| {
        let (offset, length) = (entry.offset, entry.length);
        error(format!("{length} bytes at offset {offset} reach past the file's {file_len} bytes"))
    })?;
    if entry.offset < previous_end {
        let offset = entry.offset;
        return Err(error(format!(
            "offset {offset} overlaps what lies before it, which ends at {previous_end}"
        )));
    }
    let kind = Kind::from_code(entry.kind);
    let dtype = match kind {
        Some(kind) => Some(check_known(kind, &entry).map_err(error)?),
        None if entry.flags & FLAG_REQUIRED != 0 => {
            return Err(error("required, and of a kind that this version does not know".into()));
        }
        None => None,
    };
    // Both fit: they are at most `file_len`, which was the length of a slice.
    Ok(Section { index, kind, dtype, entry, range: entry.offset as usize..end as usize })
}

/// Returns the type of the section's elements.
fn check_known(kind: Kind, entry: &Entry) -> Result<Dtype, String> {
    let has_index = kind.is_per_layer() || kind.is_numbered();
    if has_index == (entry.layer == NO_LAYER) {
        let expected = if has_index { "a layer" } else { "no layer (4294967295)" };
        return Err(format!("layer: expected {expected}, found {}", entry.layer));
    }
    let dtype = Dtype::from_code(entry.dtype).filter(|dtype| kind.dtypes().contains(dtype));
    let dtype = dtype.ok_or_else(|| {
        let expected = kind.dtypes().iter().map(|dtype| format!("{} ({})", dtype.code(), dtype.name()));
        format!("dtype: expected {}, found {}", expected.collect::<Vec<_>>().join(" or "), entry.dtype)
    })?;
    let align = kind.alignment();
    if !entry.offset.is_multiple_of(align) {
        return Err(format!("offset {} is not a multiple of {align}", entry.offset));
    }
    let [rows, columns] = entry.shape;
    if dtype == Dtype::Bf16 && !columns.is_multiple_of(2) {
        return Err(format!("shape [{rows}, {columns}]: expected an even number of columns of bf16"));
    }
    let expected = kind
        .byte_len(dtype, entry.shape)
        .ok_or_else(|| format!("shape [{rows}, {columns}]: its byte count does not fit 64 bits"))?;
    if entry.length != expected {
        let found = entry.length;
        return Err(format!("length: expected {expected} for shape [{rows}, {columns}], found {found}"));
    }
    Ok(dtype)
}
