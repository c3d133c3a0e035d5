//! What can be wrong with a blob, said as what, expected, found and where.

use std::fmt;

use super::layout::{Kind, NO_LAYER};

/// Why bytes are not a blob that this version can run.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum FormatError {
    /// The bytes in memory do not start on a multiple of 64.
    BaseAlignment,
    /// Fewer bytes than a header has.
    TooShort {
        /// Bytes there are.
        found: u64,
    },
    /// The first eight bytes are not a blob's.
    Magic {
        /// The first eight bytes.
        found: [u8; 8],
    },
    /// Written by an incompatible version.
    Version {
        /// The blob's major and minor version.
        found: (u16, u16),
    },
    /// A header field has a value it may not have.
    Header {
        /// The field's name in format-spec.md.
        field: &'static str,
        /// What it should have been.
        expected: String,
        /// What it was.
        found: u64,
    },
    /// The file was cut off, or has more bytes than were written.
    Length {
        /// Bytes that its header says.
        expected: u64,
        /// Bytes there are.
        found: u64,
    },
    /// Reserved bytes are not zero.
    Reserved {
        /// Where: the header or a directory entry.
        place: Place,
    },
    /// The header or the directory was changed after it was written.
    DirectoryHash,
    /// A directory entry has a field it may not have.
    Entry {
        /// Which section.
        place: Place,
        /// What is wrong, in words.
        problem: String,
    },
    /// No section of this kind, or for this layer.
    Missing {
        /// The kind's name.
        kind: &'static str,
        /// The layer that lacks it, where it is one per layer.
        layer: Option<u32>,
    },
    /// A field of the config record has a value it may not have.
    Config {
        /// The field's name.
        field: &'static str,
        /// What it should have been.
        expected: String,
        /// What it was.
        found: String,
    },
    /// A table's content contradicts itself; found while using or verifying it.
    Table {
        /// The section's name.
        kind: &'static str,
        /// What is wrong, in words.
        problem: String,
    },
    /// `verify` found that a section's bytes are not those that were written.
    SectionHash {
        /// Which section.
        place: Place,
    },
    /// `verify` found bytes between sections that are not zero.
    Padding {
        /// Offset of the first such byte.
        offset: u64,
    },
}

impl FormatError {
    /// Its class, by which programs tell errors apart: see [`Error::code`](crate::Error::code).
    pub fn code(&self) -> &'static str {
        match self {
            FormatError::BaseAlignment => "blob.alignment",
            FormatError::TooShort { .. } => "blob.too_short",
            FormatError::Magic { .. } => "blob.magic",
            FormatError::Version { .. } => "blob.version",
            FormatError::Header { .. } | FormatError::Length { .. } => "blob.header",
            FormatError::Reserved { .. } => "blob.reserved",
            FormatError::DirectoryHash => "blob.directory",
            FormatError::Entry { .. } => "blob.entry",
            FormatError::Missing { .. } => "blob.missing",
            FormatError::Config { .. } => "blob.config",
            FormatError::Table { .. } => "blob.table",
            FormatError::SectionHash { .. } => "blob.checksum",
            FormatError::Padding { .. } => "blob.padding",
        }
    }
}

/// Where in a blob something was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Place {
    /// The header.
    Header,
    /// A section, by its index in the directory.
    Section {
        /// Index in the directory, from 0.
        index: u32,
        /// Code of its kind, known or not.
        kind: u32,
        /// Its layer, or `NO_LAYER`.
        layer: u32,
    },
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Place::Section { index, kind, layer } = *self else { return f.write_str("header") };
        write!(f, "section {index} (")?;
        match Kind::from_code(kind) {
            Some(kind) => f.write_str(kind.name())?,
            None => write!(f, "kind {kind}")?,
        }
        if layer != NO_LAYER {
            write!(f, ", layer {layer}")?;
        }
        f.write_str(")")
    }
}

impl fmt::Display for FormatError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use super::layout::{HEADER_LEN, TABLE_ALIGN, VERSION_MAJOR, VERSION_MINOR};
        match self {
            Self::BaseAlignment => {
                write!(f, "the blob's first byte does not lie on a multiple of {TABLE_ALIGN} in memory")
            }
            Self::TooShort { found } => {
                write!(f, "not a blob: expected at least the {HEADER_LEN} bytes of a header, found {found}")
            }
            Self::Magic { found } => {
                write!(f, "not a blob: the first bytes are \"{}\"", found.escape_ascii())
            }
            Self::Version { found: (major, minor) } => write!(
                f,
                "format version {major}.{minor} cannot be read by this version, which reads {VERSION_MAJOR}.{VERSION_MINOR}: \
                 convert the checkpoint again"
            ),
            Self::Header { field, expected, found } => {
                write!(f, "header: {field}: expected {expected}, found {found}")
            }
            Self::Length { expected, found } => {
                let what = if found < expected { "it is incomplete" } else { "it has bytes too many" };
                write!(f, "the file has {found} bytes, its header says {expected}: {what}")
            }
            Self::Reserved { place } => write!(f, "{place}: reserved bytes are not zero"),
            Self::DirectoryHash => {
                f.write_str("header and directory do not match their SHA-256: the file is damaged")
            }
            Self::Entry { place, problem } => write!(f, "{place}: {problem}"),
            Self::Missing { kind, layer: None } => write!(f, "no section {kind}"),
            Self::Missing { kind, layer: Some(layer) } => write!(f, "no section {kind} for layer {layer}"),
            Self::Config { field, expected, found } => {
                write!(f, "config: {field}: expected {expected}, found {found}")
            }
            Self::Table { kind, problem } => write!(f, "{kind}: {problem}"),
            Self::SectionHash { place } => {
                write!(f, "{place}: content does not match its SHA-256: the file is damaged")
            }
            Self::Padding { offset } => {
                write!(f, "the byte at offset {offset}, between sections, is not zero")
            }
        }
    }
}

impl std::error::Error for FormatError {}
