//! The same bits whatever they were computed with: threads, instruction sets, and how the prompt was split.

use std::collections::BTreeSet;
use std::path::Path;

use smol_tests::common::{REAL, TALES, blob, blob_of, blob_with_all_widths, logits_sha256};
use smolrun::format::Dtype;
use smolrun::{Kernels, KvDtype, Model, Session, SessionOptions, SpecialTokens};

/// More positions than a block of the KV cache, a pass and an attention step have.
const POSITIONS: usize = 300;
/// How many tokens are given to the session at a time.
const SPLITS: &[usize] = &[1, 7, 128, POSITIONS];
const THREADS: &[usize] = &[1, 2, 3, 4, 8];

#[test]
fn logits_have_the_same_bits_however_they_are_computed() {
    assert_same_bits(&blob(TALES), KvDtype::F32);
}

#[test]
fn quantized_weights_of_all_widths_give_the_same_bits_however_they_are_computed() {
    assert_same_bits(&blob_with_all_widths(), KvDtype::F32);
}

#[test]
fn keys_and_values_in_f16_give_the_same_bits_however_they_are_computed_and_nearly_the_logits_of_f32() {
    assert_same_bits(&blob(TALES), KvDtype::F16);
    assert_near_f32(KvDtype::F16, 2e-2);
}

#[test]
fn keys_and_values_in_q8_give_the_same_bits_however_they_are_computed_and_nearly_the_logits_of_f32() {
    assert_same_bits(&blob(TALES), KvDtype::Q8);
    assert_near_f32(KvDtype::Q8, 2e-1);
}

/// That logits with keys and values of `kv_dtype` are others than those with f32, by `most_difference` at most.
fn assert_near_f32(kv_dtype: KvDtype, most_difference: f32) {
    let model = Model::open(blob(TALES)).unwrap();
    let logits = |kv_dtype| {
        let mut session = Session::new(&model, SessionOptions::default().kv_dtype(kv_dtype)).unwrap();
        session.feed(&tokens(&model)).unwrap().to_vec()
    };
    let (f32, rounded) = (logits(KvDtype::F32), logits(kv_dtype));
    let most = f32.iter().zip(&rounded).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(most > 0.0 && most < most_difference, "logits differ by {most}");
}

#[test]
fn keys_and_values_are_rounded_by_default_where_weights_are() {
    for (blob, expected) in [(blob(TALES), KvDtype::F32), (blob_with_all_widths(), KvDtype::F16)] {
        let session = Session::new(&Model::open(blob).unwrap(), SessionOptions::default()).unwrap();
        assert_eq!(session.kv_dtype(), expected);
    }
}

fn assert_same_bits(blob: &Path, kv_dtype: KvDtype) {
    let options = || SessionOptions::default().kv_dtype(kv_dtype);
    let model = Model::open(blob).unwrap();
    let tokens = tokens(&model);
    let expected = logits_sha256(&model, &tokens, options().threads(1), POSITIONS);
    let sets = Kernels::available();
    for (set, &kernels) in sets.iter().enumerate() {
        for (threads, split) in pairs(set, &sets) {
            let options = options().threads(threads).kernels(kernels);
            let found = logits_sha256(&model, &tokens, options, split);
            assert_eq!(found, expected, "{}, {threads} threads, {split} at a time", kernels.name());
        }
    }
}

/// Numbers of threads, each with one of the splits: the best set has every value of both, each other one two pairs.
fn pairs(set: usize, sets: &[Kernels]) -> Vec<(usize, usize)> {
    let count = match sets[set].name() {
        "scalar" => 1, // without a fused multiply-add in hardware a run takes seconds
        _ if set + 1 == sets.len() => THREADS.len(),
        _ => 2,
    };
    let nth = |values: &[usize], index: usize| values[index % values.len()];
    (0..count).map(|pair| (nth(THREADS, 2 * set + 1 + pair), nth(SPLITS, set + pair))).collect()
}

#[test]
fn pairs_have_every_value() {
    let sets = Kernels::available();
    let found = |set| {
        let (threads, splits): (BTreeSet<_>, BTreeSet<_>) = pairs(set, &sets).into_iter().unzip();
        (threads, splits)
    };
    let (threads, splits) = found(sets.len() - 1);
    assert_eq!(threads, THREADS.iter().copied().collect());
    assert_eq!(splits, SPLITS.iter().copied().collect());
    for (set, kernels) in sets.iter().enumerate().filter(|(_, kernels)| kernels.name() != "scalar") {
        let (threads, splits) = found(set);
        assert!(threads.len() > 1 && splits.len() > 1, "{}: {threads:?}, {splits:?}", kernels.name());
    }
}

#[test]
fn bf16_blobs_of_bf16_checkpoints_have_the_bits_of_f32_blobs() {
    bf16_equals_f32(TALES);
}

#[test]
#[ignore = "needs the real model: scripts/fetch_model.sh smollm2-135m-instruct"]
fn smollm2_135m_in_bf16_has_the_bits_of_f32() {
    bf16_equals_f32(REAL);
}

fn bf16_equals_f32(name: &str) {
    let hash_of = |dtype, split| {
        let model = Model::open(blob_of(name, dtype)).unwrap();
        logits_sha256(&model, &tokens(&model), SessionOptions::default(), split)
    };
    let expected = hash_of(Dtype::F32, POSITIONS);
    for split in [1, 7, POSITIONS] {
        assert_eq!(hash_of(Dtype::Bf16, split), expected, "{split} at a time");
    }
}

#[test]
fn a_session_cut_back_and_fed_again_gives_the_same_bits() {
    let model = Model::open(blob(TALES)).unwrap();
    let tokens = tokens(&model);
    let mut session = Session::new(&model, SessionOptions::default()).unwrap();
    let expected = session.feed(&tokens[..100]).unwrap().to_vec();
    for keep in [0, 1, 16, 50, 99] {
        session.truncate(keep);
        session.feed(&tokens[200..]).unwrap();
        session.truncate(keep);
        assert_eq!(session.feed(&tokens[keep..100]).unwrap(), expected, "cut back to {keep}");
    }
}

fn tokens(model: &Model) -> Vec<u32> {
    let text = "Once upon a time there was a king who had seven sons and 12 daughters. ".repeat(30);
    let mut tokens = model.tokenizer().encode(&text, SpecialTokens::AsText).unwrap();
    tokens.truncate(POSITIONS);
    assert_eq!(tokens.len(), POSITIONS);
    tokens
}
