//! A section of a blob and the rows of the checkpoint that it is made of.

use smolrun::format::{Dtype, Kind, PANEL};

use crate::source::{Delta, Tensor};

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

/// A section and the tensors that it is made of.
#[derive(Clone, Debug)]
pub struct Binding<'a> {
    /// What the section holds.
    pub kind: Kind,
    /// Its layer, where there is one per layer, or its number, where sections are numbered.
    pub layer: Option<u32>,
    /// How the tensors are laid out in it.
    pub arrangement: Arrangement,
    /// What it stores them as.
    pub dtype: Dtype,
    /// The section's shape in the directory.
    pub shape: [u64; 2],
    /// The tensors, each with the dtype and shape that it should have.
    pub tensors: Vec<Part<'a>>,
}

/// Rows of a tensor, and their order.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    /// The tensor.
    pub tensor: &'a Tensor,
    /// The first of the rows.
    pub first: usize,
    /// How many, from there on.
    pub rows: usize,
    /// Rows of a head, if each head has the two rows of a rotary pair side by side instead of half a head apart.
    pub interleaved: Option<usize>,
    /// What an adapter adds to it, in the order of the section's rows.
    pub delta: Option<&'a Delta>,
}

impl Part<'_> {
    fn panels(&self) -> usize {
        self.rows.div_ceil(PANEL)
    }

    /// The length of a row, which is 1 in a vector.
    pub fn columns(&self) -> usize {
        self.tensor.shape.get(1).copied().unwrap_or(1)
    }

    /// The row of the tensor that is row `row` of the section's.
    pub fn stored_row(&self, row: usize) -> usize {
        let Some(head_dim) = self.interleaved else { return row };
        let (head, inside, pairs) = (row / head_dim, row % head_dim, head_dim / 2);
        head * head_dim + inside % pairs * 2 + inside / pairs
    }
}

/// Sixteen or, at the end of a tensor, fewer rows that lie side by side in a panel.
#[derive(Clone, Copy, Debug)]
pub struct PanelRows<'a> {
    /// Where the rows come from.
    pub part: Part<'a>,
    /// The first of them.
    pub first: usize,
    /// How many.
    pub count: usize,
}

impl<'a> Binding<'a> {
    /// Inputs of a matrix: the length of its rows.
    pub fn columns(&self) -> usize {
        self.tensors[0].columns()
    }

    /// Panels of a matrix.
    pub fn panels(&self) -> usize {
        self.tensors.iter().map(Part::panels).sum()
    }

    /// The rows of panel `index`. Every panel comes from one tensor: heads are whole panels wide, and gate and up are
    /// padded each by itself.
    pub fn panel_rows(&self, index: usize) -> PanelRows<'a> {
        let (part, panel) = match self.arrangement {
            Arrangement::PanelsInTurn => {
                (self.tensors[index % self.tensors.len()], index / self.tensors.len())
            }
            _ => self.panel_in_sequence(index),
        };
        let (first, rest) = (part.first + panel * PANEL, part.rows - panel * PANEL);
        PanelRows { part, first, count: PANEL.min(rest) }
    }

    /// Splits off all but the first `rows` rows of a matrix of one tensor, as section `number` of `kind`, if there are any.
    pub fn split_off(&mut self, rows: usize, kind: Kind, number: u32) -> Option<Binding<'a>> {
        let rest = self.tensors[0].rows.checked_sub(rows).filter(|&rest| rest > 0)?;
        let mut other = Binding { kind, layer: Some(number), ..self.clone() };
        other.tensors[0].first += rows;
        (self.tensors[0].rows, other.tensors[0].rows) = (rows, rest);
        (self.shape[0], other.shape[0]) = (rows as u64, rest as u64);
        Some(other)
    }

    /// Takes back what [`Binding::split_off`] has split off.
    pub fn join(&mut self, rest: &Binding) {
        self.tensors[0].rows += rest.tensors[0].rows;
        self.shape[0] += rest.shape[0];
    }

    fn panel_in_sequence(&self, index: usize) -> (Part<'a>, usize) {
        let (mut part, mut panel) = (self.tensors[0], index);
        for &next in &self.tensors[1..] {
            let Some(rest) = panel.checked_sub(part.panels()) else { break };
            (part, panel) = (next, rest);
        }
        (part, panel)
    }
}

/// The name of a section: its kind, and its layer if it is of one.
pub fn section_name(kind: Kind, layer: Option<u32>) -> String {
    match layer {
        Some(layer) => format!("{}.{layer}", kind.name()),
        None => kind.name().to_owned(),
    }
}
