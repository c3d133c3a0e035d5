//! Past the context's end: sequences that slide.

use std::fs;

use sha2::{Digest, Sha256};
use smol_tests::common::{REAL, TALES, TempDir, blob, blob_of, is_long, real_with_context, repository, run};
use smolrun::format::Dtype;
use smolrun::{
    Error, FinishReason, GenerateOptions, Kernels, KvDtype, Model, Overflow, Sampling, Session,
    SessionOptions, SpecialTokens,
};

/// Of the model in the repository.
const CONTEXT: usize = 1024;

fn tales() -> Model {
    Model::open(blob(TALES)).unwrap()
}

fn text_ids(model: &Model) -> Vec<u32> {
    let text = fs::read_to_string(repository().join("tests/data/ppl.txt")).unwrap();
    model.tokenizer().encode(&text, SpecialTokens::AsText).unwrap()
}

fn sliding(threads: usize) -> SessionOptions {
    SessionOptions::default().threads(threads).overflow(Overflow::Slide)
}

/// SHA-256 of the logits of every position, the tokens given some at a time.
fn hash(model: &Model, tokens: &[u32], options: SessionOptions, split: usize) -> String {
    let mut session = Session::new(model, options).unwrap();
    let mut hash = Sha256::new();
    for tokens in tokens.chunks(split) {
        let update = |_, logits: &[f32]| logits.iter().for_each(|logit| hash.update(logit.to_le_bytes()));
        session.feed_all(tokens, update).unwrap();
    }
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Numbers of threads, and how many tokens are given to the session at a time.
const WAYS: [(usize, usize); 4] = [(2, 1), (3, 7), (4, 1024), (1, 300)];

#[test]
fn a_sliding_sequence_has_the_same_bits_however_it_is_computed() {
    let (model, slow) = (tales(), "scalar");
    let tokens = &text_ids(&model)[..1700];
    for (way, kv) in [KvDtype::F32, KvDtype::F16, KvDtype::Q8].into_iter().enumerate() {
        let expected = hash(&model, tokens, sliding(1).kv_dtype(kv), tokens.len());
        let sets = Kernels::available().into_iter().filter(|set| set.name() != slow);
        for (set, kernels) in sets.enumerate() {
            // One for each set, another one for the next set and for other keys and values.
            let (threads, split) = WAYS[(set + way) % WAYS.len()];
            let options = sliding(threads).kv_dtype(kv).kernels(kernels);
            assert_eq!(
                hash(&model, tokens, options, split),
                expected,
                "{}, {threads} threads, {split} at a time",
                kernels.name()
            );
        }
    }
}

#[test]
fn what_stays_are_the_first_tokens_and_the_last() {
    let model = tales();
    let tokens = text_ids(&model);
    let mut session = Session::new(&model, sliding(2)).unwrap();
    for (fed, slides) in [(CONTEXT, 0), (CONTEXT + 1, 1), (CONTEXT + 256, 1), (CONTEXT + 257, 2), (5000, 16)]
    {
        session.truncate(0);
        session.feed(&tokens[..fed]).unwrap();
        let expected = [&tokens[..256], &tokens[256 * (slides + 1)..fed]].concat();
        assert_eq!(session.tokens(), expected, "{fed} tokens fed");
        assert_eq!(session.position(), fed - 256 * slides);
    }
    // Only the first block is what these tokens alone would have led to.
    let again = session.tokens().to_vec();
    assert_eq!(session.keep_common_prefix(&again), 256);
    let logits = session.feed(&tokens[256..300]).unwrap().to_vec();
    let mut fresh = Session::new(&model, sliding(1)).unwrap();
    assert_eq!(fresh.feed(&tokens[..300]).unwrap(), logits);
}

#[test]
fn memory_stays_flat_and_the_text_is_still_predicted() {
    let model = tales();
    let tokens = &text_ids(&model)[..6000];
    let mut session = Session::new(&model, sliding(2)).unwrap();
    let bytes = |session: &Session| session.cache_bytes();
    session.feed(&tokens[..CONTEXT]).unwrap();
    let full = bytes(&session);

    let slid = nll(&mut session, &tokens[CONTEXT..], 0);
    assert_eq!(bytes(&session), full);
    // As far into contexts of which nothing is missing.
    let windows: Vec<_> = tokens.chunks_exact(CONTEXT).collect();
    let whole = windows.iter().map(|window| {
        let mut session = Session::new(&model, SessionOptions::default()).unwrap();
        nll(&mut session, window, CONTEXT - 256)
    });
    let whole = whole.sum::<f64>() / windows.len() as f64;
    // (This model is a weak one so far into its context: 4.4 nats over whole windows.)
    assert!(slid < 1.1 * whole, "{slid} nats a token while sliding, {whole} without");
}

/// Mean negative log-likelihood of the tokens from index `first` + 1 on, in nats.
fn nll(session: &mut Session, tokens: &[u32], first: usize) -> f64 {
    let (mut sum, mut count) = (0.0, 0);
    session
        .feed_all(&tokens[..tokens.len() - 1], |index, logits| {
            if index >= first {
                let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let total: f32 = logits.iter().map(|logit| (logit - most).exp()).sum();
                sum += f64::from(total.ln() + most - logits[tokens[index + 1] as usize]);
                count += 1;
            }
        })
        .unwrap();
    sum / f64::from(count)
}

#[test]
fn a_generation_stops_at_the_context_s_end_or_slides_over_it() {
    let model = tales();
    let prompt = &text_ids(&model)[..CONTEXT - 5];
    let options = || {
        GenerateOptions::default().max_tokens(300).sampling(Sampling::default().ignore_eos(model.config()))
    };
    let last = |overflow| {
        let mut session = Session::new(&model, SessionOptions::default().overflow(overflow)).unwrap();
        let tokens: Vec<_> = session.generate(prompt, options()).unwrap().map(Result::unwrap).collect();
        (tokens.len(), tokens.last().unwrap().finish_reason)
    };
    assert_eq!(last(Overflow::Stop), (6, Some(FinishReason::Context)));
    assert_eq!(last(Overflow::Slide), (300, Some(FinishReason::Length)));

    let mut session = Session::new(&model, SessionOptions::default()).unwrap();
    let error = session.feed(&text_ids(&model)[..CONTEXT + 1]).unwrap_err();
    assert!(matches!(error, Error::ContextFull { needed: 1025, limit: CONTEXT }), "{error}");
}

#[test]
fn the_program_slides_when_it_is_told_to() {
    let blob = blob(TALES).into_os_string().into_string().unwrap();
    for (overflow, reason, count) in [("stop", "context", 1021), ("slide", "length", 1100)] {
        let outcome = run(
            "smolrun",
            &[&blob, "Once upon a time", "-n", "1100", "--ignore-eos", "--overflow", overflow, "--json"],
        );
        let report: serde_json::Value = serde_json::from_str(&outcome.stdout).expect(&outcome.stderr);
        assert_eq!(report["finish_reason"], reason);
        assert_eq!(report["ids"].as_array().unwrap().len(), count);
    }
}

/// "A prompt of 8,192 tokens generates to the end": so long is the model's context. Without `SMOL_LONG=1` it is cut to
/// 2,048, because the whole takes most of a minute of two cores.
#[test]
#[ignore = "needs the real model: scripts/fetch_model.sh smollm2-135m-instruct"]
fn smollm2_135m_takes_a_prompt_as_long_as_its_context() {
    let temp = TempDir::new();
    let model = if is_long() { blob_of(REAL, Dtype::Q8) } else { real_with_context(&temp, 2048) };
    let model = Model::open(model).unwrap();
    let tokens = text_ids(&model);
    let limit = model.config().max_position_embeddings;
    assert_eq!(limit, if is_long() { 8192 } else { 2048 });
    let options = || SessionOptions::default().kv_dtype(KvDtype::F16);
    let mut session = Session::new(&model, options()).unwrap();
    // Its last position has a token to say, and no room to go on.
    let mut tokens_of = |prompt: &[u32], keep: usize| {
        session.truncate(keep);
        let generated =
            session.generate(&prompt[session.position()..], GenerateOptions::default().max_tokens(9));
        generated.unwrap().map(|token| token.unwrap().finish_reason).collect::<Vec<_>>()
    };
    assert_eq!(tokens_of(&tokens[..limit], 0), [Some(FinishReason::Context)]);
    let shorter = tokens_of(&tokens[..limit - 3], limit - 4);
    assert_eq!(shorter.last().unwrap(), &Some(FinishReason::Context));
    assert_eq!(shorter.len(), 4);
}
