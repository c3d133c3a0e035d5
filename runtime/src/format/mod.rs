//! The blob's bytes and what they must say: the code of `format-spec.md`.
//!
//! [`Layout::parse`] is the ordered list of checks that every opening runs, before one weight is touched: label,
//! version, sizes, directory hash, bounds, order, alignment, dtypes, then every section's shape against the config.
//! Nothing here touches a file, prints or allocates more than the directory's size. Hashing the content is
//! [`Model::verify`](crate::Model::verify)'s work.

#![deny(clippy::arithmetic_side_effects)]

mod added_token;
mod config;
mod dfa;
mod directory;
mod dtype;
mod error;
mod header;
mod layer_flags;
mod layout;
mod merges;
mod quantized;
mod text_rules;

use std::ops::Range;

#[doc(hidden)]
pub use self::added_token::AddedToken;
pub use self::config::Config;
#[doc(hidden)]
pub use self::dfa::{DEAD, Dfa, MAX_LOOK_AHEAD};
pub use self::directory::{Entry, Section};
pub use self::dtype::Dtype;
pub use self::error::{FormatError, Place};
pub use self::header::Header;
pub use self::layer_flags::LayerFlags;
#[doc(hidden)] // the converter's
pub use self::layout::{
    CONFIG_LEN, ENTRY_LEN, FLAG_REQUIRED, HEADER_LEN, MAX_EOS, MAX_PROBE, MAX_SECTIONS, NO_LAYER, NO_TOKEN,
    TABLE_ALIGN, WEIGHT_ALIGN,
};
pub use self::layout::{Kind, MAGIC, VERSION_MAJOR, VERSION_MINOR};
#[doc(hidden)]
pub use self::merges::{Merge, Merges};
#[doc(hidden)]
pub use self::quantized::{BLOCK, PANEL, QuantizedPanels};
pub use self::text_rules::TextRules;

/// A blob's sections, each checked, and where their bytes lie.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Layout {
    /// The header.
    pub header: Header,
    /// Every section in file order, unknown optional ones included.
    pub sections: Vec<Section>,
    /// The model's hyperparameters.
    pub config: Config,
    /// The transformer's sections.
    pub weights: WeightSections,
    /// The tokenizer's sections.
    pub tokenizer: TokenizerSections,
    /// The chat template: Jinja source, UTF-8.
    pub chat_template: Option<Range<usize>>,
    /// JSON about where the blob came from.
    pub metadata: Option<Range<usize>>,
}

/// Where the transformer's numbers lie. Shapes are in [`Config`]'s terms; matrices are in panels.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct WeightSections {
    /// Rotary inverse frequencies, `[head_dim / 2]`.
    pub rope_inv_freq: Range<usize>,
    /// `[vocab_size, hidden_size]`: one section, or several with rows of ever rarer tokens.
    pub embed_tokens: Vec<MatrixSection>,
    /// One per layer.
    pub layers: Vec<LayerSections>,
    /// `[hidden_size]`
    pub norm: Range<usize>,
    /// `[vocab_size, hidden_size]`, likewise; the embedding's own ranges when they are tied.
    pub lm_head: Vec<MatrixSection>,
}

impl WeightSections {
    /// Every dtype that a matrix is stored as, once, in ascending order of their codes.
    pub fn dtypes(&self) -> Vec<Dtype> {
        let layers = self.layers.iter().flat_map(LayerSections::matrices);
        let matrices: Vec<_> = layers.chain(&self.embed_tokens).chain(&self.lm_head).collect();
        let is_any = |dtype: &Dtype| matrices.iter().any(|matrix| matrix.dtype == *dtype);
        Dtype::ALL.iter().copied().filter(is_any).collect()
    }
}

/// Where a matrix in panels lies, and as what.
#[derive(Clone, Debug)]
pub struct MatrixSection {
    /// Its bytes.
    pub range: Range<usize>,
    /// What its elements are stored as.
    pub dtype: Dtype,
}

impl Section {
    fn parameters(&self) -> u64 {
        let is_norm = |kind| matches!(kind, Kind::InputLayernorm | Kind::PostAttentionLayernorm | Kind::Norm);
        let [rows, columns] = self.entry.shape;
        match self.kind {
            Some(kind) if kind.is_matrix() || is_norm(kind) => rows.saturating_mul(columns.max(1)),
            _ => 0,
        }
    }

