//! Log-likelihoods of continuations, by the library and by `smolrun score`, against transformers'.

use std::fs;
use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use smol_tests::common::{REAL, Running, TALES, blob, data, program};
use smolrun::{CancelToken, Error, Model, Session, SessionOptions, SpecialTokens};

/// Logits differ from PyTorch's by up to 2e-3, see `reference.rs`; log-probabilities of a few tokens by less.
const TOLERANCE: f64 = 2e-3;

#[test]
fn tales_4m_scores_as_transformers_does() {
    check(TALES);
}

#[test]
#[ignore = "needs the real model: scripts/fetch_model.sh smollm2-135m-instruct"]
fn smollm2_135m_scores_as_transformers_does() {
    check(REAL);
}

fn check(name: &str) {
    let rows: Vec<Value> =
        serde_json::from_slice(&fs::read(data(&format!("{name}/scores.json"))).unwrap()).unwrap();
    let input: String = rows
        .iter()
        .map(|row| format!("{}\n", json!({"context": row["context"], "continuations": row["continuations"]})))
        .collect();
    let output = score(&[blob(name).to_str().unwrap()], &input);
    assert_eq!((output.0, output.2.as_str()), (0, ""));
    let found: Vec<Value> = output.1.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(found.len(), rows.len());
    let mut worst = 0.0f64;
    for (found, expected) in found.iter().zip(&rows) {
        let (found, expected) = (found["scores"].as_array().unwrap(), expected["scores"].as_array().unwrap());
        assert_eq!(found.len(), expected.len());
        for (found, expected) in found.iter().zip(expected) {
            assert_eq!(found["tokens"], expected["tokens"], "{expected}");
            // Where no two tokens are nearly as likely, the likeliest is the same.
            if expected["smallest_margin"].as_f64().unwrap() > 0.005 {
                assert_eq!(found["is_greedy"], expected["is_greedy"], "{expected}");
            }
            let difference = found["logprob"].as_f64().unwrap() - expected["logprob"].as_f64().unwrap();
            worst = worst.max(difference.abs());
        }
    }
    println!("{name}: log-likelihoods within {worst:.1e}");
    assert!(worst < TOLERANCE, "{worst:e}");
}

/// Exit code, standard output and standard error of `smolrun score` on `input`.
fn score(args: &[&str], input: &str) -> (i32, String, String) {
    let mut command = Command::new(program("smolrun"));
    command.arg("score").args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = Running::start(&mut command);
    // It may have ended before it read everything.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    let output = child.wait_with_output();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap_or(-1), text(output.stdout), text(output.stderr))
}

#[test]
fn the_order_and_the_company_of_continuations_do_not_matter() {
    let model = Model::open(blob(TALES)).unwrap();
    let encode = |text| model.tokenizer().encode(text, SpecialTokens::AsText).unwrap();
    let (context, other) = (encode("Once upon a time there was"), encode("Once upon a"));
    let [a, b, c] = [" a king who", " no", " an old woman, and she had"].map(encode);
    let mut session = Session::new(&model, SessionOptions::default()).unwrap();
    let together = session.score(&context, &[&a, &b, &c]).unwrap();
    assert_eq!(session.tokens(), context);
    session.score(&other, &[&b]).unwrap();
    let reversed = session.score(&context, &[&c, &b, &a]).unwrap();
    assert_eq!(reversed, [together[2], together[1], together[0]]);
    for (continuation, expected) in [&a, &b, &c].into_iter().zip(&together) {
        let mut session = Session::new(&model, SessionOptions::default().threads(1)).unwrap();
        assert_eq!(session.score(&context, &[continuation]).unwrap(), [*expected]);
    }
}

/// Where a context alone ends is no place to cut, if what follows becomes one token with its last: nothing would be left to
/// be scored, and nothing is certain.
#[test]
fn a_continuation_that_merges_into_the_context_is_scored_from_the_merged_token() {
    let model = Model::open(blob(TALES)).unwrap();
    let encode = |text: &str| model.tokenizer().encode(text, SpecialTokens::AsText).unwrap();
    let mut session = Session::new(&model, SessionOptions::default()).unwrap();
    let mut merged = 0;
    for word in [" king", " daughter", " forest", " beautiful", " unable", " together"] {
        for cut in 2..word.len() {
            let (start, end) = word.split_at(cut);
            let context = format!("Once upon a time there was a{start}");
            let found = session.score_texts(&context, &[end]).unwrap()[0];
            // By hand: the tokens before the first that is another than the context's own.
            let (whole, alone) = (encode(&format!("{context}{end}")), encode(&context));
            let common = whole.iter().zip(&alone).take_while(|(a, b)| a == b).count();
            assert_eq!(found, session.score(&whole[..common], &[&whole[common..]]).unwrap()[0]);
            assert!(found.tokens > 0 && found.logprob < 0.0, "{context:?} {end:?}: {found:?}");
            merged += usize::from(whole.len() <= alone.len());
        }
    }
    assert!(merged > 3, "{merged} of the words leave no token past the context's");

    // What merges does not beat what does not, and the program says how many tokens each one has.
    let line = json!({"context": "Once upon a time there was a k", "continuations": ["ing", "night"]});
    let (code, stdout, stderr) = score(&[blob(TALES).to_str().unwrap()], &format!("{line}\n"));
    assert_eq!((code, stderr.as_str()), (0, ""));
    let found: Value = serde_json::from_str(&stdout).unwrap();
    for score in found["scores"].as_array().unwrap() {
        assert!(score["tokens"].as_u64() > Some(0) && score["logprob"].as_f64() < Some(0.0), "{score}");
    }
}

