//! The forward pass over one window, and the backward pass of its gradients.

use std::ops::Range;

use smolrun::format::{Kind, LayerFlags, LayerSections, MatrixSection, PANEL};
use smolrun::{CancelToken, Kernels, Model};

use super::adam::Rate;
use super::attention::Attention;
use super::feed_forward;
use super::matrix::{Matrix, Quantized};
use super::norm::Norm;
use super::panels::{add, transposed, zeroes};
use super::rope::Rope;
use super::vector::Vector;
use crate::error::Result;

/// Who looks at all that is tuned.
pub(super) type Visitor<'a> = dyn FnMut(Kind, Option<u32>, Tuned<'_>) -> Result<()> + 'a;

/// A section that is tuned.
pub(super) enum Tuned<'a> {
    Norm(&'a Vector),
    Matrix(&'a Quantized),
}

impl<'a> Tuned<'a> {
    /// The section as it is now.
    pub(super) fn bytes(&self) -> &'a [u8] {
        match self {
            Tuned::Norm(norm) => bytemuck::cast_slice(&norm.weights),
            Tuned::Matrix(matrix) => &matrix.bytes,
        }
    }

    /// Its gradient: see [`super::Gradients`].
    pub(super) fn gradient(&self) -> &'a [f32] {
        match self {
            Tuned::Norm(norm) => &norm.gradient,
            Tuned::Matrix(matrix) => matrix.scales.gradient.as_flattened(),
        }
    }
}

/// A model whose scales and norms are tuned, or one that is only read.
pub(super) struct Network<'m> {
    model: &'m Model,
    pub(super) kernels: Kernels,
    /// Once it is cancelled, passes end before the next layer: what they give is good for nothing.
    cancel: CancelToken,
    rope: Rope,
    embedding: Vec<Matrix<'m>>,
    layers: Vec<Layer<'m>>,
    norm: Vector,
    /// `None` if it is the embedding.
    lm_head: Option<Vec<Matrix<'m>>>,
}

/// A decoder layer.
struct Layer<'m> {
    flags: LayerFlags,
    input_layernorm: Vector,
    qkv_proj: Matrix<'m>,
    qkv_bias: Option<&'m [f32]>,
    /// Of each query head, and of each key head.
    qk_norm: Option<(&'m [f32], &'m [f32])>,
    o_proj: Matrix<'m>,
    o_bias: Option<&'m [f32]>,
    post_attention_layernorm: Vector,
    gate_up_proj: Matrix<'m>,
    gate_up_bias: Option<&'m [f32]>,
    down_proj: Matrix<'m>,
    down_bias: Option<&'m [f32]>,
}

/// What a layer's backward pass reads, `[features/16][rows][16]` each.
struct Kept {
    /// The residual stream before it.
    before: Vec<f32>,
    /// Queries, keys and values, before they are normed and turned.
    qkv: Vec<f32>,
    /// Mixed values.
    mixed: Vec<f32>,
    /// The residual stream between attention and feed-forward.
    between: Vec<f32>,
    /// Gate and up, panels in turn.
    gate_up: Vec<f32>,
}

/// What a forward pass leaves for the backward pass.
pub(super) struct Trace {
    layers: Vec<Kept>,
    /// The residual stream after the last layer.
    after: Vec<f32>,
    /// The same after the last norm: what predictions are made of.
    pub(super) hidden: Vec<f32>,
}

