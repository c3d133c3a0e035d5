//! The 128 bytes at the start of a blob.

use bytemuck::{Pod, Zeroable};
use sha2::{Digest, Sha256};

use super::error::{FormatError, Place};
use super::layout::{ENTRY_LEN, HEADER_LEN, MAGIC, MAX_SECTIONS, VERSION_MAJOR, VERSION_MINOR};

/// The header as it lies in the file, all fields little-endian.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub struct Header {
    /// [`MAGIC`].
    pub magic: [u8; 8],
    /// Major format version.
    pub version_major: u16,
    /// Minor format version.
    pub version_minor: u16,
    /// [`HEADER_LEN`].
    pub header_len: u32,
    /// Bytes of the whole file.
    pub file_len: u64,
    /// Entries in the directory.
    pub section_count: u32,
    /// [`ENTRY_LEN`].
    pub entry_len: u32,
    /// Where the directory starts: right after the header.
    pub directory_offset: u64,
    /// Zero.
    pub reserved: [u8; 56],
    /// SHA-256 of the header with this field zero, followed by the directory.
    pub directory_sha256: [u8; 32],
}

const _: () = assert!(size_of::<Header>() == HEADER_LEN && size_of::<usize>() >= 4);
#[cfg(target_endian = "big")]
compile_error!("blobs are little-endian and are used in place");

impl Header {
    /// The header of a blob of `file_len` bytes whose directory is `directory`.
    #[doc(hidden)] // the converter's
    pub fn new(file_len: u64, directory: &[u8]) -> Header {
        let section_count = u32::try_from(directory.len() / ENTRY_LEN).unwrap_or(u32::MAX);
        let mut header = Header {
            magic: MAGIC,
            version_major: VERSION_MAJOR,
            version_minor: VERSION_MINOR,
            header_len: HEADER_LEN as u32,
            file_len,
            section_count,
            entry_len: ENTRY_LEN as u32,
            directory_offset: HEADER_LEN as u64,
            reserved: [0; 56],
            directory_sha256: [0; 32],
        };
        header.directory_sha256 = header.hash_with(directory);
        header
    }

    /// Reads and checks the header of `bytes`, then the hash over it and the directory it announces.
    ///
    /// The order matters. A file that is no blob is reported as such before it could be called damaged, and so is a
    /// future version before this version's rules judge its fields. Returns the header and the directory's bytes.
    pub fn parse(bytes: &[u8]) -> Result<(Header, &[u8]), FormatError> {
        let found = bytes.len() as u64;
        let head = bytes.get(..HEADER_LEN).ok_or(FormatError::TooShort { found })?;
        let header: Header = bytemuck::pod_read_unaligned(head);
        if header.magic != MAGIC {
            return Err(FormatError::Magic { found: header.magic });
        }
        if header.version_major != VERSION_MAJOR {
            return Err(FormatError::Version { found: (header.version_major, header.version_minor) });
        }
        let expect = |field, expected: u64, found: u64| match expected == found {
            true => Ok(()),
            false => Err(FormatError::Header { field, expected: expected.to_string(), found }),
        };
        expect("header_len", HEADER_LEN as u64, header.header_len.into())?;
        expect("entry_len", ENTRY_LEN as u64, header.entry_len.into())?;
        expect("directory_offset", HEADER_LEN as u64, header.directory_offset)?;
        if header.file_len != found {
            return Err(FormatError::Length { expected: header.file_len, found });
        }
        if header.reserved != [0; 56] {
            return Err(FormatError::Reserved { place: Place::Header });
        }
        let directory = directory_bytes(&header, bytes).ok_or_else(|| FormatError::Header {
            field: "section_count",
            expected: format!("at most {MAX_SECTIONS} and a directory inside the file"),
            found: header.section_count.into(),
        })?;
        if header.directory_sha256 != header.hash_with(directory) {
            return Err(FormatError::DirectoryHash);
        }
        Ok((header, directory))
    }

    fn hash_with(&self, directory: &[u8]) -> [u8; 32] {
        let unsigned = Header { directory_sha256: [0; 32], ..*self };
        Sha256::new().chain_update(bytemuck::bytes_of(&unsigned)).chain_update(directory).finalize().into()
    }
}

fn directory_bytes<'a>(header: &Header, bytes: &'a [u8]) -> Option<&'a [u8]> {
    if header.section_count > MAX_SECTIONS {
        return None;
    }
    let len = (header.section_count as usize).checked_mul(ENTRY_LEN)?;
    bytes.get(HEADER_LEN..HEADER_LEN.checked_add(len)?)
}
