//! Many sequences in one pass: each one's bits are those that it has alone.

use std::collections::BTreeSet;

use sha2::{Digest, Sha256};
use smol_tests::common::{REAL, TALES, blob_of, blob_with_all_widths, scattered_tokens};
use smolrun::engine::{Engine, EngineOptions, PrefixCache, Rows, Sequence};
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
            let shared = if index.is_multiple_of(3) { &scattered[..70 + index % 7] } else { &[] };
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

/// Takes every text through `engine`, `most` at a time: each pass has chunks of some and single tokens of others, and
/// when a sequence is at its text's end the next one joins.
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

/// Pairs of a batch's size and a number of threads: the best set meets every value of both, each other one two pairs.
fn assert_same_bits(blob: impl AsRef<std::path::Path>, kv_dtype: KvDtype) {
    let model = Model::open(blob).unwrap();
    let alone = Alone::new(&model, kv_dtype, TEXTS);
    let mut met = BTreeSet::new();
    let sets = Kernels::available();
    for (set, &kernels) in sets.iter().enumerate() {
        let ways = THREADS.into_iter().zip(BATCHES.into_iter().cycle().skip(set)).cycle().skip(set);
        let is_slow = kernels.name() == "scalar";
        let count = match set + 1 == sets.len() {
            _ if is_slow => 1, // without a fused multiply-add in hardware a run takes seconds
            true => THREADS.len(),
            false => 2,
        };
        for (threads, most) in ways.take(count) {
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
fn sequences_have_their_bits_in_any_batch() {
    assert_same_bits(blob_of(TALES, Dtype::F32), KvDtype::F32);
}

#[test]
fn sequences_of_bf16_weights_have_their_bits_in_any_batch() {
    assert_same_bits(blob_of(TALES, Dtype::Bf16), KvDtype::Q8);
}

#[test]
fn sequences_of_q8_weights_have_their_bits_in_any_batch() {
    assert_same_bits(blob_of(TALES, Dtype::Q8), KvDtype::F16);
}

#[test]
fn sequences_of_weights_of_all_widths_have_their_bits_in_any_batch() {
    assert_same_bits(blob_with_all_widths(), KvDtype::F32);
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

/// A sequence with `tokens`, fed some at a time.
fn sequence_of(engine: &mut Engine, kv_dtype: KvDtype, tokens: &[u32]) -> Sequence {
    let mut sequence = engine.sequence(Some(kv_dtype), Overflow::Stop).unwrap();
    feed(engine, &mut sequence, tokens);
    sequence
}

/// Appends `tokens`, and returns the hash of the last one's logits.
fn feed(engine: &mut Engine, sequence: &mut Sequence, tokens: &[u32]) -> Hash {
    for tokens in tokens.chunks(100) {
        engine.pass(&mut [Rows { sequence: &mut *sequence, tokens, wants_logits: true }]).unwrap();
    }
    hash(engine.logits(0))
}

/// The hash of the logits after `tokens` in a session of their own.
fn alone(model: &Model, kv_dtype: KvDtype, tokens: &[u32]) -> Hash {
    let options = SessionOptions::default().threads(1).kv_dtype(kv_dtype);
    hash(Session::new(model, options).unwrap().feed(tokens).unwrap())
}

#[test]
fn a_fork_and_its_origin_go_on_with_the_bits_of_sequences_of_their_own() {
    let model = Model::open(blob_of(TALES, Dtype::F32)).unwrap();
    let tokens = scattered_tokens(&model, 600);
    let mut engine = Engine::new(&model, EngineOptions::default().threads(2)).unwrap();
    for kv_dtype in KV_DTYPES {
        // In the middle of a block, at its end, and where there is nothing yet.
        for shared in [0, 100, 128, 190] {
            let mut origin = sequence_of(&mut engine, kv_dtype, &tokens[..shared]);
            let (mut fork, mut cut) = (origin.fork(), origin.fork());
            cut.truncate(shared / 2);
            let ways = [(&mut origin, shared, 300), (&mut fork, shared, 400), (&mut cut, shared / 2, 500)];
            for (sequence, kept, first) in ways {
                let own = &tokens[first..first + 70];
                let found = feed(&mut engine, sequence, own);
                assert_eq!(
                    found,
                    alone(&model, kv_dtype, &[&tokens[..kept], own].concat()),
                    "{kv_dtype:?}, {kept}"
                );
            }
            let both = [&tokens[..shared], &tokens[300..370]].concat();
            assert_eq!(origin.tokens(), both, "the others have not written to it");
            let again = feed(&mut engine, &mut origin, &tokens[..9]);
            assert_eq!(again, alone(&model, kv_dtype, &[&both, &tokens[..9]].concat()));
        }
    }
}

#[test]
fn a_fork_of_a_sliding_sequence_slides_by_itself() {
    let model = Model::open(blob_of(TALES, Dtype::F32)).unwrap();
    let tokens = scattered_tokens(&model, 1300);
    let mut engine = Engine::new(&model, EngineOptions::default().threads(2)).unwrap();
    for kv_dtype in KV_DTYPES {
        let mut origin = engine.sequence(Some(kv_dtype), Overflow::Slide).unwrap();
        let options = SessionOptions::default().threads(1).kv_dtype(kv_dtype).overflow(Overflow::Slide);
        let expected = hash(Session::new(&model, options).unwrap().feed(&tokens).unwrap());
        for tokens in tokens[..1024].chunks(256) {
            engine.pass(&mut [Rows { sequence: &mut origin, tokens, wants_logits: false }]).unwrap();
        }
        let mut fork = origin.fork();
        assert_eq!((origin.room(), origin.kv_bytes()), (256, origin.kv_bytes_for(1024)));
        // Both in one pass, of which one slides to go on and the other to say something else.
        let mut batch = [
            Rows { sequence: &mut origin, tokens: &tokens[1024..1100], wants_logits: true },
            Rows { sequence: &mut fork, tokens: &tokens[..50], wants_logits: true },
        ];
        engine.pass(&mut batch).unwrap();
        assert_ne!(hash(engine.logits(0)), hash(engine.logits(1)));
        assert_eq!((origin.position(), fork.position()), (844, 818));
        for tokens in [&tokens[1100..1200], &tokens[1200..1280], &tokens[1280..]] {
            engine.pass(&mut [Rows { sequence: &mut origin, tokens, wants_logits: true }]).unwrap();
        }
        assert_eq!(hash(engine.logits(0)), expected, "{kv_dtype:?}");
    }
}

#[test]
fn what_was_stored_is_restored_with_the_same_bits() {
    for (blob, kv_dtype) in [
        (blob_of(TALES, Dtype::F32), KvDtype::F32),
        (blob_with_all_widths(), KvDtype::F16),
        (blob_of(TALES, Dtype::Bf16), KvDtype::Q8),
    ] {
        let model = Model::open(blob).unwrap();
        let tokens = scattered_tokens(&model, 400);
        let mut engine = Engine::new(&model, EngineOptions::default().threads(2)).unwrap();
        let mut cache = PrefixCache::new(1 << 30);
        let sequence = sequence_of(&mut engine, kv_dtype, &tokens[..300]);
        cache.store(&sequence);
        cache.store(&sequence); // has it already
        assert_eq!(cache.bytes(), sequence.kv_bytes_for(256), "whole blocks, once");
        let longer = sequence_of(&mut engine, kv_dtype, &tokens[..320]);
        cache.store(&longer); // one block more
        assert_eq!(cache.bytes(), sequence.kv_bytes_for(320), "what is common is there once");
        drop((sequence, longer));

        // Of what is asked for at least one token is left to be fed, and blocks are whole.
        for (asked, found) in
            [(400, 320), (300, 256), (257, 256), (256, 192), (65, 64), (64, 0), (1, 0), (0, 0)]
        {
            let mut sequence = engine.sequence(Some(kv_dtype), Overflow::Stop).unwrap();
            assert_eq!(cache.restore(&tokens[..asked], &mut sequence), found, "of {asked} tokens");
            assert_eq!(sequence.tokens(), &tokens[..found]);
            if asked > 0 {
                let logits = feed(&mut engine, &mut sequence, &tokens[found..asked]);
                assert_eq!(logits, alone(&model, kv_dtype, &tokens[..asked]), "{asked}, {kv_dtype:?}");
            }
        }
        // Another text that begins alike, one that only goes on alike, and a sequence that is not empty.
        let other = [&tokens[..130], &tokens[300..400]].concat();
        let mut sequence = engine.sequence(Some(kv_dtype), Overflow::Stop).unwrap();
        assert_eq!(cache.restore(&other, &mut sequence), 128);
        assert_eq!(feed(&mut engine, &mut sequence, &other[128..]), alone(&model, kv_dtype, &other));
        assert_eq!(cache.restore(&tokens, &mut sequence), 230);
        let mut sequence = engine.sequence(Some(kv_dtype), Overflow::Stop).unwrap();
        assert_eq!(cache.restore(&tokens[64..], &mut sequence), 0);
    }
}

#[test]
fn what_was_stored_is_of_one_model_and_one_kind_of_keys() {
    let model = Model::open(blob_of(TALES, Dtype::F32)).unwrap();
    let other = Model::open(blob_of(TALES, Dtype::Bf16)).unwrap();
    let tokens = scattered_tokens(&model, 100);
    let mut engine = Engine::new(&model, EngineOptions::default().threads(1)).unwrap();
    let other = Engine::new(&other, EngineOptions::default().threads(1)).unwrap();
    let mut cache = PrefixCache::new(1 << 30);
    cache.store(&sequence_of(&mut engine, KvDtype::F32, &tokens));
    for (engine, kv_dtype, found) in
        [(&other, KvDtype::F32, 0), (&engine, KvDtype::F16, 0), (&engine, KvDtype::F32, 64)]
    {
        let mut sequence = engine.sequence(Some(kv_dtype), Overflow::Stop).unwrap();
        assert_eq!(cache.restore(&tokens, &mut sequence), found);
    }
}

#[test]
fn what_was_used_longest_ago_makes_room() {
    let model = Model::open(blob_of(TALES, Dtype::F32)).unwrap();
    let tokens = scattered_tokens(&model, 1000);
    let mut engine = Engine::new(&model, EngineOptions::default().threads(2)).unwrap();
    let block = engine.sequence(None, Overflow::Stop).unwrap().kv_bytes_for(1);
    let mut cache = PrefixCache::new(5 * block);
    let texts = [&tokens[..200], &tokens[200..330], &tokens[400..600]];
    let sequences = texts.map(|text| sequence_of(&mut engine, KvDtype::F32, text));
    let empty = || engine.sequence(None, Overflow::Stop).unwrap();
    let restored = |cache: &mut PrefixCache| texts.map(|text| cache.restore(text, &mut empty()));

    cache.store(&sequences[0]); // three blocks
    cache.store(&sequences[1]); // two
    assert_eq!((cache.bytes(), restored(&mut cache)), (5 * block, [192, 128, 0]));
    cache.restore(texts[0], &mut empty()); // so that the second text is the older one
    cache.store(&sequences[2]); // three: the second text's two, and the last one of the first
    assert_eq!((cache.bytes(), restored(&mut cache)), (5 * block, [128, 0, 192]));

    // Less than one text takes: its beginning. Less than a block: nothing.
    let mut small = PrefixCache::new(2 * block + 1);
    small.store(&sequences[0]);
    assert_eq!((small.bytes(), restored(&mut small)), (2 * block, [128, 0, 0]));
    let mut none = PrefixCache::new(block - 1);
    none.store(&sequences[0]);
    assert_eq!((none.bytes(), restored(&mut none)), (0, [0; 3]));

    // A sequence keeps what it has when the cache lets it go.
    let mut kept = empty();
    assert_eq!(cache.restore(texts[2], &mut kept), 192);
    cache.store(&sequences[0]);
    cache.store(&sequences[1]);
    assert_eq!(cache.restore(texts[2], &mut empty()), 0);
    assert_eq!(feed(&mut engine, &mut kept, &texts[2][192..]), alone(&model, KvDtype::F32, texts[2]));
}

#[test]
fn a_short_sequence_takes_memory_for_the_blocks_it_reaches() {
    let model = Model::open(blob_of(TALES, Dtype::F32)).unwrap();
    let mut engine = Engine::new(&model, EngineOptions::default().threads(1)).unwrap();
    for kv_dtype in KV_DTYPES {
        let per_token = kv_dtype.bytes_per_token(model.config());
        for (count, positions) in [(1, 64), (64, 64), (65, 128), (100, 128)] {
            let sequence = sequence_of(&mut engine, kv_dtype, &scattered_tokens(&model, count));
            assert_eq!(sequence.kv_bytes(), positions * per_token, "{count} tokens, {kv_dtype:?}");
        }
    }
}

/// A corner of what the tests above do, with the real model.
#[test]
#[ignore = "needs the real model: scripts/fetch_model.sh smollm2-135m-instruct"]
fn smollm2_135m_has_its_bits_in_any_batch() {
    for (dtype, kv_dtype) in [(Dtype::Q8, KvDtype::F16), (Dtype::Bf16, KvDtype::F32)] {
        let model = Model::open(blob_of(REAL, dtype)).unwrap();
        let alone = Alone::new(&model, kv_dtype, 5);
        let mut engine = Engine::new(&model, EngineOptions::default().threads(2)).unwrap();
        assert_bits_in_batches(&mut engine, kv_dtype, &alone, 4, dtype.name());
    }
}