impl<'m> Network<'m> {
    /// For windows of at most so many tokens.
    pub(super) fn new(
        model: &'m Model,
        kernels: Kernels,
        longest: usize,
        cancel: &CancelToken,
    ) -> Network<'m> {
        let (config, weights) = (model.config(), &model.layout().weights);
        let vocab = |sections: &'m [MatrixSection]| {
            sections.iter().map(|section| Matrix::new(model, section, config.hidden_size)).collect()
        };
        Network {
            model,
            kernels,
            cancel: cancel.clone(),
            rope: Rope::new(floats(model, &weights.rope_inv_freq), longest),
            embedding: vocab(&weights.embed_tokens),
            layers: weights.layers.iter().map(|sections| Layer::new(model, sections)).collect(),
            norm: Vector::new(floats(model, &weights.norm)),
            lm_head: (!config.tie_word_embeddings).then(|| vocab(&weights.lm_head)),
        }
    }

    /// Gives back the memory of what is read once a window.
    pub(super) fn release(&self) {
        let storage = self.model.storage();
        storage.release(0..storage.bytes().len());
    }

    /// Logits of a token.
    pub(super) fn vocab_size(&self) -> usize {
        self.model.config().vocab_size
    }

    /// Shows all that is tuned, and which section it is.
    pub(super) fn visit(&self, see: &mut Visitor) -> Result<()> {
        for (layer, index) in self.layers.iter().zip(0..) {
            let Layer {
                input_layernorm,
                qkv_proj,
                o_proj,
                post_attention_layernorm,
                gate_up_proj,
                down_proj,
                ..
            } = layer;
            see(Kind::InputLayernorm, Some(index), Tuned::Norm(input_layernorm))?;
            see(Kind::PostAttentionLayernorm, Some(index), Tuned::Norm(post_attention_layernorm))?;
            let kinds = [Kind::QkvProj, Kind::OProj, Kind::GateUpProj, Kind::DownProj];
            for (kind, matrix) in kinds.into_iter().zip([qkv_proj, o_proj, gate_up_proj, down_proj]) {
                matrix
                    .quantized()
                    .map_or(Ok(()), |quantized| see(kind, Some(index), Tuned::Matrix(quantized)))?;
            }
        }
        see(Kind::Norm, None, Tuned::Norm(&self.norm))?;
        let vocab = [
            (&self.embedding[..], Kind::EmbedTokens, Kind::EmbedTokensRare),
            (self.lm_head.as_deref().unwrap_or_default(), Kind::LmHead, Kind::LmHeadRare),
        ];
        for (parts, kind, of_rare) in vocab {
            let names = std::iter::once((kind, None)).chain((0..).map(|number| (of_rare, Some(number))));
            for (part, (kind, number)) in parts.iter().zip(names) {
                part.quantized().map_or(Ok(()), |quantized| see(kind, number, Tuned::Matrix(quantized)))?;
            }
        }
        Ok(())
    }

    /// Runs a window.
    pub(super) fn forward(&self, tokens: &[u32]) -> Trace {
        let rows = tokens.len();
        let mut x = vec![0.0; self.model.config().hidden_size.next_multiple_of(PANEL) * rows];
        for (column, &token) in tokens.iter().enumerate() {
            let (part, row) = place(&self.embedding, token);
            self.embedding[part].copy_row(self.kernels, row, &mut x, rows, column);
        }
        let mut layers = Vec::with_capacity(self.layers.len());
        for layer in self.layers.iter().take_while(|_| !self.cancel.is_cancelled()) {
            let (kept, after) = self.pass(rows).forward(layer, x);
            layers.push(kept);
            x = after;
        }
        let hidden = self.pass(rows).norm().forward(&x, &self.norm.weights);
        Trace { layers, after: x, hidden }
    }

    /// The logits of last hidden states, `[vocab_size/16, rounded up][rows][16]`.
    pub(super) fn logits(&self, hidden: &[f32], rows: usize) -> Vec<f32> {
        let parts = self.lm_head.as_ref().unwrap_or(&self.embedding);
        let panels: usize = parts.iter().map(|part| part.panels).sum();
        let mut logits = zeroes(panels * rows * PANEL);
        let mut rest = &mut logits[..];
        for part in parts {
            let (now, later) = rest.split_at_mut(part.panels * rows * PANEL);
            part.add_product(self.kernels, hidden, rows, now);
            rest = later;
        }
        logits
    }

    /// The gradients of all that is tuned, for those at the logits, which `trace` led to.
    pub(super) fn backward(&mut self, tokens: &[u32], trace: Trace, d_logits: Vec<f32>) {
        let rows = tokens.len();
        let Trace { layers: kept, after, hidden } = trace;
        let mut d_hidden = zeroes(hidden.len());
        let across = transposed(&hidden, rows);
        let mut rest = &d_logits[..];
        for part in self.lm_head.as_mut().unwrap_or(&mut self.embedding) {
            let (now, later) = rest.split_at(part.panels * rows * PANEL);
            part.add_backward(self.kernels, &across, now, rows, &mut d_hidden);
            rest = later;
        }
        drop(d_logits); // large
        let mut dx = zeroes(hidden.len());
        let Network { model, kernels, cancel, rope, embedding, layers, norm, .. } = self;
        let pass = Pass { model, kernels: *kernels, rope, rows };
        pass.norm().backward(&after, &norm.weights, &d_hidden, &mut dx, Some(&mut norm.gradient));
        let layers = layers.iter_mut().zip(kept).rev();
        for (layer, kept) in layers.take_while(|_| !cancel.is_cancelled()) {
            pass.backward(layer, kept, &mut dx);
        }
        for (column, &token) in tokens.iter().enumerate() {
            let (part, row) = place(embedding, token);
            embedding[part].add_row_gradient(*kernels, row, &dx, rows, column);
        }
    }

    /// Follows the gradients and forgets them.
    pub(super) fn step(&mut self, rate: Rate) {
        for layer in &mut self.layers {
            let Layer { qkv_proj, o_proj, gate_up_proj, down_proj, .. } = layer;
            [qkv_proj, o_proj, gate_up_proj, down_proj].into_iter().for_each(|matrix| matrix.step(rate));
            layer.input_layernorm.step(rate);
            layer.post_attention_layernorm.step(rate);
        }
        self.norm.step(rate);
        let vocab = self.embedding.iter_mut().chain(self.lm_head.iter_mut().flatten());
        vocab.for_each(|part| part.step(rate));
    }

    fn pass(&self, rows: usize) -> Pass<'_> {
        Pass { model: self.model, kernels: self.kernels, rope: &self.rope, rows }
    }
}

