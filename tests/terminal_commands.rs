//! What the conversation's commands do, and what becomes of one that ends otherwise than by leaving, in tmux.
#![cfg(unix)]

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use smol_tests::common::{TempDir, Terminal, program, tales_with_template};

/// A conversation is a tale, to which both sides add.
const TEMPLATE: &str = "{% for said in messages %}{{ said.content }}\
    {% if not loop.last %}{{ '\n' if said.role == 'system' else ' ' }}{% endif %}{% endfor %}";
/// What is shown after an answer of `-n` tokens.
const CUT: &str = "(cut at the most tokens: /set max-tokens raises it)";

/// A conversation in a terminal, with a home of its own.
struct Talk {
    home: TempDir,
    terminal: Terminal,
}

impl Talk {
    fn new(more: &[&str], environment: &[(&str, &str)]) -> Talk {
        let home = TempDir::new();
        let terminal = Talk::start(&home, more, environment);
        Talk { home, terminal }
    }

    /// Starts it; its process's number is in a file.
    fn start(home: &TempDir, more: &[&str], environment: &[(&str, &str)]) -> Terminal {
        let blob = home.join("tales.bin");
        let blob = if blob.exists() { blob } else { tales_with_template(home, TEMPLATE) };
        let (blob, smolrun) = (blob.to_str().unwrap(), program("smolrun"));
        let (history, pid) = (home.join("state/history"), home.join("pid"));
        let own = [("HOME", home.path().to_str().unwrap()), ("SMOLRUN_HISTORY", history.to_str().unwrap())];
        let script =
            ["-c", "echo $$ > \"$0\"; exec \"$@\"", pid.to_str().unwrap(), smolrun.to_str().unwrap(), blob];
        let greedy = if more.contains(&"--temperature") { &[][..] } else { &["--temperature", "0"] };
        let arguments = [&script[..], greedy, more].concat();
        let terminal = Terminal::run(Path::new("sh"), &arguments, &[&own, environment].concat());
        terminal.wait_for("a prompt", |screen| screen.ends_with('>'));
        terminal
    }

    /// Types a line and waits until the screen ends with `answer` and the next prompt.
    fn say(&self, line: &str, answer: &str) {
        self.terminal.type_text(line);
        self.terminal.press("Enter");
        let end = format!("{answer}\n>");
        self.terminal.wait_for(&format!("{end:?} after {line:?}"), |screen| screen.ends_with(&end));
    }

    /// The conversation as `/save` writes it: role and content by turns.
    fn saved(&self) -> Vec<(String, String)> {
        let file = self.home.join("look.json");
        self.say(&format!("/save! {}", file.display()), &format!("(saved to {})", file.display()));
        messages(&file)
    }

    fn signal(&self, name: &str) {
        let pid = fs::read_to_string(self.home.join("pid")).unwrap();
        assert!(Command::new("kill").args([&format!("-{name}"), pid.trim()]).status().unwrap().success());
    }

    /// Where a conversation was left that ended by itself.
    fn left_behind(&self) -> PathBuf {
        let start = Instant::now();
        loop {
            let entries = fs::read_dir(self.home.join("state")).into_iter().flatten();
            let mut names = entries.map(|entry| entry.unwrap().path());
            let is_one = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "json");
            match names.find(is_one) {
                Some(path) => return path,
                None => assert!(start.elapsed() < Duration::from_secs(60), "nothing was left"),
            }
            sleep(Duration::from_millis(20));
        }
    }
}

fn messages(file: &Path) -> Vec<(String, String)> {
    let saved: Value = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let messages = saved["messages"].as_array().unwrap().iter();
    messages.map(|said| (text(&said["role"]), text(&said["content"]))).collect()
}

fn roles(messages: &[(String, String)]) -> Vec<&str> {
    messages.iter().map(|(role, _)| role.as_str()).collect()
}

#[test]
fn what_is_no_utf_8_is_told_and_the_conversation_goes_on() {
    let talk = Talk::new(&["-n", "8"], &[]);
    talk.say("Once upon a time", CUT);
    let before = talk.saved();
    for bytes in [&b"caf\xe9 au lait"[..], b"\xff\xfe", b"\x1b[200~one\ntwo \xe9 three\nfour\x1b[201~"] {
        talk.terminal.type_bytes(bytes);
        talk.terminal.press("Enter");
        let told = "not UTF-8, and is dropped";
        talk.terminal.wait_for("a complaint", |screen| screen.contains(told) && screen.ends_with('>'));
        sleep(Duration::from_millis(200));
        assert_eq!(talk.saved(), before, "nothing of it was said");
        talk.terminal.press("C-l");
        talk.terminal.wait_for("an empty screen", |screen| screen.trim() == ">");
    }
    talk.say("The king", CUT);
    assert_eq!(roles(&talk.saved()), ["user", "assistant", "user", "assistant"]);
}

