//! The one table of checkpoint tensor names: which tensors make which section, of what shape, arranged how.

use smolrun::format::{Config, Dtype, Kind};

use super::binding::{Arrangement, Binding, Part};
use crate::error::{Error, Result};
use crate::source::{Delta, Source, Tensor};

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

/// What one section is made of.
struct Rule {
    kind: Kind,
    arrangement: Arrangement,
    tensors: &'static [Named],
}

const fn rule(kind: Kind, arrangement: Arrangement, tensors: &'static [Named]) -> Rule {
    Rule { kind, arrangement, tensors }
}

/// A tensor's names, in which `{}` stands for the layer, and its shape.
struct Named {
    name: &'static str,
    /// Its name in a GGUF file.
    gguf: &'static str,
    dims: &'static [Dim],
    /// Whether its rows are turned by their position: some GGUF files put the two rows of a pair side by side.
    rotary: bool,
}

const fn named(name: &'static str, gguf: &'static str, dims: &'static [Dim]) -> Named {
    Named { name, gguf, dims, rotary: false }
}

const fn rotary(name: &'static str, gguf: &'static str, dims: &'static [Dim]) -> Named {
    Named { name, gguf, dims, rotary: true }
}

use Arrangement::{Panels, PanelsInTurn, Vector};
use Dim::{Head, Hidden, Intermediate, KeyValue, Query, Vocab};

/// The tensors of a Llama and its relatives.
#[rustfmt::skip] // one line per tensor
const RULES: &[Rule] = &[
    rule(Kind::EmbedTokens, Panels, &[
        named("model.embed_tokens.weight", "token_embd.weight", &[Vocab, Hidden]),
    ]),
    rule(Kind::InputLayernorm, Vector, &[
        named("model.layers.{}.input_layernorm.weight", "blk.{}.attn_norm.weight", &[Hidden]),
    ]),
    rule(Kind::QkvProj, Panels, &[
        rotary("model.layers.{}.self_attn.q_proj.weight", "blk.{}.attn_q.weight", &[Query, Hidden]),
        rotary("model.layers.{}.self_attn.k_proj.weight", "blk.{}.attn_k.weight", &[KeyValue, Hidden]),
        named("model.layers.{}.self_attn.v_proj.weight", "blk.{}.attn_v.weight", &[KeyValue, Hidden]),
    ]),
    rule(Kind::QkvBias, Vector, &[
        rotary("model.layers.{}.self_attn.q_proj.bias", "blk.{}.attn_q.bias", &[Query]),
        rotary("model.layers.{}.self_attn.k_proj.bias", "blk.{}.attn_k.bias", &[KeyValue]),
        named("model.layers.{}.self_attn.v_proj.bias", "blk.{}.attn_v.bias", &[KeyValue]),
    ]),
    rule(Kind::QkNorm, Vector, &[
        named("model.layers.{}.self_attn.q_norm.weight", "blk.{}.attn_q_norm.weight", &[Head]),
        named("model.layers.{}.self_attn.k_norm.weight", "blk.{}.attn_k_norm.weight", &[Head]),
    ]),
    rule(Kind::OProj, Panels, &[
        named("model.layers.{}.self_attn.o_proj.weight", "blk.{}.attn_output.weight", &[Hidden, Query]),
    ]),
    rule(Kind::OBias, Vector, &[
        named("model.layers.{}.self_attn.o_proj.bias", "blk.{}.attn_output.bias", &[Hidden]),
    ]),
    rule(Kind::PostAttentionLayernorm, Vector, &[
        named("model.layers.{}.post_attention_layernorm.weight", "blk.{}.ffn_norm.weight", &[Hidden]),
    ]),
    rule(Kind::GateUpProj, PanelsInTurn, &[
        named("model.layers.{}.mlp.gate_proj.weight", "blk.{}.ffn_gate.weight", &[Intermediate, Hidden]),
        named("model.layers.{}.mlp.up_proj.weight", "blk.{}.ffn_up.weight", &[Intermediate, Hidden]),
    ]),
    rule(Kind::GateUpBias, Vector, &[
        named("model.layers.{}.mlp.gate_proj.bias", "blk.{}.ffn_gate.bias", &[Intermediate]),
        named("model.layers.{}.mlp.up_proj.bias", "blk.{}.ffn_up.bias", &[Intermediate]),
    ]),
    rule(Kind::DownProj, Panels, &[
        named("model.layers.{}.mlp.down_proj.weight", "blk.{}.ffn_down.weight", &[Hidden, Intermediate]),
    ]),
    rule(Kind::DownBias, Vector, &[
        named("model.layers.{}.mlp.down_proj.bias", "blk.{}.ffn_down.bias", &[Hidden]),
    ]),
    rule(Kind::Norm, Vector, &[
        named("model.norm.weight", "output_norm.weight", &[Hidden]),
    ]),
    rule(Kind::LmHead, Panels, &[
        named(LM_HEAD, GGUF_LM_HEAD, &[Vocab, Hidden]),
    ]),
];

