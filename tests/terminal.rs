//! `smolrun BLOB` as someone at a terminal meets it: what is typed and what the screen shows, in tmux.
#![cfg(unix)]

use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};
use smol_tests::common::{
    TALES, TempDir, Terminal, blob, program, run, tales_with_prefix, tales_with_template,
};
use smolrun::{GenerateOptions, Message, Model, Session, SessionOptions, SpecialTokens};

/// A conversation is a tale, to which both sides add: what the model in the repository can do.
const TEMPLATE: &str = "{% for said in messages %}{{ said.content }}\
    {% if not loop.last %}{{ '\n' if said.role == 'system' else ' ' }}{% endif %}{% endfor %}";
const TOKENS: usize = 24;

/// The tales model with a chat template.
struct Tales {
    temp: TempDir,
    blob: PathBuf,
    model: Model,
}

impl Tales {
    fn new() -> Tales {
        let temp = TempDir::new();
        let blob = tales_with_template(&temp, TEMPLATE);
        Tales { temp, model: Model::open(&blob).unwrap(), blob }
    }

    /// A terminal with `smolrun` in it.
    fn terminal(&self, arguments: &[&str], environment: &[(&str, &str)]) -> Terminal {
        let history = self.temp.join("history");
        let environment = [&[("SMOLRUN_HISTORY", history.to_str().unwrap())], environment].concat();
        let arguments = [&[self.blob.to_str().unwrap()], arguments].concat();
        Terminal::run(&program("smolrun"), &arguments, &environment)
    }

    /// What the model answers, by the library and without anything kept from before.
    fn answer(&self, conversation: &[(&str, &str)], tokens: usize) -> String {
        let messages: Vec<_> =
            conversation.iter().map(|(role, content)| Message::new(*role, *content)).collect();
        generate(&self.model, &self.model.encode_chat(&messages).unwrap(), tokens)
    }
}

fn generate(model: &Model, prompt: &[u32], tokens: usize) -> String {
    let mut session = Session::new(model, SessionOptions::default()).unwrap();
    let options = GenerateOptions::default().max_tokens(tokens);
    session.generate(prompt, options).unwrap().map(|token| token.unwrap().text).collect()
}

/// What the screen shows after it: no blanks at the ends of lines, which are as long as they like.
fn shown(text: &str) -> String {
    text.lines().map(str::trim_end).collect::<Vec<_>>().join("\n").trim_end().to_owned()
}

/// Whether some text is a whole one but for one piece, wherever that was.
fn lacks_one_piece_at_most(text: &str, whole: &str) -> bool {
    let equal = |(a, b): &(u8, u8)| a == b;
    let from_start = text.bytes().zip(whole.bytes()).take_while(equal).count();
    let from_end = text.bytes().rev().zip(whole.bytes().rev()).take_while(equal).count();
    text.len() <= whole.len() && from_start + from_end >= text.len()
}

/// Types a line once the terminal waits for it, and awaits what the screen shows then.
fn say(terminal: &Terminal, screen: &mut String, line: &str, answer: &str) {
    terminal.wait_for_screen(screen);
    terminal.type_text(line);
    *screen += &format!(" {line}");
    terminal.wait_for_screen(screen);
    terminal.press("Enter");
    *screen = shown(&format!("{screen}\n{answer}\n>"));
    terminal.wait_for_screen(screen);
}

#[test]
fn a_conversation_is_had_saved_and_gone_on_with() {
    let tales = Tales::new();
    let cut = "(cut at the most tokens: /set max-tokens raises it)";
    let terminal = tales.terminal(&["-n", "24", "--temperature", "0", "--system", "A tale."], &[]);
    let mut screen = "tales answers what you type; /help lists the commands.\n>".to_owned();
    let mut said = vec![("system", "A tale."), ("user", "Once upon a time")];
    let first = tales.answer(&said, TOKENS);
    say(&terminal, &mut screen, "Once upon a time", &format!("{first}\n{cut}"));
    said.extend([("assistant", first.as_str()), ("user", "The king")]);
    let second = tales.answer(&said, TOKENS);
    say(&terminal, &mut screen, "The king", &format!("{second}\n{cut}"));
    said.push(("assistant", &second));

    let file = tales.temp.join("tale.json");
    let file = file.to_str().unwrap();
    say(&terminal, &mut screen, &format!("/save {file}"), &format!("(saved to {file})"));
    let saved: Value = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
    let expected: Vec<_> =
        said.iter().map(|(role, content)| json!({ "role": role, "content": content })).collect();
    assert_eq!(saved, json!({ "messages": expected }));

    say(&terminal, &mut screen, "/reset", "(a new conversation)");
    let alone = tales.answer(&[said[0], ("user", "A frog")], TOKENS);
    say(&terminal, &mut screen, "A frog", &format!("{alone}\n{cut}"));

    let listing = format!("system: A tale.\n> Once upon a time\n{first}\n> The king\n{second}\n(5 messages)");
    say(&terminal, &mut screen, &format!("/load {file}"), &listing);
    said.push(("user", "A frog"));
    let third = tales.answer(&said, TOKENS);
    assert_ne!(third, alone);
    say(&terminal, &mut screen, "A frog", &format!("{third}\n{cut}"));

    terminal.type_text("/quit");
    terminal.press("Enter");
    terminal.wait_for("the program's end", |screen| screen.ends_with("exit code 0"));
}