    fn matrix(&self) -> MatrixSection {
        // A matrix is of a known kind, so it has a dtype.
        MatrixSection { range: self.range.clone(), dtype: self.dtype.unwrap_or(Dtype::F32) }
    }
}

/// Where one decoder layer's numbers lie.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LayerSections {
    /// How the layer differs from the first Llama's.
    pub flags: LayerFlags,
    /// `[hidden_size]`
    pub input_layernorm: Range<usize>,
    /// `[qkv_rows, hidden_size]`
    pub qkv_proj: MatrixSection,
    /// `[qkv_rows]`, where the model has one
    pub qkv_bias: Option<Range<usize>>,
    /// `[2][head_dim]`, the weights of the norms of each query head and each key head, where the model has them
    pub qk_norm: Option<Range<usize>>,
    /// `[hidden_size, attention_width]`
    pub o_proj: MatrixSection,
    /// `[hidden_size]`, where the model has one
    pub o_bias: Option<Range<usize>>,
    /// `[hidden_size]`
    pub post_attention_layernorm: Range<usize>,
    /// `[2 intermediate_size, hidden_size]`, panels of gate and up in turn
    pub gate_up_proj: MatrixSection,
    /// `[2 intermediate_size]`, gate, then up, where the model has one
    pub gate_up_bias: Option<Range<usize>>,
    /// `[hidden_size, intermediate_size]`
    pub down_proj: MatrixSection,
    /// `[hidden_size]`, where the model has one
    pub down_bias: Option<Range<usize>>,
}

impl LayerSections {
    /// The matrices, in the order in which they are used.
    pub fn matrices(&self) -> [&MatrixSection; 4] {
        [&self.qkv_proj, &self.o_proj, &self.gate_up_proj, &self.down_proj]
    }
}

/// Where the tokenizer's tables lie.
#[derive(Clone, Debug)]
pub struct TokenizerSections {
    /// `u32 [vocab_size + 1]`: token `t` is `token_bytes[offsets[t]..offsets[t + 1]]`.
    pub token_offsets: Range<usize>,
    /// The bytes each token stands for, one after the other.
    pub token_bytes: Range<usize>,
    /// `u32 [256]`: the token of a single byte, or [`NO_TOKEN`].
    pub byte_tokens: Range<usize>,
    /// `u32 [slots][4]`: left id, right id, rank, merged id; `slots` is a power of two.
    pub merges: Range<usize>,
    /// `u32 [n][2]`: id and flags of tokens matched in the text before anything else.
    pub added_tokens: Range<usize>,
    /// One [`Dfa`] per stage, in the order in which they run.
    pub pretokenizer: Vec<Range<usize>>,
    /// What is done to a text before it is cut into words.
    pub rules: TextRules,
    /// `u32 [n][2]`: code point and id of each character that is a token. Empty for a tokenizer that starts from bytes.
    pub char_tokens: Range<usize>,
    /// `u32 [n]`: tokens that a word becomes as a whole, whatever the merges say.
    pub whole_words: Range<usize>,
    /// `u32 [n]`: ids that a prompt begins with.
    pub prompt_prefix: Range<usize>,
}

impl Layout {
    /// Numbers that were trained, without padding; a tied embedding is one section.
    pub fn parameters(&self) -> u64 {
        self.sections.iter().map(Section::parameters).fold(0, u64::saturating_add)
    }

    /// Checks everything about `bytes` that can be checked without reading the sections' content.
    ///
    /// `bytes` must start on a multiple of 64 in memory, as a mapped file does.
    pub fn parse(bytes: &[u8]) -> Result<Layout, FormatError> {
        let (header, directory) = Header::parse(bytes)?;
        if !bytes.as_ptr().addr().is_multiple_of(TABLE_ALIGN as usize) {
            return Err(FormatError::BaseAlignment);
        }
        let sections = directory::parse(directory, bytes.len())?;
        let config = parse_config(&sections, bytes)?;
        let mut table = SectionTable::new(&sections, config.num_hidden_layers)?;
        let flags = table.take_layer_flags(&config, bytes)?;
        let weights = table.take_weights(&config, &flags)?;
        let tokenizer = table.take_tokenizer(&config, bytes)?;
        for stage in &tokenizer.pretokenizer {
            Dfa::parse(&bytes[stage.clone()])?;
        }
        let chat_template = table.take_text(Kind::ChatTemplate)?;
        let metadata = table.take_text(Kind::Metadata)?;
        table.expect_empty()?;
        Ok(Layout { header, config, weights, tokenizer, chat_template, metadata, sections })
    }
}

