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
    // What this version has and those before it have not: those stand for themselves.
    for name in ["mlp-biased", "yarn-unturned"] {
        make(&data("family").join(name), Weights::all(Dtype::Bf16), &out.join(name))?;
    }
    Ok(())
}

/// A blob of the checkpoint in `source`, and beside it what is read from it now.
fn make(source: &Path, weights: Weights, out: &Path) -> Result<(), Box<dyn Error>> {
    let temp = TempDir::new();
    let tokenizer = temp.join("tokenizer.json");
    fs::write(&tokenizer, Checkpoint::tiny(TensorDtype::F32).tokenizer.to_string())?;
    let blob = out.with_extension("bin");
    let options = Options {
        tokenizer: (!source.join("tokenizer.json").exists()).then_some(tokenizer),
        weights,
        ..Options::new(source, &blob)
    };
    convert(&options, &Progress::new(true))?;
    fs::write(out.with_extension("json"), format!("{:#}\n", json!(reading(&blob))))?;
    Ok(())
}
