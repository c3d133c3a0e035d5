//! `smolrun info`: what a blob needs, and what this machine brings.

use std::error::Error;
use std::io::{self, Write};
use std::thread::available_parallelism;

use serde::Serialize;
use smolrun::format::Layout;
use smolrun::{Kernels, KvDtype, Model};

use crate::model::ModelArgs;
use crate::output::{Output, Stdout, counted, hex};

#[derive(Serialize)]
struct Info {
    model: ModelInfo,
    memory: MemoryInfo,
    machine: MachineInfo,
}

#[derive(Serialize)]
struct ModelInfo {
    /// Version of the blob's format.
    format: String,
    /// Hash of the directory, which has the hashes of all sections: two blobs of one hash are the same.
    directory_sha256: String,
    parameters: u64,
    /// Of the matrices; several are joined with `+`.
    dtype: String,
    num_hidden_layers: usize,
    hidden_size: usize,
    vocab_size: usize,
    max_position_embeddings: usize,
    eos_token_ids: Vec<u32>,
    has_chat_template: bool,
}

#[derive(Serialize)]
struct MemoryInfo {
    /// The whole file, mapped and shared by all processes that run it.
    blob_bytes: u64,
    /// Keys and values of one token, and of a full context, by the name of their dtype.
    kv_bytes_per_token: KvBytes,
    kv_bytes_of_context: KvBytes,
    /// How they are kept unless `--kv` says so.
    kv_dtype: &'static str,
}

#[derive(Serialize)]
struct KvBytes {
    f32: usize,
    f16: usize,
    q8: usize,
}

impl KvBytes {
    /// By the name of a dtype.
    fn of(&self, dtype: &str) -> usize {
        match dtype {
            "f32" => self.f32,
            "f16" => self.f16,
            _ => self.q8,
        }
    }
}

#[derive(Serialize)]
struct MachineInfo {
    /// As many threads as the process may use at once.
    threads: usize,
    /// The instruction set that a run would use.
    isa: &'static str,
    /// Those that this processor has, slowest first.
    available_isa: Vec<&'static str>,
}

pub(crate) fn run(model: &ModelArgs, json: bool) -> Result<(), Box<dyn Error>> {
    let model = model.open()?;
    let info = Info {
        model: ModelInfo::of(&model)?,
        memory: MemoryInfo::of(&model),
        machine: MachineInfo::of_this()?,
    };
    match json {
        true => Output::new().json(&info),
        false => Ok(info.print(&mut Stdout::new())?),
    }
}

impl ModelInfo {
    fn of(model: &Model) -> smolrun::Result<ModelInfo> {
        let (layout, config) = (model.layout(), model.config());
        let header = &layout.header;
        Ok(ModelInfo {
            format: format!("{}.{}", header.version_major, header.version_minor),
            directory_sha256: hex(&header.directory_sha256),
            parameters: layout.parameters(),
            dtype: dtypes(layout),
            num_hidden_layers: config.num_hidden_layers,
            hidden_size: config.hidden_size,
            vocab_size: config.vocab_size,
            max_position_embeddings: config.max_position_embeddings,
            eos_token_ids: config.eos_token_ids.clone(),
            has_chat_template: model.chat_template()?.is_some(),
        })
    }
}

/// Names of the matrices' dtypes, such as `bf16` or `q6+q5+q4`.
pub(crate) fn dtypes(layout: &Layout) -> String {
    layout.weights.dtypes().iter().map(|dtype| dtype.name()).collect::<Vec<_>>().join("+")
}

impl MemoryInfo {
    fn of(model: &Model) -> MemoryInfo {
        let layout = model.layout();
        let of = |tokens: usize| {
            let [f32, f16, q8] = [KvDtype::F32, KvDtype::F16, KvDtype::Q8]
                .map(|kv| kv.bytes_per_token(&layout.config) * tokens);
            KvBytes { f32, f16, q8 }
        };
        MemoryInfo {
            blob_bytes: layout.header.file_len,
            kv_bytes_per_token: of(1),
            kv_bytes_of_context: of(layout.config.max_position_embeddings),
            kv_dtype: model.default_kv_dtype().name(),
        }
    }
}

impl MachineInfo {
    fn of_this() -> smolrun::Result<MachineInfo> {
        Ok(MachineInfo {
            threads: available_parallelism().map_or(1, usize::from),
            isa: Kernels::from_env()?.name(),
            available_isa: Kernels::available().into_iter().map(Kernels::name).collect(),
        })
    }
}

impl Info {
    fn print(&self, out: &mut impl Write) -> io::Result<()> {
        let Info { model, memory, machine } = self;
        let megabytes = |bytes: usize| bytes as f64 / 1e6;
        let chat = if model.has_chat_template { "a chat template" } else { "no chat template" };
        writeln!(
            out,
            "model     {:.1} M parameters in {}, {} layers of {}, {chat}",
            model.parameters as f64 / 1e6,
            model.dtype,
            model.num_hidden_layers,
            model.hidden_size
        )?;
        writeln!(
            out,
            "tokens    {} in the vocabulary, at most {} at a time",
            model.vocab_size, model.max_position_embeddings
        )?;
        writeln!(
            out,
            "blob      {:.1} MB, format {}, {}",
            memory.blob_bytes as f64 / 1e6,
            model.format,
            model.directory_sha256
        )?;
        writeln!(
            out,
            "KV cache  {} bytes a token in f32, {} in f16, {} in q8; {:.1} MB for a full context in {}, the default",
            memory.kv_bytes_per_token.f32,
            memory.kv_bytes_per_token.f16,
            memory.kv_bytes_per_token.q8,
            megabytes(memory.kv_bytes_of_context.of(memory.kv_dtype)),
            memory.kv_dtype
        )?;
        writeln!(
            out,
            "machine   {}, {} kernels (of {})",
            counted(machine.threads, "thread"),
            machine.isa,
            machine.available_isa.join(", ")
        )
    }
}
