//! What a line that was typed asks for.

/// What `/help` shows.
pub(crate) const HELP: &str = r#"  /system [TEXT]     set the system message, or show it
  /set [NAME VALUE]  set a command-line option, such as temperature 0.8, or show all; without VALUE reset it
  /retry             answer the last message again
  /undo              take back the last message and its answer
  /reset             forget the conversation, keep the system message
  /save [FILE]       write the conversation to a file; /save! replaces one
  /load FILE         continue a conversation from a file
  /stats             show times and memory of the last answer
  /help              show this list
  /quit              leave; so do exit and Ctrl-D
A line that ends in \ continues on the next one. """ begins a text of several lines, and """ ends it.
// begins a message with a slash; Ctrl-C stops an answer."#;

/// What begins and ends a text of several lines.
const QUOTES: &str = "\"\"\"";

/// A line, understood.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Line {
    /// A message to the model.
    Message(String),
    /// Nothing.
    Empty,
    Help,
    Reset,
    Retry,
    Undo,
    /// A new system message; none asks for the present one.
    System(Option<String>),
    /// An option's name and its new value, without which it is set back; nothing asks for all of them.
    Set(Option<(String, Option<String>)>),
    /// A file's name, if not that of the last time, and whether it may be replaced.
    Save(Option<String>, bool),
    Load(String),
    Stats,
    Quit,
    /// What is wrong with it.
    Wrong(String),
}

impl Line {
    pub(crate) fn parse(line: &str) -> Line {
        let trimmed = line.trim();
        let Some(command) = trimmed.strip_prefix('/') else {
            return match trimmed {
                "" => Line::Empty,
                "exit" | "quit" => Line::Quit,
                _ => Line::Message(line.to_owned()),
            };
        };
        if command.starts_with('/') {
            return Line::Message(command.to_owned());
        }
        let (name, argument) = command.split_once(char::is_whitespace).unwrap_or((command, ""));
        let argument = (!argument.trim().is_empty()).then(|| argument.trim().to_owned());
        match (name, argument) {
            ("system", text) => Line::System(text),
            ("set", setting) => Line::Set(setting.map(|setting| name_and_value(&setting))),
            ("save", file) => Line::Save(file, false),
            ("save!", file) => Line::Save(file, true),
            ("load", Some(file)) => Line::Load(file),
            ("load", None) => Line::Wrong("/load needs the name of a file".into()),
            (_, Some(_)) if Line::alone(name).is_some() => {
                Line::Wrong(format!("/{name} takes nothing after it"))
            }
            (_, None) if let Some(line) = Line::alone(name) => line,
            _ => Line::Wrong(format!("there is no /{name}; /help lists what there is")),
        }
    }

    /// The command `name`, of those that take nothing after it.
    fn alone(name: &str) -> Option<Line> {
        Some(match name {
            "help" | "?" => Line::Help,
            "reset" | "clear" => Line::Reset,
            "retry" => Line::Retry,
            "undo" => Line::Undo,
            "stats" => Line::Stats,
            "quit" | "exit" | "bye" => Line::Quit,
            _ => return None,
        })
    }
}

fn name_and_value(setting: &str) -> (String, Option<String>) {
    match setting.split_once(char::is_whitespace) {
        Some((name, value)) => (name.to_owned(), Some(value.trim().to_owned())),
        None => (setting.to_owned(), None),
    }
}

/// A text of several lines between three quotes: a message, or what `/system` is given.
#[derive(Debug)]
pub(crate) struct Block {
    is_system: bool,
    lines: Vec<String>,
}

impl Block {
    /// The block that `line` begins, if it does.
    pub(crate) fn begin(line: &str) -> Option<Block> {
        let (before, after) = line.split_once(QUOTES)?;
        let is_system = before.trim() == "/system";
        let begins = is_system || before.trim().is_empty();
        begins.then(|| Block { is_system, lines: vec![after.to_owned()] })
    }

    /// The next line.
    pub(crate) fn push(&mut self, line: String) {
        self.lines.push(line);
    }

