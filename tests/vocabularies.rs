//! Tokenizers that GGUF files hold, published ones above all, against the libraries that the models came with.

use std::fmt::Write;
use std::fs;
use std::ops::Range;
use std::path::Path;

use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use smol_tests::common::{TempDir, data, published, tokenizer};
use smolconv::source::Source;
use smolconv::source::gguf::Metadata;
use smolconv::tokenizer::{TokenizerTables, gguf};
use smolrun::SpecialTokens;
use smolrun::tokenizer::Tokenizer;

use crate::gguf::with_sentencepiece;
use crate::tokenizer::{Pair, Random, hard_string};

/// Vocabularies with the number of published strings, the empty one after the last separator included.
const PUBLISHED: [(&str, usize); 13] = [
    ("command-r", 47),
    ("deepseek-coder", 47),
    ("deepseek-llm", 47),
    ("gpt-2", 47),
    ("llama-bpe", 47),
    ("llama-spm", 47),
    ("mpt", 47),
    ("phi-3", 47),
    ("qwen2", 47),
    ("qwen35", 51),
    ("refact", 47),
    ("starcoder", 47),
    ("baichuan", 0),
];

/// The vocabularies that are refused, and in which words.
const REFUSED: [(&str, &str); 6] = [
    ("aquila", "tokenizer.ggml.pre: expected a value, found nothing"),
    ("bert-bge", "tokenizer.ggml.model: expected \"gpt2\" or \"llama\", found \"bert\""),
    ("falcon", "found \"falcon\""),
    ("gemma-4", "tokenizer.ggml.model: expected \"gpt2\" or \"llama\", found \"gemma4\""),
    ("gpt-neox", "tokenizer.ggml.pre: expected a value, found nothing"),
    ("nomic-bert-moe", "tokenizer.ggml.model: expected \"gpt2\" or \"llama\", found \"t5\""),
];

fn metadata(path: &Path) -> Metadata {
    Source::open(path).unwrap().gguf.expect("a GGUF file")
}

fn vocabulary(name: &str) -> Metadata {
    metadata(&published(format!("models/ggml-vocab-{name}.gguf")))
}

/// The tokenizer of a GGUF file as a blob has it, checked.
fn ours(metadata: &Metadata) -> Tokenizer {
    let definition = gguf::read(metadata).unwrap();
    let tables = TokenizerTables::new(&definition, gguf::token_count(metadata).unwrap()).unwrap();
    let ours = tokenizer(&tables);
    ours.check().unwrap();
    ours
}

#[test]
#[ignore = "needs the published vocabularies: scripts/test.sh fetches them"]
fn published_strings_have_the_published_ids() {
    for (name, count) in PUBLISHED {
        let file = |end: &str| published(format!("models/ggml-vocab-{name}.gguf.{end}"));
        if count == 0 {
            assert!(!file("inp").exists(), "{name}");
            continue;
        }
        let ours = ours(&vocabulary(name));
        let (strings, ids) =
            (fs::read_to_string(file("inp")).unwrap(), fs::read_to_string(file("out")).unwrap());
        let strings: Vec<&str> = strings.split("\n__ggml_vocab_test__\n").collect();
        let ids: Vec<&str> = ids.lines().chain([""]).collect();
        assert_eq!((strings.len(), ids.len(), strings[count - 1]), (count, count, ""), "{name}");
        for (text, ids) in strings.iter().zip(ids) {
            let ids: Vec<u32> = ids.split_whitespace().map(|id| id.parse().unwrap()).collect();
            assert_eq!(ours.encode(text, SpecialTokens::AsText).unwrap(), ids, "{name}: {text:?}");
        }
    }
}

#[test]
#[ignore = "needs the published vocabularies: scripts/test.sh fetches them"]
fn every_published_vocabulary_is_read_or_refused_by_name() {
    let files = fs::read_dir(published("models")).unwrap().map(|file| file.unwrap().file_name());
    let names = files.filter_map(|file| {
        let name = file.to_str()?.strip_prefix("ggml-vocab-")?.strip_suffix(".gguf")?;
        Some(name.to_owned())
    });
    let mut names: Vec<String> = names.collect();
    names.sort();
    let mut known: Vec<&str> =
        PUBLISHED.map(|(name, _)| name).into_iter().chain(REFUSED.map(|(name, _)| name)).collect();
    known.sort();
    assert_eq!(names, known);
    for (name, words) in REFUSED {
        let error = gguf::read(&vocabulary(name)).map(drop).unwrap_err().to_string();
        assert!(error.contains(words), "{name}: {error}");
    }
}