fn parse_config(sections: &[Section], bytes: &[u8]) -> Result<Config, FormatError> {
    let missing = || FormatError::Missing { kind: Kind::Config.name(), layer: None };
    let section = sections.iter().find(|section| section.kind == Some(Kind::Config)).ok_or_else(missing)?;
    let record: &[u8; CONFIG_LEN] = bytes[section.range.clone()].try_into().map_err(|_| {
        section.error(format!("length: expected {CONFIG_LEN}, found {}", section.entry.length))
    })?;
    Config::parse(record)
}

/// Sections sorted by kind and layer, taken off one by one as their place in the model is filled.
struct SectionTable<'a> {
    /// One per kind that is not per layer, indexed by kind code.
    single: Vec<Option<&'a Section>>,
    /// Per layer, those of the kinds that are, indexed by kind code.
    layers: Vec<Vec<Option<&'a Section>>>,
    /// Those of the kinds that are numbered, in order, indexed by kind code.
    numbered: Vec<Vec<&'a Section>>,
}

impl<'a> SectionTable<'a> {
    fn new(sections: &'a [Section], num_hidden_layers: usize) -> Result<SectionTable<'a>, FormatError> {
        let most = Kind::ALL.last().map_or(0, |&kind| kind as usize);
        // The config is not to be believed about memory before there is something to put there.
        if sections.len() < num_hidden_layers {
            let expected = format!("at most {}, the number of sections", sections.len());
            let found = num_hidden_layers.to_string();
            return Err(FormatError::Config { field: "num_hidden_layers", expected, found });
        }
        let mut table = SectionTable {
            single: vec![None; most.saturating_add(1)],
            layers: vec![vec![None; most.saturating_add(1)]; num_hidden_layers],
            numbered: vec![Vec::new(); most.saturating_add(1)],
        };
        for section in sections {
            let Some(kind) = section.kind else { continue };
            let layer = section.entry.layer as usize;
            if kind.is_numbered() {
                let before = &mut table.numbered[kind as usize];
                if layer != before.len() {
                    return Err(section.error(format!("layer: expected number {}", before.len())));
                }
                before.push(section);
                continue;
            }
            let row = match kind.is_per_layer() {
                true => table.layers.get_mut(layer).ok_or_else(|| {
                    section.error(format!("layer: expected below num_hidden_layers, {num_hidden_layers}"))
                })?,
                false => &mut table.single,
            };
            if row[kind as usize].replace(section).is_some() {
                return Err(section.error("a second section of this kind and layer"));
            }
        }
        table.single[Kind::Config as usize] = None;
        Ok(table)
    }

    /// One for each layer.
    fn take_layer_flags(&mut self, config: &Config, bytes: &[u8]) -> Result<Vec<LayerFlags>, FormatError> {
        let layers = config.num_hidden_layers;
        let Some(section) = self.take_optional(Kind::LayerFlags, None, [layers as u64, 1])? else {
            return Ok(vec![LayerFlags::default(); layers]);
        };
        let bits = bytes[section.range.clone()].as_chunks().0.iter();
        let flags = bits.map(|&bits| LayerFlags::from_bits(u32::from_le_bytes(bits), config));
        flags.collect::<Result<_, _>>().map_err(|problem| section.error(problem))
    }

    fn take_weights(&mut self, config: &Config, flags: &[LayerFlags]) -> Result<WeightSections, FormatError> {
        let head_dim = config.head_dim as u64;
        let [vocab, hidden, intermediate, qkv, attention] = [
            config.vocab_size,
            config.hidden_size,
            config.intermediate_size,
            config.qkv_rows(),
            config.attention_width(),
        ]
        .map(|n| n as u64);
        let rope_inv_freq = self.take(Kind::RopeInvFreq, [head_dim / 2, 1])?.range.clone();
        let embed_tokens = self.take_vocab(Kind::EmbedTokens, [vocab, hidden])?;
        let layers = (0u32..).zip(flags).map(|(layer, &flags)| {
            let mut optional = |kind, shape| -> Result<Option<Range<usize>>, FormatError> {
                let section = self.take_optional(kind, Some(layer), shape)?;
                Ok(section.map(|section| section.range.clone()))
            };
            let qkv_bias = optional(Kind::QkvBias, [qkv, 1])?;
            let qk_norm = optional(Kind::QkNorm, [head_dim.saturating_mul(2), 1])?;
            let o_bias = optional(Kind::OBias, [hidden, 1])?;
            let gate_up_bias = optional(Kind::GateUpBias, [intermediate.saturating_mul(2), 1])?;
            let down_bias = optional(Kind::DownBias, [hidden, 1])?;
            let mut take = |kind, shape| self.take_layer(kind, layer, shape);
            Ok(LayerSections {
                flags,
                qkv_bias,
                qk_norm,
                o_bias,
                gate_up_bias,
                down_bias,
                input_layernorm: take(Kind::InputLayernorm, [hidden, 1])?.range.clone(),
                qkv_proj: take(Kind::QkvProj, [qkv, hidden])?.matrix(),
                o_proj: take(Kind::OProj, [hidden, attention])?.matrix(),
                post_attention_layernorm: take(Kind::PostAttentionLayernorm, [hidden, 1])?.range.clone(),
                gate_up_proj: take(Kind::GateUpProj, [intermediate.saturating_mul(2), hidden])?.matrix(),
                down_proj: take(Kind::DownProj, [hidden, intermediate])?.matrix(),
            })
        });
        let layers = layers.collect::<Result<_, FormatError>>()?;
        let norm = self.take(Kind::Norm, [hidden, 1])?.range.clone();
        let lm_head = match config.tie_word_embeddings {
            true => embed_tokens.clone(),
            false => self.take_vocab(Kind::LmHead, [vocab, hidden])?,
        };
        Ok(WeightSections { rope_inv_freq, embed_tokens, layers, norm, lm_head })
    }

    /// A matrix with a row for each token: all rows in one section, or the last ones in others.
    fn take_vocab(&mut self, kind: Kind, shape: [u64; 2]) -> Result<Vec<MatrixSection>, FormatError> {
        let rare = kind.rare().map(|kind| std::mem::take(&mut self.numbered[kind as usize]));
        let rare = rare.unwrap_or_default();
        let [mut rows, columns] = shape;
        // From the last section to the first: each leaves whole panels to those before it.
        for section in rare.iter().rev() {
            let [count, _] = section.entry.shape;
            let left = rows.checked_sub(count).filter(|&left| {
                count > 0
                    && left > 0
                    && left.is_multiple_of(PANEL as u64)
                    && section.entry.shape[1] == columns
            });
            rows = left.ok_or_else(|| {
                let expected = format!("the last of {rows} rows of {columns}, after a multiple of {PANEL}");
                section.error(format!("shape: expected {expected}, found {:?}", section.entry.shape))
            })?;
        }
        let common = self.take(kind, [rows, columns])?;
        Ok(std::iter::once(common).chain(rare).map(Section::matrix).collect())
    }

    fn take_tokenizer(&mut self, config: &Config, bytes: &[u8]) -> Result<TokenizerSections, FormatError> {
        let offsets = (config.vocab_size as u64).saturating_add(1);
        let token_offsets = self.take(Kind::TokenOffsets, [offsets, 1])?.range.clone();
        let token_bytes = self.take_with(Kind::TokenBytes, "[n, 1]", |[_, columns]| columns == 1)?;
        let byte_tokens = self.take(Kind::ByteTokens, [256, 1])?.range.clone();
        let merges = self.take_with(Kind::Merges, "[a power of two, 4]", |[slots, columns]| {
            slots.is_power_of_two() && columns == 4
        })?;
        let added_tokens = self.take_with(Kind::AddedTokens, "[n, 2]", |[_, columns]| columns == 2)?;
        let stages = std::mem::take(&mut self.numbered[Kind::Pretokenizer as usize]);
        let pretokenizer = stages.into_iter().map(|section| {
            let [_, columns] = section.entry.shape;
            match columns {
                1 => Ok(section.range.clone()),
                _ => Err(section.error("shape: expected [n, 1]")),
            }
        });
        let pretokenizer = pretokenizer.collect::<Result<_, _>>()?;
        let rules = match self.take_optional(Kind::TextRules, None, [1, 1])? {
            None => TextRules::default(),
            Some(section) => {
                TextRules::parse(&bytes[section.range.clone()]).map_err(|problem| section.error(problem))?
            }
        };
        Ok(TokenizerSections {
            token_offsets,
            token_bytes,
            byte_tokens,
            merges,
            added_tokens,
            pretokenizer,
            rules,
            char_tokens: self.take_optional_table(Kind::CharTokens, 2)?,
            whole_words: self.take_optional_table(Kind::WholeWords, 1)?,
            prompt_prefix: self.take_optional_table(Kind::PromptPrefix, 1)?,
        })
    }

    /// A table of so many columns, empty where there is none.
    fn take_optional_table(&mut self, kind: Kind, columns: u64) -> Result<Range<usize>, FormatError> {
        match self.single[kind as usize] {
            None => Ok(0..0),
            Some(_) => self.take_with(kind, &format!("[n, {columns}]"), |[_, found]| found == columns),
        }
    }

    fn take_optional(
        &mut self,
        kind: Kind,
        layer: Option<u32>,
        shape: [u64; 2],
    ) -> Result<Option<&'a Section>, FormatError> {
        let row = match layer {
            Some(layer) => &mut self.layers[layer as usize],
            None => &mut self.single,
        };
        let section = row[kind as usize].take();
        section.map(|section| expect_shape(Some(section), kind, layer, shape)).transpose()
    }

