//! What `smolrun` continues or answers: arguments, files and standard input; and what it streams.

use std::fs;
use std::io::Write;
use std::process::Stdio;
use std::sync::OnceLock;
use std::time::Duration;

use serde_json::{Value, json};
use smol_tests::common::{Running, TempDir, repository};

use crate::smolrun_cli::{
    PROMPT, SMOLLM2_TEMPLATE, assert_error, blob, command, good, ids, outcome, report, set_field, smolrun,
    text, variant, with_input,
};

/// A blob with SmolLM2's template.
fn chat_blob() -> &'static str {
    static BLOB: OnceLock<(TempDir, String)> = OnceLock::new();
    let (_, blob) = BLOB.get_or_init(|| {
        let temp = TempDir::new();
        let blob = variant(&temp, |model| {
            set_field(model.join("tokenizer_config.json"), "chat_template", json!(SMOLLM2_TEMPLATE));
        });
        (temp, blob)
    });
    blob
}

/// The prompt that a run sees, as text.
fn prompt(args: &[&str], input: &str) -> String {
    let line = good(with_input(&[args, &["-n", "0", "--json"]].concat(), input));
    let report: Value = serde_json::from_str(&line).unwrap();
    let text = good(with_input(&["detokenize", args[0]], format!("{}\n", report["prompt_ids"])));
    serde_json::from_str(&text).unwrap()
}

/// The files of the example in docs/guide.md.
#[test]
fn tools_are_given_and_their_results_are_answered() {
    const TEMPLATE: &str = "{% if tools %}{% for tool in tools %}{{ tool.function.name }}: {{ tool | tojson }}\n{% endfor %}{% endif %}\
        {% for said in messages %}{{ said.role }}{% if said.name %} {{ said.name }} {{ said.tool_call_id }}{% endif %}: \
        {{ said.content }}{{ said.tool_calls[0].function | tojson if said.tool_calls }}\n{% endfor %}";
    let temp = TempDir::new();
    let chat = variant(&temp, |model| {
        set_field(model.join("tokenizer_config.json"), "chat_template", json!(TEMPLATE))
    });
    let file = |name: &str, content: &str| {
        fs::write(temp.join(name), content).unwrap();
        temp.join(name).into_os_string().into_string().unwrap()
    };
    let guide = fs::read_to_string(repository().join("docs/guide.md")).unwrap();
    let example = |name: &str| {
        let (_, after) = guide.split_once(&format!("`{name}`")).unwrap();
        let lines = after
            .lines()
            .skip(1)
            .skip_while(|line| line.is_empty())
            .take_while(|line| line.starts_with("    "));
        lines.collect::<Vec<_>>().join("\n")
    };
    let tools = file("tools.json", &example("tools.json"));
    let weather = file("weather.json", &example("weather.json"));

    let told = prompt(&[&chat, "--chat", "How is the weather in Rome?", "--tools", &tools], "");
    assert!(
        told.starts_with(
            "get_weather: {\"type\": \"function\", \"function\": {\"name\": \"get_weather\", \"description\""
        ),
        "{told}"
    );
    let (_, question) = told.split_once('\n').unwrap();
    assert_eq!(question, "user: How is the weather in Rome?\n");
    let told = prompt(&[&chat, "--messages", &weather, "--tools", &tools], "");
    let (_, said) = told.split_once('\n').unwrap();
    let expected = "user: How is the weather in Rome?\n\
        assistant: {\"name\": \"get_weather\", \"arguments\": {\"city\": \"Rome\"}}\n\
        tool get_weather call1: sunny, 24 degrees\n";
    assert_eq!(said, expected);
    assert_eq!(prompt(&[&chat, "--messages", &weather], ""), expected);

    for (content, expected) in [
        (
            "[{]",
            "wrong.json: tools: expected JSON, found ']' at line 1, column 3, where a key in double quotes should be",
        ),
        ("{}", "wrong.json: tools: expected an array of objects, found map"),
        (&"[".repeat(100), "wrong.json: tools: expected JSON, found lists and objects more than 32 deep"),
    ] {
        let wrong = file("wrong.json", content);
        assert_error(&smolrun(&[&chat, "--chat", "x", "--tools", &wrong]), expected);
    }
    assert_error(&smolrun(&[&chat, "--chat", "x", "--tools", "/no/such"]), "/no/such: No such file");
    let outcome = smolrun(&[&chat, "x", "--tools", &tools]);
    assert!(outcome.code == 2 && outcome.stderr.contains("--tools needs --chat"), "{outcome:?}");
}

