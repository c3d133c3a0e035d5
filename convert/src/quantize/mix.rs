//! What each matrix of a blob is stored as.

use smolrun::format::{Dtype, Kind, PANEL};

use crate::checkpoint::binding::{Binding, section_name};
use crate::error::{Error, Result};
use crate::options::{Keep, Mix, Weights, matrix_dtype_names, matrix_dtypes};
use crate::source;

impl Weights {
    /// Gives every matrix its dtype, and the rare tokens' rows a section of their own where they have another one;
    /// refuses patterns that match none, and dtypes that a matrix cannot have.
    pub fn assign<'a>(&self, bindings: &[Binding<'a>]) -> Result<Vec<Binding<'a>>> {
        self.assign_parts(bindings).map(join_alike)
    }

    /// The same, with sections of their own for rare tokens' rows of the same dtype, too.
    pub(crate) fn assign_parts<'a>(&self, bindings: &[Binding<'a>]) -> Result<Vec<Binding<'a>>> {
        let mut bindings = split_off_rare(bindings);
        self.set(&mut bindings)?;
        Ok(bindings)
    }

    fn set(&self, bindings: &mut [Binding]) -> Result<()> {
        let about_as_precise = about_as_precise(bindings);
        let is_tied = !bindings.iter().any(|binding| binding.kind == Kind::LmHead);
        let layers = bindings.iter().filter(|binding| binding.kind.is_per_layer());
        let last = layers.filter_map(|binding| binding.layer).max();
        for binding in bindings.iter_mut().filter(|binding| binding.kind.is_matrix()) {
            binding.dtype = match self.mix {
                Mix::Auto => about_as_precise,
                Mix::F32 => Dtype::F32,
                Mix::Bf16 => Dtype::Bf16,
                Mix::Q8 => Dtype::Q8,
                Mix::Q4 => in_q4(binding, last, is_tied),
                Mix::Q3 => in_q3(binding, last, is_tied),
            };
        }
        self.keep.iter().try_for_each(|keep| keep.assign(bindings))?;
        bindings.iter().try_for_each(check_columns)
    }
}

/// A binding, or a part of one, for which a dtype may be chosen.
#[derive(Clone, Debug)]
pub(crate) struct Part<'a> {
    pub(crate) binding: Binding<'a>,
    /// Whether it is a matrix and nothing was said of its dtype.
    pub(crate) is_free: bool,
}

impl Weights {
    /// Every binding, matrices with a row for each token in parts, rarer tokens the later. Those that a `keep` is for have
    /// its dtype, all other matrices [`Dtype::Q8`].
    pub(crate) fn parts<'a>(&self, bindings: &[Binding<'a>]) -> Result<Vec<Part<'a>>> {
        let kept = Weights { mix: Mix::Q8, keep: self.keep.clone() };
        let parts = kept.assign_parts(bindings)?.into_iter().map(|binding| {
            let is_free = binding.kind.is_matrix() && !self.keep.iter().any(|keep| keep.is_for(&binding));
            Part { binding, is_free }
        });
        Ok(parts.collect())
    }
}

impl Mix {
    /// What this mix is of the checkpoint that has these matrices: never [`Mix::Auto`].
    pub fn resolve(self, bindings: &[Binding]) -> Mix {
        match (self, about_as_precise(bindings)) {
            (Mix::Auto, Dtype::Bf16) => Mix::Bf16,
            (Mix::Auto, _) => Mix::F32,
            (mix, _) => mix,
        }
    }
}

impl Keep {
    fn assign(&self, bindings: &mut [Binding]) -> Result<()> {
        if !matrix_dtypes().contains(&self.dtype) {
            return Err(Error::keep(
                self,
                format!("dtype: expected {}, found {}", matrix_dtype_names(), self.dtype.name()),
            ));
        }
        let mut is_any = false;
        for binding in bindings.iter_mut().filter(|binding| binding.kind.is_matrix() && self.is_for(binding))
        {
            (binding.dtype, is_any) = (self.dtype, true);
        }
        let expected =
            "pattern: expected one of a matrix's name, such as embed_tokens, qkv_proj or down_proj.0";
        is_any
            .then_some(())
            .ok_or_else(|| Error::keep(self, format!("{expected}, found none that it matches")))
    }

