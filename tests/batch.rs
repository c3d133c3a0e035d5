//! `smolrun batch`: from requests in one file to results in another, whatever happens in between.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use serde_json::{Value, json};
use smol_tests::common::counting::Random;
use smol_tests::common::{Outcome, Running, TALES, TempDir, blob, program, run, tales_with_template};
use smolrun::chat::ChatOptions;
use smolrun::{GenerateOptions, Message, Model, Sampling, Session, SessionOptions};

const TEMPLATE: &str = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}\
    {% if tools %}{{ tools | tojson }}\n{% endif %}assistant:";

/// A batch with its files.
struct Batch {
    temp: TempDir,
    blob: PathBuf,
}

impl Batch {
    fn new(lines: &[impl AsRef<str>]) -> Batch {
        let batch = Batch { temp: TempDir::new(), blob: blob(TALES) };
        let text: String = lines.iter().map(|line| format!("{}\n", line.as_ref())).collect();
        fs::write(batch.input(), text).unwrap();
        batch
    }

    fn input(&self) -> PathBuf {
        self.temp.join("in.jsonl")
    }

    fn out(&self, name: &str) -> PathBuf {
        self.temp.join(name)
    }

    fn command(&self, out: &str, options: &[&str]) -> Command {
        // A shell starts background jobs with interrupts ignored, and this test may be part of one.
        let mut command = Command::new("env");
        command.arg("--default-signal=INT").arg(program("smolrun"));
        command.arg("batch").args([&self.blob, &self.input()]).arg("-o").arg(self.out(out)).args(options);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Runs to the end.
    fn run(&self, out: &str, options: &[&str]) -> Outcome {
        Running::start(&mut self.command(out, options)).wait_with_output().into()
    }

    /// Runs to the end, and well; what OUT then holds.
    fn results(&self, out: &str, options: &[&str]) -> String {
        let outcome = self.run(out, options);
        assert_eq!(outcome.code, 0, "{}", outcome.stderr);
        fs::read_to_string(self.out(out)).unwrap()
    }
}

fn parsed(results: &str) -> Vec<Value> {
    results.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Requests of every length, some of which begin alike and some of which are none.
fn many(count: usize) -> Vec<String> {
    let mut random = Random(7);
    let beginning =
        "There was once a miller who had three sons, and when he died he left them his mill. ".repeat(2);
    (0..count)
        .map(|i| {
            let prompt = ["The king", "Once upon a time", "A fox", &beginning][random.below(4)];
            let request = json!({
                "custom_id": format!("request-{i}"), "prompt": format!("{prompt} {i}"),
                "max_tokens": 1 + random.below(40), "temperature": random.below(2), "top_p": 0.9,
            });
            if random.below(12) == 0 { format!("{{ no request {i}") } else { request.to_string() }
        })
        .collect()
}

#[test]
fn each_line_gets_what_a_session_of_its_own_gives() {
    let temp = TempDir::new();
    let blob = tales_with_template(&temp, TEMPLATE);
    let messages = json!([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "A fox?"}]);
    let parts = json!([{"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "A fox?"}]}]);
    // In an order of its own, which is kept.
    let tools = r#"[{"type": "function", "function": {"name": "now", "parameters": {"b": 1, "a": 2}}}]"#;
    // The first two are as in OpenAI's documentation of its batches, with another model's name.
    let lines = [
        json!({"custom_id": "request-1", "method": "POST", "url": "/v1/chat/completions",
            "body": {"model": "tales", "messages": messages, "max_tokens": 12, "temperature": 0}}).to_string(),
        json!({"custom_id": "request-2", "method": "POST", "url": "/v1/completions", "body": {"model": "tales",
            "prompt": "The king", "max_tokens": 9, "temperature": 0.8, "top_p": 0.9, "frequency_penalty": 0.5,
            "presence_penalty": null, "seed": 5, "stop": [".", "!"], "n": 1, "stream": false, "user": "x",
            "logit_bias": {"17": -100, "300": 2.5}, "logprobs": 2}}).to_string(),
        format!(
            r#"{{"custom_id": "c", "messages": {messages}, "tools": {tools}, "max_completion_tokens": 5, "seed": null}}"#
        ),
        json!({"prompt": [5, 6, 700], "max_tokens": 4, "ignore_eos": true, "top_k": 40, "temperature": 1}).to_string(),
        json!({"custom_id": "e", "prompt": "A fox", "max_tokens": 3, "stop": "x", "logprobs": true,
            "top_logprobs": 1, "priority": 5, "response_format": {"type": "text"}}).to_string(),
        // A client that writes parts, and a model that may not call its tools.
        format!(
            r#"{{"custom_id": "f", "messages": {parts}, "tools": {tools}, "tool_choice": "none", "max_tokens": 5}}"#
        ),
    ];
    let batch = Batch { temp, blob: blob.clone() };
    // As editors on Windows save a file.
    fs::write(batch.input(), format!("\u{feff}{}", lines.join("\r\n"))).unwrap();
    let results = parsed(&batch.results("out.jsonl", &["--seed", "100", "--temperature", "0"]));
    assert_eq!(results.len(), 6);

    let model = Model::open(&blob).unwrap();
    let conversation = Message::list_from_json(&messages.to_string()).unwrap();
    let with_tools = ChatOptions::default().tools(tools).unwrap();
    let drawn = |temperature: f32, seed: u64| Sampling::default().temperature(temperature).seed(seed);
    let options = |most: usize| GenerateOptions::default().max_tokens(most);
    let biased = drawn(0.8, 5).top_p(0.9).frequency_penalty(0.5).logit_bias([(17, -100.0), (300, 2.5)]);
    let no_end = model.config().eos_token_ids.iter().map(|&id| (id, f32::NEG_INFINITY)).collect::<Vec<_>>();
    let expected = [
        (model.encode_chat(&conversation).unwrap(), options(12)),
        (model.encode_prompt("The king").unwrap(), options(9).sampling(biased).stop([".", "!"]).logprobs(2)),
        (model.encode_chat_with(&conversation, &with_tools).unwrap(), options(5)),
        (vec![5, 6, 700], options(4).sampling(drawn(1.0, 104).top_k(40).logit_bias(no_end))),
        (model.encode_prompt("A fox").unwrap(), options(3).stop(["x"]).logprobs(1)),
        (model.encode_chat(&conversation).unwrap(), options(5)),
    ];
    for (index, (prompt, options)) in expected.into_iter().enumerate() {
        let (result, counts) = (&results[index], options.logprobs);
        let mut session = Session::new(&model, SessionOptions::default()).unwrap();
        let tokens: Vec<_> = session.generate(&prompt, options).unwrap().map(Result::unwrap).collect();
        let text: String = tokens.iter().map(|token| token.text.as_str()).collect();
        let ids: Vec<u32> = tokens.iter().map(|token| token.id).collect();
        let reason = tokens.last().unwrap().finish_reason.unwrap().name();
        assert_eq!((&result["text"], &result["ids"]), (&json!(text), &json!(ids)), "{index}");
        assert_eq!((&result["finish_reason"], &result["line"]), (&json!(reason), &json!(index + 1)));
        let usage = json!({"prompt_tokens": prompt.len(), "completion_tokens": ids.len(),
            "total_tokens": prompt.len() + ids.len()});
        assert_eq!(result["usage"], usage);
        let logprobs = result.get("logprobs").map(|list| list.as_array().unwrap().len());
        assert_eq!(logprobs, counts.map(|_| ids.len()));
        if let Some(count) = counts {
            assert_eq!(result["logprobs"][0]["top"].as_array().unwrap().len(), count);
            let of = tokens[0].logprobs.as_ref().unwrap().logprob;
            assert_eq!(result["logprobs"][0]["logprob"].as_f64().unwrap() as f32, of);
        }
    }
    let ids: Vec<_> = results.iter().map(|result| result["custom_id"].as_str()).collect();
    assert_eq!(ids, [Some("request-1"), Some("request-2"), Some("c"), None, Some("e"), Some("f")]);
}

#[test]
fn a_bad_line_gives_an_error_record_and_nothing_else() {
    let body =
        |body: Value| json!({"custom_id": "x", "method": "POST", "url": "/v1/completions", "body": body});
    let plain = |mut fields: Value| {
        fields["custom_id"] = json!("x");
        if fields.get("messages").is_none() && fields.get("prompt").is_none() {
            fields["prompt"] = json!("A fox");
        }
        fields.to_string()
    };
    let cases = [
        ("[1]".into(), "bad_request", "expected a JSON object: "),
        (
            "{\"prompt\": \"x\"".into(),
            "bad_request",
            "expected a JSON object: EOF while parsing an object at column 14",
        ),
        (r#"{"custom_id": 7, "prompt": "x"}"#.into(), "bad_request", "custom_id: expected a string, found 7"),
        (r#"{"custom_id": "x"}"#.into(), "bad_request", "expected a prompt or messages, found neither"),
        (
            plain(json!({"messages": [], "prompt": "x"})),
            "bad_request",
            "expected a prompt or messages, found both",
        ),
        (plain(json!({"messages": {"role": "user"}})), "argument", "messages: expected an array"),
        (
            plain(json!({"messages": [{"role": "user", "content": "Hi"}]})),
            "chat_template",
            "the blob has none",
        ),
        (
            plain(json!({"prompt": ["x"]})),
            "bad_request",
            "prompt: expected a string or an array of token ids",
        ),
        (plain(json!({"prompt": [1, 4096]})), "argument.token_id", "token id 4096"),
        (plain(json!({"prompt": []})), "argument", "tokens: expected at least one"),
        (plain(json!({"prompt": vec![1; 1025]})), "context_full", "1025 tokens do not fit"),
        (plain(json!({"prompt": "A fox ".repeat(2000)})), "text_too_long", "does not fit"),
        (
            plain(json!({"max_tokens": -1})),
            "bad_request",
            "max_tokens: expected a whole number from 0 up, found -1",
        ),
        (
            plain(json!({"priority": 200})),
            "bad_request",
            "priority: expected a whole number from -128 to 127, found 200",
        ),
        (plain(json!({"temperature": -1})), "argument", "temperature: expected a finite number"),
        (
            plain(json!({"temperature": "hot"})),
            "bad_request",
            "temperature: expected a number, found \"hot\"",
        ),
        (plain(json!({"stop": [1]})), "bad_request", "stop: expected a string or an array of strings"),
        (plain(json!({"stop": ""})), "argument", "stop: expected texts that are not empty"),
        (plain(json!({"seed": 0.5})), "bad_request", "seed: expected a whole number of 64 bits, found 0.5"),
        (
            "{\"custom_id\": \"x\", \"prompt\": \"x\", \"seed\": 18446744073709551616}".into(),
            "bad_request",
            "found 18446744073709551616",
        ),
        (plain(json!({"logit_bias": {"a": 1}})), "bad_request", "logit_bias: expected an object of numbers"),
        (plain(json!({"logit_bias": {"99999": 1}})), "argument.token_id", "token id 99999"),
        (plain(json!({"top_logprobs": 1})), "bad_request", "top_logprobs: expected \"logprobs\": true"),
        (plain(json!({"logprobs": true, "top_logprobs": 21})), "bad_request", "from 0 to 20, found 21"),
        (
            plain(json!({"logprobs": 1_000_000})),
            "bad_request",
            "logprobs: expected a whole number from 0 to 20",
        ),
        (plain(json!({"n": 2})), "unsupported", "n: expected 1, found 2"),
        (
            plain(json!({"tool_choice": "required"})),
            "unsupported",
            "tool_choice: expected \"auto\" or \"none\"",
        ),
        (
            plain(json!({"response_format": {"type": "json_object"}})),
            "unsupported",
            "response_format: expected",
        ),
        (plain(json!({"guided_regex": "x"})), "unsupported", "guided_regex: no such option here"),
        (plain(json!({"tools": []})), "bad_request", "tools: expected messages beside them"),
        (body(json!({"messages": []})).to_string(), "bad_request", "body: expected prompt, found none"),
        (body(json!([])).to_string(), "bad_request", "body: expected an object, found []"),
        (
            body(json!({"prompt": "x"})).to_string().replace("POST", "GET"),
            "unsupported",
            "method: expected POST, found GET",
        ),
        (body(json!({})).to_string().replace("completions", "embeddings"), "unsupported", "url: expected"),
        (plain(json!({"body": {"prompt": "x"}})), "unsupported", "prompt: not known beside a body"),
        (format!("{{\"prompt\": \"{}\"}}", "x".repeat(16 << 20)), "line_too_long", "at most 16777216 bytes"),
        ("{\"prompt\": \"\u{1}\"}".into(), "bad_request", "control character"),
    ];
    let good = r#"{"custom_id": "good", "prompt": "A fox", "max_tokens": 2}"#;
    let lines: Vec<&str> = cases.iter().flat_map(|(line, ..)| [good, "", line.as_str(), " \t\r"]).collect();
    let batch = Batch::new(&lines);
    let text = [fs::read(batch.input()).unwrap(), b"{\"prompt\": \"\xff\"}\n".to_vec()].concat();
    fs::write(batch.input(), text).unwrap();
    let outcome = batch.run("out.jsonl", &[]);
    let told = format!("{} of {} requests failed: the results say why", cases.len() + 1, 2 * cases.len() + 1);
    assert!(outcome.code == 0 && outcome.stderr.contains(&told), "{outcome:?}");
    let results = parsed(&fs::read_to_string(batch.out("out.jsonl")).unwrap());
    assert_eq!(results.len(), 2 * cases.len() + 1);
    assert_eq!(results[2 * cases.len()]["error"]["code"], "bad_request", "no UTF-8");
    for (index, (line, code, message)) in cases.iter().enumerate() {
        let (good, bad) = (&results[2 * index], &results[2 * index + 1]);
        assert_eq!((&good["line"], &good["text"]), (&json!(4 * index + 1), &results[0]["text"]));
        assert_eq!(bad["line"], 4 * index + 3);
        assert_eq!(bad["error"]["code"], *code, "{bad}");
        assert!(bad["error"]["message"].as_str().unwrap().contains(message), "{bad}");
        assert!(bad.get("text").is_none() && bad.as_object().unwrap().len() == 3);
        let is_named = line.replace(' ', "").contains("\"custom_id\":\"x\"");
        assert_eq!(bad["custom_id"], if is_named { json!("x") } else { Value::Null }, "{bad}");
    }
}

/// Killed twenty times at moments at random, in every stage, it ends with the bytes of a run that nothing disturbed.
#[test]
fn a_batch_that_is_killed_goes_on_to_the_same_bytes() {
    let batch = Batch::new(&many(160));
    let expected = batch.results("expected.jsonl", &["--threads", "1"]);
    assert_eq!(expected.lines().count(), 160);
    let mut random = Random(3);
    let out = batch.out("out.jsonl");
    let found = || fs::read_to_string(&out).unwrap_or_default();
    let mut on_the_way = 0;
    for _ in 0..20 {
        // Some results later, or before there are any.
        let goal = found().lines().count() + random.below(12);
        let running = Running::start(&mut batch.command("out.jsonl", &["--threads", "1"]));
        while found().lines().count() < goal && !running.has_ended() {
            sleep(Duration::from_millis(1));
        }
        sleep(Duration::from_micros(random.below(3000) as u64));
        let has_ended = running.has_ended();
        drop(running); // which kills it
        let found = found();
        assert!(expected.starts_with(&found), "what is there is never wrong");
        on_the_way += usize::from(!found.is_empty() && found.len() < expected.len());
        if has_ended {
            fs::remove_file(&out).unwrap(); // from the start again, whatever the job says
        }
    }
    assert!(on_the_way > 3, "{on_the_way} of 20 kills came in between");
    assert_eq!(batch.results("out.jsonl", &[]), expected);
    // Once all is done, nothing is done again.
    let outcome = batch.run("out.jsonl", &[]);
    assert_eq!((outcome.code, outcome.stdout.as_str()), (0, ""));
    assert!(outcome.stderr.contains("it has all results already"), "{}", outcome.stderr);
}

#[test]
fn what_was_half_written_is_written_again() {
    let batch = Batch::new(&many(12));
    let expected = batch.results("expected.jsonl", &[]);
    // The job file of a batch that is killed at once.
    let mut job = String::new();
    while job.is_empty() {
        let running = Running::start(&mut batch.command("out.jsonl", &[]));
        while !running.has_ended() && job.is_empty() {
            job = fs::read_to_string(batch.out("out.jsonl.job")).unwrap_or_default();
        }
    }
    for len in [0, 1, 100, expected.len() / 2, expected.len() - 1, expected.len()] {
        fs::write(batch.out("out.jsonl"), &expected[..len]).unwrap();
        fs::write(batch.out("out.jsonl.job"), &job).unwrap();
        assert_eq!(batch.results("out.jsonl", &[]), expected, "{len} bytes");
    }
}

#[test]
fn neither_shards_nor_threads_nor_company_change_a_byte() {
    let batch = Batch::new(&many(50));
    let expected = batch.results("expected.jsonl", &[]);
    let shards = ["1/3", "2/3", "3/3"];
    let shards = shards.map(|shard| batch.results(&shard.replace('/', "of"), &["--shard", shard]));
    assert_eq!(shards.concat(), expected);
    for (out, options) in [
        ("1", &["--threads", "1", "--sequences", "1"][..]),
        ("2", &["--threads", "3", "--sequences", "5", "--prefix-memory", "0"]),
        ("3", &["--kv-memory", "9", "--sequences", "256"]),
    ] {
        assert_eq!(batch.results(out, options), expected, "{options:?}");
    }
    let unordered = batch.results("unordered.jsonl", &["--unordered", "--sequences", "8"]);
    assert_ne!(unordered, expected, "as they finish");
    let sorted = |results: &str| {
        let mut lines: Vec<String> = results.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    assert_eq!(sorted(&unordered), sorted(&expected));
}

#[test]
fn an_interrupt_ends_it_and_the_same_command_goes_on() {
    // What comes last takes so long that nothing ends before the signal.
    let long = json!({"prompt": "Once upon a time", "max_tokens": 250, "ignore_eos": true}).to_string();
    let requests = [many(100), vec![long; 12]].concat();
    for options in [&["--threads", "1"][..], &["--threads", "1", "--unordered"]] {
        let batch = Batch::new(&requests);
        let expected = batch.results("expected.jsonl", options);
        let running = Running::start(&mut batch.command("out.jsonl", options));
        let out = batch.out("out.jsonl");
        while fs::metadata(&out).map_or(0, |found| found.len()) == 0 {
            assert!(!running.has_ended());
            sleep(Duration::from_millis(1));
        }
        assert!(Command::new("kill").args(["-INT", &running.id().to_string()]).status().unwrap().success());
        let outcome = Outcome::from(running.wait_with_output());
        assert_eq!(outcome.code, 130, "{}", outcome.stderr);
        assert!(outcome.stderr.contains("the same command goes on"), "{}", outcome.stderr);
        let found = fs::read_to_string(&out).unwrap();
        assert!(found.ends_with('\n') && found.len() < expected.len());
        let lines = |text: &str| {
            let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
            lines.sort();
            lines
        };
        assert_eq!(lines(&batch.results("out.jsonl", options)), lines(&expected));
    }
}

/// What would mix two batches, or take somebody's file, is an error that says what is wrong.
#[test]
fn another_batch_s_results_are_not_touched() {
    let batch = Batch::new(&many(200));
    let out = batch.out("out.jsonl");
    let refused = |options: &[&str], expected: &str| {
        let before = fs::read(&out).unwrap();
        let outcome = batch.run("out.jsonl", options);
        assert_eq!(outcome.code, 1, "{}", outcome.stderr);
        assert!(outcome.stderr.contains(expected), "{}", outcome.stderr);
        assert_eq!(fs::read(&out).unwrap(), before);
    };
    let job = batch.out("out.jsonl.job");
    fs::write(&out, "somebody's text\n").unwrap();
    refused(&[], "out.jsonl.job to say which batch it is of; --force replaces it");
    assert!(!job.exists());
    fs::write(&job, "somebody's notes\n").unwrap();
    for options in [&[][..], &["--force"]] {
        refused(options, "out.jsonl.job: expected what smolrun batch writes, found another file; it is kept");
        assert_eq!(fs::read_to_string(&job).unwrap(), "somebody's notes\n");
    }
    fs::write(&job, "").unwrap();
    refused(&[], "out.jsonl.job: it is empty, and does not say which batch");
    assert!(job.exists(), "it was there before");
    fs::remove_file(&job).unwrap();
    fs::remove_file(&out).unwrap();
    {
        let running = Running::start(&mut batch.command("out.jsonl", &["--threads", "1"]));
        while fs::metadata(&out).map_or(0, |found| found.len()) == 0 {
            assert!(!running.has_ended());
        }
        let outcome = batch.run("out.jsonl", &[]);
        assert_eq!(outcome.code, 1);
        assert!(outcome.stderr.contains("another smolrun is at work on it"), "{}", outcome.stderr);
    }
    refused(&["-n", "7"], "an option such as -n or --temperature is not the same; --force begins anew");
    refused(&["--ignore-eos"], "an option such as -n");
    refused(&["--shard", "1/2"], "--shard is not the same");
    refused(&["--unordered"], "--unordered is not the same");
    refused(&["--kv", "f16"], "--kv is not the same");
    refused(&["--kv-memory", "1000"], "--kv-memory is not the same");
    let input = fs::read(batch.input()).unwrap();
    fs::write(batch.input(), &input[1..]).unwrap();
    refused(&[], "IN is not the same");
    fs::write(batch.input(), &input).unwrap();
    let expected = batch.results("expected.jsonl", &[]);
    assert_eq!(batch.results("out.jsonl", &["--force"]), expected);
    // A line that somebody took out has no place any more.
    let without: Vec<_> =
        expected.lines().enumerate().filter(|(line, _)| *line != 2).map(|(_, text)| text).collect();
    fs::write(&out, without.join("\n") + "\n").unwrap();
    refused(&[], "it has no result of line 3, but of later ones: --force begins anew");
    assert_eq!(batch.results("out.jsonl", &["--force"]), expected);
    // Nor are those of a batch that is done, though there are as many.
    refused(&["-n", "7"], "is not the same; --force begins anew");
    fs::write(batch.input(), &input[1..]).unwrap();
    refused(&[], "IN is not the same");
    fs::write(batch.input(), &input).unwrap();
    assert_eq!(batch.results("out.jsonl", &[]), expected);
}

/// What is read is never written, by whatever path it is called.
#[test]
fn no_file_that_is_read_is_replaced() {
    let mut batch = Batch::new(&many(2));
    let own_blob = batch.out("model");
    fs::copy(&batch.blob, &own_blob).unwrap();
    batch.blob = own_blob;
    fs::hard_link(batch.input(), batch.out("hard")).unwrap();
    std::os::unix::fs::symlink(batch.input(), batch.out("soft")).unwrap();
    std::os::unix::fs::symlink(batch.input(), batch.out("out.job")).unwrap();
    for out in ["in.jsonl", "hard", "soft", "out", "model"] {
        let before = [fs::read(batch.input()).unwrap(), fs::read(&batch.blob).unwrap()];
        let outcome = batch.run(out, &["--force"]);
        assert_eq!(outcome.code, 2, "{out}: {}", outcome.stderr);
        let expected = "expected another file than those that are read";
        assert!(outcome.stderr.contains(expected), "{out}: {}", outcome.stderr);
        assert_eq!([fs::read(batch.input()).unwrap(), fs::read(&batch.blob).unwrap()], before, "{out}");
    }
}

#[test]
fn a_line_s_own_word_counts_before_the_command_s() {
    let eos = Model::open(blob(TALES)).unwrap().config().eos_token_ids[0];
    let line = |ignores: Value| {
        let bias = json!({eos.to_string(): 100});
        json!({"prompt": "The end.", "max_tokens": 3, "logit_bias": bias, "ignore_eos": ignores}).to_string()
    };
    let batch = Batch::new(&[line(json!(true)), line(json!(false)), line(Value::Null)]);
    let reasons = |options: &[&str]| {
        let results = parsed(&batch.results("out.jsonl", &[&["--force"], options].concat()));
        results.iter().map(|result| result["finish_reason"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(reasons(&[]), ["length", "eos", "eos"]);
    assert_eq!(reasons(&["--ignore-eos"]), ["length", "eos", "length"]);
}

#[test]
fn what_can_never_work_is_said_before_anything_is_computed() {
    let batch = Batch::new(&many(2));
    let blob = batch.blob.display().to_string();
    let (input, out) = (batch.input().display().to_string(), batch.out("out.jsonl").display().to_string());
    let directory = batch.temp.path().display().to_string();
    let of = |args: &[&str]| {
        let outcome = run("smolrun", &[&["batch"], args].concat());
        (outcome.code, outcome.stderr)
    };
    for (args, code, expected) in [
        (&[blob.as_str(), input.as_str()][..], 2, "--out <OUT>"),
        (&[&blob, "nowhere.jsonl", "-o", &out], 1, "nowhere.jsonl: No such file"),
        (&[&blob, &directory, "-o", &out], 1, "expected a regular file, which can be read twice"),
        (&[&blob, &input, "-o", &directory], 1, "expected a regular file"),
        (&[&blob, &input, "-o", "/nowhere/out.jsonl"], 1, "No such file"),
        (&[&blob, &input, "-o", &out, "--shard", "3/2"], 2, "expected I/N with I from 1 to N"),
        (&[&blob, &input, "-o", &out, "--sequences", "0"], 2, "expected a number from 1 to 256"),
        (&[&blob, &input, "-o", &out, "--seed", "random"], 2, "--seed random: expected a number"),
        (&[&blob, &input, "-o", &out, "--temperature", "-1"], 2, "temperature: expected a finite number"),
        (&[&blob, &input, "-o", &out, "--top-k", "-1"], 2, "invalid value '-1' for '--top-k <K>'"),
        (&[&blob, &input, "-o", &out, "--stop", ""], 2, "a value is required for '--stop <TEXT>'"),
        (&[&blob, &input, "-o", &out, "--logit-bias", "4096=1"], 2, "token id 4096"),
        (
            &[&blob, &input, "-o", &out, "--kv-memory", "0"],
            2,
            "--kv-memory <MB>': expected a whole number from 1 up",
        ),
        (&[&blob, "-", "-o", &out], 2, "IN -: expected a file, which is read twice"),
        (&[&blob, &input, "-o", "-"], 2, "--out -: expected a file"),
        (&[&blob, &input, "-o", &out, "--threads", "0"], 2, "threads: expected 1 to 1024, found 0"),
    ] {
        let (found, stderr) = of(args);
        assert_eq!(found, code, "{args:?}: {stderr}");
        assert!(stderr.contains(expected), "{args:?}: {stderr}");
    }
    assert!(!Path::new(&out).exists());
}
