//! `/set`: the command line's options for answers, changed in a conversation.

use clap::{CommandFactory, Parser};
use smolrun::generation::Sampler;
use smolrun::{Model, Sampling};

use crate::args::AnswerArgs;
use crate::sampling::{Defaults, Described};

/// The options and what was set since.
pub(crate) struct Settings {
    given: AnswerArgs,
    defaults: Defaults,
    /// Names and values, the last of a name counts.
    set: Vec<(String, String)>,
    /// All of it together.
    current: AnswerArgs,
    sampling: Sampling,
}

/// One option, as the command line has it.
#[derive(Default, Parser)]
#[command(no_binary_name = true, disable_help_flag = true)]
struct Setting {
    #[command(flatten)]
    answer: AnswerArgs,
}

impl Settings {
    pub(crate) fn new(given: &AnswerArgs, model: &Model) -> Settings {
        let defaults = Defaults::of_chat(model);
        let sampling = given.sampling.sampling(model, &defaults);
        Settings { given: given.clone(), defaults, set: Vec::new(), current: given.clone(), sampling }
    }

    /// The options as they are now.
    pub(crate) fn answer(&self) -> &AnswerArgs {
        &self.current
    }

    /// How the next answer is chosen; of those after it each has a seed of its own.
    pub(crate) fn next_sampling(&mut self) -> Sampling {
        let next = self.sampling.clone();
        self.sampling.seed = next.seed.wrapping_add(1);
        next
    }

    /// Sets the option `name`, or sets it back to what it was at the start. After an error all is as before.
    pub(crate) fn set(&mut self, name: &str, value: Option<&str>, model: &Model) -> Result<(), String> {
        let name = name.trim_start_matches('-').replace('_', "-");
        if !Setting::command().get_arguments().any(|option| option.get_long() == Some(&name)) {
            return Err(format!("there is no option {name} to set; /set shows what is set"));
        }
        let mut set = self.set.clone();
        set.retain(|(other, _)| *other != name);
        set.extend(value.map(|value| (name.clone(), value.to_owned())));
        let mut setting = Setting { answer: self.given.clone() };
        for (name, value) in &set {
            setting.try_update_from([format!("--{name}={value}")]).map_err(|error| first_line(&error))?;
        }
        let current = setting.answer;
        let mut sampling = current.sampling.sampling(model, &self.defaults);
        Sampler::new(sampling.clone(), model.config().vocab_size).map_err(|error| error.to_string())?;
        if name != "seed" {
            sampling.seed = self.sampling.seed; // the draws go on
        }
        (self.set, self.current, self.sampling) = (set, current, sampling);
        Ok(())
    }

    /// What is set, in words.
    pub(crate) fn describe(&self) -> String {
        let stop: String = self.current.stop.iter().map(|text| format!(", stop {text:?}")).collect();
        format!("{}, at most {} tokens{stop}", Described(&self.sampling), self.current.max_tokens())
    }
}

/// What clap says of a wrong value, without what it says of the command line.
fn first_line(error: &clap::Error) -> String {
    let text = error.to_string();
    let line = text.lines().next().unwrap_or_default();
    line.trim_start_matches("error: ").to_owned()
}
