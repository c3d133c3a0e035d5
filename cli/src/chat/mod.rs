//! `smolrun BLOB` on a terminal: a conversation, line by line.

mod command;
mod conversation;
mod editor;
mod rescue;
mod settings;

use std::env;
use std::error::Error;
use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::time::Instant;

use smolrun::chat::ChatOptions;
use smolrun::{FinishReason, Sampling, Session};

use self::command::{HELP, Line};
pub(crate) use self::conversation::Conversation;
use self::editor::{Editor, Input};
use self::rescue::Rescue;
use self::settings::Settings;
use crate::args::GenerateArgs;
use crate::exit_code;
use crate::interrupt::Interrupt;
use crate::options::{chat_options, options, prompt_options};
use crate::output::{Output, counted, say};
use crate::prompt_cache::PromptCache;
use crate::stats::{Stopwatch, Timings};

type Result<T = ()> = std::result::Result<T, Box<dyn Error>>;
/// What a command has done, or why it could not.
type Report = std::result::Result<String, String>;

/// A conversation with a model.
struct Chat {
    session: Session,
    interrupt: Interrupt,
    settings: Settings,
    /// Whether each answer is followed by its times.
    has_stats: bool,
    conversation: Conversation,
    /// What the template is told besides the conversation.
    options: ChatOptions,
    /// Where it was saved to or loaded from.
    file: Option<PathBuf>,
    rescue: Rescue,
    /// Whether the model has roles; one without goes on with each text by itself.
    has_template: bool,
    last: Option<(Timings, Sampling)>,
}

/// Talks until the user leaves.
pub(crate) fn run(
    args: &GenerateArgs,
    session: Session,
    name: &str,
    cache: Option<PromptCache>,
) -> Result<u8> {
    let interrupt = Interrupt::new()?;
    let mut chat = Chat {
        settings: Settings::new(&args.answer, session.model()),
        has_stats: args.stats,
        conversation: args.prompt.conversation()?,
        options: args.prompt.chat_options()?,
        file: args.prompt.messages.clone(),
        rescue: Rescue::default(),
        has_template: session.model().chat_template()?.is_some(),
        last: None,
        session,
        interrupt: interrupt.clone(),
    };
    let rescue = chat.rescue.clone();
    interrupt.on_exit(move || rescue.save());
    let talked = chat.talk(name, cache);
    if talked.is_err() || interrupt.termination().is_some() {
        chat.rescue.keep(&chat.conversation);
        chat.rescue.save();
    }
    talked?;
    Ok(interrupt.termination().unwrap_or(exit_code::SUCCESS))
}

impl Chat {
    fn talk(&mut self, name: &str, mut cache: Option<PromptCache>) -> Result {
        if let Some(cache) = &mut cache {
            cache.load(&mut self.session);
        }
        self.greet(name)?;
        self.show_conversation()?;
        self.read_and_answer()?;
        // So that the same beginning costs nothing the next time.
        if let Some(cache) = &cache
            && self.session.position() > 0
        {
            cache.save(&mut self.session, true)?;
        }
        Ok(())
    }

    fn read_and_answer(&mut self) -> Result {
        let mut editor = Editor::new(self.interrupt.clone())?;
        loop {
            self.rescue.keep(&self.conversation);
            match editor.read()? {
                // A terminal that is gone looks like Ctrl-D.
                Input::End if !io::stdin().is_terminal() => return Err("the terminal is gone".into()),
                Input::End => return Ok(()),
                Input::Interrupt => say("(Ctrl-D or /quit leaves)")?,
                Input::Line(Line::Quit) => return Ok(()),
                Input::Line(line) => {
                    editor.save_history();
                    self.obey(line)?;
                }
            }
        }
    }

    fn greet(&self, name: &str) -> io::Result<()> {
        let does = match self.has_template {
            true => "answers what you type",
            false => "has no chat template: it continues each text you type",
        };
        say(&format!("{name} {does}; /help lists the commands."))
    }

    /// Does what a line asks for.
    fn obey(&mut self, line: Line) -> Result {
        let report = match line {
            Line::Empty | Line::Quit => return Ok(()),
            Line::Message(text) => return self.answer(&text),
            Line::Retry => return self.retry(),
            Line::Help => return Ok(say(HELP)?),
            Line::System(None) => {
                return Ok(say(self.conversation.system().unwrap_or("(no system message)"))?);
            }
            Line::Stats => return self.print_stats(),
            Line::Load(file) => return self.load(file),
            Line::System(Some(text)) => self.set_system(&text),
            Line::Set(setting) => self.set(setting),
            Line::Undo => self.undo(),
            Line::Reset => {
                self.conversation.reset();
                self.file = None;
                Ok("a new conversation".into())
            }
            Line::Save(file, may_replace) => self.save(file, may_replace),
            Line::Wrong(problem) => Err(problem),
        };
        Ok(tell(report)?)
    }

    fn set_system(&mut self, text: &str) -> Report {
        if !self.has_template {
            return Err("the blob has no chat template, and without it no system message".into());
        }
        self.conversation.set_system(text);
        Ok("from the next message on".into())
    }

    fn set(&mut self, setting: Option<(String, Option<String>)>) -> Report {
        if let Some((name, value)) = setting {
            self.settings.set(&name, value.as_deref(), self.session.model())?;
        }
        Ok(self.settings.describe())
    }

