//! A PEFT LoRA: what it adds to the tensors of a checkpoint, or puts in their place.
//!
//! `W + scale * B A`, of a DoRA with rows of given lengths, is computed in f32 where rows of `W` are packed; no merged
//! checkpoint is ever held in memory.

mod config;

use std::collections::BTreeMap;
use std::path::Path;

use self::config::AdapterConfig;
use crate::error::{Error, Result};
use crate::json::Document;
use crate::source::{Delta, Source, Tensor};

/// What PEFT puts before the names of the model that it wraps.
const PREFIX: &str = "base_model.model.";
/// The name of a module's matrix.
const WEIGHT: &str = ".weight";
/// The name of its bias.
const BIAS: &str = ".bias";
/// What belongs to a pair: A, B, the lengths of the sum's rows (DoRA), and B's bias.
const LINEAR: &[&str] = &[".lora_A.weight", ".lora_B.weight", ".lora_magnitude_vector", ".lora_B.bias"];
/// PEFT keeps an embedding's pair the other way round, as bare parameters.
const EMBEDDING: &[&str] = &[".lora_embedding_A", ".lora_embedding_B"];
/// The tensors that a tied model has one matrix for.
const TIED: [&str; 2] = ["model.embed_tokens.weight", "lm_head.weight"];

/// Reads the adapter in `directory` into `source`: its pairs become [`Source::deltas`], the tensors that it saved
/// whole take the place of those of the same name. Returns the adapter's config. `tied` tells whether the model has
/// one matrix for the embedding and the output.
pub(crate) fn apply(directory: &Path, source: &mut Source, tied: bool) -> Result<Document> {
    let document = Document::read(&directory.join("adapter_config.json"))?;
    let config = AdapterConfig::read(&document.fields()?)?;
    let mut adapter = Source::open(&directory.join("adapter_model.safetensors"))?;
    let mut modules: BTreeMap<String, Pair> = BTreeMap::new();
    let mut saved = Vec::new();
    for tensor in adapter.tensors.values() {
        match Role::of(tensor)? {
            Role::Saved(name) => saved.push((name, tensor.clone())),
            Role::Pair { module, place, embedding } => {
                let pair = modules.entry(module).or_default();
                (pair.embedding, pair.parts[place]) = (pair.embedding || embedding, Some(tensor));
            }
        }
    }
    for (module, pair) in modules {
        let (weight, bias) = pair.read(&adapter, &config, &module)?;
        source.deltas.extend(bias.map(|bias| (format!("{module}{BIAS}"), bias)));
        source.deltas.insert(module + WEIGHT, weight);
    }
    config.check_targets(source)?;
    check_tied(&config, &adapter, &saved, tied)?;
    let file = source.files.len();
    source.files.append(&mut adapter.files);
    for (name, tensor) in saved.into_iter().filter(|(name, _)| !(tied && name == TIED[1])) {
        replace(source, name, Tensor { file, ..tensor })?;
    }
    Ok(document)
}

/// What a tensor of an adapter is.
enum Role {
    Saved(String),
    Pair { module: String, place: usize, embedding: bool },
}

impl Role {
    fn of(tensor: &Tensor) -> Result<Role> {
        let wrong = |problem: &str| Error::tensor(&tensor.name, problem);
        let Some(name) = tensor.name.strip_prefix(PREFIX) else {
            return Err(wrong("expected a name that begins with base_model.model., as PEFT's do"));
        };
        for (suffixes, embedding) in [(LINEAR, false), (EMBEDDING, true)] {
            for (place, suffix) in suffixes.iter().enumerate() {
                if let Some(module) = name.strip_suffix(suffix) {
                    return Ok(Role::Pair { module: module.to_owned(), place, embedding });
                }
            }
        }
        if name.contains("lora_") {
            return Err(wrong("expected A and B of a LoRA or DoRA, found another kind of tensor"));
        }
        let mut ends = [WEIGHT, BIAS].into_iter();
        let found = ends.find_map(|end| Some((name.strip_suffix(end)?, end)));
        let (module, end) = found.ok_or_else(|| wrong("expected a weight or a bias of the model"))?;
        Ok(Role::Saved(module.strip_suffix(".base_layer").unwrap_or(module).to_owned() + end))
    }
}

/// `A` and `B` of one module, and what belongs to them, in the order of [`LINEAR`].
#[derive(Default)]
struct Pair<'a> {
    parts: [Option<&'a Tensor>; LINEAR.len()],
    embedding: bool,
}