#[test]
fn a_conversation_that_a_signal_ends_is_kept() {
    let mut talk = Talk::new(&["-n", "8"], &[]);
    talk.say("Once upon a time", CUT);
    talk.signal("TERM");
    let screen = talk.terminal.wait_for("its end", |screen| screen.ends_with("exit code 143"));
    let file = talk.left_behind();
    assert!(screen.contains(&format!("the conversation is saved in {}", file.display())), "{screen}");
    assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o600);
    assert_eq!(roles(&messages(&file)), ["user", "assistant"]);
    // The terminal is as it was: what is typed is shown, line by line.
    talk.terminal.type_text("echoed");
    talk.terminal.wait_for("an echo", |screen| screen.ends_with("exit code 143\nechoed"));

    // It goes on from there. What is saved already is not saved again.
    let kept = messages(&file);
    talk.terminal = Talk::start(&talk.home, &["-n", "8", "--messages", file.to_str().unwrap()], &[]);
    let screen = talk.terminal.screen();
    assert!(screen.contains("> Once upon a time\n"), "{screen}");
    assert_eq!(talk.saved(), kept);
    fs::remove_file(&file).unwrap();
    talk.signal("TERM");
    let screen = talk.terminal.wait_for("its end", |screen| screen.ends_with("exit code 143"));
    assert!(!screen.contains("is saved in"), "{screen}");
}

#[test]
fn a_conversation_survives_its_terminal_and_impatience() {
    // The window is closed.
    let talk = Talk::new(&["-n", "8"], &[]);
    talk.say("Once upon a time", CUT);
    let Talk { home, terminal } = talk;
    terminal.close();
    let talk = Talk { terminal: Talk::start(&home, &["-n", "900"], &[("SMOLRUN_ISA", "scalar")]), home };
    let file = talk.left_behind();
    assert_eq!(roles(&messages(&file)), ["user", "assistant"]);
    fs::remove_file(file).unwrap();
    // A termination in the middle of an answer: the part that came is kept.
    talk.terminal.type_text("Once upon a time");
    talk.terminal.press("Enter");
    talk.terminal.wait_for("an answer's beginning", |screen| {
        screen.split("> Once upon a time\n").nth(1).is_some_and(|answer| answer.len() > 20)
    });
    talk.signal("TERM");
    talk.terminal.wait_for("its end", |screen| screen.ends_with("exit code 143"));
    let kept = messages(&talk.left_behind());
    assert_eq!(roles(&kept), ["user", "assistant"]);
    assert!(kept[1].1.len() > 10, "{kept:?}");
}

#[test]
fn a_file_is_replaced_only_when_that_is_asked_for() {
    let talk = Talk::new(&["-n", "4"], &[]);
    talk.say("/save", "error: /save needs the name of a file");
    talk.say("Once", CUT);
    fs::write(talk.home.join("mine.txt"), "my own words").unwrap();
    let mine = talk.home.join("mine.txt");
    let refused = format!("error: {}: it is there already: /save! replaces it", mine.display());
    talk.say("/save ~/mine.txt", &refused);
    assert_eq!(fs::read(&mine).unwrap(), b"my own words");
    talk.say("/save! ~/mine.txt", &format!("(saved to {})", mine.display()));
    assert_eq!(fs::metadata(&mine).unwrap().mode() & 0o777, 0o600);
    assert_eq!(messages(&mine).len(), 2);
    // Its own file a conversation replaces as it grows, with its name or without.
    talk.say("The king", CUT);
    talk.say("/save", &format!("(saved to {})", mine.display()));
    assert_eq!(messages(&mine).len(), 4);
    talk.say("/reset", "(a new conversation)");
    talk.say("/save ~/mine.txt", &refused);
    talk.say("/load ~/mine.txt", "(4 messages)");
    talk.say("The queen", CUT);
    talk.say("/save ~/mine.txt", &format!("(saved to {})", mine.display()));
    assert_eq!(messages(&mine).len(), 6);
    // A link stays one; what is no file is left alone.
    std::os::unix::fs::symlink(&mine, talk.home.join("link")).unwrap();
    talk.say("/save! ~/link", &format!("(saved to {})", talk.home.join("link").display()));
    assert!(fs::symlink_metadata(talk.home.join("link")).unwrap().is_symlink());
    talk.say("/save! /dev/null", "error: /dev/null: expected a regular file");
}

#[test]
fn answers_are_tried_again_and_taken_back() {
    let talk = Talk::new(&["-n", "12", "--temperature", "1", "--seed", "1"], &[]);
    talk.say("/retry", "error: there is nothing to answer again");
    talk.say("/undo", "error: there is nothing to take back");
    talk.say("Once upon a time", CUT);
    let first = talk.saved();
    talk.say("The king", CUT);
    let second = talk.saved();
    talk.say("/retry", CUT);
    let third = talk.saved();
    assert_eq!(third[..3], second[..3]);
    assert_ne!(third[3], second[3], "another draw");
    talk.say("/undo", "(taken back: The king)");
    assert_eq!(talk.saved(), first);
    talk.say("/undo", "(taken back: Once upon a time)");
    assert_eq!(talk.saved(), []);
}