    fn is_for(&self, binding: &Binding) -> bool {
        let is = |name: &str| matches(&self.pattern, name);
        // What is said of a whole matrix is said of its parts.
        let is_whole = whole(binding.kind).is_some_and(|whole| is(whole.name()));
        is_whole || is(binding.kind.name()) || is(&section_name(binding.kind, binding.layer))
    }
}

/// What [`Mix::Q4`] makes of a matrix: see `docs/quantization.md`.
fn in_q4(binding: &Binding, last: Option<u32>, is_tied: bool) -> Dtype {
    let is_at_an_end = binding.layer.is_some_and(|layer| layer < 2) || binding.layer == last;
    match binding.kind {
        // One that is only looked up has no inputs to be calibrated by.
        Kind::EmbedTokens | Kind::EmbedTokensRare if !is_tied => Dtype::Q6,
        // Whatever the output matrix loses of a token, all logits feel as often as that token is likely.
        Kind::EmbedTokens | Kind::LmHead => Dtype::Q6,
        Kind::GateUpProj | Kind::DownProj if is_at_an_end => Dtype::Q5,
        _ => Dtype::Q4,
    }
}

/// What [`Mix::Q3`] makes of a matrix: see `docs/quantization.md`.
fn in_q3(binding: &Binding, last: Option<u32>, is_tied: bool) -> Dtype {
    let layers = last.map_or(0, |last| last + 1);
    let middle = layers / 3..layers - layers / 3;
    match binding.kind {
        Kind::EmbedTokens | Kind::EmbedTokensRare if !is_tied => Dtype::Q5,
        Kind::EmbedTokens | Kind::LmHead => Dtype::Q6,
        Kind::EmbedTokensRare | Kind::LmHeadRare if binding.layer == Some(1) => Dtype::Q3,
        Kind::OProj => Dtype::Q3,
        Kind::GateUpProj | Kind::DownProj if binding.layer.is_some_and(|layer| middle.contains(&layer)) => {
            Dtype::Q3
        }
        _ => Dtype::Q4,
    }
}

/// The matrix of which a section of this kind has rows of rarer tokens.
fn whole(kind: Kind) -> Option<Kind> {
    [Kind::EmbedTokens, Kind::LmHead].into_iter().find(|whole| whole.rare() == Some(kind))
}

/// Where a vocabulary of so many tokens is cut: after an eighth of it and after a half, if that leaves any. Tokenizers
/// number their tokens in the order in which they were learned, the most frequent first: of a text in English, these are
/// about eight tenths and 95 hundredths of the tokens.
fn cuts(tokens: usize) -> Vec<usize> {
    let mut cuts = vec![tokens / 8, tokens / 2];
    cuts.iter_mut().for_each(|cut| *cut = cut.next_multiple_of(PANEL));
    cuts.retain(|&cut| cut > 0 && cut < tokens);
    cuts.dedup();
    cuts
}

/// Matrices with a row for each token as several sections of rows, the rarer tokens the later.
fn split_off_rare<'a>(bindings: &[Binding<'a>]) -> Vec<Binding<'a>> {
    bindings.iter().flat_map(parts).collect()
}

fn parts<'a>(binding: &Binding<'a>) -> Vec<Binding<'a>> {
    let mut parts = vec![binding.clone()];
    let Some(kind) = binding.kind.rare() else { return parts };
    let mut start = 0;
    for (number, cut) in (0..).zip(cuts(binding.tensors[0].rows)) {
        let rare = parts.last_mut().and_then(|last| last.split_off(cut - start, kind, number));
        parts.extend(rare);
        start = cut;
    }
    parts
}

