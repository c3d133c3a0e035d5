//! candle's Llama as a peer of smolrun: the same measurements, for `scripts/compare_peers.py`.
//!
//!     candle-peer bench DIR DTYPE N_PROMPT N_TOKENS   one JSON line on standard output
//!     candle-peer first DIR DTYPE PROMPT              the first token on standard output, a JSON line on standard error
//!
//! `DIR` is the Hugging Face directory, `DTYPE` is `f32` or `bf16`. `RAYON_NUM_THREADS` sets the threads, as for any
//! program of candle's.

use std::error::Error;
use std::path::Path;
use std::time::Instant;

use candle_core::{DType, Device, IndexOp, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models::llama::{Cache, Config, Llama, LlamaConfig};
use serde_json::json;
use tokenizers::Tokenizer;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        ["bench", dir, dtype, prompt, tokens] => bench(dir.as_ref(), dtype, prompt.parse()?, tokens.parse()?),
        ["first", dir, dtype, prompt] => first(dir.as_ref(), dtype, prompt),
        _ => Err("usage: candle-peer bench DIR DTYPE N_PROMPT N_TOKENS | first DIR DTYPE PROMPT".into()),
    }
}

/// Prefill and decode, tokens per second, each from an empty context, after a short run to warm up.
fn bench(dir: &Path, dtype: &str, prompt: usize, tokens: usize) -> Result<()> {
    let peer = Peer::load(dir, dtype)?;
    peer.prefill(prompt.min(32))?;
    peer.decode(tokens.min(4))?;
    let pp = prompt as f64 / peer.prefill(prompt)?;
    let tg = tokens as f64 / peer.decode(tokens)?;
    println!("{}", json!({ "pp": pp, "tg": tg }));
    Ok(())
}

/// What follows `prompt`, and when what was done, in milliseconds since `main`.
fn first(dir: &Path, dtype: &str, prompt: &str) -> Result<()> {
    let start = Instant::now();
    let elapsed = || start.elapsed().as_secs_f64() * 1e3;
    let tokenizer = Tokenizer::from_file(dir.join("tokenizer.json"))?;
    let tokenizer_at = elapsed();
    let peer = Peer::load(dir, dtype)?;
    let model_at = elapsed();
    let ids = tokenizer.encode(prompt, false)?;
    let logits = peer.forward(ids.get_ids(), 0, &mut peer.cache()?)?;
    let id = logits.argmax(0)?.to_scalar::<u32>()?;
    println!("{}", tokenizer.decode(&[id], false)?);
    eprintln!("{}", json!({ "tokenizer": tokenizer_at, "model": model_at, "token": elapsed() }));
    Ok(())
}

/// A loaded model.
struct Peer {
    llama: Llama,
    config: Config,
    dtype: DType,
}

impl Peer {
    /// Maps `DIR/model.safetensors` and makes candle's tensors of it, in `dtype`.
    fn load(dir: &Path, dtype: &str) -> Result<Peer> {
        let dtype = match dtype {
            "f32" => DType::F32,
            "bf16" => DType::BF16,
            other => return Err(format!("dtype {other}: expected f32 or bf16").into()),
        };
        let config: LlamaConfig = serde_json::from_slice(&std::fs::read(dir.join("config.json"))?)?;
        let config = config.into_config(false);
        // SAFETY: the comparison changes no file while a peer runs.
        let weights = unsafe {
            VarBuilder::from_mmaped_safetensors(&[dir.join("model.safetensors")], dtype, &Device::Cpu)?
        };
        let llama = Llama::load(weights, &config)?;
        Ok(Peer { llama, config, dtype })
    }

    /// An empty context.
    fn cache(&self) -> Result<Cache> {
        Ok(Cache::new(true, self.dtype, &self.config, &Device::Cpu)?)
    }

    /// Logits after `ids` at `position`, `[vocab_size]` in f32.
    fn forward(&self, ids: &[u32], position: usize, cache: &mut Cache) -> Result<Tensor> {
        let input = Tensor::new(ids, &Device::Cpu)?.unsqueeze(0)?;
        Ok(self.llama.forward(&input, position, cache)?.i(0)?)
    }

    /// Seconds that `n` tokens take at once.
    fn prefill(&self, n: usize) -> Result<f64> {
        let (ids, mut cache) = (self.tokens(n), self.cache()?);
        let start = Instant::now();
        if n > 0 {
            self.forward(&ids, 0, &mut cache)?;
        }
        Ok(start.elapsed().as_secs_f64())
    }

    /// Seconds that `n` tokens take one by one.
    fn decode(&self, n: usize) -> Result<f64> {
        let (ids, mut cache) = (self.tokens(n), self.cache()?);
        let start = Instant::now();
        for (position, id) in ids.iter().enumerate() {
            self.forward(&[*id], position, &mut cache)?;
        }
        Ok(start.elapsed().as_secs_f64())
    }

    /// Some tokens: which ones does not matter to the time.
    fn tokens(&self, n: usize) -> Vec<u32> {
        (0..n as u32).map(|i| i.wrapping_mul(2_654_435_761) % self.config.vocab_size as u32).collect()
    }
}
