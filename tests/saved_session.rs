//! Sessions in files: what they save, and what is refused.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use smol_tests::common::{REAL, TALES, TempDir, blob, blob_of, repository, run};
use smolrun::format::Dtype;
use smolrun::{Error, GenerateOptions, KvDtype, Model, Overflow, Session, SessionOptions, SpecialTokens};

fn text_ids(model: &Model) -> Vec<u32> {
    let text = fs::read_to_string(repository().join("tests/data/ppl.txt")).unwrap();
    model.tokenizer().encode(&text, SpecialTokens::AsText).unwrap()
}

fn session(model: &Model, kv: KvDtype) -> Session {
    Session::new(model, SessionOptions::default().kv_dtype(kv).overflow(Overflow::Slide)).unwrap()
}

#[test]
fn a_loaded_session_goes_on_with_the_same_bits() {
    let (model, temp) = (Model::open(blob(TALES)).unwrap(), TempDir::new());
    let (tokens, path) = (text_ids(&model), temp.join("session"));
    // Within a panel, at its end, within and at the end of a block, past the context.
    for count in [1, 16, 100, 256, 700, 1024, 1500] {
        for kv in [KvDtype::F32, KvDtype::F16, KvDtype::Q8] {
            let mut original = session(&model, kv);
            original.feed(&tokens[..count]).unwrap();
            original.save(&path).unwrap();
            let mut loaded = session(&model, kv);
            loaded.feed(&tokens[2000..2100]).unwrap();
            loaded.load(&path).unwrap();
            assert_eq!(loaded.tokens(), original.tokens());
            let next = &tokens[count..count + 40];
            assert_eq!(loaded.feed(next).unwrap(), original.feed(next).unwrap(), "{count} tokens, {kv:?}");
        }
    }
    let mut empty = session(&model, KvDtype::F32);
    empty.save(&path).unwrap();
    let mut loaded = session(&model, KvDtype::F32);
    loaded.feed(&tokens[..3]).unwrap();
    loaded.load(&path).unwrap();
    assert_eq!(loaded.position(), 0);
    assert_eq!(fs::read_dir(temp.path()).unwrap().count(), 1, "no temporary file stays");
}

/// A file is mapped where the blob is, and what follows is never written to it.
#[test]
fn a_loaded_session_shares_its_file_and_leaves_it_alone() {
    let temp = TempDir::new();
    let (mapped, read) = (Model::open(blob(TALES)).unwrap(), Model::read(blob(TALES)).unwrap());
    let (tokens, path) = (text_ids(&mapped), temp.join("session"));
    for kv in [KvDtype::F32, KvDtype::F16, KvDtype::Q8] {
        let mut original = session(&mapped, kv);
        original.feed(&tokens[..1000]).unwrap();
        original.save(&path).unwrap();
        original.truncate(100);
        let before = fs::read(&path).unwrap();
        for model in [&mapped, &read] {
            let mut loaded = session(model, kv);
            loaded.load(&path).unwrap();
            if cfg!(target_os = "linux") {
                let maps = fs::read_to_string("/proc/self/maps").unwrap();
                assert_eq!(maps.contains(path.to_str().unwrap()), std::ptr::eq(model, &mapped));
            }
            // Into a block of the file, and then on until the oldest tokens are forgotten.
            let (mut fork, mut original) = (loaded.fork().unwrap(), original.fork().unwrap());
            loaded.truncate(100);
            let (found, expected) = (loaded.feed(&tokens[1000..2200]), original.feed(&tokens[1000..2200]));
            assert_eq!(found.unwrap(), expected.unwrap(), "{kv:?}");
            fork.save(temp.join("again")).unwrap();
            assert_eq!(fs::read(&path).unwrap(), before);
            assert_eq!(fs::read(temp.join("again")).unwrap(), before);
        }
    }
}

/// A good file of some tokens, and the place to write broken ones.
fn saved(model: &Model, temp: &TempDir) -> (Vec<u8>, PathBuf) {
    let path = temp.join("session");
    let mut session = session(model, KvDtype::F32);
    session.feed(&text_ids(model)[..300]).unwrap();
    session.save(&path).unwrap();
    (fs::read(&path).unwrap(), path)
}

fn problem(session: &mut Session, path: &Path) -> String {
    let error = session.load(path).unwrap_err();
    assert_eq!(session.position(), 0, "nothing of a refused file stays");
    assert!(matches!(error, Error::SavedSession { .. } | Error::Io { .. }), "{error}");
    error.to_string()
}

