//! The fields of an object that describes a rotary embedding, and what it takes from the config around it.

use crate::error::{Error, Result};
use crate::json::Fields;

/// Positions of the texts that a model was first trained on: in the object, or beside it.
const ORIGINAL: &str = "original_max_position_embeddings";
const POSITIVE: &str = "a number above 0";

/// An object that describes a rotary embedding, in the config around it.
#[derive(Clone, Copy)]
pub(super) struct RopeFields<'a> {
    /// The whole config.
    pub config: &'a Fields<'a>,
    /// The object.
    pub rope: &'a Fields<'a>,
    /// Its name.
    pub place: &'a str,
    /// Pairs of features of a head.
    pub pairs: usize,
}

impl RopeFields<'_> {
    /// A number above 0.
    pub(super) fn number(&self, field: &str) -> Result<f64> {
        self.optional_number(field)?.ok_or_else(|| self.wrong(field, POSITIVE, "nothing"))
    }

    /// A number above 0, if there is one.
    pub(super) fn optional_number(&self, field: &str) -> Result<Option<f64>> {
        number(self.rope, field, &self.name(field))
    }

    /// A number above 0 for each pair of features.
    pub(super) fn numbers(&self, field: &str) -> Result<Vec<f32>> {
        let (name, expected) = (self.name(field), format!("a list of {} numbers above 0", self.pairs));
        let numbers: Vec<f32> = self.rope.optional(field, &expected)?.unwrap_or_default();
        let is_usable = |number: &f32| number.is_finite() && *number > 0.0;
        match numbers.len() == self.pairs && numbers.iter().all(is_usable) {
            true => Ok(numbers),
            false => Err(self.config.wrong(&name, expected, format!("{numbers:?}"))),
        }
    }

    /// Positions of the texts that the model was first trained on.
    pub(super) fn original(&self) -> Result<f64> {
        let (outer, inner) = (number(self.config, ORIGINAL, ORIGINAL)?, self.optional_number(ORIGINAL)?);
        if let (Some(outer), Some(inner)) = (outer, inner.filter(|_| outer != inner)) {
            return Err(self.wrong(ORIGINAL, format!("{ORIGINAL}, {outer}"), inner));
        }
        outer.or(inner).map_or_else(|| self.max_positions(), Ok)
    }

    /// `max_position_embeddings`.
    pub(super) fn max_positions(&self) -> Result<f64> {
        Ok(self.config.required::<u32>("max_position_embeddings", "a positive integer")?.into())
    }

    /// `field` of the object should have been `expected`.
    pub(super) fn wrong(&self, field: &str, expected: impl Into<String>, found: impl ToString) -> Error {
        self.config.wrong(&self.name(field), expected, found)
    }

    fn name(&self, field: &str) -> String {
        format!("{}.{field}", self.place)
    }
}

/// The number above 0 in `field`, which errors call `name`.
fn number(fields: &Fields, field: &str, name: &str) -> Result<Option<f64>> {
    let Some(value) = fields.value(field) else { return Ok(None) };
    match value.as_f64().filter(|number| number.is_finite() && *number > 0.0) {
        Some(number) => Ok(Some(number)),
        None => Err(fields.wrong(name, POSITIVE, value)),
    }
}
