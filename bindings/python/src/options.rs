//! The options of a generation, by the names that the program has for them.

use std::mem;
use std::time::{Duration, SystemTime};

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyInt, PyString};
use smolrun::chat::{ChatOptions, TemplateVariable};
use smolrun::generation::SamplerStep;
use smolrun::{CancelToken, GenerateOptions, Model};

use crate::failure::{Failure, Result, unless_raised, wrong_type};
use crate::prompt::{Encoding, dict_of, json_of};
use crate::stream::Cancel;

/// What a call asks for besides its prompt.
pub(crate) struct Options {
    pub(crate) generate: GenerateOptions,
    pub(crate) encoding: Encoding,
    /// Whether a seed was given.
    pub(crate) has_seed: bool,
    /// Whether the tokens that end a generation are ruled out.
    ignore_eos: bool,
}

impl Options {
    /// What is asked for where nobody asks: what the program `smolrun` does.
    pub(crate) fn new(model: &Model, is_chat: bool) -> Options {
        let sampling = smolrun_cli::default_sampling(model, is_chat);
        let chat = ChatOptions::default().now(SystemTime::now());
        Options {
            generate: GenerateOptions::default().sampling(sampling),
            encoding: Encoding { chat, ..Encoding::default() },
            has_seed: false,
            ignore_eos: false,
        }
    }

    /// How to generate, by all that was taken.
    pub(crate) fn into_generate(mut self, model: &Model) -> GenerateOptions {
        if self.ignore_eos {
            self.generate.sampling = self.generate.sampling.ignore_eos(model.config());
        }
        self.generate
    }

    /// Takes what `given` says by name; what is None is not said.
    pub(crate) fn read(&mut self, given: Option<&Bound<'_, PyDict>>) -> PyResult<()> {
        for (name, value) in given.into_iter().flatten() {
            let name: String = name.extract()?;
            if !value.is_none() {
                self.set(&name, &value)?;
            }
        }
        Ok(())
    }

    /// A handle that ends the generation.
    pub(crate) fn cancel_token(&self) -> &CancelToken {
        &self.generate.cancel
    }

    fn set(&mut self, name: &str, value: &Bound<'_, PyAny>) -> PyResult<()> {
        let Options { generate, encoding, has_seed, ignore_eos } = self;
        let sampling = &mut generate.sampling;
        match name {
            "max_tokens" => generate.max_tokens = whole(name, value)?,
            "stop" => generate.stop = texts(name, value)?,
            "logprobs" => generate.logprobs = logprobs(name, value)?,
            "temperature" => sampling.temperature = number(name, value)?,
            "top_k" => sampling.top_k = whole(name, value)?,
            "top_p" => sampling.top_p = number(name, value)?,
            "min_p" => sampling.min_p = number(name, value)?,
            "typical_p" => sampling.typical_p = number(name, value)?,
            "repetition_penalty" => sampling.repetition_penalty = number(name, value)?,
            "frequency_penalty" => sampling.frequency_penalty = number(name, value)?,
            "presence_penalty" => sampling.presence_penalty = number(name, value)?,
            "penalty_window" => sampling.penalty_window = whole(name, value)?,
            "logit_bias" => sampling.logit_bias.extend(biases(name, value)?),
            "ignore_eos" => *ignore_eos = flag(name, value)?,
            "sampler_order" => sampling.sampler_order = steps(name, value)?,
            "seed" => {
                sampling.seed = seed(name, value)?;
                *has_seed = true;
            }
            "special" => encoding.special = flag(name, value)?,
            "tools" => {
                encoding.of_messages = Some("tools");
                change(&mut encoding.chat, |chat| Ok(chat.tools(&json_of(value)?)?))?;
            }
            "documents" => {
                encoding.of_messages = Some("documents");
                change(&mut encoding.chat, |chat| Ok(chat.documents(&json_of(value)?)?))?;
            }
            "template" => encoding.chat.variables.extend(variables(name, value)?),
            "now" => {
                let now = moment(name, value)?;
                change(&mut encoding.chat, |chat| Ok(chat.now(now)))?;
            }
            "_cancel" => generate.cancel = value.cast::<Cancel>()?.get().0.clone(),
            _ => {
                let message = format!("unexpected keyword argument '{name}'");
                return Err(PyTypeError::new_err(message));
            }
        }
        Ok(())
    }
}

/// Changes options that can only be made anew.
pub(crate) fn change(
    chat: &mut ChatOptions,
    how: impl FnOnce(ChatOptions) -> Result<ChatOptions>,
) -> PyResult<()> {
    *chat = how(mem::take(chat))?;
    Ok(())
}

fn number(name: &str, value: &Bound<'_, PyAny>) -> PyResult<f32> {
    value.extract().map_err(unless_raised(value.py(), || wrong_type(name, "a number", value)))
}

fn flag(name: &str, value: &Bound<'_, PyAny>) -> PyResult<bool> {
    value.extract().map_err(unless_raised(value.py(), || wrong_type(name, "a bool", value)))
}

