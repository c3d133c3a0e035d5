//! Where a blob's bytes live: a mapped file, memory of our own, or the program's own image. All three start on a
//! multiple of 64 and are used in place.

mod aligned;

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::path::Path;

pub use self::aligned::AlignedBuf;

/// The bytes of a blob, immutable and shared by everything that uses them.
#[non_exhaustive]
pub enum Storage {
    /// A file mapped read-only; its pages are shared with every process that maps it.
    #[cfg(feature = "mmap")]
    Mapped(memmap2::Mmap),
    /// A copy in memory that this process owns.
    Owned(AlignedBuf<u8>),
    /// Bytes that live as long as the program, such as `include_bytes!`.
    Static(&'static [u8]),
}

impl Storage {
    /// Maps the file at `path`.
    ///
    /// The file must not be changed in place or truncated while it is mapped. Its bytes would change under the program,
    /// and touching a page past a new end would end the process with SIGBUS. Replacing the file by a rename, as
    /// `smolconv` does, is harmless. If that cannot be promised, [`Storage::read`] takes a copy.
    #[cfg(feature = "mmap")]
    pub fn map(path: &Path) -> io::Result<Storage> {
        let file = open_regular(path)?;
        let len = file.metadata()?.len();
        map_range(&file, 0..len)
    }

    /// Maps these bytes of the file at `path`, which must not change either: for a blob that lies within another file. A
    /// blob can only be used where the range begins on a multiple of 64.
    #[cfg(feature = "mmap")]
    pub fn map_range(path: &Path, range: Range<u64>) -> io::Result<Storage> {
        let file = open_regular(path)?;
        let len = file.metadata()?.len();
        match range.start <= range.end && range.end <= len {
            true => map_range(&file, range),
            false => {
                let problem =
                    format!("expected bytes {} to {}, found a file of {len}", range.start, range.end);
                Err(io::Error::new(io::ErrorKind::UnexpectedEof, problem))
            }
        }
    }

    /// Reads the file at `path` into memory: for network mounts, and files that others may change.
    pub fn read(path: &Path) -> io::Result<Storage> {
        let mut file = open_regular(path)?;
        let len = usize::try_from(file.metadata()?.len()).map_err(|_| out_of_memory())?;
        let mut bytes = AlignedBuf::zeroed(len).ok_or_else(out_of_memory)?;
        file.read_exact(&mut bytes)?;
        Ok(Storage::Owned(bytes))
    }

    /// Takes a copy of `bytes` that starts on a multiple of 64, which a `Vec` does not promise.
    pub fn from_bytes(bytes: &[u8]) -> io::Result<Storage> {
        let mut copy = AlignedBuf::zeroed(bytes.len()).ok_or_else(out_of_memory)?;
        copy.copy_from_slice(bytes);
        Ok(Storage::Owned(copy))
    }

    /// All bytes.
    pub fn bytes(&self) -> &[u8] {
        match self {
            #[cfg(feature = "mmap")]
            Storage::Mapped(map) => map,
            Storage::Owned(bytes) => bytes,
            Storage::Static(bytes) => bytes,
        }
    }

    /// Whether it is a mapped file: then whoever opened it has promised that nobody changes it.
    pub(crate) fn is_mapped(&self) -> bool {
        #[cfg(feature = "mmap")]
        return matches!(self, Storage::Mapped(_));
        #[cfg(not(feature = "mmap"))]
        false
    }

