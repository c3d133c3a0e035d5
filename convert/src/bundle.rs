//! One file that is a program and its model, and runs by itself: what `smolrun bundle` makes.
//!
//! | bytes | what they are |
//! |---|---|
//! | from 0 | the program; its [`Mark`] says how long the file is |
//! | up to a multiple of 64 KiB | zeroes |
//! | then | the blob, as `smolconv` wrote it |
//! | then | the options with which it runs: a JSON array of strings |
//! | the last 120 | the trailer |
//!
//! The trailer, little-endian: `SMOLBNDL`, its version (u64, 1), where the blob begins and how long it is
//! (u64 each), the same of the options, the SHA-256 of the blob, that of the options and the trailer before it, and
//! `SMOLBNDL` again, by which it is found.
//!
//! The blob is mapped where it lies. Opening looks at the trailer and its hash, not at the blob's: [`Bundle::verify`]
//! does.

use std::borrow::Cow;
use std::fs::File;
use std::hint::black_box;
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::Path;

use sha2::{Digest, Sha256};

use crate::error::{Error, Result};
use crate::files::open_regular;

/// A multiple of every page size.
const BLOB_ALIGN: u64 = 64 << 10;
const TRAILER_LEN: usize = 120;
const MAGIC: &[u8; 8] = b"SMOLBNDL";
const VERSION: u64 = 1;
/// Longest options: far more than a command line has.
const MOST_OPTIONS: u64 = 1 << 20;

/// A program's mark from its end to its beginning, so that it is nowhere in this program but in its mark.
const REVERSED: [u8; 24] = *b"\x7f)krap ledom( NURLOMS\x00\x01\x02";

/// What a program keeps in its image to know whether it is one of a bundle, even if all that came after it is gone.
#[repr(C)]
pub struct Mark {
    id: [u8; 24],
    bundle_len: [u8; 8],
}

impl Mark {
    /// That of a program alone.
    pub const ALONE: Mark = Mark { id: reversed(REVERSED), bundle_len: [0; 8] };

    /// How long the bundle's file was when it was made, if the program is one of a bundle.
    pub fn bundle_len(&'static self) -> Option<u64> {
        // The file says what it is, not the compiler.
        Some(u64::from_le_bytes(black_box(self).bundle_len)).filter(|&len| len > 0)
    }
}

const fn reversed(bytes: [u8; 24]) -> [u8; 24] {
    let mut reversed = bytes;
    let mut at = 0;
    while at < bytes.len() {
        reversed[at] = bytes[bytes.len() - 1 - at];
        at += 1;
    }
    reversed
}

/// What lies where in a bundle.
#[derive(Clone, Debug)]
pub struct Bundle {
    /// The blob's bytes.
    pub blob: Range<u64>,
    /// What the program is told before its user's arguments.
    pub options: Vec<String>,
    sha256: [u8; 32],
}

impl Bundle {
    /// What the file at `path` has behind its program, if it is a bundle.
    pub fn find(path: &Path) -> Result<Option<Bundle>> {
        let mut file = open_regular(path)?;
        let len = file.metadata().map_err(Error::io(path))?.len();
        let Some(start) = len.checked_sub(TRAILER_LEN as u64) else { return Ok(None) };
        let mut trailer = [0; TRAILER_LEN];
        read_at(&mut file, start, &mut trailer).map_err(Error::io(path))?;
        if !trailer.ends_with(MAGIC) {
            return Ok(None);
        }
        let trailer = Trailer::read(&trailer, start).map_err(|problem| damaged(path, &problem))?;
        let mut options = vec![0; trailer.options_len()];
        read_at(&mut file, trailer.options.start, &mut options).map_err(Error::io(path))?;
        if trailer.hash(&options) != trailer.sha256 {
            return Err(damaged(path, "its trailer does not match its SHA-256"));
        }
        let options = serde_json::from_slice(&options)
            .map_err(|error| damaged(path, &format!("its options: expected texts: {error}")))?;
        Ok(Some(Bundle { blob: trailer.blob, options, sha256: trailer.blob_sha256 }))
    }

    /// An error if the blob's bytes are not those that were bundled.
    pub fn verify(&self, path: &Path, blob: &[u8]) -> Result<()> {
        match Sha256::digest(blob)[..] == self.sha256 {
            true => Ok(()),
            false => Err(damaged(path, "its blob does not match its SHA-256")),
        }
    }

