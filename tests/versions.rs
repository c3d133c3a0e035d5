//! The promise of `format-spec.md`: blobs of every released version are read, and mean what they meant.

use std::collections::BTreeSet;
use std::fs;

use serde_json::Value;
use smol_tests::common::data;
use smol_tests::common::versions::reading;
use smolrun::Model;
use smolrun::format::{Dtype, Kind, LayerSections};

/// `tests/data/blobs/VERSION/NAME.bin` was written by the converter of that version, and `NAME.json` by its day's reader.
#[test]
fn blobs_of_every_released_version_mean_what_they_meant() {
    let mut names = Vec::new();
    for version in fs::read_dir(data("blobs")).unwrap().map(|entry| entry.unwrap()) {
        for blob in fs::read_dir(version.path()).unwrap().map(|entry| entry.unwrap().path()) {
            if blob.extension().is_some_and(|extension| extension == "bin") {
                let expected = fs::read(blob.with_extension("json")).unwrap();
                let expected: Value = serde_json::from_slice(&expected).unwrap();
                assert_eq!(expected["version"], *version.file_name().to_string_lossy());
                assert_eq!(reading(&blob), expected, "{}", blob.display());
                names.push(blob);
            }
        }
    }
    assert!(names.len() >= 12, "{names:?}");
}

#[test]
fn the_blobs_of_1_1_have_matrices_of_every_dtype_of_1_1() {
    let mut dtypes = Vec::new();
    for blob in ["llama-biased-all-widths", "qwen3-biased-window-q8", "untied-q4"] {
        let model = Model::read(data(&format!("blobs/1.1/{blob}.bin"))).unwrap();
        dtypes.push(model.layout().weights.dtypes());
    }
    assert_eq!(dtypes, [vec![Dtype::Q8, Dtype::Q6, Dtype::Q5, Dtype::Q4], vec![Dtype::Q8], vec![Dtype::Q4]]);
}

#[test]
fn the_blobs_of_1_2_have_rare_rows_and_matrices_of_q3() {
    let read = |blob| Model::read(data(&format!("blobs/1.2/{blob}.bin"))).unwrap();
    let kinds = |model: &Model| -> Vec<Kind> {
        let kinds = model.layout().sections.iter().filter_map(|section| section.kind);
        kinds.filter(|kind| matches!(kind, Kind::EmbedTokensRare | Kind::LmHeadRare)).collect()
    };
    let (tied, untied) = (read("tied-q3"), read("untied-q3"));
    assert_eq!(tied.layout().weights.dtypes(), [Dtype::Q6, Dtype::Q4, Dtype::Q3]);
    assert_eq!(kinds(&tied), [Kind::EmbedTokensRare; 2]);
    assert_eq!(untied.layout().weights.dtypes(), [Dtype::Q6, Dtype::Q5, Dtype::Q4, Dtype::Q3]);
    use Kind::{EmbedTokensRare, LmHeadRare};
    assert_eq!(kinds(&untied), [EmbedTokensRare, LmHeadRare, LmHeadRare]);
}

#[test]
fn the_blobs_of_1_3_have_biases_of_every_matrix_and_two_attention_scales() {
    let read = |blob| Model::read(data(&format!("blobs/1.3/{blob}.bin"))).unwrap();
    let (biased, unturned) = (read("mlp-biased"), read("yarn-unturned"));
    let has_biases = |layer: &LayerSections| layer.gate_up_bias.is_some() && layer.down_bias.is_some();
    assert!(biased.layout().weights.layers.iter().all(has_biases));
    let config = unturned.config();
    assert_eq!((config.attention_scale, config.no_rope_attention_scale), (0.25 * 1.5625, Some(0.25)));
}

#[test]
fn the_blobs_of_1_0_have_sections_of_every_kind_of_1_0() {
    let mut kinds = BTreeSet::new();
    for entry in fs::read_dir(data("blobs/1.0")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "bin") {
            let model = Model::read(path).unwrap();
            kinds.extend(model.layout().sections.iter().filter_map(|section| section.kind).map(Kind::code));
        }
    }
    let expected: BTreeSet<u32> = (1..=27).collect();
    assert_eq!(kinds, expected);
}