    /// Takes the pages of `range` out of this process's memory if they are mapped, for readers that pass over a file
    /// once. They stay in the page cache and come back when they are touched.
    #[cfg_attr(not(all(feature = "mmap", unix)), allow(unused_variables))]
    pub fn release(&self, range: Range<usize>) {
        match self {
            #[cfg(all(feature = "mmap", unix))]
            Storage::Mapped(map) if range.start < range.end && range.end <= map.len() => {
                let advice = memmap2::UncheckedAdvice::DontNeed;
                // SAFETY: the map is a shared, read-only one of a file, so that a page taken out of it is mapped
                // again from that file, with the same bytes, when it is next touched. The range lies inside.
                // It is only advice: where it fails, the pages stay.
                let _ = unsafe { map.unchecked_advise_range(advice, range.start, range.len()) };
            }
            _ => {}
        }
    }
}

/// Maps bytes that the file has.
#[cfg(feature = "mmap")]
fn map_range(file: &File, range: Range<u64>) -> io::Result<Storage> {
    if range.is_empty() {
        return Ok(Storage::Static(&[])); // nothing cannot be mapped everywhere
    }
    let len = usize::try_from(range.end - range.start).map_err(|_| out_of_memory())?;
    // SAFETY: `Mmap` asks that the file is not changed while it is mapped. That is a promise of whoever owns the
    // file, passed on in the documentation of `Storage::map`; no code of ours writes to a blob in place.
    let map = unsafe { memmap2::MmapOptions::new().offset(range.start).len(len).map(file)? };
    // What is not in memory yet comes in large pages, which later starts map at once. Only advice: old systems refuse.
    #[cfg(target_os = "linux")]
    let _ = map.advise(memmap2::Advice::HugePage);
    Ok(Storage::Mapped(map))
}

/// Opens a file. It refuses a directory, a pipe or a device and says what it is, instead of failing obscurely later.
///
/// It looks before it opens, because opening a pipe waits for somebody to write. It looks again afterwards, because the
/// path may by then lead somewhere else.
fn open_regular(path: &Path) -> io::Result<File> {
    let expect_file = |is_file: bool| match is_file {
        true => Ok(()),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")),
    };
    expect_file(std::fs::metadata(path)?.is_file())?;
    let file = File::open(path)?;
    expect_file(file.metadata()?.is_file())?;
    Ok(file)
}

fn out_of_memory() -> io::Error {
    io::Error::new(io::ErrorKind::OutOfMemory, "not enough memory for the blob")
}

impl fmt::Debug for Storage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Storage")
            .field("len", &self.bytes().len())
            .field("is_mapped", &self.is_mapped())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_aligned(bytes: &[u8]) -> bool {
        bytes.as_ptr().addr().is_multiple_of(64)
    }

    #[test]
    fn a_copy_is_aligned_and_equal() {
        let bytes: Vec<u8> = (0..=255).collect();
        for start in 0..8 {
            let storage = Storage::from_bytes(&bytes[start..]).unwrap();
            assert!(is_aligned(storage.bytes()));
            assert_eq!(storage.bytes(), &bytes[start..]);
        }
    }

    #[test]
    fn a_file_reads_the_same_mapped_and_read() {
        let path = std::env::temp_dir().join(format!("smolrun-storage-{}", std::process::id()));
        for len in [0, 1, 4096, 100_000] {
            let bytes: Vec<u8> = (0..len).map(|i| i as u8).collect();
            std::fs::write(&path, &bytes).unwrap();
            let read = Storage::read(&path).unwrap();
            assert_eq!(read.bytes(), bytes);
            #[cfg(feature = "mmap")]
            assert_eq!(Storage::map(&path).unwrap().bytes(), bytes);
        }
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    #[cfg(feature = "mmap")]
    fn a_part_of_a_file_is_mapped_if_it_is_there() {
        let path = std::env::temp_dir().join(format!("smolrun-range-{}", std::process::id()));
        let bytes: Vec<u8> = (0..200_000).map(|i| (i / 7) as u8).collect();
        std::fs::write(&path, &bytes).unwrap();
        for range in [0..0, 5..5, 0..10, 64..1000, 65_536..200_000, 100_003..100_004, 200_000..200_000] {
            let storage = Storage::map_range(&path, range.start as u64..range.end as u64).unwrap();
            assert_eq!(storage.bytes(), &bytes[range.clone()]);
            assert!(!range.start.is_multiple_of(64) || range.is_empty() || is_aligned(storage.bytes()));
        }
        #[allow(clippy::reversed_empty_ranges)]
        for range in [0..200_001, 200_001..200_002, 10..5, u64::MAX - 1..u64::MAX] {
            let error = Storage::map_range(&path, range).err().unwrap();
            assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        }
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_directory_is_refused() {
        assert!(Storage::read(&std::env::temp_dir()).is_err());
    }
}
