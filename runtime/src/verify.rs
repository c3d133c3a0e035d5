//! The second level of trust: every byte of a blob is as its converter wrote it.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use sha2::{Digest, Sha256};

use crate::error::Result;
use crate::format::{ENTRY_LEN, FormatError, HEADER_LEN, Kind, Layout, Section};
use crate::model::Model;
use crate::storage::Storage;
use crate::tokenizer::Tokenizer;

/// The outcome of one of the checks.
type Checked = std::result::Result<(), FormatError>;

/// Bytes hashed between two reports of progress.
const CHUNK_LEN: usize = 4 << 20;

impl Model {
    /// Checks the blob's content, which opening it does not read: every section against its SHA-256, every byte between
    /// sections to be zero, the tokenizer's tables against each other, texts to be UTF-8, and vectors to be finite.
    ///
    /// It reads every byte, with as many threads as the process may use. The first thing that is wrong is an
    /// [`Error::Format`](crate::Error::Format).
    pub fn verify(&self) -> Result<()> {
        self.verify_with(None, &|_| ())
    }

    /// As [`Model::verify`], with so many threads (`None`: as many as the process may use).
    ///
    /// The threads call `progress` with the number of bytes that were done since its last call: sections' bytes, all in
    /// all. Mapped pages are released as they are done, so that verifying a large blob costs little memory.
    pub fn verify_with(&self, threads: Option<usize>, progress: &(dyn Fn(u64) + Sync)) -> Result<()> {
        let (storage, layout) = (self.storage(), self.layout());
        check_padding(storage.bytes(), layout)?;
        check_hashes(storage, &layout.sections, threads, progress)?;
        Tokenizer::new(storage.clone(), layout).check()?;
        check_texts(storage.bytes(), layout)?;
        check_vectors(storage.bytes(), layout)?;
        Ok(())
    }
}

fn check_padding(bytes: &[u8], layout: &Layout) -> Checked {
    let mut end = HEADER_LEN.saturating_add(layout.sections.len().saturating_mul(ENTRY_LEN));
    for section in &layout.sections {
        let gap = bytes.get(end..section.range.start).unwrap_or_default();
        if let Some(index) = gap.iter().position(|&byte| byte != 0) {
            return Err(FormatError::Padding { offset: end.saturating_add(index) as u64 });
        }
        end = section.range.end;
    }
    Ok(())
}

/// Reports the first damaged section, however the threads were scheduled.
fn check_hashes(
    storage: &Storage,
    sections: &[Section],
    threads: Option<usize>,
    progress: &(dyn Fn(u64) + Sync),
) -> Checked {
    // The largest first, so that no thread is left alone with it at the end.
    let mut queue: Vec<&Section> = sections.iter().collect();
    queue.sort_by_key(|section| std::cmp::Reverse(section.range.len()));
    let next = AtomicUsize::new(0);
    let damaged: Mutex<Option<&Section>> = Mutex::new(None);
    let work = || {
        while let Some(&section) = queue.get(next.fetch_add(1, Ordering::Relaxed)) {
            if hash(storage, section.range.clone(), progress) != section.entry.sha256 {
                let mut first = damaged.lock().unwrap_or_else(PoisonError::into_inner);
                if first.is_none_or(|first| section.index < first.index) {
                    *first = Some(section);
                }
            }
        }
    };
    let available = || thread::available_parallelism().map_or(1, usize::from);
    let threads = threads.unwrap_or_else(available).clamp(1, queue.len().max(1));
    thread::scope(|scope| {
        for _ in 1..threads {
            // Where no thread can be had, this one does the work.
            let _ = thread::Builder::new().spawn_scoped(scope, work);
        }
        work();
    });
    let damaged = damaged.into_inner().unwrap_or_else(PoisonError::into_inner);
    damaged.map_or(Ok(()), |section| Err(FormatError::SectionHash { place: section.place() }))
}

fn hash(storage: &Storage, range: Range<usize>, progress: &(dyn Fn(u64) + Sync)) -> [u8; 32] {
    let mut hasher = Sha256::new();
    for start in range.clone().step_by(CHUNK_LEN) {
        let chunk = start..range.end.min(start.saturating_add(CHUNK_LEN));
        hasher.update(&storage.bytes()[chunk.clone()]);
        progress(chunk.len() as u64);
        storage.release(chunk);
    }
    hasher.finalize().into()
}

fn check_texts(bytes: &[u8], layout: &Layout) -> Checked {
    let texts = [(Kind::ChatTemplate, &layout.chat_template), (Kind::Metadata, &layout.metadata)];
    for (kind, range) in texts {
        let text = range.clone().and_then(|range| bytes.get(range)).unwrap_or_default();
        if let Err(error) = std::str::from_utf8(text) {
            return Err(table(
                kind,
                format!("expected UTF-8, found another byte at {}", error.valid_up_to()),
            ));
        }
    }
    Ok(())
}

fn check_vectors(bytes: &[u8], layout: &Layout) -> Checked {
    let weights = &layout.weights;
    let layers = weights.layers.iter().flat_map(|layer| {
        [
            (Kind::InputLayernorm, Some(&layer.input_layernorm)),
            (Kind::QkvBias, layer.qkv_bias.as_ref()),
            (Kind::QkNorm, layer.qk_norm.as_ref()),
            (Kind::OBias, layer.o_bias.as_ref()),
            (Kind::PostAttentionLayernorm, Some(&layer.post_attention_layernorm)),
            (Kind::GateUpBias, layer.gate_up_bias.as_ref()),
            (Kind::DownBias, layer.down_bias.as_ref()),
        ]
    });
    let layers = layers.filter_map(|(kind, range)| range.map(|range| (kind, range)));
    let single = [(Kind::RopeInvFreq, &weights.rope_inv_freq), (Kind::Norm, &weights.norm)];
    for (kind, range) in single.into_iter().chain(layers) {
        let (numbers, _) = bytes.get(range.clone()).unwrap_or_default().as_chunks();
        if let Some(index) = numbers.iter().position(|&number| !f32::from_le_bytes(number).is_finite()) {
            return Err(table(kind, format!("element {index}: expected a finite number")));
        }
    }
    Ok(())
}

fn table(kind: Kind, problem: String) -> FormatError {
    FormatError::Table { kind: kind.name(), problem }
}
