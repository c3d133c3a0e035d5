//! `adapter_config.json`, and the refusal by name of every kind of adapter that is no plain LoRA.

use std::collections::BTreeMap;

use serde_json::Value;

use super::WEIGHT;
use crate::error::{Error, Result};
use crate::json::Fields;
use crate::source::Source;

/// Fields that are read here, or that change nothing once an adapter is trained.
const KNOWN: &[&str] = &[
    "alpha_pattern",
    "auto_mapping",
    "base_model_name_or_path",
    "bias",
    "corda_config",
    "ensure_weight_tying",
    "eva_config",
    "exclude_modules",
    "fan_in_fan_out",
    "inference_mode",
    "init_lora_weights",
    "layers_pattern",
    "layers_to_transform",
    "loftq_config",
    "lora_alpha",
    "lora_bias",
    "lora_dropout",
    "megatron_core",
    "modules_to_save",
    "peft_type",
    "peft_version",
    "qalora_group_size",
    "r",
    "rank_pattern",
    "revision",
    "runtime_config",
    "target_modules",
    "task_type",
    "use_dora",
    "use_rslora",
];
/// Which of the model's biases were trained: those that were are in the adapter's file.
const BIASES: &[&str] = &["none", "all", "lora_only"];
/// Ways to start training that leave the model's own matrices as they are.
const PLAIN_STARTS: &[&str] = &["gaussian", "eva", "orthogonal", "mica"];

/// A LoRA's hyperparameters.
pub(super) struct AdapterConfig {
    r: usize,
    lora_alpha: f64,
    use_rslora: bool,
    /// Whether the rows of each sum have lengths of their own.
    pub use_dora: bool,
    /// Whether each pair has a bias.
    pub lora_bias: bool,
    rank_pattern: BTreeMap<String, usize>,
    alpha_pattern: BTreeMap<String, f64>,
    /// The ends of the names of the modules that have a pair; none where the file has a regular expression.
    target_modules: Option<Vec<String>>,
    /// Whether every module of such a name has one.
    everywhere: bool,
    saves_modules: bool,
}

impl AdapterConfig {
    pub(super) fn read(fields: &Fields) -> Result<AdapterConfig> {
        check_kind(fields)?;
        let r = fields.required("r", "a positive integer")?;
        let is_on = |field| -> Result<bool> { Ok(fields.optional(field, "a bool")?.unwrap_or(false)) };
        let config = AdapterConfig {
            r,
            lora_alpha: fields.required("lora_alpha", "a number")?,
            use_rslora: is_on("use_rslora")?,
            use_dora: is_on("use_dora")?,
            lora_bias: is_on("lora_bias")?,
            rank_pattern: pattern(fields, "rank_pattern")?,
            alpha_pattern: pattern(fields, "alpha_pattern")?,
            target_modules: match fields.value("target_modules") {
                Some(Value::String(_)) => None,
                _ => Some(fields.required("target_modules", "a list of names")?),
            },
            everywhere: ["layers_to_transform", "exclude_modules"]
                .iter()
                .all(|field| fields.value(field).is_none()),
            saves_modules: fields.value("modules_to_save").is_some(),
        };
        let is_zero = r == 0 || config.rank_pattern.values().any(|&rank| rank == 0);
        if is_zero { Err(fields.wrong("r", "a positive integer", 0)) } else { Ok(config) }
    }

    /// Whether whole modules were trained beside the pairs.
    pub(super) fn saves_modules(&self) -> bool {
        self.saves_modules
    }

    /// Rank of a module's pair, and the factor of its product.
    pub(super) fn rank_and_scale(&self, module: &str) -> (usize, f32) {
        let rank = find(&self.rank_pattern, module).unwrap_or(self.r);
        let alpha = find(&self.alpha_pattern, module).unwrap_or(self.lora_alpha);
        let divisor = if self.use_rslora { (rank as f64).sqrt() } else { rank as f64 };
        (rank, (alpha / divisor) as f32)
    }

    /// A pair must be one that `target_modules` names.
    pub(super) fn check_module(&self, module: &str) -> Result<()> {
        match &self.target_modules {
            Some(targets) if !targets.iter().any(|target| is_end(module, target)) => {
                Err(Error::tensor(module, "expected a module of target_modules, found a LoRA of another"))
            }
            _ => Ok(()),
        }
    }

    /// Every module that `target_modules` names must have its pair.
    pub(super) fn check_targets(&self, source: &Source) -> Result<()> {
        let Some(targets) = self.target_modules.as_ref().filter(|_| self.everywhere && source.gguf.is_none())
        else {
            return Ok(());
        };
        let modules = source.tensors.keys().filter_map(|name| name.strip_suffix(WEIGHT));
        let mut targeted = modules.filter(|module| targets.iter().any(|target| is_end(module, target)));
        match targeted.find(|module| !source.deltas.contains_key(&format!("{module}{WEIGHT}"))) {
            Some(module) => {
                Err(Error::tensor(module, "expected a LoRA, as target_modules names it, found none"))
            }
            None => Ok(()),
        }
    }
}

fn check_kind(fields: &Fields) -> Result<()> {
    let peft_type: String = fields.required("peft_type", "\"LORA\"")?;
    if peft_type != "LORA" {
        return Err(fields.wrong("peft_type", "\"LORA\"", format!("{peft_type:?}")));
    }
    let is_known = |bias: &Value| bias.as_str().is_some_and(|bias| BIASES.contains(&bias));
    if let Some(bias) = fields.value("bias").filter(|bias| !is_known(bias)) {
        return Err(fields.wrong("bias", "\"none\", \"all\" or \"lora_only\"", bias));
    }
    match fields.value("init_lora_weights") {
        None | Some(Value::Bool(_)) => {}
        Some(start) if start.as_str().is_some_and(|start| PLAIN_STARTS.contains(&start)) => {}
        Some(start) => {
            let expected = "a start that leaves the model's own matrices as they are";
            return Err(fields.wrong("init_lora_weights", expected, start));
        }
    }
    // Whatever else is switched on may change any number: other ways to merge, extra parameters.
    match fields
        .names()
        .find(|name| !KNOWN.contains(name) && fields.value(name).is_some_and(|value| !is_off(value)))
    {
        Some(name) => Err(fields.wrong(name, "null or false", fields.value(name).unwrap_or(&Value::Null))),
        None => Ok(()),
    }
}

fn is_off(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        _ => false,
    }
}

/// Numbers of their own for modules whose names end so. PEFT takes the names for regular expressions; here they are
/// names, from the start if they begin with `^`.
fn pattern<T: serde::de::DeserializeOwned>(fields: &Fields, field: &str) -> Result<BTreeMap<String, T>> {
    let pattern: BTreeMap<String, T> = fields.optional(field, "an object of numbers")?.unwrap_or_default();
    let is_name = |key: &&String| {
        key.strip_prefix('^').unwrap_or(key).chars().all(|c| c.is_ascii_alphanumeric() || "_.".contains(c))
    };
    match pattern.keys().find(|key| !is_name(key)) {
        Some(key) => Err(fields.wrong(field, "names of modules", format!("{key:?}"))),
        None => Ok(pattern),
    }
}

fn find<T: Copy>(pattern: &BTreeMap<String, T>, module: &str) -> Option<T> {
    let matches = |key: &str| match key.strip_prefix('^') {
        Some(whole) => whole == module,
        None => is_end(module, key),
    };
    pattern.iter().find(|(key, _)| matches(key)).map(|(_, value)| *value)
}

/// Whether `module` is `end`, or ends with it after a dot.
fn is_end(module: &str, end: &str) -> bool {
    module.strip_suffix(end).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
}
