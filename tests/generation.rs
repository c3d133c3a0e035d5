//! How a generation ends, and what it says of each token.

use std::thread;
use std::time::Duration;

use smol_tests::common::{Blob, Checkpoint, TALES, TempDir, TensorDtype, blob, tales_with_prefix, within};
use smolrun::{
    CancelToken, Error, FinishReason, GenerateOptions, Model, Overflow, PromptOptions, Sampling, Session,
    SessionOptions, SpecialTokens, Token,
};

fn model() -> Model {
    Model::open(blob(TALES)).unwrap()
}

fn session(model: &Model) -> Session {
    Session::new(model, SessionOptions::default()).unwrap()
}

fn encode(model: &Model, text: &str) -> Vec<u32> {
    model.tokenizer().encode(text, SpecialTokens::AsText).unwrap()
}

/// Text and end of what `options` generate after "Once upon a time".
fn run(model: &Model, options: GenerateOptions) -> (String, FinishReason) {
    let tokens: Vec<Token> = {
        let mut session = session(model);
        let generator = session.generate(&encode(model, "Once upon a time"), options).unwrap();
        generator.map(Result::unwrap).collect()
    };
    let finish_reason = tokens.last().unwrap().finish_reason.unwrap();
    (tokens.into_iter().map(|token| token.text).collect(), finish_reason)
}

/// Sixty random tokens a seed, which bring half characters and odd bytes.
fn wild(seed: u64) -> GenerateOptions {
    let sampling = Sampling::default().temperature(3.0).seed(seed);
    GenerateOptions::default().max_tokens(60).sampling(sampling)
}

#[test]
fn any_part_of_a_text_stops_it_before_itself() {
    let model = model();
    for options in [GenerateOptions::default().max_tokens(60), wild(1), wild(2)] {
        let (text, _) = run(&model, options.clone());
        let starts: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
        for (index, length) in [(0, 1), (3, 5), (10, 2), (17, 12), (40, 3), (51, 20)] {
            let stop = &text[starts[index]..starts[index + length]];
            // Where the text first has it.
            let expected = &text[..text.find(stop).unwrap()];
            let (found, finish_reason) = run(&model, options.clone().stop([stop, "never said"]));
            assert_eq!((found.as_str(), finish_reason), (expected, FinishReason::Stop), "{stop:?}");
        }
    }
}

#[test]
fn what_only_begins_a_stop_string_is_shown_in_the_end() {
    let model = model();
    let options = GenerateOptions::default().max_tokens(20);
    let (text, _) = run(&model, options.clone());
    let end = &text[text.char_indices().rev().nth(4).unwrap().0..];
    let expected = (text.clone(), FinishReason::Length);
    assert_eq!(run(&model, options.clone().stop([format!("{end} and more")])), expected);
    assert_eq!(run(&model, options.clone().stop(Vec::<String>::new())), expected);
    let mut session = session(&model);
    let error = session.generate(&[1], options.stop(["x", ""])).err().unwrap();
    assert!(matches!(error, Error::Argument { name: "stop", .. }));
}

#[test]
fn a_cancelled_generation_ends_with_its_next_token() {
    let model = model();
    let prompt = encode(&model, "Once upon a time");
    let expected: Vec<u32> = {
        let mut session = session(&model);
        session.generate(&prompt, wild(1)).unwrap().map(|token| token.unwrap().id).collect()
    };
    for after in 1..5 {
        let cancel = CancelToken::default();
        let mut session = session(&model);
        let mut generator = session.generate(&prompt, wild(1).cancel(&cancel)).unwrap();
        let mut ids = Vec::new();
        for _ in 0..after {
            ids.push(generator.next().unwrap().unwrap().id);
        }
        cancel.cancel();
        let last = generator.next().unwrap().unwrap();
        assert_eq!(last.finish_reason, Some(FinishReason::Cancelled));
        assert!(generator.next().is_none());
        assert_eq!(generator.finish_reason(), Some(FinishReason::Cancelled));
        ids.push(last.id);
        assert_eq!(ids, expected[..after + 1]);
        // All but the last token are in the session, and it goes on from there.
        assert_eq!(session.position(), prompt.len() + after);
        cancel.reset();
        assert!(!cancel.is_cancelled());
    }
}

#[test]
fn a_prompt_begins_with_the_model_s_prefix() {
    let temp = TempDir::new();
    let (blob, prefix) = tales_with_prefix(&temp);
    let (with, without) = (Model::open(blob).unwrap(), model());
    let text = "Once upon<|im_end|>";
    let alone = encode(&with, text);
    assert_eq!(encode(&without, text), alone, "a text alone has no prefix");
    assert_eq!(with.encode_prompt(text).unwrap(), [&[prefix], &alone[..]].concat());
    assert_eq!(without.encode_prompt(text).unwrap(), alone);
    // Nothing to continue is the beginning of a text.
    assert_eq!(with.encode_prompt("").unwrap(), [prefix]);
    assert_eq!(without.encode_prompt("").unwrap(), [without.config().bos_token_id.unwrap()]);

    let options = PromptOptions::default().special_tokens(SpecialTokens::Parse);
    let parsed = with.encode_prompt_with(text, &options).unwrap();
    assert_eq!((parsed[0], parsed[parsed.len() - 1]), (prefix, 2));
    let options = options.max_tokens(parsed.len() - 1); // the prefix counts
    let error = with.encode_prompt_with(text, &options).unwrap_err();
    assert!(matches!(error, Error::TextTooLong { .. }), "{error}");

    let mut checkpoint = Checkpoint::tiny(TensorDtype::F32);
    checkpoint.config["bos_token_id"] = serde_json::Value::Null;
    let nameless = Model::from_bytes(Blob::of(&checkpoint).build()).unwrap();
    let error = nameless.encode_prompt("").unwrap_err();
    assert!(matches!(error, Error::Argument { name: "prompt", .. }), "{error}");
}