#[test]
fn what_has_no_token_is_an_error_and_not_certain() {
    let model = Model::open(blob(TALES)).unwrap();
    let mut session = Session::new(&model, SessionOptions::default()).unwrap();
    let is_error = |result| matches!(result, Err(Error::Argument { name: "continuations", .. }));
    assert!(is_error(session.score(&[1], &[&[2], &[]])));
    assert!(is_error(session.score_texts("Once", &[" upon", ""])));
    assert!(is_error(session.score_texts("", &[""])));
    let line = json!({"context": "Once", "continuations": [""]});
    let (code, stdout, stderr) = score(&[blob(TALES).to_str().unwrap()], &format!("{line}\n"));
    assert_eq!((code, stdout.as_str()), (1, ""));
    assert!(stderr.contains("line 1: continuations: expected at least one token in each"), "{stderr}");
}

/// Where nothing takes a pass, and where nothing but texts is gone through.
#[test]
fn a_cancelled_score_ends_before_the_next_continuation() {
    const LOOKS: usize = 7;
    let model = Model::open(blob(TALES)).unwrap();
    let looks = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&looks);
    let cancel = CancelToken::asking(move || count.fetch_add(1, Ordering::Relaxed) >= LOOKS);
    let mut session = Session::new(&model, SessionOptions::default().cancel(&cancel)).unwrap();
    assert!(matches!(session.score(&[1, 2], &[&[3][..]; 100]), Err(Error::Cancelled)));
    assert_eq!((session.tokens(), looks.swap(0, Ordering::Relaxed)), (&[1, 2][..], LOOKS + 1));
    assert!(matches!(session.score_texts("Once upon", &[" a time"; 100]), Err(Error::Cancelled)));
    assert_eq!(looks.swap(0, Ordering::Relaxed), LOOKS + 1);
    assert_eq!(session.score(&[1, 2], &[&[3]]).unwrap().len(), 1);
}

#[test]
fn what_cannot_be_scored_is_an_error() {
    let model = Model::open(blob(TALES)).unwrap();
    let vocab_size = model.config().vocab_size as u32;
    let mut session = Session::new(&model, SessionOptions::default()).unwrap();
    assert!(matches!(session.score(&[], &[&[1]]), Err(Error::Argument { name: "tokens", .. })));
    for bad in [&[vocab_size][..], &[1, vocab_size], &[vocab_size, 1]] {
        assert!(matches!(session.score(&[1], &[bad]), Err(Error::TokenId { .. })));
    }
    let long = vec![1; model.config().max_position_embeddings + 1];
    assert!(matches!(session.score(&[1], &[&long]), Err(Error::ContextFull { .. })));
    assert_eq!(session.score(&[1], &[&[2]]).unwrap()[0].tokens, 1);

    let path = blob(TALES);
    let expected = "standard input, line 1: expected an object with context and continuations: ";
    for line in [
        "x",
        "[]",
        "{}",
        r#"{"context":"a"}"#,
        r#"{"context":1,"continuations":[]}"#,
        r#"["a", ["b"]]"#,
        r#"{"context":"a","continuations":["b"],"n":1}"#,
    ] {
        let (code, stdout, stderr) = score(&[path.to_str().unwrap()], &format!("{line}\n"));
        assert_eq!((code, stdout.as_str(), stderr.lines().count()), (1, "", 1), "{line}: {stderr}");
        assert!(stderr.contains(expected) && !stderr.contains("Question"), "{stderr}");
    }
    let line = json!({"context": "Once upon a time ".repeat(2000), "continuations": ["x"]});
    let (code, _, stderr) = score(&[path.to_str().unwrap()], &format!("{line}\n"));
    assert_eq!(code, 1);
    assert!(stderr.contains("does not fit: there is room for 1024"), "{stderr}");
}
