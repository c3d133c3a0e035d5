//! The rotary embedding: everything that a config says about it, resolved to one frequency for each pair of features
//! and one factor of their cosines and sines.

mod fields;
mod longrope;
mod scaling;
mod yarn;

use smolrun::format::Config;

pub(super) use self::scaling::Scaling;
pub(super) use self::yarn::Yarn;

use self::fields::RopeFields;
use crate::error::Result;
use crate::json::Fields;

/// Where a config describes it: by transformers 4 and by transformers 5.
const OBJECTS: [&str; 2] = ["rope_scaling", "rope_parameters"];
/// What either may hold instead of one description: one for the layers of each type.
const LAYER_TYPES: [&str; 2] = ["full_attention", "sliding_attention"];

/// How a model turns queries and keys.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Rope {
    /// Inverse frequencies, `[head_dim / 2]`.
    pub inv_freq: Vec<f32>,
    /// What cosines and sines are multiplied with.
    pub attention_factor: f32,
    /// Positions for which this holds.
    pub positions: usize,
}

/// The rotary embedding of a model whose sizes are those of `record`. Kinds of scaling that are not known here are
/// refused.
pub(crate) fn read(fields: &Fields, default_theta: f64, record: &Config) -> Result<Rope> {
    let mut said = Said { theta: fields.optional("rope_theta", "a number")?, scaling: None };
    for object in OBJECTS {
        let Some(rope) = fields.object(object)? else { continue };
        let around = RopeFields { config: fields, rope: &rope, place: object, pairs: record.head_dim / 2 };
        said.add(around, None)?;
        for layers in LAYER_TYPES.into_iter().filter(|layers| rope.has(layers)) {
            let place = format!("{object}.{layers}");
            let inner = rope.object(layers)?.ok_or_else(|| fields.wrong(&place, "an object", "null"))?;
            said.add(RopeFields { rope: &inner, place: &place, ..around }, Some(Scaling::None))?;
        }
    }
    let theta = said.theta.unwrap_or(default_theta);
    if !(theta.is_finite() && (1.0..=1e30).contains(&theta)) {
        return Err(fields.wrong("rope_theta", "a number from 1 to 1e30", theta));
    }
    let (place, scaling) = said.scaling.unwrap_or_else(|| (OBJECTS[0].to_owned(), Scaling::None));
    if theta == 1.0 && matches!(scaling, Scaling::Yarn(_)) {
        return Err(fields.wrong("rope_theta", "a number above 1", theta));
    }
    let rope = Rope::new(&scaling, theta, record);
    match rope.inv_freq.iter().find(|frequency| !frequency.is_finite()) {
        Some(frequency) => Err(fields.wrong(&place, "a scaling to finite frequencies", frequency)),
        None => Ok(rope),
    }
}

impl Rope {
    /// Of a model whose sizes are those of `record`, as `scaling` makes it.
    pub(super) fn new(scaling: &Scaling, theta: f64, record: &Config) -> Rope {
        Rope {
            inv_freq: scaling.inv_freq(theta, record.head_dim),
            attention_factor: scaling.attention_factor(),
            positions: scaling.positions(record.max_position_embeddings),
        }
    }
}

/// What a config has said so far: it may say the same in several places.
struct Said {
    theta: Option<f64>,
    /// With the place that said it.
    scaling: Option<(String, Scaling)>,
}

impl Said {
    /// Adds what `rope` says. `silent` is what it means if it names no kind of scaling.
    fn add(&mut self, rope: RopeFields, silent: Option<Scaling>) -> Result<()> {
        if let Some(scaling) = Scaling::read(rope)?.or(silent) {
            match &self.scaling {
                Some((place, before)) if *before != scaling => {
                    return Err(rope.config.wrong(rope.place, format!("the scaling of {place}"), "another"));
                }
                Some(_) => {}
                None => self.scaling = Some((rope.place.to_owned(), scaling)),
            }
        }
        let theta = rope.rope.optional::<f64>("rope_theta", "a number")?;
        match (self.theta, theta) {
            (Some(before), Some(theta)) if before != theta => {
                Err(rope.wrong("rope_theta", format!("rope_theta, {before}"), theta))
            }
            _ => {
                self.theta = self.theta.or(theta);
                Ok(())
            }
        }
    }
}

/// `1 / theta^(2i / head_dim)` with the roundings of transformers, which computes it in f32: each step is rounded
/// once, the power correctly.
pub(crate) fn inv_freq(theta: f64, head_dim: usize) -> Vec<f32> {
    powers(theta, head_dim).map(|power| 1.0 / power).collect()
}

/// `theta^(2i / head_dim)`, likewise.
fn powers(theta: f64, head_dim: usize) -> impl Iterator<Item = f32> {
    let theta = f64::from(theta as f32);
    (0..head_dim / 2).map(move |i| {
        let exponent = (2 * i) as f32 / head_dim as f32;
        theta.powf(f64::from(exponent)) as f32
    })
}
