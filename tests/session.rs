//! The library's session on a tiny model: however a text is fed, the numbers are the same.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use smol_tests::common::{Blob, Checkpoint, TensorDtype};
use smolrun::format::Kind;
use smolrun::{
    Activations, CancelToken, Error, FinishReason, GenerateOptions, Model, Overflow, Sampling, Session,
    SessionOptions,
};

fn model(context: usize) -> Model {
    let mut checkpoint = Checkpoint::untied(TensorDtype::F32);
    checkpoint.config["max_position_embeddings"] = context.into();
    Model::from_bytes(Blob::of(&checkpoint).build()).unwrap()
}

fn session(model: &Model, threads: usize) -> Session {
    Session::new(model, SessionOptions::default().threads(threads)).unwrap()
}

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|logit| logit.to_bits()).collect()
}

/// More tokens than one pass, one batch of logits or one block of the cache takes.
fn tokens() -> Vec<u32> {
    (0..300).map(|i| (i * i + 3 * i) % 37).collect()
}

#[test]
fn any_split_of_a_text_gives_the_same_bits() {
    let (model, tokens) = (model(512), tokens());
    let mut expected = Vec::new();
    let mut one_by_one = session(&model, 1);
    for token in &tokens {
        expected.push(bits(one_by_one.feed(&[*token]).unwrap()));
    }
    for threads in [1, 3] {
        let mut all = Vec::new();
        let mut session = session(&model, threads);
        session.feed_all(&tokens, |index, logits| all.push((index, bits(logits)))).unwrap();
        assert_eq!(session.position(), 300);
        assert!(all.iter().map(|(index, _)| *index).eq(0..300));
        assert!(all.iter().map(|(_, logits)| logits).eq(&expected));
        for first in [1, 127, 128, 129, 257] {
            session.truncate(0);
            session.feed(&tokens[..first]).unwrap();
            assert_eq!(bits(session.feed(&tokens[first..]).unwrap()), expected[299], "{first}");
        }
    }
}

#[test]
fn who_looks_on_sees_what_every_matrix_is_multiplied_with() {
    let checkpoint = Checkpoint::untied(TensorDtype::F32);
    let (model, tokens) = (model(512), tokens());
    let mut expected = Vec::new();
    session(&model, 1).feed_all(&tokens, |_, logits| expected.push(logits.to_vec())).unwrap();

    let kinds = [Kind::QkvProj, Kind::OProj, Kind::GateUpProj, Kind::DownProj];
    let layers = (0..2).flat_map(|layer| kinds.map(|kind| (kind, Some(layer))));
    let one_pass: Vec<_> = layers.chain([(Kind::LmHead, None)]).collect();
    let (mut seen, mut row) = (Vec::new(), 0);
    let mut session = session(&model, 3);
    session
        .feed_observed(&tokens, 0..2, &mut Vec::new(), |inputs| {
            seen.push((inputs.kind, inputs.layer));
            let features = match inputs.kind {
                Kind::OProj => 32,
                Kind::DownProj => 20,
                _ => 24_usize,
            };
            assert_eq!(inputs.panels.len(), features.next_multiple_of(16) * inputs.rows);
            if inputs.kind != Kind::LmHead {
                return;
            }
            let lm_head = &checkpoint.tensors["lm_head.weight"].values;
            for at in 0..inputs.rows {
                let feature = |k: usize| inputs.panels[(k / 16 * inputs.rows + at) * 16 + k % 16];
                for (weights, logit) in lm_head.chunks(24).zip(&expected[row]) {
                    let sum: f32 = weights.iter().enumerate().map(|(k, weight)| weight * feature(k)).sum();
                    assert!((sum - logit).abs() < 1e-4, "{row}: {sum}, {logit}");
                }
                row += 1;
            }
        })
        .unwrap();
    assert_eq!((row, session.position()), (300, 0));
    assert_eq!(seen, [one_pass.clone(), one_pass].concat());
    for (tokens, layers, mut stream, name) in [
        (&[][..], 0..2, Vec::new(), "tokens"),
        (&tokens, 0..3, Vec::new(), "layers"),
        (&tokens, 1..2, vec![0.0; 32 * 299], "stream"),
    ] {
        let error = session.feed_observed(tokens, layers, &mut stream, |_| {}).unwrap_err();
        assert!(matches!(error, Error::Argument { name: found, .. } if found == name), "{error}");
    }
}