    /// Saves to the file that was named, or else that of the last time, which needs no asking.
    fn save(&mut self, file: Option<String>, may_replace: bool) -> Report {
        let file = file.map(|file| at_home(&file)).or_else(|| self.file.clone());
        let file = file.ok_or("/save needs the name of a file")?;
        let is_own = self.file.as_ref() == Some(&file);
        self.conversation.save(&file, may_replace || is_own)?;
        let report = format!("saved to {}", file.display());
        self.file = Some(file);
        Ok(report)
    }

    /// Goes on with the conversation in a file, and shows it.
    fn load(&mut self, file: String) -> Result {
        let file = at_home(&file);
        match Conversation::load(&file) {
            Ok(conversation) => {
                self.conversation = conversation;
                self.file = Some(file);
                self.show_conversation()?;
                Ok(tell(Ok(counted(self.conversation.messages().len(), "message")))?)
            }
            Err(problem) => Ok(tell(Err(problem))?),
        }
    }

    /// Shows what was said, as it looked when it was.
    fn show_conversation(&self) -> io::Result<()> {
        let messages = self.conversation.messages();
        // A system message alone was just given.
        for said in
            messages.iter().filter(|_| messages.len() > usize::from(self.conversation.system().is_some()))
        {
            let before = match said.role.as_str() {
                "user" => "> ",
                "system" => "system: ",
                "tool" => "tool: ",
                _ => "",
            };
            say(&format!("{before}{}", said.content))?;
        }
        Ok(())
    }

    /// Takes back the last message of the user and what came after it.
    fn undo(&mut self) -> Report {
        match self.conversation.take_back() {
            Some(message) => Ok(format!("taken back: {}", message.content)),
            None => Err("there is nothing to take back".into()),
        }
    }

    /// Answers the last message again.
    fn retry(&mut self) -> Result {
        let before = self.conversation.clone();
        while self.conversation.pop("assistant").is_some() {}
        if self.conversation.wants_answer() {
            return self.respond(before);
        }
        self.conversation = before;
        Ok(tell(Err("there is nothing to answer again".into()))?)
    }

    /// Adds a message and the model's answer to it.
    fn answer(&mut self, text: &str) -> Result {
        let before = self.conversation.clone();
        if !self.has_template {
            self.conversation.reset();
        }
        self.conversation.push("user", text);
        self.respond(before)
    }

    /// Adds the model's answer, which is shown as it comes. What fails is told, and the conversation what it was
    /// `before`.
    fn respond(&mut self, before: Conversation) -> Result {
        self.rescue.keep(&self.conversation);
        match self.generate() {
            Ok(answer) => self.conversation.push("assistant", &answer),
            Err(error) if error.is::<io::Error>() => return Err(error),
            Err(error) => {
                self.conversation = before;
                return Ok(tell(Err(error.to_string()))?);
            }
        }
        if self.has_stats { self.print_stats() } else { Ok(()) }
    }

    fn print_stats(&self) -> Result {
        match &self.last {
            Some((timings, sampling)) => timings.print("the message", sampling, &self.session),
            None => say("(no answer yet)")?,
        }
        Ok(())
    }

    fn prompt(&self) -> Result<Vec<u32>> {
        let (model, messages) = (self.session.model(), self.conversation.messages());
        if self.has_template {
            let options = chat_options(self.options.clone(), &self.session);
            return Ok(model.encode_chat_with(messages, &options)?);
        }
        let text = messages.last().map_or("", |message| message.content.as_str());
        Ok(model.encode_prompt_with(text, &prompt_options(&self.session))?)
    }

    fn generate(&mut self) -> Result<String> {
        let mut stopwatch = Stopwatch::new(Instant::now());
        let prompt = self.prompt()?;
        let kept = self.session.keep_common_prefix(&prompt);
        self.interrupt.reset();
        let sampling = self.settings.next_sampling();
        let options = options(self.settings.answer(), sampling.clone(), self.interrupt.cancel_token());
        let mut answer = String::new();
        let mut output = Output::new();
        let mut generator = self.session.generate(&prompt[kept..], options)?;
        for token in generator.by_ref() {
            let token = token?;
            stopwatch.lap();
            answer += &token.text;
            output.text(&token.text)?;
        }
        let finish_reason = generator.finish_reason();
        self.last = Some((stopwatch.timings(prompt.len(), kept, &self.session), sampling));
        output.text("\n")?;
        if let Some(note) = finish_reason.and_then(note) {
            say(&format!("({note})"))?;
        }
        Ok(answer)
    }
}

/// What to say of an answer that did not end by itself.
fn note(finish_reason: FinishReason) -> Option<&'static str> {
    match finish_reason {
        FinishReason::Cancelled => Some("stopped"),
        FinishReason::Length => Some("cut at the most tokens: /set max-tokens raises it"),
        FinishReason::Context => Some("the context is full: /reset begins a new conversation"),
        _ => None,
    }
}

/// Tells how a command went.
fn tell(report: Report) -> io::Result<()> {
    match report {
        Ok(done) => say(&format!("({done})")),
        Err(problem) => say(&format!("error: {problem}")),
    }
}

/// The path that `file` means, which may begin with the user's home, `~`.
fn at_home(file: &str) -> PathBuf {
    let rest = file
        .strip_prefix('~')
        .filter(|rest| rest.is_empty() || rest.starts_with(['/', std::path::MAIN_SEPARATOR]));
    match (rest, env::home_dir()) {
        (Some(rest), Some(home)) => home.join(rest.trim_start_matches(['/', std::path::MAIN_SEPARATOR])),
        _ => file.into(),
    }
}