/// The letters that have cases, by DeepSeek LLM.
const CASED: &str = concat!(
    "\\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝ",
    "Ὗ-\u{1F7D}ᾀ-ᾴᾶ-ᾼ\u{1FBE}ῂ-ῄῆ-ῌῐ-\u{1FD3}ῖ-\u{1FDB}ῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\u{2126}ℨ\u{212A}-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄ",
    "Ⰰ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+",
);

/// The byte-level ones, with the pre-tokenizers of the models' own `tokenizer.json`: its parts, and whether normal
/// form C is first and words that are tokens are not merged.
fn byte_level() -> Vec<(&'static str, Vec<Value>, bool, bool)> {
    let split = |regex: &str| json!({"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": false});
    let bytes = |regex: bool| json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": regex});
    let digits = || json!({"type": "Digits", "individual_digits": true});
    let words = |letters: &str, digits: &str, others: &str| {
        let ends = r"[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
        let regex = format!(
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?{letters}+|\p{{N}}{digits}| ?{others}+{ends}"
        );
        vec![split(&regex), bytes(false)]
    };
    let (letters, others) = (r"\p{L}", r"[^\s\p{L}\p{N}]");
    let cjk = "[一-龥ࠀ-一가-퟿]+";
    let deepseek = |letters: &str, marks: &str| vec![split("[\r\n]"), split(letters), split(marks)];
    let with = |mut parts: Vec<Value>, more: Vec<Value>| {
        parts.extend(more);
        parts
    };
    let coder = vec![split(cjk), digits(), bytes(false)];
    let llm = vec![split(r"\s+$"), split(cjk), digits(), bytes(false)];
    vec![
        ("gpt-2", vec![bytes(true)], false, false),
        ("mpt", vec![bytes(true)], true, false),
        ("starcoder", vec![digits(), bytes(true)], false, false),
        ("refact", vec![digits(), bytes(true)], false, false),
        ("command-r", vec![digits(), bytes(true)], true, false),
        ("llama-bpe", words(letters, "{1,3}", others), false, true),
        ("qwen2", words(letters, "", others), true, false),
        ("qwen35", words(r"[\p{L}\p{M}]", "", r"[^\s\p{L}\p{M}\p{N}]"), false, false),
        ("deepseek-coder", with(deepseek(r"\s?\p{L}+", r"\s?\p{P}+"), coder), false, false),
        ("deepseek-llm", with(deepseek(CASED, r"\s?[!-/:-~！-／：-～‘-‟　-。]+"), llm), false, false),
    ]
}

/// `tokenizer.json` with the tokens and merges of a GGUF file.
fn to_json(metadata: &Metadata, pre_tokenizer: &[Value], nfc: bool, ignore_merges: bool) -> Vec<u8> {
    let tokens = metadata.strings("tokenizer.ggml.tokens").unwrap().unwrap();
    let types = metadata.integers("tokenizer.ggml.token_type").unwrap().unwrap();
    let is_added = |id: usize| matches!(types[id], 2..=4);
    let added = |id: usize| {
        json!({"id": id, "content": tokens[id], "special": types[id] != 4, "normalized": false,
            "single_word": false, "lstrip": false, "rstrip": false})
    };
    let end = (0..tokens.len()).rposition(|id| !is_added(id)).unwrap() + 1;
    let vocab: Map<String, Value> =
        tokens[..end].iter().cloned().zip((0..).map(|id: u32| json!(id))).collect();
    let json = json!({
        "version": "1.0", "truncation": null, "padding": null, "post_processor": null,
        "added_tokens": (0..tokens.len()).filter(|&id| is_added(id)).map(added).collect::<Vec<_>>(),
        "normalizer": if nfc { json!({"type": "NFC"}) } else { Value::Null },
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": pre_tokenizer},
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "fuse_unk": false, "ignore_merges": ignore_merges,
            "vocab": vocab, "merges": metadata.strings("tokenizer.ggml.merges").unwrap().unwrap()},
    });
    json.to_string().into_bytes()
}

