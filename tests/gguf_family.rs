//! GGUF files that llama.cpp's own converter wrote of tiny random models: the blobs of the checkpoints they were made of.
//! `tests/data/make/gguf_family.py` made them.

use std::fs;
use std::path::PathBuf;

use smol_tests::common::{Blob, Part, TempDir, data};
use smolconv::{Options, Progress, convert};
use smolrun::format::Kind;

/// The models of `tests/data/family`, and the file of each. One is in parts.
const FILES: [(&str, &str); 7] = [
    ("llama-linear", "llama-linear.gguf"),
    ("llama3.2", "llama3.2.gguf"),
    ("mlp-biased", "mlp-biased.gguf"),
    ("qwen2", "qwen2-00001-of-00003.gguf"),
    ("qwen3", "qwen3.gguf"),
    ("smollm3", "smollm3.gguf"),
    ("v5-yarn", "v5-yarn.gguf"),
];

/// All sections but the metadata of the blob of `source`.
fn sections(source: PathBuf, tokenizer: Option<PathBuf>) -> Vec<Part> {
    let temp = TempDir::new();
    let out = temp.join("out.bin");
    let options = Options { tokenizer, ..Options::new(source, &out) };
    convert(&options, &Progress::new(true)).unwrap_or_else(|error| panic!("{error}"));
    let parts = Blob::take_apart(&fs::read(out).unwrap()).parts;
    parts.into_iter().filter(|part| part.kind != Kind::Metadata.code()).collect()
}

#[test]
fn files_of_llama_cpp_give_the_blobs_of_their_checkpoints() {
    for (model, file) in FILES {
        let ours = sections(data("gguf/family").join(file), None);
        let expected = sections(data("family").join(model), Some(data("gguf/family/tokenizer.json")));
        assert_eq!(ours.len(), expected.len(), "{model}");
        for (ours, expected) in ours.iter().zip(&expected) {
            assert!(ours == expected, "{model}: section of kind {}, layer {}", ours.kind, ours.layer);
        }
    }
}
