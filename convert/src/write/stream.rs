//! Sections to a file: packed, hashed and written at the same time, header and directory last.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::mpsc::{Receiver, SendError, SyncSender, sync_channel};
use std::thread;

use sha2::{Digest, Sha256};
use smolrun::format::{Dtype, Entry, Header};

use super::blocks::Blocks;
use super::metadata::{Metadata, QuantizedSection};
use super::pack::{in_bf16, pack, pieces};
use super::plan::{Plan, Spec};
use super::shelf::Shelved;
use crate::checkpoint::binding::Binding;
use crate::error::{Error, Result};
use crate::progress::Progress;
use crate::quantize::matrix::{quantize, quantizer};
use crate::quantize::{Codes, Loss};
use crate::source::Source;

/// Bytes that are sent at a time of what is quantized already.
const PIECE_LEN: usize = 8 << 20;

/// What goes into a section.
#[derive(Clone)]
pub enum Content<'a> {
    /// These bytes.
    Bytes(Vec<u8>),
    /// These tensors.
    Tensors(Binding<'a>),
    /// These tensors, as they were made before.
    Shelved(Binding<'a>, Shelved),
    /// What is known once the tensors are packed: the last section, planned empty.
    Metadata(Box<Metadata>),
}

/// A section to be written.
#[derive(Clone)]
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

/// Writes `sections`, which `plan` was made for, to `file`, which is not on the disk then. Returns how many bytes it has.
/// Errors call it `path`.
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
) -> Result<u64> {
    progress.start("packing", plan.file_len);
    let (sender, receiver) = sync_channel(1);
    thread::scope(|scope| {
        let writer = scope.spawn(move || Writer::new(file, plan)?.run(receiver, progress));
        let packed = Packer { source, path, sender, quantized: Vec::new() }.send(sections);
        let written = writer.join().unwrap_or_else(|_| Err(io::Error::other("the writing thread failed")));
        let file_len = written.map_err(Error::io(path))?;
        match packed {
            Err(Stop::Failed(error)) => Err(error),
            Err(Stop::WriterGone) | Ok(()) => Ok(file_len),
        }
    })
}

/// Why no more pieces are made.
enum Stop {
    Failed(Error),
    /// It has an error that says why.
    WriterGone,
}

impl From<Error> for Stop {
    fn from(error: Error) -> Stop {
        Stop::Failed(error)
    }
}

impl From<SendError<Option<Piece>>> for Stop {
    fn from(_: SendError<Option<Piece>>) -> Stop {
        Stop::WriterGone
    }
}

type Sent = std::result::Result<(), Stop>;

/// Makes the pieces.
struct Packer<'a> {
    source: &'a Source,
    /// What errors call the file.
    path: &'a Path,
    sender: SyncSender<Option<Piece>>,
    /// The quantized sections so far.
    quantized: Vec<QuantizedSection>,
}

impl Packer<'_> {
    fn send(mut self, sections: &[Section]) -> Sent {
        for (index, section) in sections.iter().enumerate() {
            match &section.content {
                Content::Bytes(bytes) => self.send_piece(index, Data::Bytes(bytes.clone()))?,
                Content::Tensors(binding) => match Codes::of(binding.dtype) {
                    Some(codes) => self.send_quantized(index, binding, codes)?,
                    None => self.send_numbers(index, binding)?,
                },
                Content::Shelved(binding, shelved) => {
                    for piece in shelved.pieces(PIECE_LEN) {
                        self.send_piece(index, Data::Bytes(piece.map_err(Error::io(self.path))?))?;
                    }
                    if binding.dtype.code_bits().is_some() {
                        self.quantized.push(QuantizedSection::new(binding, shelved.loss));
                    }
                }
                Content::Metadata(metadata) => {
                    self.send_piece(index, Data::Bytes(metadata.to_json(&self.quantized)))?;
                }
            }
        }
        Ok(self.sender.send(None)?)
    }

    fn send_numbers(&self, section: usize, binding: &Binding) -> Sent {
        for piece in pieces(binding) {
            let floats = pack(self.source, binding, piece)?;
            let data = match binding.dtype {
                Dtype::Bf16 => Data::Pairs(in_bf16(&floats)),
                _ => Data::Floats(floats),
            };
            self.send_piece(section, data)?;
        }
        Ok(())
    }

    fn send_quantized(&mut self, section: usize, binding: &Binding, codes: Codes) -> Sent {
        let quantizer = quantizer(binding, codes)?;
        self.send_piece(section, Data::Bytes(quantizer.values()))?;
        let mut loss = Loss::default();
        for piece in pieces(binding) {
            let (bytes, lost) = quantize(self.source, binding, &quantizer, piece)?;
            loss += lost;
            self.send_piece(section, Data::Bytes(bytes))?;
        }
        self.quantized.push(QuantizedSection::new(binding, loss));
        Ok(())
    }

    fn send_piece(&self, section: usize, data: Data) -> Sent {
        Ok(self.sender.send(Some(Piece { section, data }))?)
    }
}

/// Writes pieces in order and fills in the hashes of their sections, and the length of the last.
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
    fn run(mut self, pieces: Receiver<Option<Piece>>, progress: &Progress) -> io::Result<u64> {
        while let Ok(piece) = pieces.recv() {
            match piece {
                Some(piece) => progress.add(self.write(piece.section, piece.data.bytes())?)?,
                None => return self.finish(),
            }
        }
        Ok(self.position)
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

    fn finish(mut self) -> io::Result<u64> {
        self.plan.end_at(self.position);
        for (entry, hasher) in self.plan.entries.iter_mut().zip(self.hashers) {
            entry.sha256 = hasher.finalize().into();
        }
        self.blocks.finish(&header_and_directory(&self.plan))?;
        Ok(self.position)
    }
}

fn header_and_directory(plan: &Plan) -> Vec<u8> {
    let directory: &[u8] = bytemuck::cast_slice::<Entry, u8>(&plan.entries);
    let header = Header::new(plan.file_len, directory);
    [bytemuck::bytes_of(&header), directory].concat()
}
