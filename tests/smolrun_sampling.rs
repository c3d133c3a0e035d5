//! How `smolrun` chooses tokens where nobody says how: answers by what the checkpoint recommends, texts greedily.

use serde_json::{Value, json};
use smol_tests::common::TempDir;

use crate::smolrun_cli::{blob, good, report, set_field, smolrun, text, variant};

/// A template that leaves a text as it is, so that the model has something to say.
const TEMPLATE: &str = "{{ messages[0].content }}";

/// A chat model whose checkpoint has these fields in its generation_config.json.
fn with_generation(temp: &TempDir, fields: &Value) -> String {
    variant(temp, |model| {
        set_field(model.join("tokenizer_config.json"), "chat_template", json!(TEMPLATE));
        for (name, value) in fields.as_object().unwrap() {
            set_field(model.join("generation_config.json"), name, value.clone());
        }
    })
}

#[test]
fn an_answer_is_drawn_as_the_checkpoint_recommends() {
    let cases: [(Value, &[&str]); 6] = [
        (json!({}), &["--temperature", "0.7", "--top-p", "0.9"]),
        (
            json!({"do_sample": true, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "repetition_penalty": 1.1}),
            &["--temperature", "0.6", "--top-k", "20", "--top-p", "0.95", "--repetition-penalty", "1.1"],
        ),
        (json!({"do_sample": true}), &["--temperature", "1", "--top-k", "50", "--top-p", "1"]),
        (json!({"do_sample": false, "temperature": 0.6}), &["--temperature", "0"]),
        (
            json!({"repetition_penalty": 1.5}),
            &["--temperature", "0.7", "--top-p", "0.9", "--repetition-penalty", "1.5"],
        ),
        // Nonsense is no reason not to convert, nor to run.
        (
            json!({"temperature": -3, "top_k": 1e30, "top_p": 7, "repetition_penalty": "much"}),
            &["--temperature", "0.7", "--top-p", "0.9"],
        ),
    ];
    for (fields, explicit) in cases {
        let temp = TempDir::new();
        let blob = with_generation(&temp, &fields);
        let all = ["--temperature", "0", "--top-k", "0", "--top-p", "1", "--repetition-penalty", "1"];
        let neutral = all.chunks(2).filter(|option| !explicit.contains(&option[0])).flatten().copied();
        let explicit: Vec<&str> = explicit.iter().copied().chain(neutral).collect();
        let ask = |more: &[&str]| {
            text(&[&[&blob, "--chat", "Once upon a time", "-n", "48", "--seed", "3"], more].concat())
        };
        assert_eq!(ask(&[]), ask(&explicit), "{fields}");
        // What is said counts, and 0 stays exact.
        let greedy = text(&[&blob, "Once upon a time", "-n", "48", "--special"]);
        let neutral = ["--temperature", "0", "--repetition-penalty", "1"];
        assert_eq!(ask(&neutral), greedy, "{fields}");
    }
}

#[test]
fn a_seed_is_random_for_answers_and_told() {
    let temp = TempDir::new();
    let chat = with_generation(&temp, &json!({}));
    let ask = |more: &[&str]| report(&[&[&chat, "--chat", "Once upon a time", "-n", "32"], more].concat());
    let (first, second) = (ask(&[]), ask(&[]));
    assert_ne!(first["seed"], second["seed"]);
    assert_ne!(first["text"], second["text"]);
    let seed = first["seed"].to_string();
    assert_eq!(
        ask(&["--seed", &seed])["text"],
        first["text"],
        "the seed that was told gives the same answer"
    );
    let told = smolrun(&[&chat, "--chat", "Once upon a time", "-n", "4", "--stats"]);
    let expected = "chosen by     temperature 0.7, top-p 0.9, seed ";
    assert!(told.code == 0 && told.stderr.contains(expected), "{told:?}");

    // A text's continuation is what it always was, unless it is asked to be another.
    let continued = |more: &[&str]| report(&[&[blob(), "Once upon a time", "-n", "32"], more].concat());
    assert_eq!(continued(&[])["text"], continued(&[])["text"]);
    assert!(continued(&[]).get("seed").is_none());
    assert_eq!(continued(&["--temperature", "1"])["seed"], 0);
    let random = ["--temperature", "1", "--seed", "random"];
    let (one, other) = (continued(&random), continued(&random));
    assert!(one["seed"] != other["seed"] && one["text"] != other["text"], "{one} {other}");
    assert_eq!(
        good(smolrun(&[blob(), "Once", "-n", "2", "--seed", "random"])),
        text(&[blob(), "Once", "-n", "2"])
    );
}
