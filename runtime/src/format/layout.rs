//! Every number that fixes where something lies in a blob, but for quantized panels, which are [`quantized`]'s.
//! `format-spec.md` is the prose of this file.

use super::dtype::Dtype;
use super::quantized::{self, PANEL};

/// First eight bytes of a blob. The high bit, the CR LF and the ^Z reveal a transfer in text mode, as PNG's do.
pub const MAGIC: [u8; 8] = *b"\x89SMOL\r\n\x1a";
/// A reader refuses any other major version.
pub const VERSION_MAJOR: u16 = 1;
/// The minor version this crate writes; a reader accepts older and newer ones.
pub const VERSION_MINOR: u16 = 3;

/// Bytes of the header, at offset 0.
pub const HEADER_LEN: usize = 128;
/// Bytes of one directory entry; the directory starts right after the header.
pub const ENTRY_LEN: usize = 96;
/// Bytes of the config record.
pub const CONFIG_LEN: usize = 256;
/// Most sections a blob may have: bounds the directory before it is hashed.
pub const MAX_SECTIONS: u32 = 1 << 16;

/// Alignment of small tables, in bytes: one cache line.
pub const TABLE_ALIGN: u64 = 64;
/// Alignment of weight sections, in bytes: one page.
pub const WEIGHT_ALIGN: u64 = 4096;
/// `layer` of a section that belongs to no layer.
pub const NO_LAYER: u32 = u32::MAX;
/// A token id that stands for "none" in the config and the tokenizer's tables.
pub const NO_TOKEN: u32 = u32::MAX;
/// Most ids that may end a generation.
pub const MAX_EOS: usize = 16;
/// Entry flag: a reader that does not know this section's kind must refuse the blob.
pub const FLAG_REQUIRED: u32 = 1;
/// Slots after its home slot in which a merge may be found.
pub const MAX_PROBE: usize = 64;

/// What a section holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
#[non_exhaustive]
#[allow(missing_docs)] // the names are those of format-spec.md
pub enum Kind {
    Config = 1,
    RopeInvFreq = 2,
    TokenOffsets = 3,
    TokenBytes = 4,
    ByteTokens = 5,
    Merges = 6,
    AddedTokens = 7,
    Pretokenizer = 8,
    ChatTemplate = 9,
    Metadata = 10,
    TextRules = 11,
    CharTokens = 12,
    WholeWords = 13,
    PromptPrefix = 14,
    LayerFlags = 15,
    EmbedTokens = 16,
    InputLayernorm = 17,
    QkvProj = 18,
    OProj = 19,
    PostAttentionLayernorm = 20,
    GateUpProj = 21,
    DownProj = 22,
    Norm = 23,
    LmHead = 24,
    QkvBias = 25,
    QkNorm = 26,
    OBias = 27,
    EmbedTokensRare = 28,
    LmHeadRare = 29,
    GateUpBias = 30,
    DownBias = 31,
}

impl Kind {
    /// Every kind, in ascending order of its code.
    pub const ALL: &[Kind] = {
        use Kind::*;
        &[
            Config,
            RopeInvFreq,
            TokenOffsets,
            TokenBytes,
            ByteTokens,
            Merges,
            AddedTokens,
            Pretokenizer,
            ChatTemplate,
            Metadata,
            TextRules,
            CharTokens,
            WholeWords,
            PromptPrefix,
            LayerFlags,
            EmbedTokens,
            InputLayernorm,
            QkvProj,
            OProj,
            PostAttentionLayernorm,
            GateUpProj,
            DownProj,
            Norm,
            LmHead,
            QkvBias,
            QkNorm,
            OBias,
            EmbedTokensRare,
            LmHeadRare,
            GateUpBias,
            DownBias,
        ]
    };

    /// The kind with this code, if this version knows it.
    pub fn from_code(code: u32) -> Option<Kind> {
        Self::ALL.iter().copied().find(|kind| kind.code() == code)
    }

    /// The code written in the directory.
    pub fn code(self) -> u32 {
        self as u32
    }