#[test]
fn ctrl_c_stops_the_answer_and_ctrl_d_the_program() {
    let tales = Tales::new();
    let full = tales.answer(&[("user", "Once upon a time")], 900);
    // The slowest kernels there are: the answer takes longer than a finger on its way.
    let terminal =
        tales.terminal(&["-n", "900", "--temperature", "0", "--threads", "1"], &[("SMOLRUN_ISA", "scalar")]);
    terminal.wait_for("a prompt", |screen| screen.ends_with('>'));
    terminal.type_text("Once upon a time");
    terminal.press("Enter");
    let beginning: String = full.split_inclusive(' ').take(4).collect();
    terminal.wait_for("an answer's beginning", |screen| screen.contains(beginning.trim()));
    terminal.press("C-c");
    let screen = terminal.wait_for("the answer's end", |screen| screen.ends_with("(stopped)\n>"));
    let (_, answer) = screen.split_once("> Once upon a time\n").unwrap();
    let answer = answer.strip_suffix("\n(stopped)\n>").unwrap().replace("^C", "");

    // The part that came is part of the conversation.
    let file = tales.temp.join("stopped.json");
    terminal.type_text(&format!("/save {}", file.display()));
    terminal.press("Enter");
    terminal.wait_for("the file", |screen| screen.ends_with("stopped.json)\n>"));
    let saved: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    let part = saved["messages"][1]["content"].as_str().unwrap();
    assert!(full.starts_with(part) && part.len() < full.len(), "{part}\nof\n{full}");
    // At Ctrl-C the kernel drops what was written and the terminal has not read: the screen may lack a piece.
    let part = shown(part);
    assert!(lacks_one_piece_at_most(&shown(&answer), &part), "{answer}\nof\n{part}");

    // At the prompt it forgets the line and stays.
    terminal.type_text("a line");
    terminal.press("C-c");
    terminal.wait_for("a hint", |screen| screen.ends_with("(Ctrl-D or /quit leaves)\n>"));
    terminal.press("C-d");
    terminal.wait_for("the program's end", |screen| screen.ends_with("exit code 0"));
}

#[test]
fn lines_are_edited_recalled_and_kept_for_the_next_time() {
    let tales = Tales::new();
    let cache = tales.temp.join("cache");
    let arguments = ["-n", "1", "--prompt-cache", cache.to_str().unwrap()];
    let terminal = tales.terminal(&arguments, &[]);
    let mut screen = "tales answers what you type; /help lists the commands.\n>".to_owned();
    say(&terminal, &mut screen, "/stats", "(no answer yet)");
    say(&terminal, &mut screen, "/system", "(no system message)");
    say(&terminal, &mut screen, "/system Be kind.", "(from the next message on)");
    terminal.press("Up");
    terminal.wait_for_screen(&format!("{screen} /system Be kind."));
    terminal.press("BSpace");
    terminal.type_text(" and short.");
    terminal.press("Enter");
    terminal.wait_for("the second", |screen| {
        screen.ends_with("/system Be kind and short.\n(from the next message on)\n>")
    });
    let mut screen = terminal.screen();
    say(&terminal, &mut screen, "/system", "Be kind and short.");
    say(&terminal, &mut screen, "/save", "error: /save needs the name of a file");
    say(&terminal, &mut screen, "/load /no/such", "error: /no/such: No such file or directory (os error 2)");
    say(&terminal, &mut screen, "/nosuch", "error: there is no /nosuch; /help lists what there is");
    terminal.type_text("/help");
    terminal.press("Enter");
    terminal
        .wait_for("the list", |screen| screen.contains("/quit              leave; so do exit and Ctrl-D"));
    terminal.type_text("Two \\");
    terminal.press("Enter");
    terminal.wait_for("a second line", |screen| screen.ends_with("\n."));
    terminal.type_text("lines");
    terminal.press("Enter");
    terminal.wait_for("the answer", |screen| {
        screen.ends_with("(cut at the most tokens: /set max-tokens raises it)\n>")
    });
    terminal.type_text("/stats");
    terminal.press("Enter");
    terminal.wait_for("the numbers", |screen| screen.contains("peak RSS") && screen.ends_with('>'));
    terminal.press("C-d");
    terminal.wait_for("the program's end", |screen| screen.ends_with("exit code 0"));

    // Keys and values were kept too, and are read.
    assert!(cache.is_file());
    let terminal = tales.terminal(&arguments, &[]);
    terminal.wait_for("a prompt", |screen| screen.ends_with('>'));
    terminal.press("Up");
    terminal.wait_for("the last line of the last time", |screen| screen.ends_with("> /stats"));
}

