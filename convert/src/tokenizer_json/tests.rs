//! What is refused, and by which words.

use serde_json::{Value, json};
use smolrun::format::{AddedToken, NO_TOKEN};

use super::{TokenizerError, TokenizerTables, compile};

/// A tokenizer that compiles: every change below breaks one thing in it.
fn base() -> Value {
    json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "post_processor": null,
        "added_tokens": [added(4, "<|end|>"), added(5, "<b>")],
        "pre_tokenizer": byte_level(), "decoder": byte_level(),
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "fuse_unk": false,
            "vocab": {"Ġ": 0, "a": 1, "Ġa": 2, "é": 3, "<|end|>": 4}, "merges": [["Ġ", "a"]],
        },
    })
}

fn added(id: u32, content: &str) -> Value {
    json!({
        "id": id, "content": content, "special": true,
        "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
    })
}

fn byte_level() -> Value {
    json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true})
}

fn digits() -> Value {
    json!({"type": "Digits", "individual_digits": true})
}

fn sequence(of: &[Value]) -> Value {
    json!({"type": "Sequence", "pretokenizers": of})
}

/// Compiles the base after `value` was put at `path` (`model.vocab`, `added_tokens.0.id`).
fn compile_with(path: &str, value: Value) -> Result<TokenizerTables, TokenizerError> {
    let mut json = base();
    let (parent, field) = path.rsplit_once('.').unwrap_or(("", path));
    let pointer: String =
        parent.split('.').filter(|part| !part.is_empty()).map(|part| format!("/{part}")).collect();
    json.pointer_mut(&pointer).unwrap()[field] = value;
    compile(json.to_string().as_bytes(), 8)
}

#[test]
fn the_base_compiles() {
    let tables = compile(base().to_string().as_bytes(), 8).unwrap();
    assert_eq!(tables.token_bytes, b" a a\xe9<|end|><b>");
    assert_eq!(tables.token_offsets, [0, 1, 2, 4, 5, 12, 15, 15, 15], "the last two are empty");
    assert_eq!(tables.token_count, 6);
    let known = |byte: u8| tables.byte_tokens[usize::from(byte)];
    assert_eq!([known(b' '), known(b'a'), known(0xe9), known(b'b')], [0, 1, 3, NO_TOKEN]);
    let merges: Vec<[u32; 4]> = tables.merges.iter().copied().filter(|slot| slot[0] != NO_TOKEN).collect();
    assert_eq!(merges, [[0, 1, 0, 2]]);
    assert_eq!(tables.added_tokens, [[5, AddedToken::SPECIAL], [4, AddedToken::SPECIAL]], "< b before < |");
    assert_eq!(tables.stages.len(), 1);
}

#[test]
fn what_has_no_effect_is_accepted() {
    let base = compile(base().to_string().as_bytes(), 8).unwrap();
    let harmless = [
        ("model.merges", json!(["#version: 0.2", "Ġ a"])),
        ("model.dropout", json!(0.0)),
        ("model.end_of_word_suffix", json!("")),
        ("model.ignore_merges", json!(false)),
        ("post_processor", byte_level()),
        ("decoder.add_prefix_space", json!(true)),
        ("pre_tokenizer", sequence(&[byte_level()])),
    ];
    for (path, value) in harmless {
        assert_eq!(compile_with(path, value).unwrap(), base, "{path}");
    }
}

#[test]
fn unk_token_matters_only_where_a_byte_is_missing() {
    let mut json = base();
    json["model"]["unk_token"] = json!("<unk>");
    let error = compile(json.to_string().as_bytes(), 300).unwrap_err().to_string();
    assert!(error.contains("model.unk_token: \"<unk>\" is not supported"), "{error}");
    for (byte, id) in (0..=255u8).zip(0..) {
        json["model"]["vocab"][super::alphabet::char_of(byte).to_string()] = json!(id);
    }
    json["model"]["vocab"]["Ġa"] = json!(256);
    json["model"]["vocab"]["<|end|>"] = json!(257);
    json["added_tokens"] = json!([]);
    assert!(compile(json.to_string().as_bytes(), 300).is_ok());
}

#[test]
fn digits_make_a_stage_of_their_own() {
    let with = |value| compile_with("pre_tokenizer", value).unwrap().stages;
    let alone = with(byte_level());
    let individual = with(sequence(&[digits(), byte_level()]));
    let runs = with(sequence(&[json!({"type": "Digits", "individual_digits": false}), byte_level()]));
    assert_eq!((individual.len(), runs.len()), (2, 2));
    assert_eq!((&individual[1], &runs[1]), (&alone[0], &alone[0]));
    assert_ne!(individual[0], runs[0]);
}

