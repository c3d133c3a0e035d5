//! The one table of checkpoint tensor names: which tensors make which section, of what shape, arranged how.

use smolrun::format::{Config, Kind, PANEL};

use crate::error::{Error, Result};
use crate::source::{Dtype, Source, Tensor};

/// How the tensors of a section are laid out in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrangement {
    /// One tensor after the other.
    Vector,
    /// In panels, one tensor after the other.
    Panels,
    /// In panels, one of each tensor in turn.
    PanelsInTurn,
}

/// A width of the model.
#[derive(Clone, Copy)]
enum Dim {
    Vocab,
    Hidden,
    Intermediate,
    /// All query heads.
    Query,
    /// All key heads, or all value heads.
    KeyValue,
    /// One head.
    Head,
}

/// What one section is made of. `{}` in a name stands for the layer.
struct Rule {
    kind: Kind,
    arrangement: Arrangement,
    tensors: &'static [(&'static str, &'static [Dim])],
}

const fn rule(
    kind: Kind,
    arrangement: Arrangement,
    tensors: &'static [(&'static str, &'static [Dim])],
) -> Rule {
    Rule { kind, arrangement, tensors }
}

use Arrangement::{Panels, PanelsInTurn, Vector};
use Dim::{Head, Hidden, Intermediate, KeyValue, Query, Vocab};

/// The tensors of a Llama and its relatives.
#[rustfmt::skip] // one line per tensor
const RULES: &[Rule] = &[
    rule(Kind::EmbedTokens, Panels, &[
        ("model.embed_tokens.weight", &[Vocab, Hidden]),
    ]),
    rule(Kind::InputLayernorm, Vector, &[
        ("model.layers.{}.input_layernorm.weight", &[Hidden]),
    ]),
    rule(Kind::QkvProj, Panels, &[
        ("model.layers.{}.self_attn.q_proj.weight", &[Query, Hidden]),
        ("model.layers.{}.self_attn.k_proj.weight", &[KeyValue, Hidden]),
        ("model.layers.{}.self_attn.v_proj.weight", &[KeyValue, Hidden]),
    ]),
    rule(Kind::QkvBias, Vector, &[
        ("model.layers.{}.self_attn.q_proj.bias", &[Query]),
        ("model.layers.{}.self_attn.k_proj.bias", &[KeyValue]),
        ("model.layers.{}.self_attn.v_proj.bias", &[KeyValue]),
    ]),
    rule(Kind::QkNorm, Vector, &[
        ("model.layers.{}.self_attn.q_norm.weight", &[Head]),
        ("model.layers.{}.self_attn.k_norm.weight", &[Head]),
    ]),
    rule(Kind::OProj, Panels, &[
        ("model.layers.{}.self_attn.o_proj.weight", &[Hidden, Query]),
    ]),
    rule(Kind::OBias, Vector, &[
        ("model.layers.{}.self_attn.o_proj.bias", &[Hidden]),
    ]),
    rule(Kind::PostAttentionLayernorm, Vector, &[
        ("model.layers.{}.post_attention_layernorm.weight", &[Hidden]),
    ]),
    rule(Kind::GateUpProj, PanelsInTurn, &[
        ("model.layers.{}.mlp.gate_proj.weight", &[Intermediate, Hidden]),
        ("model.layers.{}.mlp.up_proj.weight", &[Intermediate, Hidden]),
    ]),
    rule(Kind::DownProj, Panels, &[
        ("model.layers.{}.mlp.down_proj.weight", &[Hidden, Intermediate]),
    ]),
    rule(Kind::Norm, Vector, &[
        ("model.norm.weight", &[Hidden]),
    ]),
    rule(Kind::LmHead, Panels, &[
        (LM_HEAD, &[Vocab, Hidden]),
    ]),
];

/// Which tensors a model has that the first Llama has not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extras {
    /// Biases of q, k and v.
    pub qkv_bias: bool,
    /// Norms of each query head and each key head.
    pub qk_norm: bool,
    /// A bias of the attention's output.
    pub o_bias: bool,
}

impl Extras {
    fn include(self, kind: Kind) -> bool {
        match kind {
            Kind::QkvBias => self.qkv_bias,
            Kind::QkNorm => self.qk_norm,
            Kind::OBias => self.o_bias,
            _ => true,
        }
    }
}

/// The output matrix, which a tied model does not have.
const LM_HEAD: &str = "lm_head.weight";
/// The end of the names of buffers that old checkpoints carry along; the converter computes them itself.
const IGNORED: &str = ".rotary_emb.inv_freq";

/// A section and the tensors that it is made of.
#[derive(Clone, Debug)]
pub struct Binding<'a> {
    /// What the section holds.
    pub kind: Kind,
    /// Its layer, where there is one per layer.
    pub layer: Option<u32>,
    /// How the tensors are laid out in it.
    pub arrangement: Arrangement,
    /// The section's shape in the directory.
    pub shape: [u64; 2],
    /// The tensors, each with the dtype and shape that it should have.
    pub tensors: Vec<&'a Tensor>,
}

/// Sixteen or, at the end of a tensor, fewer rows that lie side by side in a panel.
#[derive(Clone, Copy, Debug)]
pub struct PanelRows<'a> {
    /// Where the rows come from.
    pub tensor: &'a Tensor,
    /// The first of them.
    pub first: usize,
    /// How many.
    pub count: usize,
}

impl<'a> Binding<'a> {
    /// Inputs of a matrix: the length of its rows.
    pub fn columns(&self) -> usize {
        self.tensors[0].shape.get(1).copied().unwrap_or(1)
    }

