//! A blob taken apart, to be changed in one place by each test and put together again.
//!
//! Nothing here uses the runtime's own layout code: offsets are those of format-spec.md, so that a reader and a writer
//! that agree on a mistake do not go unnoticed.

use sha2::{Digest, Sha256};
use smolconv::{Options, Progress, convert};
use smolrun::format::Kind;

use super::{Checkpoint, TempDir};

/// Where the header ends and the directory begins.
pub const HEADER_LEN: usize = 128;
/// Bytes of a directory entry.
pub const ENTRY_LEN: usize = 96;

/// One section: its entry's fields and its bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    /// Code of its kind.
    pub kind: u32,
    /// Its layer, or 2³²-1.
    pub layer: u32,
    /// Code of its dtype.
    pub dtype: u32,
    /// 1 where a reader must know the kind.
    pub flags: u32,
    /// Its shape.
    pub shape: [u64; 2],
    /// Its bytes.
    pub content: Vec<u8>,
}

/// Every section of a blob, in order.
#[derive(Clone, Debug)]
pub struct Blob {
    /// The sections.
    pub parts: Vec<Part>,
}

impl Blob {
    /// What `smolconv` makes of `checkpoint`.
    pub fn of(checkpoint: &Checkpoint) -> Blob {
        let temp = TempDir::new();
        let (source, out) = (temp.join("model"), temp.join("blob.bin"));
        checkpoint.write(&source);
        convert(&Options::new(source, &out), &Progress::new(true))
            .expect("a good checkpoint can be converted");
        Blob::take_apart(&std::fs::read(out).expect("the blob is there"))
    }

    /// The sections of a good blob.
    pub fn take_apart(bytes: &[u8]) -> Blob {
        let entries = (0..get_u32(bytes, 24) as usize).map(|index| HEADER_LEN + index * ENTRY_LEN);
        let part = |at| {
            let [offset, length] = [32, 40].map(|field| get_u64(bytes, at + field) as usize);
            Part {
                kind: get_u32(bytes, at),
                layer: get_u32(bytes, at + 4),
                dtype: get_u32(bytes, at + 8),
                flags: get_u32(bytes, at + 12),
                shape: [get_u64(bytes, at + 16), get_u64(bytes, at + 24)],
                content: bytes[offset..][..length].to_vec(),
            }
        };
        Blob { parts: entries.map(part).collect() }
    }

    /// Index of the section of `kind` and, where there is one per layer, of layer 0.
    pub fn index(&self, kind: Kind) -> usize {
        let index = self.parts.iter().position(|part| part.kind == kind.code());
        index.expect("the blob has this section")
    }

    /// The section of `kind` (of layer 0).
    pub fn part(&mut self, kind: Kind) -> &mut Part {
        let index = self.index(kind);
        &mut self.parts[index]
    }

    /// Where the directory entry of the section of `kind` (of layer 0) lies in the file.
    pub fn entry(&self, kind: Kind) -> usize {
        HEADER_LEN + self.index(kind) * ENTRY_LEN
    }

    /// The file, with every offset, length and hash as it must be.
    pub fn build(&self) -> Vec<u8> {
        let mut bytes = vec![0; HEADER_LEN + self.parts.len() * ENTRY_LEN];
        for (index, part) in self.parts.iter().enumerate() {
            let is_matrix = Kind::from_code(part.kind).is_some_and(Kind::is_matrix);
            bytes.resize(bytes.len().next_multiple_of(if is_matrix { 4096 } else { 64 }), 0);
            let (offset, at) = (bytes.len() as u64, HEADER_LEN + index * ENTRY_LEN);
            bytes.extend_from_slice(&part.content);
            for (field, value) in [(0, part.kind), (4, part.layer), (8, part.dtype), (12, part.flags)] {
                put_u32(&mut bytes, at + field, value);
            }
            let [rows, columns] = part.shape;
            for (field, value) in [(16, rows), (24, columns), (32, offset), (40, part.content.len() as u64)] {
                put_u64(&mut bytes, at + field, value);
            }
            bytes[at + 64..at + 96].copy_from_slice(&Sha256::digest(&part.content));
        }
        bytes[..8].copy_from_slice(b"\x89SMOL\r\n\x1a");
        bytes[8] = 1; // version 1.0
        put_u32(&mut bytes, 12, HEADER_LEN as u32);
        let file_len = bytes.len() as u64;
        put_u64(&mut bytes, 16, file_len);
        put_u32(&mut bytes, 24, self.parts.len() as u32);
        put_u32(&mut bytes, 28, ENTRY_LEN as u32);
        put_u64(&mut bytes, 32, HEADER_LEN as u64);
        sign(&mut bytes);
        bytes
    }
}

/// Gives header and directory the hash that they ask for, as far as there are any.
pub fn sign(bytes: &mut [u8]) {
    if bytes.len() < HEADER_LEN {
        return;
    }
    bytes[96..HEADER_LEN].fill(0);
    let directory = (get_u32(bytes, 24) as usize).saturating_mul(ENTRY_LEN);
    let end = HEADER_LEN.saturating_add(directory).min(bytes.len());
    let hash = Sha256::digest(&bytes[..end]);
    bytes[96..HEADER_LEN].copy_from_slice(&hash);
}

/// Gives every section that lies inside the file the hash that `verify` asks for. The directory is to be signed after.
pub fn sign_sections(bytes: &mut [u8]) {
    for at in (HEADER_LEN..).step_by(ENTRY_LEN).take(get_u32(bytes, 24) as usize) {
        if at + ENTRY_LEN > bytes.len() {
            return;
        }
        let [offset, length] = [32, 40].map(|field| get_u64(bytes, at + field) as usize);
        let content = bytes.get(offset..offset.saturating_add(length));
        if let Some(hash) = content.map(Sha256::digest) {
            bytes[at + 64..at + 96].copy_from_slice(&hash);
        }
    }
}

/// The little-endian number at `at`.
pub fn get_u32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

/// The little-endian number at `at`.
pub fn get_u64(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// Writes the little-endian number at `at`.
pub fn put_u32(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

/// Writes the little-endian number at `at`.
pub fn put_u64(bytes: &mut [u8], at: usize, value: u64) {
    bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
}
