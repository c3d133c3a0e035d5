//! What is refused, and by which words.

use serde_json::{Value, json};
use smolrun::format::{AddedToken, NO_TOKEN, TextRules};

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

fn split(regex: &str, behavior: &str, invert: bool) -> Value {
    json!({"type": "Split", "pattern": {"Regex": regex}, "behavior": behavior, "invert": invert})
}

/// GPT-2's pattern.
const WORDS: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

fn template(single: Value) -> Value {
    let tokens = json!({"<|end|>": {"id": "<|end|>", "ids": [4], "tokens": ["<|end|>"]}});
    json!({"type": "TemplateProcessing", "single": single, "pair": [], "special_tokens": tokens})
}

fn special(text: &str) -> Value {
    json!({"SpecialToken": {"id": text, "type_id": 0}})
}

fn text() -> Value {
    json!({"Sequence": {"id": "A", "type_id": 0}})
}

fn decoders(of: Value) -> Value {
    json!({"type": "Sequence", "decoders": of})
}

fn replace(pattern: &str, content: &str) -> Value {
    json!({"type": "Replace", "pattern": {"String": pattern}, "content": content})
}

/// As [`base`], of SentencePiece's kind.
fn metaspace_base() -> Value {
    let mut vocab: serde_json::Map<String, Value> =
        (0..=255u8).map(|byte| (format!("<0x{byte:02X}>"), json!(byte))).collect();
    vocab.extend(
        [("▁", 256), ("a", 257), ("▁a", 258), ("<s>", 259)].map(|(token, id)| (token.into(), json!(id))),
    );
    let strip = json!({"type": "Strip", "content": " ", "start": 1, "stop": 0});
    let fallback = [replace("▁", " "), json!({"type": "ByteFallback"}), json!({"type": "Fuse"}), strip];
    let mut json = base();
    json["added_tokens"] = json!([added(259, "<s>")]);
    json["normalizer"] =
        json!({"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, replace(" ", "▁")]});
    json["pre_tokenizer"] = json!(null);
    json["decoder"] = decoders(json!(fallback));
    json["model"]["vocab"] = vocab.into();
    json["model"]["merges"] = json!([["▁", "a"]]);
    json["model"]["unk_token"] = json!("<s>");
    json["model"]["byte_fallback"] = json!(true);
    json
}

fn compile_metaspace_with(path: &str, value: Value) -> Result<TokenizerTables, TokenizerError> {
    compile_changed(metaspace_base(), path, value, 260)
}

/// Compiles the base after `value` was put at `path` (`model.vocab`, `added_tokens.0.id`).
fn compile_with(path: &str, value: Value) -> Result<TokenizerTables, TokenizerError> {
    compile_changed(base(), path, value, 8)
}

fn compile_changed(
    mut json: Value,
    path: &str,
    value: Value,
    vocab_size: usize,
) -> Result<TokenizerTables, TokenizerError> {
    let (parent, field) = path.rsplit_once('.').unwrap_or(("", path));
    let pointer: String =
        parent.split('.').filter(|part| !part.is_empty()).map(|part| format!("/{part}")).collect();
    let parent = json.pointer_mut(&pointer).unwrap();
    match field.parse::<usize>() {
        Ok(index) => parent[index] = value,
        Err(_) => parent[field] = value,
    }
    compile(json.to_string().as_bytes(), vocab_size)
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
        (
            "pre_tokenizer",
            sequence(&[
                split(WORDS, "Isolated", false),
                json!({"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}),
            ]),
        ),
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
fn any_regex_that_an_automaton_can_follow_makes_a_stage() {
    let with = |regexes: &[&str]| {
        let splits = regexes.iter().map(|regex| split(regex, "Isolated", false));
        let parts: Vec<Value> = splits.chain([byte_level()]).collect();
        compile_with("pre_tokenizer", sequence(&parts)).map(|tables| tables.stages)
    };
    assert_eq!(with(&[r"[ab]+"]).unwrap()[0], with(&["(?:a|b)+"]).unwrap()[0]);
    assert_eq!(with(&["[\r\n]", r"\s+$"]).unwrap().len(), 3);
    let text = json!({"type": "Split", "pattern": {"String": "a+"}, "behavior": "Isolated", "invert": false});
    let text = compile_with("pre_tokenizer", sequence(&[text, byte_level()])).unwrap().stages;
    assert_eq!(text[0], with(&[r"a\+"]).unwrap()[0], "no regex");
    let error = with(&[r"\p{L}+ ?|\s+(?!\S)|\s+"]).unwrap_err().to_string();
    assert_eq!(
        error,
        r"the regex \p{L}+ ?: expected no match but that of the look-ahead to end in white space"
    );
    assert!(with(&["a*"]).unwrap_err().to_string().contains("expected no match of nothing"));
}

#[test]
fn what_is_not_supported_is_refused_by_name() {
    let unsupported = [
        ("version", json!("2.0"), "version: 2.0 is not supported, only 1.0"),
        ("truncation", json!({"max_length": 512}), "truncation: {\"max_length\":512} is not supported"),
        ("padding", json!({"pad_id": 0}), "padding: {\"pad_id\":0} is not supported"),
        ("normalizer", json!({"type": "NFD"}), "normalizer: NFD is not supported, only null or NFC"),
        (
            "normalizer",
            json!({"type": "Sequence", "normalizers": [{"type": "Lowercase"}]}),
            "normalizer: Lowercase",
        ),
        ("post_processor", json!({"type": "RobertaProcessing"}), "post_processor: RobertaProcessing"),
        ("post_processor", template(json!([special("<|end|>")])), "post_processor.single: <|end|>"),
        (
            "post_processor",
            template(json!([text(), text()])),
            "post_processor.single: something after the text",
        ),
        ("post_processor", template(json!([])), "post_processor.single: nothing"),
        ("decoder", json!({"type": "Metaspace"}), "decoder: Metaspace is not supported, only ByteLevel"),
        (
            "decoder",
            decoders(json!([{"type": "Fuse"}, {"type": "Strip"}])),
            "a Sequence of Fuse, Strip is not",
        ),
        ("decoder", json!(null), "decoder: null is not supported"),
        ("model.type", json!("Unigram"), "model.type: Unigram is not supported, only BPE"),
        ("model.dropout", json!(0.1), "model.dropout: 0.1"),
        ("model.unk_token", json!("<unk>"), "model.unk_token: \"<unk>\" is not supported"),
        ("model.continuing_subword_prefix", json!("##"), "model.continuing_subword_prefix: \"##\""),
        ("model.end_of_word_suffix", json!("</w>"), "model.end_of_word_suffix: \"</w>\""),
        ("model.byte_fallback", json!(true), "model.byte_fallback: true is not supported"),
        ("pre_tokenizer", json!(null), "pre_tokenizer: null is not supported"),
        ("pre_tokenizer", json!({"type": "Metaspace"}), "pre_tokenizer: Metaspace is not supported"),
        ("pre_tokenizer", digits(), "pre_tokenizer: Digits is not supported"),
        ("pre_tokenizer", sequence(&[]), "a Sequence that does not end in ByteLevel"),
        ("pre_tokenizer", sequence(&[byte_level(), digits()]), "a Sequence that does not end in ByteLevel"),
        (
            "pre_tokenizer",
            sequence(&[split(r"a(?=b)", "Isolated", false), byte_level()]),
            "pattern: the regex a(?=b) is not supported, only what both Oniguruma and the crate regex read (look-around",
        ),
        (
            "pre_tokenizer",
            sequence(&[split(r"a|\s+$", "Isolated", false), byte_level()]),
            r"pattern: the regex a|\s+$ is not supported, only no assertion but",
        ),
        (
            "pre_tokenizer",
            sequence(&[split(r"\s+$", "Isolated", false), byte_level()]),
            r"pattern: the regex \s+$ is not supported, only `$` after a split by [\r\n]",
        ),
        (
            "pre_tokenizer",
            sequence(&[split(&"a".repeat(5000), "Isolated", false), byte_level()]),
            "… is not supported, only one of at most 4096 bytes",
        ),
        ("pre_tokenizer", sequence(&[split(WORDS, "Removed", false), byte_level()]), "behavior: Removed"),
        ("pre_tokenizer", sequence(&[split(WORDS, "Isolated", true), byte_level()]), "invert: true"),
        (
            "pre_tokenizer",
            sequence(&[json!({"type": "Whitespace"}), byte_level()]),
            "Whitespace in a Sequence",
        ),
        ("pre_tokenizer", sequence(&[byte_level(), byte_level()]), "ByteLevel in a Sequence"),
        ("pre_tokenizer.add_prefix_space", json!(true), "pre_tokenizer.add_prefix_space: true"),
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
fn metaspace_texts_hold_spaces() {
    let tables = compile_metaspace_with("version", json!("1.0")).unwrap();
    assert!(tables.token_bytes.ends_with(b"\xff a a<s>"));
    assert_eq!(tables.byte_tokens[10], 10);
    assert_eq!(tables.char_tokens, [[u32::from(' '), 256], [u32::from('a'), 257]]);
    let legacy = TextRules::NORMALIZE_SPACE.with(TextRules::PREPEND_SPACE).with(TextRules::STRIP_SPACE);
    assert_eq!(tables.rules, legacy);
    assert_eq!((tables.stages.len(), tables.whole_words.len(), tables.prompt_prefix.len()), (0, 0, 0));
    let split = json!({"type": "Metaspace", "replacement": "▁", "add_prefix_space": true});
    let tables = compile_metaspace_with("pre_tokenizer", split).unwrap();
    assert_eq!(tables.stages.len(), 1);
    assert!(tables.rules.has(TextRules::METASPACE.with(TextRules::PREFIX_SPACE)));
}

#[test]
fn normalized_tokens_are_stored_as_they_are_looked_for() {
    let mut token = added(259, "<s>");
    token["normalized"] = json!(true);
    let tables = compile_metaspace_with("added_tokens", json!([token])).unwrap();
    assert!(tables.token_bytes.ends_with(b" a a <s>"));
}

#[test]
fn normalized_tokens_that_nfc_could_change_are_refused() {
    let with = |content: &str, special: bool| {
        let mut json = base();
        json["normalizer"] = json!({"type": "NFC"});
        json["added_tokens"][1] = added(5, content);
        json["added_tokens"][1]["normalized"] = json!(true);
        json["added_tokens"][1]["special"] = json!(special);
        compile(json.to_string().as_bytes(), 8).map_err(|error| error.to_string())
    };
    assert!(with("<b>", true).unwrap().rules.has(TextRules::NFC));
    assert!(with("<K>", false).is_ok());
    for (content, special) in [("日", false), ("<K>", true)] {
        let error = with(content, special).unwrap_err();
        assert!(error.contains(".normalized: true is not supported"), "{error}");
    }
}

#[test]
fn words_that_merges_do_not_make_are_listed() {
    let mut json = base();
    json["model"]["ignore_merges"] = json!(true);
    json["model"]["vocab"]["aa"] = json!(5);
    json["added_tokens"] = json!([added(4, "<|end|>")]);
    let tables = compile(json.to_string().as_bytes(), 8).unwrap();
    assert_eq!(tables.whole_words, [4, 5], "<|end|> before aa; the merge makes Ġa");
}

#[test]
fn a_template_names_what_a_prompt_begins_with() {
    let sequence = |parts: Value| json!({"type": "Sequence", "processors": parts});
    let with = |value| compile_with("post_processor", value);
    let prefix = json!([special("<|end|>"), text()]);
    assert_eq!(with(template(prefix.clone())).unwrap().prompt_prefix, [4]);
    let both = sequence(json!([byte_level(), template(prefix.clone())]));
    assert_eq!(with(both).unwrap().prompt_prefix, [4]);
    let twice = sequence(json!([template(prefix.clone()), template(prefix.clone())]));
    assert!(with(twice).unwrap_err().to_string().contains("one TemplateProcessing"));
    let mut unknown = template(prefix);
    unknown["special_tokens"]["<|end|>"]["ids"] = json!([9]);
    assert!(with(unknown).unwrap_err().to_string().contains("expected ids below 6"));
    let missing = template(json!([special("<b>"), text()]));
    assert!(with(missing).unwrap_err().to_string().contains("an entry for each token, found <b>"));
}

#[test]
fn what_is_not_supported_of_metaspace_is_refused_by_name() {
    let metaspace = |field: &str, value: Value| {
        let mut component = json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first"});
        component[field] = value;
        component
    };
    let cases = [
        ("normalizer", json!(null), "pre_tokenizer: null is not supported"),
        ("normalizer", json!({"type": "NFC"}), "normalizer: NFC is not supported"),
        ("normalizer.normalizers.0.prepend", json!("_"), "normalizer.prepend: \"_\""),
        ("normalizer.normalizers.1", replace("a", "▁"), "normalizer.Replace: \"a\" by \"▁\""),
        ("pre_tokenizer", byte_level(), "pre_tokenizer: ByteLevel is not supported, only null or Metaspace"),
        ("pre_tokenizer", metaspace("replacement", json!("_")), "pre_tokenizer.replacement: \"_\""),
        ("pre_tokenizer", metaspace("prepend_scheme", json!("last")), "pre_tokenizer.prepend_scheme: last"),
        ("pre_tokenizer", metaspace("add_prefix_space", json!(false)), "prepend_scheme: expected never"),
        ("decoder.decoders.0", replace("_", " "), "decoder.Replace: \"_\" by \" \""),
        ("decoder.decoders.0.pattern", json!({"Regex": "▁"}), "decoder.Replace: the regex ▁ by"),
        ("decoder.decoders.3.start", json!(2), "decoder.Strip: \" \" 2 and 0 times"),
        ("model.byte_fallback", json!(false), "model.byte_fallback: false is not supported, only true"),
        ("model.ignore_merges", json!(true), "model.ignore_merges: true is not supported"),
        (
            "model.vocab",
            json!({"▁": 0, "a": 1, "▁a": 2, "<s>": 3}),
            "model.byte_fallback: a vocabulary without some",
        ),
        ("added_tokens.0.content", json!("▁"), "after decoding"),
        ("model.merges", json!([["<0x41>", "a"]]), "expected tokens that name no byte"),
    ];
    for (path, value, message) in cases {
        let mut json = metaspace_base();
        if path == "model.vocab" || message.ends_with("decoding") {
            json["added_tokens"] = json!([added(if path == "model.vocab" { 3 } else { 256 }, "<s>")]);
        }
        let error = compile_changed(json, path, value, 300).unwrap_err().to_string();
        assert!(error.contains(message), "{error}, not {message}");
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