#[test]
fn a_model_without_roles_continues_texts() {
    let plain = blob(TALES);
    let model = Model::open(&plain).unwrap();
    let arguments = [plain.to_str().unwrap(), "-n", "24", "--temperature", "0"];
    // It never ends, and is no file of lines.
    let terminal = Terminal::run(&program("smolrun"), &arguments, &[("SMOLRUN_HISTORY", "/dev/zero")]);
    let mut screen =
        "tales-4m-f32 has no chat template: it continues each text you type; /help lists the commands.\n>"
            .to_owned();
    for text in ["Once upon a time", "The king"] {
        let ids = model.tokenizer().encode(text, SpecialTokens::AsText).unwrap();
        let answer = generate(&model, &ids, TOKENS);
        say(
            &terminal,
            &mut screen,
            text,
            &format!("{answer}\n(cut at the most tokens: /set max-tokens raises it)"),
        );
    }
    let expected = "error: the blob has no chat template, and without it no system message";
    say(&terminal, &mut screen, "/system Be kind.", expected);
}

/// Llama 2 and Mistral are such: without the token that they begin with they answer otherwise.
#[test]
fn without_a_template_each_text_begins_as_prompts_do() {
    let temp = TempDir::new();
    let (blob, prefix) = tales_with_prefix(&temp);
    let model = Model::open(&blob).unwrap();
    let arguments = [blob.to_str().unwrap(), "-n", "24", "--temperature", "0"];
    let terminal = Terminal::run(&program("smolrun"), &arguments, &[("SMOLRUN_HISTORY", "")]);
    let mut screen =
        "tales has no chat template: it continues each text you type; /help lists the commands.\n>"
            .to_owned();
    for text in ["Once upon a time", "The king"] {
        let alone = model.tokenizer().encode(text, SpecialTokens::AsText).unwrap();
        let answer = generate(&model, &[&[prefix], &alone[..]].concat(), TOKENS);
        assert_ne!(answer, generate(&model, &alone, TOKENS), "the prefix changes nothing");
        let shown = format!("{answer}\n(cut at the most tokens: /set max-tokens raises it)");
        say(&terminal, &mut screen, text, &shown);
    }
}

#[test]
fn completions_and_man_pages_are_there() {
    let temp = TempDir::new();
    for (name, command) in [("smolrun", "tokenize"), ("smolconv", "inspect")] {
        for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
            let outcome = run(name, &["completions", shell]);
            assert!(outcome.code == 0 && outcome.stdout.contains(command), "{name} {shell}: {outcome:?}");
        }
        let directory = temp.join("man").into_os_string().into_string().unwrap();
        assert_eq!(run(name, &["man", &directory]).code, 0);
        let page = fs::read_to_string(temp.join(&format!("man/{name}-{command}.1"))).unwrap();
        assert!(page.contains(".TH") && page.contains("blob"), "{page}");
        assert!(fs::read_to_string(temp.join(&format!("man/{name}.1"))).unwrap().contains("SYNOPSIS"));
        let file = temp.join("file");
        fs::write(&file, "").unwrap();
        let outcome = run(name, &["man", file.to_str().unwrap()]);
        assert!(outcome.code == 1 && outcome.stderr.contains("file: "), "{outcome:?}");
    }
}