/// Compares those of [`byte_level`] that are in `range`.
fn compare_byte_level(range: Range<usize>) {
    for (seed, (name, pre_tokenizer, nfc, ignore_merges)) in (40..).zip(byte_level().drain(range)) {
        println!("{name}");
        let metadata = vocabulary(name);
        let pair = Pair::of(ours(&metadata), &to_json(&metadata, &pre_tokenizer, nfc, ignore_merges));
        let mut random = Random(seed);
        let special = [
            "<|endoftext|>",
            "<|im_start|>",
            "<｜begin▁of▁sentence｜>",
            "<|begin_of_text|>",
            "[PAD32022]",
            "ø",
            "   ",
        ];
        for _ in 0..2_000 {
            let text = hard_string(&mut random, &special);
            pair.compare(&text);
            let ids = pair.ours.encode(&text, SpecialTokens::Parse).unwrap();
            match name.starts_with("deepseek") {
                // The library decodes some letters that somebody added, ø for one, to bytes that are no UTF-8.
                true => assert_eq!(pair.ours.decode(&ids, false).unwrap(), text),
                false => pair.compare_decoded(&ids),
            }
        }
    }
}

#[test]
#[ignore = "needs the published vocabularies: scripts/test.sh fetches them"]
fn byte_level_vocabularies_give_the_librarys_ids_of_random_strings() {
    assert_eq!(byte_level().len(), 10);
    compare_byte_level(0..5);
}

#[test]
#[ignore = "needs the published vocabularies: scripts/test.sh fetches them"]
fn more_byte_level_vocabularies_give_the_librarys_ids_of_random_strings() {
    compare_byte_level(5..10);
}

/// The texts of 2,000 hard strings.
fn hard_texts() -> Vec<String> {
    let cases = fs::read(data("tokenizer_cases.jsonl")).unwrap();
    let cases = serde_json::Deserializer::from_slice(&cases).into_iter::<Value>();
    let texts: Vec<String> = cases.map(|case| case.unwrap()["text"].as_str().unwrap().to_owned()).collect();
    assert_eq!(texts.len(), 2_000);
    texts
}

/// Whether each of [`hard_texts`] has the ids that sentencepiece gave it, by the hashes of these that
/// `tests/data/make/sentencepiece_ids.py` wrote down.
fn check_sentencepiece(name: &str, ours: &Tokenizer) {
    let hashes: Value =
        serde_json::from_slice(&fs::read(data("gguf/sentencepiece_ids.json")).unwrap()).unwrap();
    let hashes = hashes[name].as_str().unwrap();
    let texts = hard_texts();
    assert_eq!(hashes.len(), 8 * texts.len(), "{name}");
    for (text, hash) in texts.iter().zip(hashes.as_bytes().chunks(8)) {
        let ids = ours.encode(text, SpecialTokens::AsText).unwrap();
        let words: Vec<String> = ids.iter().map(u32::to_string).collect();
        let digest = Sha256::digest(words.join(" "));
        let found = digest[..4].iter().fold(String::new(), |mut hex, byte| {
            write!(hex, "{byte:02x}").unwrap();
            hex
        });
        assert_eq!(found.as_bytes(), hash, "{name}: {text:?} became {ids:?}");
    }
}

#[test]
#[ignore = "needs the published vocabularies: scripts/test.sh fetches them"]
fn sentencepiece_vocabularies_give_sentencepieces_ids_of_random_strings() {
    for name in ["llama-spm", "phi-3", "baichuan"] {
        check_sentencepiece(name, &ours(&vocabulary(name)));
    }
}

/// The small vocabulary of SentencePiece's, with scores that many pieces share, or all.
#[test]
fn pieces_of_equal_score_merge_from_the_left() {
    let temp = TempDir::new();
    let mut json: Value =
        serde_json::from_slice(&fs::read(data("gguf/sentencepiece.json")).unwrap()).unwrap();
    for share in [40, 200, 1_000] {
        let ids = 0..json["scores"].as_array().unwrap().len();
        json["scores"] = ids.map(|id| json!(-((id / share) as f32))).collect();
        let path = temp.join("ties.gguf");
        fs::write(&path, with_sentencepiece(&json)).unwrap();
        check_sentencepiece(&format!("ties of {share}"), &ours(&metadata(&path)));
    }
}
