//! A PEFT LoRA: what it adds to the tensors of a checkpoint, or puts in their place.
//!
//! `W + scale * B A` is computed in f32 where rows of `W` are packed; no merged checkpoint is ever held in memory.

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
/// PEFT keeps an embedding's pair the other way round, as bare parameters.
const LINEAR: [&str; 2] = [".lora_A.weight", ".lora_B.weight"];
const EMBEDDING: [&str; 2] = [".lora_embedding_A", ".lora_embedding_B"];
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
                (pair.embedding, pair.parts[place]) = (embedding, Some(tensor));
            }
        }
    }
    for (module, pair) in modules {
        let delta = pair.read(&adapter, &config, &module)?;
        source.deltas.insert(module + WEIGHT, delta);
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
            return Err(wrong("expected A and B of a LoRA, found another kind of tensor (DoRA is one such)"));
        }
        let name = name.strip_suffix(WEIGHT).ok_or_else(|| wrong("expected a weight of the model"))?;
        let module = name.strip_suffix(".base_layer").unwrap_or(name);
        Ok(Role::Saved(module.to_owned() + WEIGHT))
    }
}

/// `A` and `B` of one module.
#[derive(Default)]
struct Pair<'a> {
    parts: [Option<&'a Tensor>; 2],
    embedding: bool,
}

impl Pair<'_> {
    fn read(&self, adapter: &Source, config: &AdapterConfig, module: &str) -> Result<Delta> {
        let [Some(a), Some(b)] = self.parts else {
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
        Ok(match self.embedding {
            false => Delta::new(a, b, rank, scale),
            // Of an embedding, a token is a column of A.
            true => Delta::new(transposed(&b, height, rank), transposed(&a, rank, width), rank, scale),
        })
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