/// Which tensors a model has that the first Llama has not, and how those that it has may lie.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extras {
    /// Biases of q, k and v.
    pub qkv_bias: bool,
    /// Norms of each query head and each key head.
    pub qk_norm: bool,
    /// A bias of the attention's output.
    pub o_bias: bool,
    /// Biases of gate, up and down.
    pub mlp_bias: bool,
    /// The two rows of each rotary pair of q and k side by side instead of half a head apart.
    pub interleaved: bool,
}

impl Extras {
    fn include(self, kind: Kind) -> bool {
        match kind {
            Kind::QkvBias => self.qkv_bias,
            Kind::QkNorm => self.qk_norm,
            Kind::OBias => self.o_bias,
            Kind::GateUpBias | Kind::DownBias => self.mlp_bias,
            _ => true,
        }
    }
}

/// The output matrix, which a tied model does not have.
const LM_HEAD: &str = "lm_head.weight";
/// Its name in a GGUF file.
const GGUF_LM_HEAD: &str = "output.weight";
/// One tensor of q, k and v, which a GGUF file may have instead of three.
const GGUF_FUSED: [(Kind, &str); 2] =
    [(Kind::QkvProj, "blk.{}.attn_qkv.weight"), (Kind::QkvBias, "blk.{}.attn_qkv.bias")];
/// What a GGUF file divides the rotary frequencies by; it is part of the config.
pub(crate) const GGUF_ROPE_FACTORS: &str = "rope_freqs.weight";
/// The end of the names of buffers that old checkpoints carry along; the converter computes them itself.
const IGNORED: &str = ".rotary_emb.inv_freq";

/// Finds every tensor that `config` and `extras` ask for and checks it; refuses any other.
///
/// Sections come in the order of the forward pass, the embedding first; all are of f32.
pub fn bind<'a>(config: &Config, extras: Extras, source: &'a Source) -> Result<Vec<Binding<'a>>> {
    check_lm_head(config, source)?;
    let rules = RULES.iter().filter(|rule| extras.include(rule.kind));
    let (per_layer, single): (Vec<_>, Vec<_>) = rules.partition(|rule| rule.kind.is_per_layer());
    let place = |layer| Place { config, extras, source, layer };
    let mut bindings = Vec::new();
    for rule in single.iter().filter(|rule| rule.kind == Kind::EmbedTokens) {
        bindings.push(place(None).bind(rule)?);
    }
    for layer in (0u32..).take(config.num_hidden_layers) {
        for rule in &per_layer {
            bindings.push(place(Some(layer)).bind(rule)?);
        }
    }
    for rule in single.iter().filter(|rule| rule.kind != Kind::EmbedTokens) {
        if rule.kind != Kind::LmHead || !config.tie_word_embeddings {
            bindings.push(place(None).bind(rule)?);
        }
    }
    check_extra(source, &bindings)?;
    check_deltas(source, &bindings)?;
    Ok(bindings)
}

/// The biases that a GGUF file has in its first layer, and so in all.
pub(crate) fn gguf_biases(source: &Source) -> Extras {
    let has = |name: &str| source.tensors.contains_key(name);
    let qkv_bias = has("blk.0.attn_q.bias") || has("blk.0.attn_qkv.bias");
    let (o_bias, mlp_bias) = (has("blk.0.attn_output.bias"), has("blk.0.ffn_gate.bias"));
    Extras { qkv_bias, o_bias, mlp_bias, ..Extras::default() }
}

/// Whether a GGUF file, which does not say so, has no output matrix of its own.
pub(crate) fn gguf_is_tied(source: &Source) -> bool {
    !source.tensors.contains_key(GGUF_LM_HEAD)
}

fn check_lm_head(config: &Config, source: &Source) -> Result<()> {
    if source.gguf.is_some() {
        return Ok(()); // its config was told by whether there is one
    }
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
        bindings.iter().flat_map(|binding| &binding.tensors).map(|part| part.tensor.name.as_str()).collect();
    let mut names = source.tensors.keys().map(String::as_str);
    let ignored = |name: &str| match source.gguf {
        Some(_) => name == GGUF_ROPE_FACTORS,
        None => name.ends_with(IGNORED),
    };
    match names.find(|name| !bound.contains(name) && !ignored(name)) {
        Some(name) => {
            Err(Error::tensor(name, "expected no tensor of this name in a model of this config, found one"))
        }
        None => Ok(()),
    }
}

