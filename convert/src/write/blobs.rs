//! Blobs of one checkpoint, each with its matrices stored in another way: temporary files until one of them is kept.

use smolrun::Model;
use smolrun::format::{Dtype, Kind};

use super::metadata::Metadata;
use super::plan::{Plan, Spec, plan};
use super::sections::weight_sections;
use super::shelf::Shelf;
use super::stream::{Content, Section, write};
use super::target::Target;
use super::temp_file::TempFile;
use crate::checkpoint::binding::Binding;
use crate::error::{Error, Result};
use crate::progress::Progress;
use crate::source::Source;

/// What all of them have in common.
pub(crate) struct Blobs<'a> {
    /// Where the numbers come from.
    pub(crate) source: &'a Source,
    /// The small tables.
    pub(crate) tables: Vec<Section<'static>>,
    /// Whether the embedding is the output matrix.
    pub(crate) tied: bool,
    /// What the one that is kept replaces.
    pub(crate) target: Target,
}

/// A model in a temporary file.
pub(crate) struct Temporary {
    /// Dropped, and so unmapped, before the file goes.
    pub(crate) model: Model,
    _temp: TempFile,
}

impl Blobs<'_> {
    /// All sections in the order of the file: those of `bindings` from the `shelf` if they are on it.
    pub(crate) fn sections<'b>(
        &self,
        bindings: Vec<Binding<'b>>,
        shelf: Option<&Shelf>,
        metadata: Metadata,
    ) -> Vec<Section<'b>> {
        let mut sections: Vec<Section<'b>> = self.tables.clone();
        sections.extend(weight_sections(bindings, shelf, self.tied));
        let spec = Spec { kind: Kind::Metadata, layer: None, dtype: Dtype::U8, shape: [0, 1] };
        sections.push(Section { spec, content: Content::Metadata(Box::new(metadata)) });
        sections
    }

    /// Writes `sections` to a temporary file beside the blob to be. Returns how many bytes it has, too.
    pub(crate) fn write(&self, sections: &[Section], progress: &Progress) -> Result<(TempFile, u64)> {
        let plan = self.plan(sections)?;
        let temp = TempFile::create(&self.target)?;
        let file_len = write(sections, plan, self.source, temp.file()?, &self.target.asked, progress)?;
        Ok((temp, file_len))
    }

    /// The bytes of a blob of `bindings`, at most.
    pub(crate) fn most_bytes(&self, bindings: &[Binding], metadata: &Metadata) -> Result<u64> {
        let sections = self.sections(bindings.to_vec(), None, metadata.clone());
        let Plan { file_len, .. } = self.plan(&sections)?;
        Ok(file_len.saturating_add(metadata.most_bytes(bindings)))
    }

    /// The model of a blob of `bindings`, in a file that is gone with it.
    pub(crate) fn model(
        &self,
        bindings: Vec<Binding>,
        shelf: Option<&Shelf>,
        metadata: &Metadata,
        progress: &Progress,
    ) -> Result<Temporary> {
        let (temp, _) = self.write(&self.sections(bindings, shelf, metadata.clone()), progress)?;
        Ok(Temporary { model: self.open(&temp)?, _temp: temp })
    }

    pub(crate) fn open(&self, temp: &TempFile) -> Result<Model> {
        Model::open(temp.path()).map_err(Error::blob(&self.target.asked))
    }

    fn plan(&self, sections: &[Section]) -> Result<Plan> {
        let specs: Vec<Spec> = sections.iter().map(|section| section.spec).collect();
        let problem = "the blob would have more sections or bytes than a blob can";
        plan(&specs).ok_or_else(|| Error::output(&self.target.asked, problem))
    }
}
