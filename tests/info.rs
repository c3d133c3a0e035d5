//! `smolrun info` from outside: the figures against the checkpoint's own files.

use std::fs;

use serde_json::Value;
use smol_tests::common::{TALES, blob, blob_of, model_dir, run};
use smolrun::Kernels;
use smolrun::format::Dtype;

fn info(dtype: Dtype) -> Value {
    let blob = blob_of(TALES, dtype);
    let outcome = run("smolrun", &["info", blob.to_str().unwrap(), "--json"]);
    assert_eq!((outcome.code, outcome.stderr.as_str()), (0, ""));
    serde_json::from_str(&outcome.stdout).unwrap()
}

/// Elements of all tensors in the checkpoint.
fn elements() -> usize {
    let bytes = fs::read(model_dir(TALES).join("model.safetensors")).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    tensors.iter().map(|(_, tensor)| tensor.shape().iter().product::<usize>()).sum()
}

#[test]
fn the_figures_are_those_of_the_checkpoint() {
    let config: Value =
        serde_json::from_slice(&fs::read(model_dir(TALES).join("config.json")).unwrap()).unwrap();
    for dtype in [Dtype::F32, Dtype::Bf16] {
        let info = info(dtype);
        let (model, memory) = (&info["model"], &info["memory"]);
        for name in ["num_hidden_layers", "hidden_size", "vocab_size", "max_position_embeddings"] {
            assert_eq!(model[name], config[name], "{name}");
        }
        assert_eq!(model["parameters"], elements());
        assert_eq!(model["dtype"], dtype.name());
        assert_eq!(memory["blob_bytes"], fs::metadata(blob_of(TALES, dtype)).unwrap().len());
        // 8 layers, 2 key-value heads of 32, keys and values.
        assert_eq!(memory["kv_bytes_per_token"]["f32"], 4 * 2 * 8 * 2 * 32);
        assert_eq!(memory["kv_bytes_of_context"]["f16"], 2 * 2 * 8 * 2 * 32 * 1024);
        assert_eq!(memory["kv_bytes_per_token"]["q8"], (32 + 4) * 2 * 8 * 2);
        assert_eq!(memory["kv_dtype"], "f32");
        let available: Vec<_> = Kernels::available().into_iter().map(Kernels::name).collect();
        assert_eq!(info["machine"]["available_isa"], Value::from(available));
    }
}

#[test]
fn people_get_lines_and_a_missing_blob_is_an_error() {
    let outcome = run("smolrun", &["info", blob(TALES).to_str().unwrap()]);
    assert_eq!((outcome.code, outcome.stdout.lines().count()), (0, 5), "{outcome:?}");
    assert!(outcome.stdout.contains("4096 bytes a token"), "{outcome:?}");
    assert!(outcome.stdout.contains("4.2 MB for a full context in f32, the default"), "{outcome:?}");
    let outcome = run("smolrun", &["info", "nosuch.bin"]);
    assert!(outcome.code == 1 && outcome.stderr.contains("nosuch.bin"), "{outcome:?}");
}
