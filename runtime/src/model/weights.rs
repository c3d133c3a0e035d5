//! The blob's sections as the numbers that the forward pass reads.

use std::ops::Range;

use super::Model;
use crate::format::{Dtype, LayerFlags, LayerSections, MatrixSection};
use crate::kernels::{Elements, LANES, Panels, Quantized};

/// One decoder layer's numbers, in the order in which they are used.
pub(super) struct LayerWeights<'a> {
    /// What the layer does otherwise than others.
    pub flags: LayerFlags,
    /// `[hidden_size]`
    pub input_layernorm: &'a [f32],
    /// `[qkv_rows, hidden_size]`
    pub qkv_proj: Panels<'a>,
    /// `[qkv_rows]`
    pub qkv_bias: Option<&'a [f32]>,
    /// Of each query head and of each key head, `[head_dim]` both
    pub qk_norm: Option<[&'a [f32]; 2]>,
    /// `[hidden_size, attention_width]`
    pub o_proj: Panels<'a>,
    /// `[hidden_size]`
    pub o_bias: Option<&'a [f32]>,
    /// `[hidden_size]`
    pub post_attention_layernorm: &'a [f32],
    /// `[2 intermediate_size, hidden_size]`, panels of gate and up in turn
    pub gate_up_proj: Panels<'a>,
    /// Of gate and of up, `[intermediate_size]` both
    pub gate_up_bias: Option<[&'a [f32]; 2]>,
    /// `[hidden_size, intermediate_size]`
    pub down_proj: Panels<'a>,
    /// `[hidden_size]`
    pub down_bias: Option<&'a [f32]>,
}

impl Model {
    pub(super) fn layer(&self, layer: usize) -> LayerWeights<'_> {
        let sections: &LayerSections = &self.layout().weights.layers[layer];
        let config = self.config();
        let optional = |range: &Option<Range<usize>>| range.as_ref().map(|range| self.floats(range));
        LayerWeights {
            flags: sections.flags,
            input_layernorm: self.floats(&sections.input_layernorm),
            qkv_proj: self.panels(&sections.qkv_proj, config.hidden_size),
            qkv_bias: optional(&sections.qkv_bias),
            qk_norm: optional(&sections.qk_norm).map(|both| both.split_at(config.head_dim).into()),
            o_proj: self.panels(&sections.o_proj, config.attention_width()),
            o_bias: optional(&sections.o_bias),
            post_attention_layernorm: self.floats(&sections.post_attention_layernorm),
            gate_up_proj: self.panels(&sections.gate_up_proj, config.hidden_size),
            gate_up_bias: optional(&sections.gate_up_bias)
                .map(|both| both.split_at(config.intermediate_size).into()),
            down_proj: self.panels(&sections.down_proj, config.intermediate_size),
            down_bias: optional(&sections.down_bias),
        }
    }

    /// `[vocab_size, hidden_size]`, in parts of rows
    pub(super) fn embed_tokens(&self) -> impl Iterator<Item = Panels<'_>> {
        self.vocab(&self.layout().weights.embed_tokens)
    }

    /// Writes the row of `token` into `column` of the activations `out`, as [`Panels::copy_row`] does.
    pub(super) fn embed(&self, token: usize, out: &mut [f32], rows: usize, column: usize) {
        let mut row = token;
        for part in self.embed_tokens() {
            let Some(later) = row.checked_sub(part.count() * LANES) else {
                return part.copy_row(row, out, rows, column);
            };
            row = later;
        }
    }

    /// `[hidden_size]`
    pub(super) fn norm(&self) -> &[f32] {
        self.floats(&self.layout().weights.norm)
    }

    /// `[vocab_size, hidden_size]`, in parts of rows
    pub(super) fn lm_head(&self) -> impl Iterator<Item = Panels<'_>> {
        self.vocab(&self.layout().weights.lm_head)
    }

    /// Rotary inverse frequencies, `[head_dim / 2]`.
    pub(super) fn rope_inv_freq(&self) -> &[f32] {
        self.floats(&self.layout().weights.rope_inv_freq)
    }

    fn vocab<'a>(&'a self, sections: &'a [MatrixSection]) -> impl Iterator<Item = Panels<'a>> {
        sections.iter().map(|section| self.panels(section, self.config().hidden_size))
    }

    // `Layout::parse` checked that each range lies inside the blob, starts on a multiple of 64 and holds whole elements
    // of its dtype: the casts cannot fail.

    fn panels(&self, section: &MatrixSection, inputs: usize) -> Panels<'_> {
        let bytes = &self.storage().bytes()[section.range.clone()];
        let data = match (section.dtype, Quantized::new(bytes, section.dtype, inputs)) {
            (_, Some(codes)) => Elements::Quantized(codes),
            (Dtype::Bf16, None) => Elements::Bf16(bytemuck::cast_slice(bytes)),
            _ => Elements::F32(bytemuck::cast_slice(bytes)),
        };
        Panels { data, inputs }
    }

    fn floats(&self, range: &Range<usize>) -> &[f32] {
        bytemuck::cast_slice(&self.storage().bytes()[range.clone()])
    }
}