/// Which part of a vocabulary's matrix a token's row is in, and where in it.
fn place(parts: &[Matrix], token: u32) -> (usize, usize) {
    let mut row = token as usize;
    for (index, part) in parts.iter().enumerate() {
        match row.checked_sub(part.panels * PANEL) {
            Some(later) => row = later,
            None => return (index, row),
        }
    }
    (0, 0) // the tokenizer of a model has no others
}

impl<'m> Layer<'m> {
    fn new(model: &'m Model, sections: &LayerSections) -> Layer<'m> {
        let config = model.config();
        let matrix = |section, inputs| Matrix::new(model, section, inputs);
        let vector = |range| Vector::new(floats(model, range));
        let optional = |range: &Option<Range<usize>>| range.as_ref().map(|range| floats(model, range));
        Layer {
            flags: sections.flags,
            input_layernorm: vector(&sections.input_layernorm),
            qkv_proj: matrix(&sections.qkv_proj, config.hidden_size),
            qkv_bias: optional(&sections.qkv_bias),
            qk_norm: optional(&sections.qk_norm).map(|both| both.split_at(config.head_dim)),
            o_proj: matrix(&sections.o_proj, config.attention_width()),
            o_bias: optional(&sections.o_bias),
            post_attention_layernorm: vector(&sections.post_attention_layernorm),
            gate_up_proj: matrix(&sections.gate_up_proj, config.hidden_size),
            gate_up_bias: optional(&sections.gate_up_bias),
            down_proj: matrix(&sections.down_proj, config.intermediate_size),
            down_bias: optional(&sections.down_bias),
        }
    }
}

fn floats<'m>(model: &'m Model, range: &Range<usize>) -> &'m [f32] {
    bytemuck::cast_slice(&model.storage().bytes()[range.clone()])
}

/// One window on its way.
struct Pass<'a> {
    model: &'a Model,
    kernels: Kernels,
    rope: &'a Rope,
    rows: usize,
}