    /// What is wrong with a file that was a bundle of `len` bytes, where none is found in it.
    pub fn is_gone(path: &Path, len: u64) -> Error {
        let found = path.metadata().map_or(0, |found| found.len());
        let problem = match found < len {
            true => format!(
                "expected the {len} bytes of a program with its model, found {found}: it was stripped or cut off"
            ),
            false => format!(
                "expected the end of a program with its model at byte {len}, found something else there"
            ),
        };
        Error::file(path, format!("{problem}; make it again with smolrun bundle"))
    }
}

/// The bytes of a bundle, one part after the other.
///
/// The program, which was read from `path`, must be one with a [`Mark`] that is in no bundle yet, in the format of Linux:
/// an error names what it is otherwise.
pub(crate) fn parts<'a>(
    program: &'a [u8],
    path: &Path,
    blob: &'a [u8],
    options: &[String],
) -> Result<Vec<Cow<'a, [u8]>>> {
    let (before, after) = program.split_at(find_mark(program, path)?);
    let options = serde_json::json!(options).to_string().into_bytes();
    let start = program.len().next_multiple_of(BLOB_ALIGN as usize);
    let (blob_start, end) = (start as u64, (start + blob.len()) as u64);
    let mut trailer = Trailer {
        blob: blob_start..end,
        options: end..end + options.len() as u64,
        blob_sha256: Sha256::digest(blob).into(),
        sha256: [0; 32],
    };
    trailer.sha256 = trailer.hash(&options);
    let len = trailer.options.end + TRAILER_LEN as u64;
    Ok(vec![
        before.into(),
        len.to_le_bytes().to_vec().into(),
        after[8..].into(),
        vec![0; start - program.len()].into(),
        blob.into(),
        options.into(),
        trailer.to_bytes().into(),
    ])
}

/// Where in a program the length of its bundle goes.
fn find_mark(program: &[u8], path: &Path) -> Result<usize> {
    let wrong = |found: &str| {
        Err(Error::file(path, format!("expected the program smolrun for Linux (ELF), found {found}")))
    };
    match program {
        [0x7f, b'E', b'L', b'F', ..] => {}
        [b'M', b'Z', ..] => return wrong("one for Windows (PE), which has no bundles yet"),
        [0xcf | 0xce, 0xfa, 0xed, 0xfe, ..] | [0xca, 0xfe, 0xba, 0xbe, ..] => {
            return wrong("one for macOS (Mach-O), which has no bundles yet");
        }
        _ => return wrong("no program"),
    }
    let id = reversed(black_box(REVERSED));
    let mut found = program.windows(id.len()).enumerate().filter(|(_, bytes)| *bytes == id);
    match (found.next(), found.next()) {
        (Some((at, _)), None) => {
            let len = at + id.len();
            match program.get(len..len + 8) {
                Some([0, 0, 0, 0, 0, 0, 0, 0]) => Ok(len),
                _ => wrong("one that has a model already"),
            }
        }
        _ => wrong("another program, or an older one"),
    }
}

/// The end of a bundle.
struct Trailer {
    blob: Range<u64>,
    options: Range<u64>,
    blob_sha256: [u8; 32],
    /// Of the options and of all fields before this one.
    sha256: [u8; 32],
}

impl Trailer {
    /// Of a bundle in which it begins at `start`.
    fn read(bytes: &[u8; TRAILER_LEN], start: u64) -> std::result::Result<Trailer, String> {
        let number = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
        let hash = |at: usize| std::array::from_fn(|i| bytes[at + i]);
        if bytes[..8] != *MAGIC {
            return Err("its trailer does not begin as one".into());
        }
        let version = number(8);
        if version != VERSION {
            return Err(format!("expected version {VERSION} of its trailer, found {version}"));
        }
        let range = |at: usize| number(at).checked_add(number(at + 8)).map(|end| number(at)..end);
        let (Some(blob), Some(options)) = (range(16), range(32)) else {
            return Err("expected parts within the file, found one past its end".into());
        };
        if blob.end != options.start || options.end != start || !blob.start.is_multiple_of(BLOB_ALIGN) {
            return Err(format!("expected parts up to byte {start}, found {blob:?} and {options:?}"));
        }
        if options.end - options.start > MOST_OPTIONS {
            return Err(format!("expected at most {MOST_OPTIONS} bytes of options, found more"));
        }
        Ok(Trailer { blob, options, blob_sha256: hash(48), sha256: hash(80) })
    }