    /// What the block is, once it has ended.
    pub(crate) fn end(&self) -> Option<Line> {
        let (last, before) = self.lines.split_last()?;
        let last = last.trim_end().strip_suffix(QUOTES)?;
        // Quotes that stand alone are no lines of the text.
        let before = before.strip_prefix(&[String::new()]).unwrap_or(before);
        let last = (!last.is_empty() || before.is_empty()).then_some(last);
        let lines: Vec<&str> = before.iter().map(String::as_str).chain(last).collect();
        let text = lines.join("\n");
        Some(match (self.is_system, text.trim().is_empty()) {
            (_, true) => Line::Empty,
            (true, _) => Line::System(Some(text)),
            (false, _) => Line::Message(text),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{Block, HELP, Line};

    fn text(text: &str) -> String {
        text.to_owned()
    }

    #[test]
    fn lines_are_messages_or_commands() {
        for (line, expected) in [
            ("", Line::Empty),
            (" \t", Line::Empty),
            (" Hello / there ", Line::Message(text(" Hello / there "))),
            ("//etc/passwd", Line::Message(text("/etc/passwd"))),
            ("/system", Line::System(None)),
            ("/system  You are  a pirate. ", Line::System(Some(text("You are  a pirate.")))),
            ("/save a b.json", Line::Save(Some(text("a b.json")), false)),
            ("/save! a b.json", Line::Save(Some(text("a b.json")), true)),
            ("/save", Line::Save(None, false)),
            ("/load\tx", Line::Load(text("x"))),
            ("/load", Line::Wrong(text("/load needs the name of a file"))),
            ("/set", Line::Set(None)),
            ("/set seed", Line::Set(Some((text("seed"), None)))),
            ("/set stop  a b ", Line::Set(Some((text("stop"), Some(text("a b")))))),
            (" /quit ", Line::Quit),
            ("/exit", Line::Quit),
            ("exit", Line::Quit),
            (" quit", Line::Quit),
            ("exit the room", Line::Message(text("exit the room"))),
            ("/?", Line::Help),
            ("/reset", Line::Reset),
            ("/retry", Line::Retry),
            ("/undo", Line::Undo),
            ("/stats", Line::Stats),
            ("/reset all", Line::Wrong(text("/reset takes nothing after it"))),
            ("/sytem x", Line::Wrong(text("there is no /sytem; /help lists what there is"))),
            ("/", Line::Wrong(text("there is no /; /help lists what there is"))),
        ] {
            assert_eq!(Line::parse(line), expected, "{line:?}");
        }
    }

    #[test]
    fn blocks_are_messages_of_several_lines() {
        let message = |content: &str| Some(Line::Message(text(content)));
        for (lines, expected) in [
            (&["\"\"\"a\"\"\""][..], message("a")),
            (&["\"\"\"", "a", "", "\\", "/quit", "\"\"\""], message("a\n\n\\\n/quit")),
            (&[" \"\"\"a", "b\"\"\" "], message("a\nb")),
            (&["\"\"\"", "exit\"\"\""], message("exit")),
            (&["\"\"\"\"\"\""], Some(Line::Empty)),
            (&["\"\"\"", "\"\"\""], Some(Line::Empty)),
            (&["/system \"\"\"a", "b", "\"\"\""], Some(Line::System(Some(text("a\nb"))))),
            (&["\"\"\"a", "b\"\" \""], None),
        ] {
            let mut block = Block::begin(lines[0]).unwrap();
            for line in &lines[1..] {
                assert_eq!(block.end(), None, "{lines:?}");
                block.push(text(line));
            }
            assert_eq!(block.end(), expected, "{lines:?}");
        }
        for line in ["a \"\"\"b", "/load \"\"\"", "", "\"\""] {
            assert!(Block::begin(line).is_none(), "{line}");
        }
    }

    #[test]
    fn the_list_of_commands_is_aligned() {
        let commands =
            HELP.lines().filter(|line| line.trim_start().starts_with('/') && !line.starts_with("//"));
        let columns: Vec<_> = commands
            .map(|line| {
                (
                    line.find('/'),
                    line[2..].find("  ").map(|at| at + line[2 + at..].find(|c| c != ' ').unwrap()),
                )
            })
            .collect();
        assert!(columns.len() > 9 && columns.iter().all(|column| *column == columns[0]), "{columns:?}");
    }
}