/// A whole number from 0 up.
fn whole(name: &str, value: &Bound<'_, PyAny>) -> PyResult<usize> {
    let wrong = || not_one_of(name, "a number from 0 up", "an int", value);
    value.extract().map_err(unless_raised(value.py(), wrong))
}

/// Why an int is not one of those that are expected, or `value` no int at all.
pub(crate) fn not_one_of(name: &str, expected: &str, kind: &str, value: &Bound<'_, PyAny>) -> PyErr {
    match value.is_instance_of::<PyInt>() {
        true => Failure::argument(format!("{name}: expected {expected}, found {value}")).into(),
        false => wrong_type(name, kind, value),
    }
}

/// The same, or None.
fn whole_or_none(name: &str, value: &Bound<'_, PyAny>) -> PyResult<Option<usize>> {
    if value.is_none() { Ok(None) } else { whole(name, value).map(Some) }
}

/// Functions that take the arguments of these names.
macro_rules! arguments {
    ($read:ident -> $kind:ty: $($name:ident)*) => {
        $(pub(crate) fn $name(value: &Bound<'_, PyAny>) -> PyResult<$kind> {
            $read(stringify!($name), value)
        })*
    };
}

arguments!(whole -> usize: sequences prefix_memory position);
arguments!(whole_or_none -> Option<usize>: threads kv_memory window);

/// Seconds since 1970.
fn moment(name: &str, value: &Bound<'_, PyAny>) -> PyResult<SystemTime> {
    let seconds = whole(name, value)?;
    let moment = SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds as u64));
    moment.ok_or_else(|| {
        Failure::argument(format!("{name}: expected seconds since 1970, found {seconds}")).into()
    })
}

/// Of a negative number, the same bits.
fn seed(name: &str, value: &Bound<'_, PyAny>) -> PyResult<u64> {
    let signed = || value.extract().map(i64::cast_unsigned);
    let wrong = || not_one_of(name, "a number of 64 bits", "an int", value);
    value.extract().or_else(|_| signed()).map_err(unless_raised(value.py(), wrong))
}

/// True asks for the chosen tokens' own, a number for so many alternatives, too.
fn logprobs(name: &str, value: &Bound<'_, PyAny>) -> PyResult<Option<usize>> {
    match value.cast::<PyBool>() {
        Ok(is_on) => Ok(is_on.is_true().then_some(0)),
        Err(_) => whole(name, value).map(Some),
    }
}

/// One text, or several.
fn texts(name: &str, value: &Bound<'_, PyAny>) -> PyResult<Vec<String>> {
    match value.cast::<PyString>() {
        Ok(text) => Ok(vec![text.to_str()?.to_owned()]),
        Err(_) => {
            let wrong = || wrong_type(name, "a str or a list of them", value);
            value.extract().map_err(unless_raised(value.py(), wrong))
        }
    }
}

/// Numbers by token ids, which may be texts: in JSON they have to be.
fn biases(name: &str, value: &Bound<'_, PyAny>) -> PyResult<Vec<(u32, f32)>> {
    const KEYS: &str = "token ids as keys";
    let wrong = || wrong_type(name, "a dict of numbers by token ids", value);
    let given = dict_of(value).map_err(unless_raised(value.py(), wrong))?;
    let id = |key: &Bound<'_, PyAny>| match key.cast::<PyString>() {
        Ok(text) => text
            .to_str()?
            .parse()
            .map_err(|_| Failure::argument(format!("{name}: expected {KEYS}, found {text}")).into()),
        Err(_) => key.extract().map_err(unless_raised(key.py(), || not_one_of(name, KEYS, KEYS, key))),
    };
    given.iter().map(|(key, bias)| Ok((id(&key)?, number(name, &bias)?))).collect()
}

fn steps(name: &str, value: &Bound<'_, PyAny>) -> PyResult<Vec<SamplerStep>> {
    let names = texts(name, value)?;
    let steps = names.iter().map(|step| step.parse()).collect::<smolrun::Result<_>>();
    Ok(steps.map_err(Failure::from)?)
}

fn variables(name: &str, value: &Bound<'_, PyAny>) -> PyResult<Vec<(String, TemplateVariable)>> {
    let wrong = || wrong_type(name, "a dict of bools and strs by name", value);
    let given = dict_of(value).map_err(unless_raised(value.py(), wrong))?;
    let variable = |(name, value): (Bound<'_, PyAny>, Bound<'_, PyAny>)| {
        let name = name.extract().map_err(unless_raised(name.py(), wrong))?;
        let value = match value.cast::<PyBool>() {
            Ok(flag) => TemplateVariable::Flag(flag.is_true()),
            Err(_) => TemplateVariable::Text(value.extract().map_err(unless_raised(value.py(), wrong))?),
        };
        Ok((name, value))
    };
    given.iter().map(variable).collect()
}