    fn to_bytes(&self) -> Vec<u8> {
        [&self.fields()[..], &self.sha256, MAGIC].concat()
    }

    /// All before its own hash.
    fn fields(&self) -> Vec<u8> {
        let numbers = [&self.blob, &self.options].map(|part| [part.start, part.end - part.start]).concat();
        let mut bytes = [&MAGIC[..], &VERSION.to_le_bytes()].concat();
        bytes.extend(numbers.iter().flat_map(|number| number.to_le_bytes()));
        bytes.extend(self.blob_sha256);
        bytes
    }

    fn hash(&self, options: &[u8]) -> [u8; 32] {
        Sha256::new().chain_update(options).chain_update(self.fields()).finalize().into()
    }

    /// At most [`MOST_OPTIONS`].
    fn options_len(&self) -> usize {
        (self.options.end - self.options.start) as usize
    }
}

fn read_at(file: &mut File, start: u64, bytes: &mut [u8]) -> io::Result<()> {
    file.seek(SeekFrom::Start(start))?;
    file.read_exact(bytes)
}

fn damaged(path: &Path, problem: &str) -> Error {
    Error::file(path, format!("a program with its model, damaged: {problem}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    static MARK: Mark = Mark::ALONE;

    const START: &[u8] = b"\x7fELF and so on";

    /// Something that passes for a program.
    fn program() -> Vec<u8> {
        [START, &MARK.id, &[0; 8], &[7; 70_000]].concat()
    }

    fn bundle() -> Vec<u8> {
        let options = ["--system".to_owned(), "Be short.".to_owned()];
        parts(&program(), Path::new("program"), &[5; 1000], &options).unwrap().concat()
    }

    fn find(bytes: &[u8]) -> Result<Option<Bundle>> {
        let unique = std::thread::current().name().unwrap_or_default().replace(':', "_");
        let path = std::env::temp_dir().join(format!("smolconv-{unique}-{}", std::process::id()));
        std::fs::write(&path, bytes).unwrap();
        let found = Bundle::find(&path);
        std::fs::remove_file(path).unwrap();
        found
    }

    #[test]
    fn what_was_written_is_found() {
        let bytes = bundle();
        let found = find(&bytes).unwrap().unwrap();
        assert_eq!((found.blob.clone(), found.options.len()), (131_072..132_072, 2));
        assert_eq!(bytes[131_072..132_072], [5; 1000]);
        assert!(found.verify(Path::new("x"), &[5; 1000]).is_ok());
        assert!(found.verify(Path::new("x"), &[6; 1000]).unwrap_err().to_string().contains("SHA-256"));
        let len = u64::from_le_bytes(bytes[START.len() + 24..][..8].try_into().unwrap());
        assert_eq!(len, bytes.len() as u64, "the mark says how long it is");
        assert!(MARK.bundle_len().is_none());
    }

    #[test]
    fn what_is_damaged_is_an_error_and_what_is_none_is_none() {
        let bytes = bundle();
        for len in [0, 5, TRAILER_LEN, 131_072, bytes.len() - TRAILER_LEN, bytes.len() - 1] {
            assert!(find(&bytes[..len]).unwrap().is_none(), "cut off at {len}");
        }
        // From the options on, each byte counts.
        for at in 132_072..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x40;
            assert!(find(&damaged).map_or(true, |found| found.is_none()), "byte {at}");
        }
        let shifted = [&[0; 9][..], &bytes].concat();
        assert!(find(&shifted).is_err());
    }

    #[test]
    fn only_a_program_of_ours_takes_a_model() {
        let mut twice = program();
        twice.extend(MARK.id);
        for (bytes, found) in [
            (b"MZ\x90\0".to_vec(), "Windows (PE)"),
            (vec![0xcf, 0xfa, 0xed, 0xfe], "macOS (Mach-O)"),
            (vec![0xca, 0xfe, 0xba, 0xbe], "macOS (Mach-O)"),
            (b"#!/bin/sh".to_vec(), "no program"),
            (b"\x7fELF".to_vec(), "another program"),
            (twice, "another program"),
            (bundle(), "a model already"),
        ] {
            let error = parts(&bytes, Path::new("program"), &[], &[]).unwrap_err().to_string();
            assert!(error.contains("program: expected") && error.contains(found), "{error}");
        }
    }
}
