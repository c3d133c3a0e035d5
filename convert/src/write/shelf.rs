//! Sections that are made before others in a file of their own, until it is known which of them a blob takes.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::sync::Arc;

use smolrun::format::{Dtype, Kind};

use super::target::Target;
use super::temp_file::TempFile;
use crate::checkpoint::binding::Binding;
use crate::error::{Error, Result};
use crate::quantize::Loss;
use crate::quantize::matrix::Quantized;

/// Sections by what they are and are stored as. The file is gone with the shelf.
pub(crate) struct Shelf {
    temp: TempFile,
    file: Arc<File>,
    end: u64,
    sections: HashMap<(Kind, Option<u32>, Dtype), Shelved>,
}

/// A section on a shelf that is still there.
#[derive(Clone, Debug)]
pub struct Shelved {
    file: Arc<File>,
    bytes: Range<u64>,
    /// What it lost.
    pub loss: Loss,
}

impl Shelf {
    /// An empty one, in the directory of `target`.
    pub(crate) fn new(target: &Target) -> Result<Shelf> {
        let temp = TempFile::create(target)?;
        let file = Arc::new(temp.file()?);
        Ok(Shelf { temp, file, end: 0, sections: HashMap::new() })
    }

    /// Keeps the section of `binding`.
    pub(crate) fn put(&mut self, binding: &Binding, quantized: &Quantized) -> Result<()> {
        let mut file = &*self.file;
        let written = file.seek(SeekFrom::Start(self.end)).and_then(|_| file.write_all(&quantized.bytes));
        written.map_err(Error::io(self.temp.asked()))?;
        let bytes = self.end..self.end + quantized.bytes.len() as u64;
        self.end = bytes.end;
        let shelved = Shelved { file: self.file.clone(), bytes, loss: quantized.loss };
        self.sections.insert((binding.kind, binding.layer, binding.dtype), shelved);
        Ok(())
    }

    /// The section of `binding`, if it is there.
    pub(crate) fn get(&self, binding: &Binding) -> Option<&Shelved> {
        self.sections.get(&(binding.kind, binding.layer, binding.dtype))
    }
}

impl Shelved {
    /// Its bytes, at most `piece_len` at a time. Nothing else may be read from its shelf meanwhile.
    pub(super) fn pieces(&self, piece_len: usize) -> impl Iterator<Item = io::Result<Vec<u8>>> {
        let piece_len = piece_len as u64;
        self.bytes.clone().step_by(piece_len as usize).map(move |start| {
            let mut piece = vec![0; piece_len.min(self.bytes.end - start) as usize];
            let mut file = &*self.file;
            file.seek(SeekFrom::Start(start))?;
            file.read_exact(&mut piece)?;
            Ok(piece)
        })
    }
}
