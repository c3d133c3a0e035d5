//! Many sequences in one pass: each one's bits are those that it has alone.

use std::collections::BTreeSet;

use sha2::{Digest, Sha256};
use smol_tests::common::{TALES, blob_of, blob_with_all_widths, scattered_tokens};
use smolrun::engine::{Engine, EngineOptions, Rows, Sequence};
use smolrun::format::Dtype;
use smolrun::{Error, Kernels, KvDtype, Model, Overflow, Session, SessionOptions};

type Hash = [u8; 32];

/// More sequences than a batch has at its largest.
const TEXTS: usize = 70;
const BATCHES: [usize; 4] = [2, 5, 16, 64];
const THREADS: [usize; 4] = [1, 2, 3, 4];
const KV_DTYPES: [KvDtype; 3] = [KvDtype::F32, KvDtype::F16, KvDtype::Q8];

fn hash(logits: &[f32]) -> Hash {
    Sha256::digest(bytemuck::cast_slice(logits)).into()
}

/// Texts, and the hash of each position's logits as a session alone has them.
struct Alone {
    texts: Vec<Vec<u32>>,
    hashes: Vec<Vec<Hash>>,
}

impl Alone {
    /// Of mixed lengths; every third begins as the first one does.
    fn new(model: &Model, kv_dtype: KvDtype, count: usize) -> Alone {
        let scattered = scattered_tokens(model, 40 * count + 400);
        let text = |index: usize| {
            let own = &scattered[37 * index..][..1 + index * 29 % 90];
            let shared = if index.is_multiple_of(3) { &scattered[..150 + index % 7] } else { &[] };
            [shared, own].concat()
        };
        let texts: Vec<Vec<u32>> = (0..count).map(text).collect();
        let mut session = Session::new(model, SessionOptions::default().kv_dtype(kv_dtype)).unwrap();
        let hashes = texts.iter().map(|text| {
            let mut hashes = Vec::new();
            session.truncate(0);
            session.feed_all(text, |_, logits| hashes.push(hash(logits))).unwrap();
            hashes
        });
        let hashes = hashes.collect();
        Alone { texts, hashes }
    }
}

/// Numbers that look random, the same ones every time.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % limit
    }
}

/// Takes every text through `engine`, `most` at a time: each pass has chunks of some and single tokens of others, and when a
/// sequence is at its text's end the next one joins.
fn assert_bits_in_batches(engine: &mut Engine, kv_dtype: KvDtype, alone: &Alone, most: usize, what: &str) {
    let mut random = Random(most as u64);
    let (mut running, mut next): (Vec<(usize, Sequence)>, usize) = (Vec::new(), 0);
    let mut checked = 0;
    while next < alone.texts.len() || !running.is_empty() {
        while running.len() < most && next < alone.texts.len() {
            running.push((next, engine.sequence(Some(kv_dtype), Overflow::Stop).unwrap()));
            next += 1;
        }
        let (mut batch, mut texts, mut room) = (Vec::new(), Vec::new(), Engine::MAX_ROWS);
        let must = random.below(running.len());
        for (index, (text, sequence)) in running.iter_mut().enumerate() {
            let chunk = [1, 1, 2, 17, 100][random.below(5)];
            let rest = &alone.texts[*text][sequence.position()..];
            let count = chunk.min(rest.len()).min(room);
            if count > 0 && (index == must || random.below(8) > 0) {
                room -= count;
                texts.push(*text);
                batch.push(Rows { sequence, tokens: &rest[..count], wants_logits: random.below(4) > 0 });
            }
        }
        if batch.is_empty() {
            continue; // the one that must had no room
        }
        engine.pass(&mut batch).unwrap();
        for (index, (entry, text)) in batch.iter().zip(texts).enumerate() {
            let logits = engine.logits(index);
            assert_eq!(logits.is_empty(), !entry.wants_logits);
            if entry.wants_logits {
                let at = entry.sequence.position() - 1;
                assert_eq!(
                    hash(logits),
                    alone.hashes[text][at],
                    "{what}, {most} at a time, text {text}, {at}"
                );
                checked += 1;
            }
        }
        running.retain(|(text, sequence)| sequence.position() < alone.texts[*text].len());
    }
    assert!(checked > 2 * alone.texts.len());
}