impl Pair<'_> {
    /// What the pair adds to the module's matrix, and to its bias.
    fn read(&self, adapter: &Source, config: &AdapterConfig, module: &str) -> Result<(Delta, Option<Delta>)> {
        let [Some(a), Some(b), magnitudes, bias] = self.parts else {
            return Err(Error::tensor(module, "expected A and B of a LoRA, found only one of them"));
        };
        config.check_module(module)?;
        let (rank, scale) = config.rank_and_scale(module);
        let ([rank_of_a, width], [height, rank_of_b]) = (matrix(a)?, matrix(b)?);
        if (rank_of_a, rank_of_b) != (rank, rank) {
            let found = format!("{rank_of_a} and {rank_of_b}");
            return Err(Error::tensor(module, format!("expected A and B of rank {rank}, found {found}")));
        }
        let (a, b) = (read(adapter, a)?, read(adapter, b)?);
        if self.embedding {
            if config.use_dora || magnitudes.or(bias).is_some() {
                // A DoRA gives each of its columns a length, which no row tells.
                let problem = "expected A and B alone of an embedding, found a DoRA or a bias";
                return Err(Error::tensor(module, problem));
            }
            // Of an embedding, a token is a column of A.
            let (a, b) = (transposed(&b, height, rank), transposed(&a, rank, width));
            return Ok((Delta::new(a, b, rank, scale), None));
        }
        let vector = |field, is_on, tensor| vector(adapter, (field, is_on), tensor, (module, height));
        let (weight, bias) = (Delta::new(a, b, rank, scale), vector("lora_bias", config.lora_bias, bias)?);
        let weight = match vector("use_dora", config.use_dora, magnitudes)? {
            Some(magnitudes) => weight.with_magnitudes(magnitudes),
            None => weight,
        };
        Ok((weight, bias.map(|bias| Delta::of_vector(bias, scale))))
    }
}

/// The numbers of `tensor`, one for each of a module's rows, which an adapter has if `field` of its config is on.
fn vector(
    adapter: &Source,
    (field, is_on): (&str, bool),
    tensor: Option<&Tensor>,
    (module, rows): (&str, usize),
) -> Result<Option<Vec<f32>>> {
    match tensor {
        None if is_on => {
            let problem = format!("expected {rows} numbers more, as {field} is true, found none");
            Err(Error::tensor(module, problem))
        }
        None => Ok(None),
        Some(tensor) if !is_on => {
            Err(Error::tensor(&tensor.name, format!("expected none, as {field} is false, found one")))
        }
        Some(tensor) if tensor.shape != [rows] || !tensor.dtype.is_weight() => {
            let (dtype, shape) = (tensor.dtype, &tensor.shape);
            let problem = format!("expected {rows} floats, found {dtype} of shape {shape:?}");
            Err(Error::tensor(&tensor.name, problem))
        }
        Some(tensor) => read(adapter, tensor).map(Some),
    }
}

fn matrix(tensor: &Tensor) -> Result<[usize; 2]> {
    let shape: Option<[usize; 2]> = tensor.shape.as_slice().try_into().ok();
    shape.filter(|shape| tensor.dtype.is_weight() && !shape.contains(&0)).ok_or_else(|| {
        let (dtype, shape) = (tensor.dtype, &tensor.shape);
        Error::tensor(&tensor.name, format!("expected a matrix of floats, found {dtype} of shape {shape:?}"))
    })
}

/// All numbers of a tensor; they are in the file, so that they take no more memory than twice what it has.
fn read(adapter: &Source, tensor: &Tensor) -> Result<Vec<f32>> {
    let mut bytes = vec![0; tensor.len as usize];
    adapter.files[tensor.file].read_at(&mut bytes, tensor.offset)?;
    let mut values = vec![0.0; tensor.shape.iter().product()];
    tensor.dtype.decode(&bytes, &mut values);
    match values.iter().find(|value| !value.is_finite()) {
        Some(value) => Err(Error::tensor(&tensor.name, format!("expected finite numbers, found {value}"))),
        None => Ok(values),
    }
}

fn transposed(values: &[f32], rows: usize, columns: usize) -> Vec<f32> {
    (0..columns).flat_map(|column| (0..rows).map(move |row| values[row * columns + column])).collect()
}

/// A model with one matrix for two modules keeps it only if an adapter saved the same for both.
fn check_tied(
    config: &AdapterConfig,
    adapter: &Source,
    saved: &[(String, Tensor)],
    tied: bool,
) -> Result<()> {
    let find = |name: &str| saved.iter().find(|(saved, _)| saved == name).map(|(_, tensor)| tensor);
    match (find(TIED[0]), find(TIED[1])) {
        _ if !tied => Ok(()),
        (None, None) => Ok(()),
        (Some(embedding), Some(head)) if read(adapter, embedding)? == read(adapter, head)? => Ok(()),
        (Some(_), None) if !config.saves_modules() => Ok(()), // the matrix of both
        _ => Err(Error::tensor(
            TIED[0],
            "expected an adapter that leaves embedding and output the same, as \
             tie_word_embeddings is true, found one that saved one of them or two that differ",
        )),
    }
}

fn replace(source: &mut Source, name: String, tensor: Tensor) -> Result<()> {
    let old = source.tensors.get_mut(&name).filter(|_| source.gguf.is_none());
    let old = old.ok_or_else(|| {
        Error::tensor(&tensor.name, "expected the name of a tensor of the SafeTensors model, found another")
    })?;
    *old = Tensor { name, ..tensor };
    Ok(())
}