#[test]
fn layers_go_on_where_those_before_them_stopped() {
    let (model, tokens) = (model(512), tokens());
    let mut session = session(&model, 2);
    let mut observe = |layers, stream: &mut _| {
        let mut seen = Vec::new();
        let see = |inputs: Activations<'_>| seen.push((inputs.kind, inputs.layer, bits(inputs.panels)));
        session.feed_observed(&tokens, layers, stream, see).unwrap();
        seen
    };
    let whole = observe(0..2, &mut Vec::new());
    let mut stream = Vec::new();
    let parts = [0..1, 1..2].map(|layers| observe(layers, &mut stream)).concat();
    let output_matrix = observe(2..2, &mut stream);
    for layer in [Some(0), Some(1), None] {
        let of = |seen: &[(Kind, Option<usize>, Vec<u32>)]| {
            seen.iter().filter(|(_, of, _)| *of == layer).cloned().collect::<Vec<_>>()
        };
        assert!(!of(&whole).is_empty());
        assert_eq!(of(&parts), of(&whole), "{layer:?}");
        assert!(layer.is_some() || output_matrix == of(&whole));
    }
}

#[test]
fn what_is_truncated_is_forgotten() {
    let (model, tokens) = (model(512), tokens());
    let mut session = session(&model, 1);
    let expected = bits(session.feed(&tokens[..20]).unwrap());
    session.feed(&tokens[100..200]).unwrap();
    let reserved = session.cache_bytes();
    session.truncate(400); // nothing to forget
    assert_eq!(session.position(), 120);
    session.truncate(10);
    assert_eq!((session.position(), session.cache_bytes()), (10, reserved));
    assert_eq!(bits(session.feed(&tokens[10..20]).unwrap()), expected);
}

#[test]
fn what_cannot_be_fed_changes_nothing() {
    let model = model(64);
    let mut session = session(&model, 1);
    let expected = bits(session.feed(&[5, 6]).unwrap());
    session.truncate(1);
    assert!(matches!(session.feed(&[]), Err(Error::Argument { name: "tokens", .. })));
    assert!(matches!(session.feed(&[36, 37]), Err(Error::TokenId { id: 37, vocab_size: 37 })));
    assert!(matches!(session.feed(&[1; 64]), Err(Error::ContextFull { needed: 65, limit: 64 })));
    assert!(matches!(session.feed_all(&[1; 64], |_, _| ()), Err(Error::ContextFull { .. })));
    assert_eq!(bits(session.feed(&[6]).unwrap()), expected);
    session.feed(&[1; 62]).unwrap(); // to the last place
}

#[test]
fn a_generator_ends_after_its_last_token_or_error() {
    let model = model(64);
    let mut session = session(&model, 1);
    let mut generator = session.generate(&[5], GenerateOptions::default().max_tokens(3)).unwrap();
    let tokens: Vec<_> = generator.by_ref().map(Result::unwrap).collect();
    assert!(generator.next().is_none());
    let ends = |token: &smolrun::Token| token.finish_reason == Some(FinishReason::Length);
    assert!(tokens.len() == 3 && ends(&tokens[2]) && !tokens[..2].iter().any(ends), "{tokens:?}");
    let mut refused = |prompt: &[u32]| session.generate(prompt, GenerateOptions::default()).err();
    assert!(matches!(refused(&[99]), Some(Error::TokenId { id: 99, .. })), "at once");
    assert!(matches!(refused(&[]), Some(Error::Argument { name: "tokens", .. })));
    assert!(matches!(refused(&[1; 65]), Some(Error::ContextFull { .. })));
    let sampling = Sampling::default().top_p(2.0);
    assert!(session.generate(&[1], GenerateOptions::default().sampling(sampling)).is_err());
}

#[test]
fn a_static_blob_is_used_in_place() {
    let bytes = Blob::of(&Checkpoint::tiny(TensorDtype::Bf16)).build();
    let copy = Model::from_bytes(&bytes).unwrap();
    // Room to start on a multiple of 64, or beside one.
    let memory: &'static mut [u8] = Box::leak(vec![0; bytes.len() + 128].into_boxed_slice());
    let start = memory.as_ptr().align_offset(64);
    memory[start..][..bytes.len()].copy_from_slice(&bytes);
    let memory: &'static [u8] = memory;
    let in_place = Model::from_static(&memory[start..][..bytes.len()]).unwrap();
    assert_eq!(in_place.storage().bytes().as_ptr(), memory[start..].as_ptr());
    let logits = |model: &Model| bits(session(model, 1).feed(&[1, 2, 3]).unwrap());
    assert_eq!(logits(&in_place), logits(&copy));
    assert_eq!(in_place.config(), copy.config());

    let memory: &'static mut [u8] = Box::leak(vec![0; bytes.len() + 128].into_boxed_slice());
    let start = memory.as_ptr().align_offset(64) + 4;
    memory[start..][..bytes.len()].copy_from_slice(&bytes);
    let beside = Model::from_static(&memory[start..][..bytes.len()]).unwrap_err();
    assert_eq!(beside.to_string(), "the blob's first byte does not lie on a multiple of 64 in memory");
}