/// Joins what [`split_off_rare`] has split where neighbors became of one dtype.
fn join_alike(bindings: Vec<Binding>) -> Vec<Binding> {
    let mut joined: Vec<Binding> = Vec::with_capacity(bindings.len());
    for mut binding in bindings {
        let number = match joined.last_mut() {
            Some(last) if whole(binding.kind) == Some(whole(last.kind).unwrap_or(last.kind)) => {
                if last.dtype == binding.dtype {
                    last.join(&binding);
                    continue;
                }
                Some(last.layer.map_or(0, |number| number + 1))
            }
            _ => binding.layer,
        };
        binding.layer = number;
        joined.push(binding);
    }
    joined
}

/// Whether `name` is `pattern`, in which each `*` stands for any characters.
fn matches(pattern: &str, name: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else { return pattern == name };
    let Some(mut name) = name.strip_prefix(start) else { return false };
    let (middle, end) = rest.rsplit_once('*').unwrap_or(("", rest));
    for part in middle.split('*') {
        let Some(at) = name.find(part) else { return false };
        name = &name[at + part.len()..];
    }
    name.ends_with(end)
}

/// The smallest dtype that loses little of what the matrices have: `bf16`, which has eight bits of precision, unless a
/// matrix is of floats that have more, or cannot be of bf16. Quantized ones have not: their steps are wider than
/// `bf16`'s.
fn about_as_precise(bindings: &[Binding]) -> Dtype {
    let mut matrices = bindings.iter().filter(|binding| binding.kind.is_matrix());
    let is_precise = |binding: &Binding| {
        let mut dtypes = binding.tensors.iter().map(|part| part.tensor.dtype);
        dtypes.any(|dtype| matches!(dtype, source::Dtype::F32 | source::Dtype::F16))
    };
    match matrices.any(|binding| is_precise(binding) || has_odd_columns(binding)) {
        true => Dtype::F32,
        false => Dtype::Bf16,
    }
}

/// Two columns of bf16 lie together.
fn check_columns(binding: &Binding) -> Result<()> {
    match binding.dtype == Dtype::Bf16 && has_odd_columns(binding) {
        true => Err(Error::tensor(
            &binding.tensors[0].tensor.name,
            format!("columns: expected an even number for bf16, found {} (f32 takes any)", binding.columns()),
        )),
        false => Ok(()),
    }
}

fn has_odd_columns(binding: &Binding) -> bool {
    !binding.columns().is_multiple_of(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_stand_for_any_characters() {
        let cases = [
            ("qkv_proj", "qkv_proj", true),
            ("qkv_proj", "qkv_proj.0", false),
            ("*", "qkv_proj.0", true),
            ("*_proj.1", "gate_up_proj.1", true),
            ("*_proj.1", "gate_up_proj.11", false),
            ("*_proj.1*", "gate_up_proj.11", true),
            ("*o*o*", "o_proj", true),
            ("*o*o*o*", "o_proj", false),
            ("o*proj", "o_proj", true),
            ("o_pr*proj", "o_proj", false),
            ("**", "", true),
            ("", "o_proj", false),
        ];
        for (pattern, name, expected) in cases {
            assert_eq!(matches(pattern, name), expected, "{pattern} {name}");
        }
    }

    #[test]
    fn vocabularies_are_cut_after_whole_panels_and_into_parts_that_have_rows() {
        for tokens in 0..16 {
            assert!(cuts(tokens).is_empty(), "{tokens}");
        }
        assert_eq!([16, 17, 32, 33].map(cuts), [vec![], vec![16], vec![16], vec![16]]);
        assert_eq!([37, 49_152].map(cuts), [vec![16, 32], vec![6144, 24_576]]);
        assert_eq!(cuts(50_257), [6288, 25_136]);
    }
}