    /// The name used in messages and by `smolconv inspect`.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Config => "config",
            Kind::RopeInvFreq => "rope_inv_freq",
            Kind::TokenOffsets => "token_offsets",
            Kind::TokenBytes => "token_bytes",
            Kind::ByteTokens => "byte_tokens",
            Kind::Merges => "merges",
            Kind::AddedTokens => "added_tokens",
            Kind::Pretokenizer => "pretokenizer",
            Kind::ChatTemplate => "chat_template",
            Kind::Metadata => "metadata",
            Kind::TextRules => "text_rules",
            Kind::CharTokens => "char_tokens",
            Kind::WholeWords => "whole_words",
            Kind::PromptPrefix => "prompt_prefix",
            Kind::LayerFlags => "layer_flags",
            Kind::EmbedTokens => "embed_tokens",
            Kind::InputLayernorm => "input_layernorm",
            Kind::QkvProj => "qkv_proj",
            Kind::OProj => "o_proj",
            Kind::PostAttentionLayernorm => "post_attention_layernorm",
            Kind::GateUpProj => "gate_up_proj",
            Kind::DownProj => "down_proj",
            Kind::Norm => "norm",
            Kind::LmHead => "lm_head",
            Kind::QkvBias => "qkv_bias",
            Kind::QkNorm => "qk_norm",
            Kind::OBias => "o_bias",
            Kind::EmbedTokensRare => "embed_tokens_rare",
            Kind::LmHeadRare => "lm_head_rare",
            Kind::GateUpBias => "gate_up_bias",
            Kind::DownBias => "down_bias",
        }
    }

    /// Whether one section of this kind belongs to each layer.
    pub fn is_per_layer(self) -> bool {
        use Kind::*;
        matches!(
            self,
            InputLayernorm
                | QkvProj
                | OProj
                | PostAttentionLayernorm
                | GateUpProj
                | DownProj
                | QkvBias
                | QkNorm
                | OBias
                | GateUpBias
                | DownBias
        )
    }

    /// Whether there may be several sections of this kind, numbered from 0.
    pub fn is_numbered(self) -> bool {
        matches!(self, Kind::Pretokenizer | Kind::EmbedTokensRare | Kind::LmHeadRare)
    }

    /// Whether the section is a matrix in panels.
    pub fn is_matrix(self) -> bool {
        matches!(
            self,
            Kind::EmbedTokens
                | Kind::QkvProj
                | Kind::OProj
                | Kind::GateUpProj
                | Kind::DownProj
                | Kind::LmHead
                | Kind::EmbedTokensRare
                | Kind::LmHeadRare
        )
    }

    /// Of a matrix with a row for each token, the kind of the sections that its last rows may have.
    pub fn rare(self) -> Option<Kind> {
        match self {
            Kind::EmbedTokens => Some(Kind::EmbedTokensRare),
            Kind::LmHead => Some(Kind::LmHeadRare),
            _ => None,
        }
    }

    /// Whether a reader can do without the section.
    pub fn is_optional(self) -> bool {
        matches!(self, Kind::ChatTemplate | Kind::Metadata)
    }

    /// What the section's offset must be a multiple of.
    pub fn alignment(self) -> u64 {
        if self.is_matrix() { WEIGHT_ALIGN } else { TABLE_ALIGN }
    }

    /// The element types that the section may have.
    pub fn dtypes(self) -> &'static [Dtype] {
        use Kind::*;
        match self {
            Config | TokenBytes | Pretokenizer | ChatTemplate | Metadata => &[Dtype::U8],
            TokenOffsets | ByteTokens | Merges | AddedTokens | TextRules | CharTokens | WholeWords
            | PromptPrefix | LayerFlags => &[Dtype::U32],
            RopeInvFreq
            | InputLayernorm
            | PostAttentionLayernorm
            | Norm
            | QkvBias
            | QkNorm
            | OBias
            | GateUpBias
            | DownBias => &[Dtype::F32],
            EmbedTokens | QkvProj | OProj | GateUpProj | DownProj | LmHead | EmbedTokensRare | LmHeadRare => {
                &[Dtype::F32, Dtype::Bf16, Dtype::Q8, Dtype::Q6, Dtype::Q5, Dtype::Q4, Dtype::Q3]
            }
        }
    }

    /// Bytes of a section of this kind and `shape` (`[out, in]` for a matrix), `None` on overflow.
    ///
    /// A matrix is padded with zero rows to whole panels; `gate_up_proj` pads each of its two halves.
    pub fn byte_len(self, dtype: Dtype, shape: [u64; 2]) -> Option<u64> {
        let rows = match self {
            Kind::GateUpProj => (shape[0] / 2).checked_next_multiple_of(PANEL as u64)?.checked_mul(2)?,
            kind if kind.is_matrix() => shape[0].checked_next_multiple_of(PANEL as u64)?,
            _ => shape[0],
        };
        match dtype.size() {
            Some(size) => rows.checked_mul(shape[1])?.checked_mul(size),
            None => quantized::section_len(dtype, rows, shape[1]),
        }
    }
}