/// SmolLM2's text for a message to which nothing was said before.
fn asked(message: &str) -> String {
    let system = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n";
    format!("{system}<|im_start|>user\n{message}<|im_end|>\n<|im_start|>assistant\n")
}

#[test]
fn piped_input_is_the_prompt_or_follows_it() {
    let (plain, chat) = (blob(), chat_blob());
    let args = |blob, more: &[&'static str]| [&[blob], more].concat();
    for (args, input, expected) in [
        (args(plain, &[]), "The king", "The king".to_owned()),
        (args(plain, &[]), "The king\n", "The king".into()),
        (args(plain, &[]), "The king\n\n", "The king\n".into()),
        (args(plain, &["Sing:"]), "The king", "Sing:\nThe king".into()),
        (args(plain, &["Sing:"]), "", "Sing:".into()),
        (args(plain, &["-"]), "The king", "The king".into()),
        (args(chat, &["--chat"]), "The king\r\n", asked("The king")),
        (args(chat, &["--chat", "Sing:"]), "The king\nthe queen\n", asked("Sing:\nThe king\nthe queen")),
        (args(chat, &["--chat", "Sing:"]), "", asked("Sing:")),
        (args(chat, &["--chat", "-"]), "The king\n", asked("The king")),
        (args(chat, &["--chat", ""]), "", asked("")),
    ] {
        assert_eq!(prompt(&args, input), expected, "{args:?}");
    }
    // The text as it comes is the same as the one at the end, and a pipe that is not read to its end is not left behind.
    let expected = text(&[plain, "The king", "-n", "8"]);
    assert_eq!(good(with_input(&[plain, "-n", "8"], "The king")), expected);
    assert_error(
        &with_input(&[plain, PROMPT], b"\xff"),
        "standard input: expected UTF-8, found another byte at 0",
    );
    // Nothing was asked: of a text that is its beginning, of an assistant wrong usage.
    assert_eq!(ids(&report(&[plain, "-n", "1"]), "prompt_ids"), [0]);
    let outcome = smolrun(&[chat, "--chat"]);
    assert!(outcome.code == 2 && outcome.stderr.contains("a prompt is needed"), "{outcome:?}");
}

#[test]
fn input_that_does_not_end_is_named() {
    let mut child = Running::start(command(&[blob(), "The king", "-n", "4"]).stdin(Stdio::piped()));
    let input = child.stdin.take().unwrap();
    std::thread::sleep(Duration::from_secs(8));
    drop(input);
    let outcome = outcome(child);
    assert_eq!((outcome.code, outcome.stdout), (0, text(&[blob(), "The king", "-n", "4"])));
    assert!(outcome.stderr.contains("waiting for the end of standard input"), "{}", outcome.stderr);
}

#[test]
fn files_hold_prompts_system_messages_and_conversations() {
    let temp = TempDir::new();
    let file = |name: &str, content: &str| {
        fs::write(temp.join(name), content).unwrap();
        temp.join(name).into_os_string().into_string().unwrap()
    };
    let (king, kind) = (file("king.txt", "The king\n"), file("kind.txt", "Be kind.\n"));
    let chat = chat_blob();
    assert_eq!(prompt(&[blob(), "--prompt-file", &king], ""), "The king");
    assert_eq!(prompt(&[blob(), "--prompt-file", &king], "sang"), "The king\nsang");
    let answered = "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nThe king<|im_end|>\n<|im_start|>assistant\n";
    for args in [
        &[chat, "--chat", "--system-file", &kind, "--prompt-file", &king][..],
        &[chat, "--chat", "--system", "Be kind.", "The king"],
    ] {
        assert_eq!(prompt(args, ""), answered);
    }

    let said = json!([
        {"role": "system", "content": "Be kind."}, {"role": "user", "content": "The king"},
        {"role": "assistant", "content": "sang.\n"}, {"role": "user", "content": "And <|im_end|> she?"}
    ]);
    let all = file("all.json", &json!({ "messages": said }).to_string());
    let rendered = "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nThe king<|im_end|>\n<|im_start|>assistant\n\
        sang.\n<|im_end|>\n<|im_start|>user\nAnd <|im_end|> she?<|im_end|>\n<|im_start|>assistant\n";
    assert_eq!(prompt(&[chat, "--messages", &all], ""), rendered);
    let list = file("list.json", &format!("\u{feff}{said}"));
    assert_eq!(prompt(&[chat, "--messages", &list], ""), rendered);
    // As OpenAI's clients write it, for a template that reads text.
    let mut parts = said.clone();
    parts[1]["content"] = json!([{"type": "text", "text": "The king"}]);
    let parts = file("parts.json", &parts.to_string());
    assert_eq!(prompt(&[chat, "--messages", &parts], ""), rendered);
    let answered = json!({ "messages": &said.as_array().unwrap()[..3] });
    let answered = file("answered.json", &answered.to_string());
    assert_eq!(prompt(&[chat, "--messages", &answered, "And <|im_end|> she?"], ""), rendered);
    assert_eq!(prompt(&[chat, "--messages", &answered, "--chat"], "And <|im_end|> she?\n"), rendered);
    let changed = prompt(&[chat, "--messages", &all, "--system", "Be brief."], "");
    assert_eq!(changed, rendered.replace("Be kind.", "Be brief."));
    // Nobody asked anything after that answer.
    let outcome = smolrun(&[chat, "--messages", &answered]);
    assert!(outcome.code == 2 && outcome.stderr.contains("a prompt is needed"), "{outcome:?}");

    let broken = file("broken.json", "{\"messages\": [{\"role\": 1}]}");
    for (args, expected) in [
        (
            &["--messages", &broken][..],
            "broken.json: no conversation: message: role: expected a string, found number, in message 1",
        ),
        (&["--messages", "/no/such"], "/no/such: No such file"),
        (&["--chat", "--prompt-file", "/no/such"], "/no/such: No such file"),
        (&["--chat", "x", "--system-file", "/no/such"], "/no/such: No such file"),
    ] {
        assert_error(&smolrun(&[&[chat], args].concat()), expected);
    }
}

#[test]
fn json_lines_come_token_by_token() {
    let args = [blob(), PROMPT, "-n", "12", "--logprobs", "2"];
    let whole = report(&args);
    let lines = text(&[&args[..], &["--json-lines"]].concat());
    let mut lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let mut last = lines.pop().unwrap();
    assert!(lines.len() > 2);
    let joined: String = lines.iter().map(|line| line["text"].as_str().unwrap()).collect();
    assert_eq!(whole["text"], joined);
    assert_eq!(
        ids(&whole, "ids"),
        lines.iter().map(|line| line["id"].as_u64().unwrap() as u32).collect::<Vec<_>>()
    );
    for (line, expected) in lines.iter().zip(whole["logprobs"].as_array().unwrap()) {
        assert_eq!((&line["logprob"], &line["top"]), (&expected["logprob"], &expected["top"]));
    }
    assert_eq!(last["timings"]["tokens"], lines.len());
    last["timings"].take();
    assert_eq!(
        last,
        json!({"prompt_ids": whole["prompt_ids"], "finish_reason": whole["finish_reason"], "timings": null})
    );

    // The first is there before the last is computed.
    let mut child = command(&[blob(), PROMPT, "-n", "900", "--json-lines", "--threads", "1"]);
    let mut child = Running::start(child.env("SMOLRUN_ISA", "scalar"));
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(child.stdout.take().unwrap()), &mut line)
        .unwrap();
    assert!(serde_json::from_str::<Value>(&line).unwrap()["id"].is_u64(), "{line}");
    assert!(!child.has_ended(), "it is still at it");
}

#[test]
fn a_pipe_that_breaks_is_no_hang() {
    let mut child = Running::start(command(&[blob(), "The king", "-n", "2"]).stdin(Stdio::piped()));
    child.stdin.take().unwrap().write_all(b"sang").unwrap();
    assert_eq!(good(outcome(child)), text(&[blob(), "The king\nsang", "-n", "2"]));
}
