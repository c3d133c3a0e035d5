//! Sections to a file: packed, hashed and written at the same time, header and directory last.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use sha2::{Digest, Sha256};
use smolrun::format::{Dtype, Entry, Header};

use crate::blocks::Blocks;
use crate::error::{Error, Result};
use crate::pack::{in_bf16, pack, pieces};
use crate::plan::{Plan, Spec};
use crate::progress::Progress;
use crate::source::Source;
use crate::tensor_map::Binding;

/// What goes into a section.
pub enum Content<'a> {
    /// These bytes.
    Bytes(Vec<u8>),
    /// These tensors.
    Tensors(Binding<'a>),
}

/// A section to be written.
pub struct Section<'a> {
    /// What it is.
    pub spec: Spec,
    /// What goes into it.
    pub content: Content<'a>,
}

/// The next bytes of a section.
struct Piece {
    section: usize,
    data: Data,
}

enum Data {
    Bytes(Vec<u8>),
    Floats(Vec<f32>),
    Pairs(Vec<[u16; 2]>),
}

impl Data {
    fn bytes(&self) -> &[u8] {
        match self {
            Data::Bytes(bytes) => bytes,
            Data::Floats(floats) => bytemuck::cast_slice(floats),
            Data::Pairs(pairs) => bytemuck::cast_slice(pairs),
        }
    }
}

/// Writes `sections`, which `plan` was made for, to `file` and brings them to the disk.
///
/// This thread packs, with rayon's, what another one hashes and writes. At most three pieces are in memory: one being
/// packed, one waiting, one being written.
pub fn write(
    sections: &[Section],
    plan: Plan,
    source: &Source,
    file: File,
    path: &Path,
    progress: &Progress,
) -> Result<()> {
    progress.start("packing", plan.file_len);
    let (sender, receiver) = sync_channel(1);
    thread::scope(|scope| {
        let writer = scope.spawn(move || Writer::new(file, plan)?.run(receiver, progress));
        let packed = send_pieces(sections, source, sender);
        let written = writer.join().unwrap_or_else(|_| Err(io::Error::other("the writing thread failed")));
        written.map_err(Error::io(path))?;
        packed
    })
}

/// Ends early and without an error where the writer has gone, which then has one.
fn send_pieces(sections: &[Section], source: &Source, sender: SyncSender<Option<Piece>>) -> Result<()> {
    let send = |section, data| sender.send(Some(Piece { section, data }));
    for (index, section) in sections.iter().enumerate() {
        match &section.content {
            Content::Bytes(bytes) => {
                let Ok(()) = send(index, Data::Bytes(bytes.clone())) else { return Ok(()) };
            }
            Content::Tensors(binding) => {
                for piece in pieces(binding) {
                    let packed = store_as(section.spec.dtype, pack(source, binding, piece)?);
                    let Ok(()) = send(index, packed) else { return Ok(()) };
                }
            }
        }
    }
    let _ = sender.send(None);
    Ok(())
}

fn store_as(dtype: Dtype, floats: Vec<f32>) -> Data {
    match dtype {
        Dtype::Bf16 => Data::Pairs(in_bf16(&floats)),
        _ => Data::Floats(floats),
    }
}

/// Writes pieces in order and fills in the hashes of their sections.
struct Writer {
    blocks: Blocks,
    plan: Plan,
    position: u64,
    hashers: Vec<Sha256>,
}

impl Writer {
    fn new(file: File, plan: Plan) -> io::Result<Writer> {
        let mut blocks = Blocks::new(file);
        let start = header_and_directory(&plan); // not yet with hashes
        blocks.append(&start)?;
        let hashers = vec![Sha256::new(); plan.entries.len()];
        Ok(Writer { blocks, plan, position: start.len() as u64, hashers })
    }

    /// A `None` ends the file; without one, whoever sent the pieces failed and says so itself.
    fn run(mut self, pieces: Receiver<Option<Piece>>, progress: &Progress) -> io::Result<()> {
        while let Ok(piece) = pieces.recv() {
            match piece {
                Some(piece) => progress.add(self.write(piece.section, piece.data.bytes())?),
                None => return self.finish(),
            }
        }
        Ok(())
    }

    fn write(&mut self, section: usize, bytes: &[u8]) -> io::Result<u64> {
        let offset = self.plan.entries[section].offset;
        let padding = offset.saturating_sub(self.position);
        self.blocks.append(&vec![0; padding as usize])?;
        self.hashers[section].update(bytes);
        self.blocks.append(bytes)?;
        self.position += padding + bytes.len() as u64;
        Ok(padding + bytes.len() as u64)
    }

    fn finish(mut self) -> io::Result<()> {
        for (entry, hasher) in self.plan.entries.iter_mut().zip(self.hashers) {
            entry.sha256 = hasher.finalize().into();
        }
        self.blocks.finish(&header_and_directory(&self.plan))
    }
}

fn header_and_directory(plan: &Plan) -> Vec<u8> {
    let directory: &[u8] = bytemuck::cast_slice::<Entry, u8>(&plan.entries);
    let header = Header::new(plan.file_len, directory);
    [bytemuck::bytes_of(&header), directory].concat()
}