#[test]
fn a_cancelled_prompt_has_no_token() {
    let model = model();
    let prompt = encode(&model, &"Once upon a time there was a king. ".repeat(60));
    let cancel = CancelToken::default();
    cancel.cancel();
    let mut session = session(&model);
    let mut generator = session.generate(&prompt, GenerateOptions::default().cancel(&cancel)).unwrap();
    assert!(generator.next().is_none());
    assert_eq!(generator.finish_reason(), Some(FinishReason::Cancelled));
    assert_eq!(session.position(), 0);
}

#[test]
fn another_thread_can_cancel() {
    let model = model();
    let cancel = CancelToken::default();
    let other = cancel.clone();
    let thread = thread::spawn(move || {
        thread::sleep(Duration::from_millis(30));
        other.cancel();
    });
    let sampling = Sampling::default().ignore_eos(model.config());
    let options = GenerateOptions::default().max_tokens(usize::MAX).sampling(sampling).cancel(&cancel);
    // It goes on for ever, unless it is told to end.
    let (reason, last) = within("a generation that is cancelled", move || {
        let endless = SessionOptions::default().overflow(Overflow::Slide);
        let mut session = Session::new(&model, endless).unwrap();
        let mut tokens = session.generate(&[5], options).unwrap();
        let last = tokens.by_ref().map(Result::unwrap).last();
        (tokens.finish_reason(), last)
    });
    thread.join().unwrap();
    assert!(cancel.is_cancelled());
    assert_eq!(reason, Some(FinishReason::Cancelled));
    // None where the prompt had not run yet.
    assert!(last.is_none_or(|last| last.finish_reason == Some(FinishReason::Cancelled)));
}

#[test]
fn no_tokens_end_by_length() {
    let model = model();
    let mut session = session(&model);
    let mut generator = session.generate(&[5], GenerateOptions::default().max_tokens(0)).unwrap();
    assert!(generator.next().is_none());
    assert_eq!(generator.finish_reason(), Some(FinishReason::Length));
}

#[test]
fn logprobs_are_those_of_the_logits() {
    let model = model();
    let prompt = encode(&model, "Once upon a time");
    let mut session = session(&model);
    let options = GenerateOptions::default().max_tokens(12).logprobs(5);
    let tokens: Vec<Token> = session.generate(&prompt, options).unwrap().map(Result::unwrap).collect();
    session.truncate(0);
    let mut logits = session.feed(&prompt).unwrap().to_vec();
    for token in tokens {
        let sum: f64 = logits.iter().map(|&logit| f64::from(logit).exp()).sum();
        let expected = |id: u32| (f64::from(logits[id as usize]).exp() / sum).ln();
        let logprobs = token.logprobs.unwrap();
        assert!((f64::from(logprobs.logprob) - expected(token.id)).abs() < 1e-5);
        assert_eq!(logprobs.top.len(), 5);
        assert_eq!((logprobs.top[0].id, logprobs.top[0].logprob), (token.id, logprobs.logprob));
        for pair in logprobs.top.windows(2) {
            assert!(pair[0].logprob >= pair[1].logprob);
        }
        for alternative in &logprobs.top {
            assert!((f64::from(alternative.logprob) - expected(alternative.id)).abs() < 1e-5);
        }
        logits = session.feed(&[token.id]).unwrap().to_vec();
    }
}

#[test]
fn penalties_look_at_the_whole_sequence() {
    let model = model();
    let prompt = encode(&model, "the king and the queen and the king and the queen and the king and the");
    let sampling = Sampling::default().presence_penalty(1e6);
    let options = GenerateOptions::default().max_tokens(30).sampling(sampling);
    for split in [0, prompt.len() / 2] {
        let mut session = session(&model);
        let mut said = prompt.clone();
        if split > 0 {
            session.feed(&prompt[..split]).unwrap();
        }
        for token in session.generate(&prompt[split..], options.clone()).unwrap() {
            let id = token.unwrap().id;
            assert!(!said.contains(&id), "{id} again");
            said.push(id);
        }
    }
}

#[test]
fn a_common_prefix_is_kept() {
    let model = model();
    let mut session = session(&model);
    session.feed(&[5, 6, 7, 8]).unwrap();
    let fed = |session: &mut Session, tokens: &[u32]| {
        let kept = session.keep_common_prefix(tokens);
        session.feed(&tokens[kept..]).unwrap();
        assert_eq!(session.tokens(), tokens);
        kept
    };
    assert_eq!(fed(&mut session, &[5, 6, 7, 8, 9]), 4);
    assert_eq!(fed(&mut session, &[5, 6, 9]), 2);
    assert_eq!(fed(&mut session, &[5, 6, 9]), 2); // one is left to feed
    assert_eq!(fed(&mut session, &[5]), 0);
    assert_eq!(fed(&mut session, &[1, 5]), 0);
    assert_eq!(session.keep_common_prefix(&[]), 0);
    // What was not taken is not remembered.
    assert!(session.feed(&[1, 1 << 30]).is_err());
    assert_eq!(session.position(), session.tokens().len());
}
