//! What a line that was typed asks for.

/// What `/help` shows.
pub(crate) const HELP: &str = "\
  /system [TEXT]  set what the model is told first, or show it
  /reset          forget the conversation, keep the system message
  /save FILE      write the conversation to a file
  /load FILE      go on with a conversation from a file
  /stats          times and memory of the last answer
  /help           this list
  /quit           leave, as Ctrl-D does
A line that ends in \\ goes on in the next one; // begins a message with a slash; Ctrl-C stops an answer.";

/// A line, understood.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Line {
    /// A message to the model.
    Message(String),
    /// Nothing.
    Empty,
    Help,
    Reset,
    /// A new system message; none asks for the present one.
    System(Option<String>),
    Save(String),
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
            return if trimmed.is_empty() { Line::Empty } else { Line::Message(line.to_owned()) };
        };
        if command.starts_with('/') {
            return Line::Message(command.to_owned());
        }
        let (name, argument) = command.split_once(char::is_whitespace).unwrap_or((command, ""));
        let argument = (!argument.trim().is_empty()).then(|| argument.trim().to_owned());
        match (name, argument) {
            ("system", text) => Line::System(text),
            ("save", Some(file)) => Line::Save(file),
            ("load", Some(file)) => Line::Load(file),
            ("save" | "load", None) => Line::Wrong(format!("/{name} needs the name of a file")),
            ("help" | "?", None) => Line::Help,
            ("reset", None) => Line::Reset,
            ("stats", None) => Line::Stats,
            ("quit" | "exit", None) => Line::Quit,
            ("help" | "?" | "reset" | "stats" | "quit" | "exit", Some(_)) => {
                Line::Wrong(format!("/{name} takes nothing after it"))
            }
            _ => Line::Wrong(format!("there is no /{name}; /help lists what there is")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Line;

    #[test]
    fn lines_are_messages_or_commands() {
        let text = |text: &str| text.to_owned();
        for (line, expected) in [
            ("", Line::Empty),
            (" \t", Line::Empty),
            (" Hello / there ", Line::Message(text(" Hello / there "))),
            ("//etc/passwd", Line::Message(text("/etc/passwd"))),
            ("/system", Line::System(None)),
            ("/system  You are  a pirate. ", Line::System(Some(text("You are  a pirate.")))),
            ("/save a b.json", Line::Save(text("a b.json"))),
            ("/load\tx", Line::Load(text("x"))),
            (" /quit ", Line::Quit),
            ("/exit", Line::Quit),
            ("/?", Line::Help),
            ("/reset", Line::Reset),
            ("/stats", Line::Stats),
            ("/save", Line::Wrong(text("/save needs the name of a file"))),
            ("/reset all", Line::Wrong(text("/reset takes nothing after it"))),
            ("/sytem x", Line::Wrong(text("there is no /sytem; /help lists what there is"))),
            ("/", Line::Wrong(text("there is no /; /help lists what there is"))),
        ] {
            assert_eq!(Line::parse(line), expected, "{line:?}");
        }
    }
}