impl Pass<'_> {
    /// What the backward pass needs of the layer, and the residual stream after it.
    fn forward(&self, layer: &Layer, before: Vec<f32>) -> (Kept, Vec<f32>) {
        let Pass { kernels, rows, .. } = *self;
        let project = |matrix: &Matrix, bias: Option<&[f32]>, x: &[f32]| {
            let mut y = matrix.product(kernels, x, rows);
            bias.into_iter().for_each(|bias| add_bias(&mut y, bias, rows));
            y
        };
        let normed = self.norm().forward(&before, &layer.input_layernorm.weights);
        let qkv = project(&layer.qkv_proj, layer.qkv_bias, &normed);
        let mixed = self.attention(layer).forward(&self.turned(layer, &qkv));
        let mut between = project(&layer.o_proj, layer.o_bias, &mixed);
        add(&mut between, &before);
        let normed = self.norm().forward(&between, &layer.post_attention_layernorm.weights);
        let mut gate_up = layer.gate_up_proj.product(kernels, &normed, rows);
        layer.gate_up_bias.into_iter().for_each(|bias| add_gate_up_bias(&mut gate_up, bias, rows));
        let mut after =
            project(&layer.down_proj, layer.down_bias, &feed_forward::forward(kernels, &gate_up, rows));
        add(&mut after, &between);
        (Kept { before, qkv, mixed, between, gate_up }, after)
    }

    /// Makes of the gradient at the residual stream after the layer that before it, and keeps those of what is tuned.
    fn backward(&self, layer: &mut Layer, kept: Kept, dx: &mut [f32]) {
        let Pass { kernels, rows, .. } = *self;
        let Kept { before, qkv, mixed, between, gate_up } = kept;
        let hidden = feed_forward::forward(kernels, &gate_up, rows);
        let d_hidden = layer.down_proj.backward(kernels, &hidden, dx, rows);
        let d_gate_up = feed_forward::backward(kernels, &gate_up, &d_hidden, rows);
        let norm = &mut layer.post_attention_layernorm;
        let normed = self.norm().forward(&between, &norm.weights);
        let d_normed = layer.gate_up_proj.backward(kernels, &normed, &d_gate_up, rows);
        self.norm().backward(&between, &norm.weights, &d_normed, dx, Some(&mut norm.gradient));

        let d_mixed = layer.o_proj.backward(kernels, &mixed, dx, rows);
        let d_turned = self.attention(layer).backward(&self.turned(layer, &qkv), &d_mixed);
        let d_qkv = self.turned_back(layer, &qkv, d_turned);
        let norm = &mut layer.input_layernorm;
        let normed = self.norm().forward(&before, &norm.weights);
        let d_normed = layer.qkv_proj.backward(kernels, &normed, &d_qkv, rows);
        self.norm().backward(&before, &norm.weights, &d_normed, dx, Some(&mut norm.gradient));
    }

    fn norm(&self) -> Norm {
        let config = self.model.config();
        Norm {
            kernels: self.kernels,
            rows: self.rows,
            features: config.hidden_size,
            eps: config.rms_norm_eps,
        }
    }

    fn attention(&self, layer: &Layer) -> Attention {
        let config = self.model.config();
        let no_rope_scale = config.no_rope_attention_scale.filter(|_| layer.flags.no_rope);
        Attention {
            kernels: self.kernels,
            rows: self.rows,
            heads: config.num_attention_heads,
            kv_heads: config.num_key_value_heads,
            head_dim: config.head_dim,
            scale: no_rope_scale.unwrap_or(config.attention_scale),
            window: config.sliding_window.filter(|_| layer.flags.sliding).unwrap_or(usize::MAX),
        }
    }

    /// The heads of queries, then of keys, and the weights of their norms where they have some.
    fn heads<'l>(&self, layer: &'l Layer) -> impl Iterator<Item = Option<&'l [f32]>> {
        let config = self.model.config();
        let of_queries = layer.qk_norm.map(|(queries, _)| queries);
        let of_keys = layer.qk_norm.map(|(_, keys)| keys);
        let queries = std::iter::repeat_n(of_queries, config.num_attention_heads);
        queries.chain(std::iter::repeat_n(of_keys, config.num_key_value_heads))
    }

    fn head_norm(&self) -> Norm {
        Norm { features: self.model.config().head_dim, ..self.norm() }
    }

    /// Queries and keys as attention reads them.
    fn turned(&self, layer: &Layer, qkv: &[f32]) -> Vec<f32> {
        let mut turned = qkv.to_vec();
        let heads = turned.chunks_exact_mut(self.model.config().head_dim * self.rows);
        for (head, weight) in heads.zip(self.heads(layer)) {
            if let Some(weight) = weight {
                head.copy_from_slice(&self.head_norm().forward(head, weight));
            }
            if !layer.flags.no_rope {
                self.rope.turn(head, self.rows);
            }
        }
        turned
    }

    /// The gradient at these as that at queries and keys before.
    fn turned_back(&self, layer: &Layer, qkv: &[f32], mut gradient: Vec<f32>) -> Vec<f32> {
        let len = self.model.config().head_dim * self.rows;
        let heads = gradient.chunks_exact_mut(len).zip(qkv.chunks_exact(len));
        for ((head, qkv), weight) in heads.zip(self.heads(layer)) {
            if !layer.flags.no_rope {
                self.rope.turn_back(head, self.rows);
            }
            if let Some(weight) = weight {
                let d_normed = head.to_vec();
                head.fill(0.0);
                self.head_norm().backward(qkv, weight, &d_normed, head, None);
            }
        }
        gradient
    }
}

/// Adds a number to each feature of `[features/16, rounded up][rows][16]`.
fn add_bias(y: &mut [f32], bias: &[f32], rows: usize) {
    for (panel, bias) in y.chunks_exact_mut(rows * PANEL).zip(bias.chunks(PANEL)) {
        for row in panel.as_chunks_mut::<PANEL>().0 {
            add(row, bias);
        }
    }
}

/// The same of gate, then up, whose panels lie in turn.
fn add_gate_up_bias(y: &mut [f32], bias: &[f32], rows: usize) {
    let (gate, up) = bias.split_at(bias.len() / 2);
    let panels = y.chunks_exact_mut(2 * rows * PANEL);
    for ((panels, gate), up) in panels.zip(gate.chunks(PANEL)).zip(up.chunks(PANEL)) {
        let (of_gate, of_up) = panels.split_at_mut(rows * PANEL);
        add_bias(of_gate, gate, rows);
        add_bias(of_up, up, rows);
    }
}
