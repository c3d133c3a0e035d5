//! A sequence in a file, so that a long beginning costs nothing the next time.
//!
//! The file is a header of 64 bytes, the tokens, the CRC-32 of each KV block, zeroes, the SHA-256 of all that so far, and
//! the KV blocks. There are as many zeroes as let the KV blocks begin on a multiple of 64. All integers are
//! little-endian.
//!
//! | offset | bytes | what |
//! |---|---|---|
//! | 0 | 8 | `SMOLKV`, CR, LF |
//! | 8 | 4 | version of this layout, 3 (1: KV blocks of 256 positions; 2: without zeroes, and scales after values) |
//! | 12 | 4 | how keys and values are kept: 0 f32, 1 f16, 2 integers of 8 bits with scales |
//! | 16 | 4 | tokens |
//! | 20 | 4 | 1 if tokens were forgotten after the first 256 ([`Overflow::Slide`](crate::Overflow::Slide)), else 0 |
//! | 24 | 4 | 1 if a fast session rounded ([`SessionOptions::fast`](crate::SessionOptions::fast)), else 0 |
//! | 28 | 4 | 0 |
//! | 32 | 32 | the hash in the blob's header: keys and values are of use with that blob only |
//!
//! A KV block is 64 positions. A full one lies in the file as it does in memory, so that it can be mapped: a beginning is
//! then in memory once, however many processes go on from it. Where tokens were forgotten there are more than 256, and
//! where some were rounded there is one at least.

use std::fs::{self, File};
use std::io::{self, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use sha2::{Digest, Sha256};

use super::kv_cache::{BlockSum, KvDtype, KvFile};
use super::{Overflow, Sequence, to_end_of_step};
use crate::error::{Error, Result};
use crate::exec::{ExecContext, Fast};
use crate::format::Config;

/// What a file begins with.
pub(crate) const MAGIC: [u8; 8] = *b"SMOLKV\r\n";

/// How often this process saved a sequence: so that no two write the same temporary file.
static SAVES: AtomicU64 = AtomicU64::new(0);

const VERSION: u32 = 3;
const HEADER_LEN: usize = 64;
const SUM_LEN: usize = size_of::<BlockSum>();
const HASH_LEN: usize = 32;
/// What the KV blocks begin on a multiple of.
const ALIGN: usize = 64;

/// Whose sequence it is: what a file has to agree with.
pub(crate) struct Owner<'a> {
    /// The hash in the header of the model's blob.
    pub blob: &'a [u8; HASH_LEN],
    pub config: &'a Config,
    pub fast: Fast,
    /// Whether the blob is mapped: then files may be.
    pub is_mapped: bool,
}

/// Tells whether [`Sequence::save`] could write to `path` now, as far as that can be known before.
pub(crate) fn check_save(path: &Path) -> io::Result<()> {
    let temporary = beside(&target(path)?);
    create(&temporary)?;
    fs::remove_file(&temporary)
}

impl Sequence {
    /// Writes the sequence to `path`, beside which a temporary file is written first.
    pub(crate) fn save(&self, exec: &mut ExecContext, owner: &Owner<'_>, path: &Path) -> Result<()> {
        let result = target(path).and_then(|target| {
            let temporary = beside(&target);
            let result = self.write(exec, owner, &temporary).and_then(|()| fs::rename(&temporary, &target));
            result.inspect_err(|_| {
                let _ = fs::remove_file(&temporary); // where even that fails, the first error is the one to tell
            })
        });
        result.map_err(|source| Error::Io { path: path.into(), source })
    }

    /// Makes the sequence the one in the file at `path`. After an error it is empty.
    pub(crate) fn load(&mut self, exec: &mut ExecContext, owner: &Owner<'_>, path: &Path) -> Result<()> {
        let result = self.read(exec, owner, path);
        if result.is_err() {
            self.clear();
        }
        result.map_err(|problem| match problem {
            Problem::Io(source) => Error::Io { path: path.into(), source },
            Problem::Content(problem) => Error::SavedSession { path: path.into(), problem },
            Problem::Other(error) => error,
        })
    }