#[test]
fn what_is_not_supported_is_refused_by_name() {
    let unsupported = [
        ("version", json!("2.0"), "version: 2.0 is not supported, only 1.0"),
        ("truncation", json!({"max_length": 512}), "truncation: {\"max_length\":512} is not supported"),
        ("padding", json!({"pad_id": 0}), "padding: {\"pad_id\":0} is not supported"),
        ("normalizer", json!({"type": "NFC"}), "normalizer: NFC is not supported, only null"),
        ("post_processor", json!({"type": "TemplateProcessing"}), "post_processor: TemplateProcessing"),
        ("decoder", json!({"type": "Metaspace"}), "decoder: Metaspace is not supported, only ByteLevel"),
        ("decoder", json!(null), "decoder: null is not supported"),
        ("model.type", json!("Unigram"), "model.type: Unigram is not supported, only BPE"),
        ("model.dropout", json!(0.1), "model.dropout: 0.1"),
        ("model.unk_token", json!("<unk>"), "model.unk_token: \"<unk>\" is not supported"),
        ("model.continuing_subword_prefix", json!("##"), "model.continuing_subword_prefix: \"##\""),
        ("model.end_of_word_suffix", json!("</w>"), "model.end_of_word_suffix: \"</w>\""),
        ("model.byte_fallback", json!(true), "model.byte_fallback: true is not supported"),
        ("model.ignore_merges", json!(true), "model.ignore_merges: true is not supported"),
        ("pre_tokenizer", json!(null), "pre_tokenizer: null is not supported"),
        ("pre_tokenizer", json!({"type": "Metaspace"}), "pre_tokenizer: Metaspace is not supported"),
        ("pre_tokenizer", digits(), "pre_tokenizer: Digits is not supported"),
        ("pre_tokenizer", sequence(&[]), "a Sequence that does not end in ByteLevel"),
        ("pre_tokenizer", sequence(&[byte_level(), digits()]), "a Sequence that does not end in ByteLevel"),
        ("pre_tokenizer", sequence(&[json!({"type": "Split"}), byte_level()]), "Split in a Sequence"),
        ("pre_tokenizer", sequence(&[byte_level(), byte_level()]), "ByteLevel in a Sequence"),
        ("pre_tokenizer.add_prefix_space", json!(true), "pre_tokenizer.add_prefix_space: true"),
        ("pre_tokenizer.use_regex", json!(false), "pre_tokenizer.use_regex: false"),
        ("added_tokens.0.lstrip", json!(true), "added_tokens[0].lstrip, \"<|end|>\": true is not supported"),
        ("added_tokens.0.rstrip", json!(true), "added_tokens[0].rstrip"),
        ("added_tokens.1.single_word", json!(true), "added_tokens[1].single_word, \"<b>\": true"),
        ("added_tokens.1.content", json!("ü"), "added_tokens[1].content, \"ü\": \"\\xfc\" after decoding"),
    ];
    for (path, value, message) in unsupported {
        let error = compile_with(path, value).unwrap_err();
        assert!(matches!(error, TokenizerError::Unsupported { .. }), "{path}: {error:?}");
        assert!(error.to_string().contains(message), "{error}, not {message}");
    }
}

#[test]
fn what_contradicts_itself_is_an_error() {
    let invalid = [
        (
            "model.vocab.a",
            json!(9),
            "model.vocab: expected ids below 5, the number of tokens, found 9 for \"a\"",
        ),
        ("model.vocab.a", json!(0), "model.vocab: expected an id of its own for each token, found 0 for"),
        (
            "model.merges",
            json!([["a", "Ġ"]]),
            "model.merges[0]: expected a token of the vocabulary, found \"aĠ\"",
        ),
        ("model.merges", json!([["b", "a"]]), "found \"b\", of \"b\" and \"a\""),
        ("model.merges", json!([["Ġ", "a"], ["Ġ", "a"]]), "model.merges[1]: expected a pair of its own"),
        ("model.merges", json!(["Ġ a a"]), "model.merges[0]: expected two tokens and a space between"),
        ("model.merges", json!(["Ġa"]), "model.merges[0]: expected two tokens and a space between"),
        ("added_tokens.0.id", json!(3), "added_tokens[0], \"<|end|>\": expected id 4, found 3"),
        ("added_tokens.1.id", json!(7), "added_tokens[1], \"<b>\": expected id 5, found 7"),
        (
            "added_tokens.1.content",
            json!("<|end|>"),
            "added_tokens[1], \"<|end|>\": expected a text of its own",
        ),
        ("added_tokens.1.content", json!(""), "added_tokens[1].content, \"\": expected text, found none"),
    ];
    for (path, value, message) in invalid {
        let error = compile_with(path, value).unwrap_err();
        assert!(matches!(error, TokenizerError::Invalid { .. }), "{path}: {error:?}");
        assert!(error.to_string().contains(message), "{error}, not {message}");
    }
}

#[test]
fn merges_outside_the_alphabet_are_an_error() {
    let mut json = base();
    json["model"]["vocab"] = json!({"Ġ": 0, "日": 1, "Ġ日": 2});
    json["model"]["merges"] = json!([["Ġ", "日"]]);
    json["added_tokens"] = json!([]);
    let error = compile(json.to_string().as_bytes(), 8).unwrap_err().to_string();
    assert!(error.contains("model.merges[0]: expected tokens in the byte-level alphabet"), "{error}");
}

#[test]
fn more_tokens_than_the_model_has_are_an_error() {
    let json = base().to_string();
    assert!(compile(json.as_bytes(), 6).is_ok());
    let error = compile(json.as_bytes(), 5).unwrap_err().to_string();
    assert!(error.contains("expected at most vocab_size tokens, 5, found 6"), "{error}");
}

#[test]
fn other_shapes_are_json_errors() {
    let shapes = [
        ("model.vocab", json!([["a", 0.5]])),
        ("model.vocab.a", json!(-1)),
        ("model.merges", json!([["a"]])),
        ("model.merges", json!([["a", "b", "c"]])),
        ("added_tokens.0.content", json!(null)),
        ("pre_tokenizer.add_prefix_space", json!("no")),
    ];
    for (path, value) in shapes {
        let error = compile_with(path, value).unwrap_err();
        assert!(matches!(error, TokenizerError::Json(_)), "{path}: {error:?}");
    }
    assert!(matches!(compile(b"{", 8), Err(TokenizerError::Json(_))));
}
