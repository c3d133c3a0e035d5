//! Saved sessions in their parts, to be changed and put together again with every sum and hash as it must be.

use sha2::{Digest, Sha256};

use super::blob::{get_u32, put_u32};

const HEADER_LEN: usize = 64;
const HASH_LEN: usize = 32;
/// Positions of a block.
const BLOCK: usize = 64;

/// What `Session::save` writes, without what can be computed of it.
#[derive(Clone, Debug)]
pub struct SavedSession {
    /// Its header.
    pub header: [u8; HEADER_LEN],
    /// Its tokens.
    pub tokens: Vec<u32>,
    /// Keys and values of each block.
    pub blocks: Vec<Vec<u8>>,
    /// Key-value heads of all layers together, and the features of each.
    heads: usize,
    head_dim: usize,
}

impl SavedSession {
    /// The parts of a good file of a model with so many key-value heads in all layers, of so many features.
    pub fn take_apart(bytes: &[u8], heads: usize, head_dim: usize) -> SavedSession {
        let header: [u8; HEADER_LEN] = bytes[..HEADER_LEN].try_into().expect("a header");
        let count = get_u32(&header, 16) as usize;
        let tokens = (0..count).map(|index| get_u32(bytes, HEADER_LEN + 4 * index)).collect();
        let mut saved = SavedSession { header, tokens, blocks: Vec::new(), heads, head_dim };
        let mut at = head_len(count) + HASH_LEN;
        for len in saved.block_lens() {
            saved.blocks.push(bytes[at..at + len].to_vec());
            at += len;
        }
        assert_eq!(at, bytes.len());
        saved
    }

    /// Gives it `count` tokens, and blocks to match: what is new is zero.
    pub fn resize(&mut self, count: usize) {
        self.tokens.resize(count, 0);
        put_u32(&mut self.header, 16, count as u32);
        let lens = self.block_lens();
        self.blocks.resize(lens.len(), Vec::new());
        self.blocks.iter_mut().zip(lens).for_each(|(block, len)| block.resize(len, 0));
    }

    /// The file.
    pub fn build(&self) -> Vec<u8> {
        let mut bytes = self.header.to_vec();
        bytes.extend(self.tokens.iter().flat_map(|id| id.to_le_bytes()));
        bytes.extend(self.blocks.iter().flat_map(|block| crc32(block).to_le_bytes()));
        bytes.resize(head_len(self.tokens.len()), 0);
        let hash = Sha256::digest(&bytes);
        bytes.extend(hash);
        bytes.extend(self.blocks.iter().flatten());
        bytes
    }

    /// Bytes of each block: of keys whole panels of 16, and of values as many as there are. Integers have as many scales
    /// of both.
    fn block_lens(&self) -> Vec<usize> {
        let (size, scale) = match get_u32(&self.header, 12) {
            1 => (2, 0),
            2 => (1, 4),
            _ => (4, 0),
        };
        let insides = (0..self.tokens.len()).step_by(BLOCK).map(|start| BLOCK.min(self.tokens.len() - start));
        let len = |inside: usize| {
            (inside.next_multiple_of(16) + inside) * self.head_dim * size + 2 * inside * scale
        };
        insides.map(|inside| self.heads * len(inside)).collect()
    }
}

/// Bytes of what has a hash, which lets the blocks begin on a multiple of 64.
fn head_len(tokens: usize) -> usize {
    (HEADER_LEN + 4 * tokens + 4 * tokens.div_ceil(BLOCK) + HASH_LEN).next_multiple_of(64) - HASH_LEN
}

/// CRC-32 as of zlib.
fn crc32(bytes: &[u8]) -> u32 {
    let table: [u32; 256] = std::array::from_fn(|byte| {
        (0..8).fold(byte as u32, |crc, _| if crc & 1 == 0 { crc >> 1 } else { crc >> 1 ^ 0xedb8_8320 })
    });
    !bytes.iter().fold(!0, |crc, byte| table[usize::from(crc as u8 ^ byte)] ^ crc >> 8)
}