    fn write(&self, exec: &mut ExecContext, owner: &Owner<'_>, path: &Path) -> io::Result<()> {
        let positions = self.position();
        let sums = self.cache.sums(exec, positions);
        let mut head = self.header(owner).to_vec();
        head.extend(self.tokens.iter().flat_map(|id| id.to_le_bytes()));
        head.extend(sums.iter().flat_map(|sum| sum.to_le_bytes()));
        head.resize(head_len(positions, sums.len()) - HASH_LEN, 0);
        let hash = Sha256::digest(&head);
        head.extend(hash);
        let mut file = BufWriter::new(create(path)?);
        file.write_all(&head)?;
        self.cache.write(positions, &mut file)?;
        file.into_inner()?.sync_all()
    }

    fn header(&self, owner: &Owner<'_>) -> [u8; HEADER_LEN] {
        let mut header = [0; HEADER_LEN];
        header[..8].copy_from_slice(&MAGIC);
        header[8..12].copy_from_slice(&VERSION.to_le_bytes());
        header[12..16].copy_from_slice(&dtype_code(self.cache.dtype()).to_le_bytes());
        header[16..20].copy_from_slice(&(self.position() as u32).to_le_bytes());
        header[20..24].copy_from_slice(&u32::from(self.has_gap).to_le_bytes());
        header[24..28].copy_from_slice(&u32::from(self.is_rounded).to_le_bytes());
        header[32..].copy_from_slice(owner.blob);
        header
    }

    fn read(&mut self, exec: &mut ExecContext, owner: &Owner<'_>, path: &Path) -> Checked<()> {
        if !fs::metadata(path)?.is_file() {
            return Err(content("expected a regular file".into()));
        }
        let mut file = File::open(path)?;
        let found = file.metadata()?.len();
        if found < HEADER_LEN as u64 {
            return Err(content(format!("{found} bytes are less than a header's {HEADER_LEN}")));
        }
        let mut head = vec![0; HEADER_LEN];
        file.read_exact(&mut head)?;
        let (count, has_gap, is_rounded) = self.check_header(owner, &head)?;

        // The header is known to be this model's and `count` to fit its context: the rest is no larger than the cache.
        let lens = self.cache.filled_lens(count);
        let head_len = head_len(count, lens.len());
        let expected = (head_len + lens.sum::<usize>()) as u64;
        if found != expected {
            return Err(content(format!("expected {expected} bytes for {count} tokens, found {found}")));
        }
        head.resize(head_len, 0);
        file.read_exact(&mut head[HEADER_LEN..])?;
        let (head, hash) = head.split_at(head_len - HASH_LEN);
        if Sha256::digest(head).as_slice() != hash {
            return Err(content("the tokens do not have the hash that was written with them".into()));
        }
        let (tokens, sums) = head[HEADER_LEN..].split_at(count * size_of::<u32>());
        let mut tokens = check_tokens(owner, tokens)?;
        tokens.reserve(to_end_of_step(count) - count);
        self.clear();
        let (file, start) = (&file, head_len as u64);
        let found = self.cache.read(exec, count, &KvFile { path, file, start, is_fixed: owner.is_mapped })?;
        (self.tokens, self.has_gap, self.is_rounded) = (tokens, has_gap, is_rounded);
        for (block, (found, sum)) in found.into_iter().zip(sums.chunks_exact(SUM_LEN)).enumerate() {
            if found?.to_le_bytes() != sum {
                return Err(content(format!(
                    "block {block} does not have the checksum that was written with it"
                )));
            }
        }
        Ok(())
    }