/// With one layer, keys and values do not depend on the tokens before: a sequence that slid is, but for the rounding of
/// keys that were turned back, one that never had what was forgotten.
#[test]
fn a_slid_sequence_is_one_without_what_it_forgot() {
    let mut checkpoint = Checkpoint::untied(TensorDtype::F32);
    checkpoint.config["max_position_embeddings"] = 600.into();
    checkpoint.config["num_hidden_layers"] = 1.into();
    checkpoint.tensors.retain(|name, _| !name.contains("layers.1."));
    // Positions matter the more, the larger the scores.
    for name in ["q_proj", "k_proj"] {
        let weight = checkpoint.tensor(&format!("model.layers.0.self_attn.{name}.weight"));
        weight.values.iter_mut().for_each(|value| *value *= 2.0);
    }
    let model = Model::from_bytes(Blob::of(&checkpoint).build()).unwrap();
    let tokens: Vec<u32> = (0..1500).map(|i| (i * i + 3 * i) % 37).collect();
    let options = SessionOptions::default().threads(1).overflow(Overflow::Slide);
    let mut slid = Session::new(&model, options).unwrap();
    // One slide, and three.
    for (count, forgotten) in [(700, 256), (1200, 768)] {
        let slid = slid_after(&mut slid, &tokens[..count]);
        let mut fresh = session(&model, 1);
        let mut kept = [&tokens[..256], &tokens[256 + forgotten..count]].concat();
        let far = distance(&slid, fresh.feed(&kept).unwrap());
        // The same tokens at other positions, for scale.
        kept[..400].rotate_left(100);
        fresh.truncate(0);
        let elsewhere = distance(&slid, fresh.feed(&kept).unwrap());
        assert!(
            far < 1e-4 && 30.0 * far < elsewhere,
            "{far} apart after {count} tokens, {elsewhere} elsewhere"
        );
    }
}

fn distance(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

fn slid_after(session: &mut Session, tokens: &[u32]) -> Vec<f32> {
    session.truncate(0);
    session.feed(tokens).unwrap().to_vec()
}

#[test]
fn a_fork_goes_on_from_there_and_changes_nothing() {
    let (model, tokens) = (model(512), tokens());
    let mut first = session(&model, 2);
    first.feed(&tokens[..100]).unwrap();
    let mut second = first.fork().unwrap();
    assert_eq!((second.tokens(), second.threads()), (&tokens[..100], 2));
    let forked = bits(second.feed(&tokens[100..150]).unwrap());
    assert_eq!(first.position(), 100);
    second.truncate(10);
    second.feed(&[1, 2, 3]).unwrap();
    assert_eq!(bits(first.feed(&tokens[100..150]).unwrap()), forked);
    assert_eq!(bits(session(&model, 1).feed(&tokens[..150]).unwrap()), forked);
}

#[test]
fn what_is_cancelled_ends_before_its_next_pass() {
    let (model, tokens) = (model(1024), [tokens(), tokens()].concat());
    let looks = Arc::new(AtomicUsize::new(0));
    let (counted, at) = (Arc::clone(&looks), 2);
    let cancel = CancelToken::asking(move || counted.fetch_add(1, Ordering::Relaxed) + 1 == at);
    let mut session = Session::new(&model, SessionOptions::default().threads(2).cancel(&cancel)).unwrap();
    assert_eq!(session.feed(&tokens).unwrap_err().code(), "cancelled");
    assert_eq!(session.position(), 256, "the first pass stays");
    let expected = bits(self::session(&model, 1).feed(&tokens).unwrap());
    assert_eq!(bits(session.feed(&tokens[256..]).unwrap()), expected, "it goes on");

    cancel.cancel();
    let position = session.position();
    assert!(matches!(session.hidden(&tokens[..9]), Err(Error::Cancelled)));
    assert!(matches!(session.score(&tokens[..9], &[&[1]]), Err(Error::Cancelled)));
    let mut generated = session.generate(&[1], GenerateOptions::default()).unwrap();
    assert!(matches!(generated.next(), Some(Err(Error::Cancelled))) && generated.next().is_none());
    assert!(session.position() <= position);
    cancel.reset();
    session.truncate(0);
    assert_eq!(bits(session.feed(&tokens).unwrap()), expected);
}

#[test]
fn a_context_too_short_to_slide_over_is_an_error() {
    let options = SessionOptions::default().overflow(Overflow::Slide);
    let error = Session::new(&model(511), options.clone()).unwrap_err();
    assert!(matches!(error, Error::Argument { name: "overflow", .. }), "{error}");
    Session::new(&model(512), options).unwrap();
}