    /// Panels of a matrix.
    pub fn panels(&self) -> usize {
        self.tensors.iter().map(|tensor| panels(tensor)).sum()
    }

    /// The rows of panel `index`. Every panel comes from one tensor: heads are whole panels wide, and gate and up are
    /// padded each by itself.
    pub fn panel_rows(&self, index: usize) -> PanelRows<'a> {
        let (tensor, panel) = match self.arrangement {
            Arrangement::PanelsInTurn => {
                (self.tensors[index % self.tensors.len()], index / self.tensors.len())
            }
            _ => self.panel_in_sequence(index),
        };
        let first = panel * PANEL;
        PanelRows { tensor, first, count: PANEL.min(tensor.shape[0] - first) }
    }

    fn panel_in_sequence(&self, index: usize) -> (&'a Tensor, usize) {
        let (mut tensor, mut panel) = (self.tensors[0], index);
        for &next in &self.tensors[1..] {
            let Some(rest) = panel.checked_sub(panels(tensor)) else { break };
            (tensor, panel) = (next, rest);
        }
        (tensor, panel)
    }
}

fn panels(tensor: &Tensor) -> usize {
    tensor.shape[0].div_ceil(PANEL)
}

/// Finds every tensor that `config` and `extras` ask for and checks it; refuses any other.
///
/// Sections come in the order of the forward pass, the embedding first.
pub fn bind<'a>(config: &Config, extras: Extras, source: &'a Source) -> Result<Vec<Binding<'a>>> {
    check_lm_head(config, source)?;
    let rules = RULES.iter().filter(|rule| extras.include(rule.kind));
    let (per_layer, single): (Vec<_>, Vec<_>) = rules.partition(|rule| rule.kind.is_per_layer());
    let mut bindings = Vec::new();
    for rule in single.iter().filter(|rule| rule.kind == Kind::EmbedTokens) {
        bindings.push(rule.bind(config, source, None)?);
    }
    for layer in (0u32..).take(config.num_hidden_layers) {
        for rule in &per_layer {
            bindings.push(rule.bind(config, source, Some(layer))?);
        }
    }
    for rule in single.iter().filter(|rule| rule.kind != Kind::EmbedTokens) {
        if rule.kind != Kind::LmHead || !config.tie_word_embeddings {
            bindings.push(rule.bind(config, source, None)?);
        }
    }
    check_extra(source, &bindings)?;
    Ok(bindings)
}

fn check_lm_head(config: &Config, source: &Source) -> Result<()> {
    let (tied, found) = (config.tie_word_embeddings, source.tensors.contains_key(LM_HEAD));
    let found = match (tied, found) {
        (true, true) => "found it",
        (false, false) => "found none",
        _ => return Ok(()),
    };
    let expected = if tied { "none beside model.embed_tokens.weight" } else { "it" };
    Err(Error::tensor(LM_HEAD, format!("expected {expected}, as tie_word_embeddings is {tied}, {found}")))
}

/// The first tensor, by name, that no section is made of.
fn check_extra(source: &Source, bindings: &[Binding]) -> Result<()> {
    let bound: std::collections::HashSet<&str> =
        bindings.iter().flat_map(|binding| &binding.tensors).map(|tensor| tensor.name.as_str()).collect();
    let mut names = source.tensors.keys().map(String::as_str);
    match names.find(|name| !bound.contains(name) && !name.ends_with(IGNORED)) {
        Some(name) => {
            Err(Error::tensor(name, "expected no tensor of this name in a model of this config, found one"))
        }
        None => Ok(()),
    }
}

impl Rule {
    fn bind<'a>(&self, config: &Config, source: &'a Source, layer: Option<u32>) -> Result<Binding<'a>> {
        let tensors = self.tensors.iter().map(|(name, dims)| {
            let name = match layer {
                Some(layer) => name.replace("{}", &layer.to_string()),
                None => (*name).to_owned(),
            };
            let shape: Vec<usize> = dims.iter().map(|dim| dim.of(config)).collect();
            check_tensor(source, &name, &shape)
        });
        let tensors: Vec<&Tensor> = tensors.collect::<Result<_>>()?;
        // The products were checked when the headers were read, and the sum of three fits as well.
        let rows = tensors.iter().map(|tensor| tensor.shape[0] as u64).sum();
        let columns = tensors[0].shape.get(1).map_or(1, |&columns| columns as u64);
        Ok(Binding { kind: self.kind, layer, arrangement: self.arrangement, shape: [rows, columns], tensors })
    }
}

fn check_tensor<'a>(source: &'a Source, name: &str, shape: &[usize]) -> Result<&'a Tensor> {
    let missing = || Error::tensor(name, format!("expected a tensor of shape {shape:?}, found none"));
    let tensor = source.tensors.get(name).ok_or_else(missing)?;
    if !matches!(tensor.dtype, Dtype::BF16 | Dtype::F16 | Dtype::F32) {
        return Err(Error::tensor(name, format!("dtype: expected BF16, F16 or F32, found {}", tensor.dtype)));
    }
    match tensor.shape == shape {
        true => Ok(tensor),
        false => Err(Error::tensor(name, format!("shape: expected {shape:?}, found {:?}", tensor.shape))),
    }
}

impl Dim {
    fn of(self, config: &Config) -> usize {
        match self {
            Dim::Vocab => config.vocab_size,
            Dim::Hidden => config.hidden_size,
            Dim::Intermediate => config.intermediate_size,
            Dim::Query => config.attention_width(),
            Dim::KeyValue => config.num_key_value_heads * config.head_dim,
            Dim::Head => config.head_dim,
        }
    }
}