    /// The number of tokens, whether some were forgotten, and whether a fast session rounded: each field by itself, then
    /// against the owner, this sequence and the other fields.
    fn check_header(&self, owner: &Owner<'_>, head: &[u8]) -> Checked<(usize, bool, bool)> {
        let number = |at: usize| head[at..].first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
        let limit = owner.config.max_position_embeddings;
        let kept = self.cache.dtype();
        let (count, gap, rounded) = (number(16) as usize, number(20), number(24));
        let checks = [
            (head[..8] == MAGIC, "it does not begin as one".to_owned()),
            (number(8) == VERSION, format!("version: expected {VERSION}, found {}", number(8))),
            (head[32..64] == *owner.blob, "it was saved with another blob".to_owned()),
            (
                number(12) == dtype_code(kept),
                format!("keys and values: expected {}, found {}", kept.name(), dtype_name(number(12))),
            ),
            (
                rounded == 0 || owner.fast != Fast::Off,
                "a fast session rounded its keys and values, and this one is exact".to_owned(),
            ),
            (
                rounded == 0 || owner.fast != Fast::NothingToRound,
                "a fast session rounded its keys and values, and here is no matrix to do that with"
                    .to_owned(),
            ),
            (count <= limit, format!("{count} tokens are more than the context's {limit}")),
            (gap <= 1 && rounded <= 1 && number(28) == 0, "a field that is 0 or 1 is neither".to_owned()),
            (
                gap == 0 || count > Overflow::STEP && limit >= 2 * Overflow::STEP,
                format!(
                    "tokens were forgotten after the first {}: expected more than these, found {count}",
                    Overflow::STEP
                ),
            ),
            (rounded == 0 || count > 0, "keys and values were rounded, and there are none".to_owned()),
        ];
        match checks.into_iter().find(|(is_right, _)| !is_right) {
            Some((_, problem)) => Err(content(problem)),
            None => Ok((count, gap == 1, rounded == 1)),
        }
    }
}

/// Bytes before the KV blocks, with the hash.
fn head_len(tokens: usize, blocks: usize) -> usize {
    let content = HEADER_LEN + tokens * size_of::<u32>() + blocks * SUM_LEN;
    (content + HASH_LEN).next_multiple_of(ALIGN)
}

fn check_tokens(owner: &Owner<'_>, bytes: &[u8]) -> Checked<Vec<u32>> {
    let vocab_size = owner.config.vocab_size;
    let tokens: Vec<u32> = bytes.as_chunks().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect();
    match tokens.iter().find(|&&id| id as usize >= vocab_size) {
        Some(id) => Err(content(format!("token id {id} is not below the vocabulary's size, {vocab_size}"))),
        None => Ok(tokens),
    }
}

/// The file that is to be written: what a link leads to, never the link, and nothing but a regular file.
fn target(path: &Path) -> io::Result<PathBuf> {
    match fs::canonicalize(path) {
        Ok(target) if !target.is_file() => Err(io::Error::other("expected a regular file")),
        Ok(target) => Ok(target),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(path.into()),
        Err(error) => Err(error),
    }
}

/// A temporary file's name beside `path`, which no other process and no other call takes.
fn beside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}-{}.tmp", std::process::id(), SAVES.fetch_add(1, Ordering::Relaxed)));
    name.into()
}

/// A new file that nobody else may read, in the place of what a killed process of the same number left.
fn create(path: &Path) -> io::Result<File> {
    let _ = fs::remove_file(path);
    let mut options = File::options();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

fn dtype_code(dtype: KvDtype) -> u32 {
    match dtype {
        KvDtype::F32 => 0,
        KvDtype::F16 => 1,
        KvDtype::Q8 => 2,
    }
}

fn dtype_name(code: u32) -> String {
    let dtypes = [KvDtype::F32, KvDtype::F16, KvDtype::Q8];
    let known = dtypes.into_iter().find(|&dtype| dtype_code(dtype) == code);
    known.map_or_else(|| format!("the number {code}"), |dtype| dtype.name().to_owned())
}

/// What can be wrong with a file.
enum Problem {
    Io(io::Error),
    Content(String),
    Other(Error),
}

type Checked<T> = std::result::Result<T, Problem>;

fn content(problem: String) -> Problem {
    Problem::Content(problem)
}

impl From<io::Error> for Problem {
    fn from(error: io::Error) -> Problem {
        Problem::Io(error)
    }
}

impl From<Error> for Problem {
    fn from(error: Error) -> Problem {
        Problem::Other(error)
    }
}
