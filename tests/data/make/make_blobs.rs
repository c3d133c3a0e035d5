//! Makes the blobs that stand for this version of the format in `tests/data/blobs`, once, when it is released; see
//! `tests/versions.rs`. `cargo run --release -p smol-tests --example make_blobs`

use std::error::Error;
use std::fs;
use std::path::Path;

use serde_json::json;
use smol_tests::common::versions::reading;
use smol_tests::common::{Checkpoint, TempDir, TensorDtype, data};
use smolconv::{Options, Progress, Weights, convert};
use smolrun::format::{Dtype, VERSION_MAJOR, VERSION_MINOR};

fn main() -> Result<(), Box<dyn Error>> {
    let out = data(&format!("blobs/{VERSION_MAJOR}.{VERSION_MINOR}"));
    fs::create_dir(&out).map_err(|error| format!("{}: {error}", out.display()))?;
    // Between them they have a section of every kind.
    make(&data("family/llama-biased"), Dtype::F32, &out.join("llama-biased"))?;
    make(&data("family/smollm3-window"), Dtype::Bf16, &out.join("smollm3-window"))?;
    make(&data("family/qwen3-biased-window"), Dtype::Bf16, &out.join("qwen3-biased-window"))?;
    for (tokenizer, dtype) in [("llama2-legacy", Dtype::F32), ("llama3", Dtype::Bf16)] {
        let temp = TempDir::new();
        let mut checkpoint = Checkpoint::untied(TensorDtype::Bf16);
        let json = fs::read(data(&format!("tokenizers/{tokenizer}.json")))?;
        checkpoint.use_tokenizer(serde_json::from_slice(&json)?, 1024);
        checkpoint.add("lm_head.weight", TensorDtype::Bf16, &[1024, 24]);
        let template = "{% for message in messages %}{{ message.content }}{% endfor %}";
        checkpoint.files.insert("chat_template.jinja".into(), template.into());
        checkpoint.write(temp.path());
        make(temp.path(), dtype, &out.join(format!("tokenizer-{tokenizer}")))?;
    }
    Ok(())
}

/// A blob of the checkpoint in `source`, and beside it what is read from it now.
fn make(source: &Path, dtype: Dtype, out: &Path) -> Result<(), Box<dyn Error>> {
    let temp = TempDir::new();
    let tokenizer = temp.join("tokenizer.json");
    fs::write(&tokenizer, Checkpoint::tiny(TensorDtype::F32).tokenizer.to_string())?;
    let blob = out.with_extension("bin");
    let options = Options {
        tokenizer: (!source.join("tokenizer.json").exists()).then_some(tokenizer),
        weights: Weights::all(dtype),
        ..Options::new(source, &blob)
    };
    convert(&options, &Progress::new(true))?;
    fs::write(out.with_extension("json"), format!("{:#}\n", json!(reading(&blob))))?;
    Ok(())
}