/// Pairs of a batch's size and a number of threads for each set, so that every value of both is met.
fn assert_same_bits(blob: impl AsRef<std::path::Path>, kv_dtype: KvDtype) {
    let model = Model::open(blob).unwrap();
    let alone = Alone::new(&model, kv_dtype, TEXTS);
    let mut met = BTreeSet::new();
    for (set, kernels) in Kernels::available().into_iter().enumerate() {
        let ways = THREADS.into_iter().zip(BATCHES.into_iter().cycle().skip(set));
        // Without a fused multiply-add in hardware a run takes seconds.
        let is_slow = kernels.name() == "scalar";
        for (threads, most) in ways.take(if is_slow { 1 } else { THREADS.len() }) {
            let options = EngineOptions::default().threads(threads).kernels(kernels);
            let mut engine = Engine::new(&model, options).unwrap();
            let alone = if is_slow {
                &Alone { texts: alone.texts[..4].into(), hashes: alone.hashes[..4].into() }
            } else {
                &alone
            };
            let what = format!("{}, {threads} threads, {kv_dtype:?}", kernels.name());
            assert_bits_in_batches(&mut engine, kv_dtype, alone, most, &what);
            met.insert(most);
        }
    }
    assert_eq!(met, BTreeSet::from(BATCHES));
}

#[test]
fn sequences_of_exact_weights_have_their_bits_in_any_batch() {
    for (dtype, kv_dtype) in [Dtype::F32, Dtype::Bf16].into_iter().zip(KV_DTYPES) {
        assert_same_bits(blob_of(TALES, dtype), kv_dtype);
    }
}

#[test]
fn sequences_of_quantized_weights_have_their_bits_in_any_batch() {
    let dtypes = [Dtype::Q8, Dtype::Q4, Dtype::Q3];
    for (dtype, kv_dtype) in dtypes.into_iter().zip(KV_DTYPES.into_iter().rev()) {
        assert_same_bits(blob_of(TALES, dtype), kv_dtype);
    }
    assert_same_bits(blob_with_all_widths(), KvDtype::F16);
}

#[test]
fn what_cannot_be_in_a_pass_is_named_and_changes_nothing() {
    let model = Model::open(blob_of(TALES, Dtype::F32)).unwrap();
    let other = Model::open(blob_of(TALES, Dtype::Bf16)).unwrap();
    let mut engine = Engine::new(&model, EngineOptions::default().threads(1)).unwrap();
    let new = || engine.sequence(None, Overflow::Stop).unwrap();
    let (mut good, mut bad) = (new(), new());
    let mut foreign =
        Engine::new(&other, EngineOptions::default()).unwrap().sequence(None, Overflow::Stop).unwrap();
    let long = vec![1; 1025];
    let cases: [(bool, &[u32], &str); 4] = [
        (false, &[], "entry 1 of the pass: tokens: expected at least one, found none"),
        (
            false,
            &[5, 1 << 20],
            "entry 1 of the pass: token id 1048576: expected an id below vocab_size, 4096",
        ),
        (false, &long, "entry 1 of the pass: 1025 tokens do not fit the model's context of 1024"),
        (
            true,
            &[5],
            "entry 1 of the pass: sequence: expected one of the engine's model, found one of another",
        ),
    ];
    for (is_foreign, tokens, expected) in cases {
        let sequence = if is_foreign { &mut foreign } else { &mut bad };
        let entry = Rows { sequence: &mut good, tokens: &[5], wants_logits: true };
        let error = engine.pass(&mut [entry, Rows { sequence, tokens, wants_logits: true }]).unwrap_err();
        assert_eq!((error.entry, error.to_string()), (Some(1), expected.to_owned()));
        assert_eq!((good.position(), good.kv_bytes(), engine.logits(0).len()), (0, 0, 0));
    }
    assert_eq!((bad.position(), foreign.position()), (0, 0));

    let error = engine.pass(&mut [Rows { sequence: &mut good, tokens: &long[..257], wants_logits: true }]);
    let error = error.unwrap_err();
    assert_eq!(error.entry, None);
    assert_eq!(error.to_string(), "batch: expected 1 to 256 rows, found 257");
    assert!(matches!(Error::from(engine.pass(&mut []).unwrap_err()), Error::Argument { name: "batch", .. }));
}