#[test]
fn broken_files_are_errors() {
    let (model, temp) = (Model::open(blob(TALES)).unwrap(), TempDir::new());
    let (good, path) = saved(&model, &temp);
    let mut session = session(&model, KvDtype::F32);
    let changed = |at: usize, to: &[u8]| {
        let mut bytes = good.clone();
        bytes[at..at + to.len()].copy_from_slice(to);
        bytes
    };
    let end = good.len();
    let few = {
        let mut session = self::session(&model, KvDtype::F32);
        session.feed(&text_ids(&model)[..100]).unwrap();
        session.save(&path).unwrap();
        fs::read(&path).unwrap()
    };
    let few_after_a_gap = [&few[..20], &[1], &few[21..]].concat();
    let cases: [(Vec<u8>, &str); 16] = [
        (few_after_a_gap, "tokens were forgotten after the first 256: expected more than these, found 100"),
        (Vec::new(), "less than a header"),
        (good[..63].to_vec(), "less than a header"),
        (good[..64].to_vec(), "expected"),
        (good[..end - 1].to_vec(), "expected"),
        ([&good[..], &[0]].concat(), "expected"),
        (changed(0, b"X"), "does not begin as one"),
        (changed(8, &[1]), "version: expected 3, found 1"),
        (changed(12, &[1]), "keys and values"),
        (changed(16, &[255; 4]), "more than the context's 1024"),
        (changed(20, &[2]), "neither"),
        (changed(24, &[1]), "a fast session rounded its keys and values, and this one is exact"),
        (changed(28, &[1]), "neither"),
        (changed(32, &[good[32] ^ 1]), "another blob"),
        (changed(64, &[good[64] ^ 1]), "do not have the hash"),
        (changed(end - 1, &[good[end - 1] ^ 1]), "block 4 does not have the checksum"),
    ];
    for (bytes, expected) in cases {
        fs::write(&path, bytes).unwrap();
        let found = problem(&mut session, &path);
        assert!(found.contains(expected) && found.contains("session"), "{found}, not {expected}");
    }
    assert!(problem(&mut session, &temp.join("missing")).contains("missing"));
    fs::write(&path, &good).unwrap();
    session.load(&path).unwrap();
    assert_eq!(session.position(), 300);
}

#[test]
fn mutated_files_are_refused_and_never_panic() {
    let (model, temp) = (Model::open(blob(TALES)).unwrap(), TempDir::new());
    let (good, path) = saved(&model, &temp);
    let mut session = session(&model, KvDtype::F32);
    let mut state = 7u64;
    let mut random = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) as usize % below
    };
    for round in 0..300 {
        let mut bytes = good.clone();
        // Mostly in what decides how the rest is read.
        let at = if round % 3 > 0 { random(2000) } else { random(bytes.len()) };
        bytes[at] ^= 1 << random(8);
        fs::write(&path, bytes).unwrap();
        problem(&mut session, &path);
    }
}

#[test]
fn the_program_keeps_a_prompt_s_cache() {
    let temp = TempDir::new();
    let (blob, cache) = (blob(TALES).into_os_string().into_string().unwrap(), temp.join("cache"));
    let cache = cache.to_str().unwrap();
    let prompt = "Once upon a time there was a king who had seven sons. ".repeat(20);
    let ask = |prompt: &str, more: &[&str]| -> serde_json::Value {
        let args = [&[blob.as_str(), prompt, "-n", "20", "--json"], more].concat();
        let outcome = run("smolrun", &args);
        serde_json::from_str(&outcome.stdout).expect(&outcome.stderr)
    };
    let longer = format!("{prompt} The eldest");
    let (expected, expected_longer) = (ask(&prompt, &[]), ask(&longer, &[]));
    let tokens = expected["timings"]["prompt_tokens"].as_u64().unwrap();
    // Of what is known, the last token is run again for its logits.
    for (prompt, expected, cached) in
        [(&prompt, &expected, 0), (&prompt, &expected, tokens - 1), (&longer, &expected_longer, tokens)]
    {
        let found = ask(prompt, &["--prompt-cache", cache]);
        assert_eq!(found["text"], expected["text"]);
        assert_eq!(found["timings"]["cached_tokens"].as_u64().unwrap(), cached);
    }
}

/// Time to the first token of a long system prompt: anew, out of a file, and in a session that has it already.
#[test]
#[ignore = "needs the real model: scripts/fetch_model.sh smollm2-135m-instruct"]
fn a_system_prompt_of_2000_tokens_costs_nothing_the_next_time() {
    let (model, temp) = (Model::open(blob_of(REAL, Dtype::Bf16)).unwrap(), TempDir::new());
    let prompt = &text_ids(&model)[..2000];
    let options = || GenerateOptions::default().max_tokens(16);
    let ids = |session: &mut Session, start: Instant| {
        let kept = session.keep_common_prefix(prompt);
        let mut first = None;
        let tokens = session.generate(&prompt[kept..], options()).unwrap().map(|token| {
            first.get_or_insert_with(|| start.elapsed());
            token.unwrap().id
        });
        (tokens.collect::<Vec<_>>(), first.unwrap())
    };
    let start = Instant::now();
    let mut first = session(&model, KvDtype::F32);
    let (expected, anew) = ids(&mut first, start);
    first.truncate(prompt.len());
    first.save(temp.join("session")).unwrap();

    // The best of a few: other tests run beside this one.
    let (mut from_file, mut reused) = (Duration::MAX, Duration::MAX);
    for _ in 0..5 {
        let start = Instant::now();
        let mut loaded = session(&model, KvDtype::F32);
        loaded.load(temp.join("session")).unwrap();
        let (found, time) = ids(&mut loaded, start);
        assert_eq!(found, expected);
        from_file = from_file.min(time);
        let (found, time) = ids(&mut loaded, Instant::now());
        assert_eq!(found, expected);
        reused = reused.min(time);
    }
    eprintln!("first token: {anew:?} anew, {from_file:?} from a file, {reused:?} in the same session");
    assert!(anew > 50 * from_file, "{anew:?} anew, {from_file:?} from a file");
    assert!(anew > 50 * reused, "{anew:?} anew, {reused:?} in the same session");
}