#[test]
fn options_are_set_shown_and_set_back() {
    let talk = Talk::new(&["-n", "3", "--seed", "9"], &[]);
    let shown = |temperature: &str, tokens: usize| format!("({temperature}, at most {tokens} tokens)");
    let greedy = shown("the likeliest token", 3);
    talk.say("/set", &greedy);
    talk.say("/set temperature 0.8", &shown("temperature 0.8, top-p 0.9, seed 9", 3));
    talk.say("/set top_k 40", &shown("temperature 0.8, top-k 40, top-p 0.9, seed 9", 3));
    talk.say("/set max-tokens 5", &shown("temperature 0.8, top-k 40, top-p 0.9, seed 9", 5));
    talk.say("/set top-k", &shown("temperature 0.8, top-p 0.9, seed 9", 5));
    talk.say("/set temperature hot", "error: invalid value 'hot' for '--temperature <T>': expected a number");
    talk.say("/set temperature -1", "error: temperature: expected a finite number from 0 up, found -1");
    talk.say("/set warmth 1", "error: there is no option warmth to set; /set shows what is set");
    talk.say("/set threads 1", "error: there is no option threads to set; /set shows what is set");
    talk.say("/set", &shown("temperature 0.8, top-p 0.9, seed 9", 5));
    talk.say("Once upon a time", CUT);
    talk.terminal.type_text("/stats");
    talk.terminal.press("Enter");
    let screen = talk
        .terminal
        .wait_for("the numbers", |screen| screen.contains("computed with") && screen.ends_with('>'));
    assert!(screen.contains("chosen by     temperature 0.8, top-p 0.9, seed 9\n"), "{screen}");
    assert!(screen.contains("ms   from the message\n") && !screen.contains("process"), "{screen}");
    talk.say("/set stop a b", "(temperature 0.8, top-p 0.9, seed 10, at most 5 tokens, stop \"a b\")");
    talk.say("/set seed 9", "(temperature 0.8, top-p 0.9, seed 9, at most 5 tokens, stop \"a b\")");
    talk.say("/set stop", &shown("temperature 0.8, top-p 0.9, seed 9", 5));
    talk.say("/set temperature", &shown("the likeliest token", 5));
}

#[test]
fn lines_that_come_at_once_are_read_one_after_the_other() {
    let talk = Talk::new(&["-n", "9"], &[]);
    talk.terminal.type_bytes(b"/set max-tokens 2\r/set repetition-penalty 1.5\rOnce\rThere\r");
    talk.terminal.wait_for("two answers", |screen| screen.matches(CUT).count() == 2 && screen.ends_with('>'));
    let said = talk.saved();
    assert_eq!(roles(&said), ["user", "assistant", "user", "assistant"]);
    assert_eq!((said[0].1.as_str(), said[2].1.as_str()), ("Once", "There"));
    talk.terminal.type_bytes(b"/set\r");
    let are_set =
        |screen: &str| screen.contains("repetition-penalty 1.5") && screen.contains("at most 2 tokens");
    talk.terminal.wait_for("both settings", are_set);
}

#[test]
fn several_lines_are_one_message_and_exit_leaves() {
    let talk = Talk::new(&["-n", "3"], &[]);
    for line in ["\"\"\"", "One", "", "/quit"] {
        talk.terminal.type_text(line);
        talk.terminal.press("Enter");
    }
    talk.say("two\"\"\"", CUT);
    assert_eq!(talk.saved()[0].1, "One\n\n/quit\ntwo");
    // Ctrl-C leaves the block, not the program.
    talk.terminal.type_text("\"\"\"never said");
    talk.terminal.press("Enter");
    talk.terminal.wait_for("the next line of the block", |screen| screen.ends_with("never said\n."));
    talk.terminal.press("C-c");
    talk.terminal.wait_for("a hint", |screen| screen.ends_with("(Ctrl-D or /quit leaves)\n>"));
    talk.terminal.type_text("/system \"\"\"Be");
    talk.terminal.press("Enter");
    talk.say("kind.\"\"\"", "(from the next message on)");
    assert_eq!(talk.saved()[0], ("system".into(), "Be\nkind.".into()));
    talk.terminal.type_text("exit");
    talk.terminal.press("Enter");
    talk.terminal.wait_for("the program's end", |screen| screen.ends_with("exit code 0"));
}

#[test]
fn a_conversation_s_file_begins_one() {
    let home = TempDir::new();
    let file = home.join("tale.json");
    let said = json!({"messages": [{"role": "user", "content": "Once"}, {"role": "assistant", "content": "more\u{1b}[2J"}]});
    fs::write(&file, said.to_string()).unwrap();
    let terminal = Talk::start(&home, &["--messages", file.to_str().unwrap(), "--system", "A tale."], &[]);
    let screen = terminal.screen();
    assert!(screen.ends_with("system: A tale.\n> Once\nmore\u{fffd}[2J\n>"), "{screen}");
}
