//! `smolrun BLOB` on a terminal: a conversation, line by line.

mod command;
mod conversation;
mod editor;

use std::error::Error;
use std::io::{self, Write};
use std::path::Path;
use std::time::{Instant, SystemTime};

use smolrun::{CancelToken, ChatOptions, FinishReason, Session, SpecialTokens};

use self::command::{HELP, Line};
use self::conversation::Conversation;
use self::editor::{Editor, Input};
use crate::args::GenerateArgs;
use crate::generate::options;
use crate::interrupt;
use crate::stats::{Stopwatch, Timings};

type Result<T = ()> = std::result::Result<T, Box<dyn Error>>;

/// A conversation with a model.
struct Chat<'a> {
    args: &'a GenerateArgs,
    session: Session,
    interrupt: CancelToken,
    conversation: Conversation,
    /// Whether the model has roles; one without goes on with each text by itself.
    has_template: bool,
    last: Option<Timings>,
}

/// Talks until the user leaves.
pub(crate) fn run(args: &GenerateArgs, session: Session, blob: &Path) -> Result {
    let mut chat = Chat {
        args,
        interrupt: interrupt::cancel_token()?,
        conversation: Conversation::new(args.system.as_deref()),
        has_template: session.model().chat_template()?.is_some(),
        session,
        last: None,
    };
    if let Some(file) = args.prompt_cache.as_deref().filter(|file| file.exists()) {
        chat.session.load(file)?;
    }
    chat.greet(blob);
    chat.talk()?;
    // So that the same beginning costs nothing the next time.
    if let Some(file) = &args.prompt_cache
        && chat.session.position() > 0
    {
        chat.session.save(file)?;
    }
    Ok(())
}

impl Chat<'_> {
    fn talk(&mut self) -> Result {
        let mut editor = Editor::new()?;
        loop {
            match editor.read()? {
                Input::End => return Ok(()),
                Input::Interrupt => println!("(Ctrl-D or /quit leaves)"),
                Input::Line(line) => {
                    editor.save_history();
                    if !self.answer_line(Line::parse(&line))? {
                        return Ok(());
                    }
                }
            }
        }
    }

    fn greet(&self, blob: &Path) {
        let name = blob.file_stem().unwrap_or(blob.as_os_str()).to_string_lossy();
        let does = match self.has_template {
            true => "answers what you type",
            false => "has no chat template: it continues each text you type",
        };
        println!("{} {does}; /help lists the commands.", printable(&name));
    }

    /// Does what a line asks for; false if that is to leave.
    fn answer_line(&mut self, line: Line) -> Result<bool> {
        match line {
            Line::Empty => {}
            Line::Message(text) => self.answer(&text)?,
            Line::Help => println!("{HELP}"),
            Line::Reset => {
                self.conversation.reset();
                println!("(a new conversation)");
            }
            Line::System(Some(text)) => self.set_system(&text),
            Line::System(None) => {
                println!("{}", self.conversation.system().map_or("(no system message)".into(), printable));
            }
            Line::Save(file) => {
                report(self.conversation.save(Path::new(&file)).map(|()| format!("saved to {file}")))
            }
            Line::Load(file) => report(self.load(Path::new(&file))),
            Line::Stats => self.print_stats(),
            Line::Quit => return Ok(false),
            Line::Wrong(problem) => report(Err(problem)),
        }
        Ok(true)
    }

    fn set_system(&mut self, text: &str) {
        if !self.has_template {
            return report(Err("the blob has no chat template, and without it no system message".into()));
        }
        self.conversation.set_system(text);
        println!("(from the next message on)");
    }

    /// Goes on with the conversation in a file, and shows it.
    fn load(&mut self, path: &Path) -> std::result::Result<String, String> {
        self.conversation = Conversation::load(path)?;
        for said in self.conversation.messages() {
            let before = if said.role == "user" { "> ".into() } else { String::new() };
            let before = if said.role == "system" { "system: ".into() } else { before };
            println!("{before}{}", printable(&said.content));
        }
        Ok(format!("{} messages", self.conversation.messages().len()))
    }

    /// Adds a message and the model's answer to it, which is shown as it comes. What fails is told and taken back.
    fn answer(&mut self, text: &str) -> Result {
        if !self.has_template {
            self.conversation.reset();
        }
        self.conversation.push("user", text);
        match self.generate() {
            Ok(answer) => {
                self.conversation.push("assistant", &answer);
                if self.args.stats {
                    self.print_stats();
                }
                Ok(())
            }
            Err(error) if error.is::<io::Error>() => Err(error),
            Err(error) => {
                self.conversation.pop();
                report(Err(error.to_string()));
                Ok(())
            }
        }
    }

    fn print_stats(&self) {
        match &self.last {
            Some(timings) => timings.print(&self.session),
            None => println!("(no answer yet)"),
        }
    }

    fn prompt(&self) -> Result<Vec<u32>> {
        let (model, messages) = (self.session.model(), self.conversation.messages());
        if self.has_template {
            return Ok(model.encode_chat_with(messages, &ChatOptions::default().now(SystemTime::now()))?);
        }
        let text = messages.last().map_or("", |message| message.content.as_str());
        Ok(model.tokenizer().encode(text, SpecialTokens::AsText)?)
    }

    fn generate(&mut self) -> Result<String> {
        let mut stopwatch = Stopwatch::new(Instant::now());
        let prompt = self.prompt()?;
        let kept = self.session.keep_common_prefix(&prompt);
        self.interrupt.reset();
        let options = options(self.args, self.session.model(), &self.interrupt);
        let mut answer = String::new();
        let mut stdout = io::stdout().lock();
        let mut generator = self.session.generate(&prompt[kept..], options)?;
        for token in generator.by_ref() {
            let token = token?;
            stopwatch.lap();
            answer += &token.text;
            stdout.write_all(printable(&token.text).as_bytes())?;
            stdout.flush()?;
        }
        let finish_reason = generator.finish_reason();
        self.last = Some(stopwatch.timings(prompt.len(), kept, &self.session));
        writeln!(stdout)?;
        if let Some(note) = finish_reason.and_then(note) {
            writeln!(stdout, "({note})")?;
        }
        Ok(answer)
    }
}

/// What to say of an answer that did not end by itself.
fn note(finish_reason: FinishReason) -> Option<&'static str> {
    match finish_reason {
        FinishReason::Cancelled => Some("stopped"),
        FinishReason::Length => Some("cut at the most tokens: -n raises it"),
        FinishReason::Context => Some("the context is full: /reset begins a new conversation"),
        _ => None,
    }
}

/// Tells how a command went.
fn report(result: std::result::Result<String, String>) {
    match result {
        Ok(done) => println!("({})", printable(&done)),
        Err(problem) => println!("error: {}", printable(&problem)),
    }
}

/// `text` without what could do something to the terminal.
fn printable(text: &str) -> String {
    let shown =
        |c: char| if c.is_control() && !matches!(c, '\n' | '\t') { char::REPLACEMENT_CHARACTER } else { c };
    text.chars().map(shown).collect()
}
