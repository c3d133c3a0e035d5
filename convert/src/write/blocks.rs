//! A file written in large aligned blocks.

use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};

/// Bytes of a block: two of the largest pages that processors map at once.
const BLOCK: usize = 4 << 20;

/// Gathers what is written, from the file's start on, and hands it to the system a block at a time.
///
/// The page cache keeps what it is given at once in pages as large as it can, and these are what a reader maps: a blob of
/// 272 MB written piece by piece takes Linux 18 ms to map and 15 ms to unmap at every start of a program, written in
/// blocks 2 and 0.1 (ext4, Linux 6.18, 2 cores).
pub(crate) struct Blocks {
    file: File,
    block: Vec<u8>,
}

impl Blocks {
    /// For a `file` that is empty.
    pub(crate) fn new(file: File) -> Blocks {
        Blocks { file, block: Vec::with_capacity(BLOCK) }
    }

    /// Appends `bytes`.
    pub(crate) fn append(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min(BLOCK - self.block.len()));
            self.block.extend_from_slice(now);
            bytes = later;
            if self.block.len() == BLOCK {
                self.flush()?;
            }
        }
        Ok(())
    }

    /// Writes `start` over the first bytes, and hands all to the system.
    pub(crate) fn finish(mut self, start: &[u8]) -> io::Result<()> {
        self.flush()?;
        self.file.seek(SeekFrom::Start(0))?;
        self.file.write_all(start)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.write_all(&self.block)?;
        self.block.clear();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{BLOCK, Blocks};

    #[test]
    fn pieces_of_any_length_become_one_file() {
        let path = std::env::temp_dir().join(format!("smolconv-blocks-{}", std::process::id()));
        let mut blocks = Blocks::new(std::fs::File::create(&path).unwrap());
        let mut expected = Vec::new();
        for len in [0, 1, 7, BLOCK - 9, 1, 0, 3 * BLOCK + 5, 100] {
            let piece: Vec<u8> = (expected.len()..expected.len() + len).map(|i| (i % 251) as u8).collect();
            blocks.append(&piece).unwrap();
            expected.extend(piece);
        }
        blocks.finish(b"start").unwrap();
        expected[..5].copy_from_slice(b"start");
        assert!(std::fs::read(&path).unwrap() == expected);
        std::fs::remove_file(&path).unwrap();
    }
}