    fn take_text(&mut self, kind: Kind) -> Result<Option<Range<usize>>, FormatError> {
        match self.single[kind as usize] {
            None => Ok(None),
            Some(_) => self.take_with(kind, "[n, 1]", |[_, columns]| columns == 1).map(Some),
        }
    }

    fn take(&mut self, kind: Kind, shape: [u64; 2]) -> Result<&'a Section, FormatError> {
        let section = self.single[kind as usize].take();
        expect_shape(section, kind, None, shape)
    }

    fn take_layer(&mut self, kind: Kind, layer: u32, shape: [u64; 2]) -> Result<&'a Section, FormatError> {
        let section = self.layers[layer as usize][kind as usize].take();
        expect_shape(section, kind, Some(layer), shape)
    }

    fn take_with(
        &mut self,
        kind: Kind,
        expected: &str,
        fits: impl Fn([u64; 2]) -> bool,
    ) -> Result<Range<usize>, FormatError> {
        let missing = FormatError::Missing { kind: kind.name(), layer: None };
        let section = self.single[kind as usize].take().ok_or(missing)?;
        let shape = section.entry.shape;
        match fits(shape) {
            true => Ok(section.range.clone()),
            false => Err(section.error(format!("shape: expected {expected}, found {shape:?}"))),
        }
    }

    /// A known section that nothing in the model asked for, such as an `lm_head` beside a tied embedding.
    fn expect_empty(&self) -> Result<(), FormatError> {
        let single = self.single.iter().chain(self.layers.iter().flatten()).flatten();
        let mut left = single.chain(self.numbered.iter().flatten());
        left.next().map_or(Ok(()), |section| Err(section.error("the config has no place for this section")))
    }
}

fn expect_shape(
    section: Option<&Section>,
    kind: Kind,
    layer: Option<u32>,
    expected: [u64; 2],
) -> Result<&Section, FormatError> {
    let section = section.ok_or(FormatError::Missing { kind: kind.name(), layer })?;
    let found = section.entry.shape;
    match found == expected {
        true => Ok(section),
        false => Err(section.error(format!("shape: the config asks for {expected:?}, found {found:?}"))),
    }
}