/// Refuses an adapter for matrices that the model does not have.
fn check_deltas(source: &Source, bindings: &[Binding]) -> Result<()> {
    let parts = || bindings.iter().flat_map(|binding| &binding.tensors).filter_map(|part| part.delta);
    let is_used = |delta: &Delta| parts().any(|used| std::ptr::eq(used, delta));
    match source.deltas.iter().find(|(_, delta)| !is_used(delta)) {
        Some((name, _)) => {
            Err(Error::tensor(name, "expected a tensor of the model, found a LoRA of another"))
        }
        None => Ok(()),
    }
}

/// Where the tensors of a section are looked for.
#[derive(Clone, Copy)]
struct Place<'a, 'c> {
    config: &'c Config,
    extras: Extras,
    source: &'a Source,
    layer: Option<u32>,
}

impl<'a> Place<'a, '_> {
    fn bind(self, rule: &Rule) -> Result<Binding<'a>> {
        let fused = GGUF_FUSED.iter().find(|(kind, _)| *kind == rule.kind && self.source.gguf.is_some());
        let fused = fused.map(|(_, name)| self.of_layer(name));
        let tensors = match fused.filter(|name| self.source.tensors.contains_key(name)) {
            Some(name) => self.fused(rule, &name)?,
            None => rule.tensors.iter().map(|named| self.part(named)).collect::<Result<_>>()?,
        };
        // The products were checked when the headers were read, and the sum of three fits as well.
        let rows = tensors.iter().map(|part| part.rows as u64).sum();
        let columns = tensors[0].tensor.shape.get(1).map_or(1, |&columns| columns as u64);
        let (kind, arrangement, shape) = (rule.kind, rule.arrangement, [rows, columns]);
        Ok(Binding { kind, layer: self.layer, arrangement, dtype: Dtype::F32, shape, tensors })
    }

    /// A tensor of its own.
    fn part(self, named: &Named) -> Result<Part<'a>> {
        let name = self.of_layer(if self.source.gguf.is_some() { named.gguf } else { named.name });
        let shape = self.shape(named);
        let tensor = check_tensor(self.source, &name, &shape)?;
        let delta = self.delta(named);
        let matrix = [shape[0], shape.get(1).copied().unwrap_or(1)];
        match delta.filter(|delta| delta.shape() != matrix) {
            Some(delta) => {
                let problem = format!("expected a LoRA of shape {shape:?}, found {:?}", delta.shape());
                Err(Error::tensor(&name, problem))
            }
            None => Ok(Part { delta, ..self.rows(named, tensor, 0) }),
        }
    }

    /// The tensors of `rule` as one, `name`.
    fn fused(self, rule: &Rule, name: &str) -> Result<Vec<Part<'a>>> {
        let shapes = rule.tensors.iter().map(|named| self.shape(named));
        let shape = shapes.reduce(|mut whole, shape| {
            whole[0] += shape[0];
            whole
        });
        let tensor = check_tensor(self.source, name, &shape.unwrap_or_default())?;
        if rule.tensors.iter().any(|named| self.delta(named).is_some()) {
            let problem = "expected a tensor each for q, k and v to add a LoRA to, found one of all three";
            return Err(Error::tensor(name, problem));
        }
        let mut first = 0;
        let part = |named| {
            let part = self.rows(named, tensor, first);
            first += part.rows;
            part
        };
        Ok(rule.tensors.iter().map(part).collect())
    }

    fn rows(self, named: &Named, tensor: &'a Tensor, first: usize) -> Part<'a> {
        let interleaved = (self.extras.interleaved && named.rotary).then_some(self.config.head_dim);
        Part { tensor, first, rows: self.shape(named)[0], interleaved, delta: None }
    }

    fn shape(self, named: &Named) -> Vec<usize> {
        named.dims.iter().map(|dim| dim.of(self.config)).collect()
    }

    /// What an adapter adds.
    fn delta(self, named: &Named) -> Option<&'a Delta> {
        self.source.deltas.get(&self.of_layer(named.name))
    }

    fn of_layer(self, name: &str) -> String {
        match self.layer {
            Some(layer) => name.replace("{}", &layer.to_string()),
            None => name.to_owned(),
        }
    }
}

fn check_tensor<'a>(source: &'a Source, name: &str, shape: &[usize]) -> Result<&'a Tensor> {
    let missing = || Error::tensor(name, format!("expected a tensor of shape {shape:?}, found none"));
    let tensor = source.tensors.get(name).ok_or_else(missing)?;
    if !tensor.dtype.is_weight() {
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
