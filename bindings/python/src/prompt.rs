//! What a model is to continue: a text, token ids, or the messages of a conversation.

use pyo3::PyTypeInfo;
use pyo3::prelude::*;
use pyo3::types::{
    PyBool, PyByteArray, PyBytes, PyDict, PyFrozenSet, PyMapping, PyMemoryView, PySet, PyString,
};
use smolrun::chat::ChatOptions;
use smolrun::{Message, Model, PromptOptions, SpecialTokens};

use crate::failure::{Failure, Result, unless_raised, wrong_type};
use crate::options::not_one_of;

/// As Python gave it.
#[derive(Clone)]
pub(crate) enum Prompt {
    Text(String),
    Ids(Vec<u32>),
    Messages(Vec<Message>),
}

/// How it becomes tokens.
#[derive(Clone, Default)]
pub(crate) struct Encoding {
    /// Whether control tokens that a text spells are parsed.
    pub(crate) special: bool,
    pub(crate) chat: ChatOptions,
    /// An option that was given and says something to messages alone.
    pub(crate) of_messages: Option<&'static str>,
}

impl Prompt {
    pub(crate) fn read(prompt: &Bound<'_, PyAny>) -> PyResult<Prompt> {
        const EXPECTED: &str = "a str, token ids, or messages such as [{'role': 'user', 'content': 'Hello'}]";
        let wrong = || wrong_type("prompt", EXPECTED, prompt);
        if let Ok(text) = prompt.cast::<PyString>() {
            return Ok(Prompt::Text(text.to_str()?.to_owned()));
        }
        if is_mapping(prompt)? || is_mistaken(prompt) {
            return Err(wrong());
        }
        let items = prompt.try_iter().map_err(unless_raised(prompt.py(), wrong))?;
        let items: Vec<_> = items.collect::<PyResult<_>>()?;
        match items.first() {
            Some(first) if is_mapping(first)? => {
                let json = json_of(&items.into_pyobject(prompt.py())?)?;
                let messages =
                    Message::list_from_json(&json).map_err(|error| PyErr::from(Failure::from(error)))?;
                Ok(Prompt::Messages(messages))
            }
            _ => items.iter().map(token_id).collect::<PyResult<_>>().map(Prompt::Ids),
        }
    }

    /// Whether it is to be answered, not continued.
    pub(crate) fn is_chat(&self) -> bool {
        matches!(self, Prompt::Messages(_))
    }

    /// Its tokens, if they are no more than `most`. A text `goes_on` where it does not begin one.
    pub(crate) fn encode(
        self,
        model: &Model,
        how: &Encoding,
        most: usize,
        goes_on: bool,
    ) -> Result<Vec<u32>> {
        if let (Prompt::Text(_) | Prompt::Ids(_), Some(name)) = (&self, how.of_messages) {
            return Err(Failure::argument(format!(
                "{name}: expected messages beside them, found another prompt"
            )));
        }
        let special = if how.special { SpecialTokens::Parse } else { SpecialTokens::AsText };
        Ok(match self {
            Prompt::Ids(ids) => ids,
            Prompt::Text(text) if goes_on => model.tokenizer().encode_within(&text, special, most)?,
            Prompt::Text(text) => {
                let options = PromptOptions::default().special_tokens(special).max_tokens(most);
                model.encode_prompt_with(&text, &options)?
            }
            Prompt::Messages(messages) => {
                model.encode_chat_with(&messages, &how.chat.clone().max_tokens(most))?
            }
        })
    }
}

/// Whether it can be gone over, but is not what it would be taken for.
fn is_mistaken(prompt: &Bound<'_, PyAny>) -> bool {
    prompt.is_instance_of::<PyBytes>()
        || prompt.is_instance_of::<PyByteArray>()
        || prompt.is_instance_of::<PyMemoryView>()
        || prompt.is_instance_of::<PySet>()
        || prompt.is_instance_of::<PyFrozenSet>()
}

/// A token's id.
fn token_id(item: &Bound<'_, PyAny>) -> PyResult<u32> {
    if item.is_instance_of::<PyBool>() {
        return Err(wrong_type("prompt", "token ids or messages", item));
    }
    let wrong = || not_one_of("prompt", "token ids", "token ids or messages", item);
    item.extract().map_err(unless_raised(item.py(), wrong))
}

/// The tokens of a prompt, or an error if there are none: a model says what follows one.
pub(crate) fn at_least_one(ids: &[u32]) -> Result<&[u32]> {
    match ids {
        [] => Err(Failure::argument("prompt: expected at least one token, found none")),
        ids => Ok(ids),
    }
}

/// Token ids, of any iterable.
pub(crate) fn token_ids(ids: &Bound<'_, PyAny>) -> PyResult<Vec<u32>> {
    match Prompt::read(ids)? {
        Prompt::Ids(ids) => Ok(ids),
        _ => Err(wrong_type("ids", "token ids", ids)),
    }
}

/// A value as JSON.
pub(crate) fn json_of(value: &Bound<'_, PyAny>) -> PyResult<String> {
    let how = PyDict::new(value.py());
    how.set_item("default", wrap_pyfunction!(dict_of, value.py())?)?;
    value.py().import("json")?.call_method("dumps", (value,), Some(&how))?.extract()
}

/// A new dict of what any mapping holds.
#[pyfunction]
pub(crate) fn dict_of<'py>(value: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyDict>> {
    if !is_mapping(value)? {
        return Err(wrong_type("JSON", "plain values", value));
    }
    let dict = PyDict::new(value.py());
    dict.call_method1("update", (value,))?;
    Ok(dict)
}

/// Whether it is a dict or like one. Where it is no dict, Python's code is asked, and a signal may come meanwhile: PyO3's own
/// cast would swallow what its handler raises.
pub(crate) fn is_mapping(value: &Bound<'_, PyAny>) -> PyResult<bool> {
    Ok(value.is_instance_of::<PyDict>() || value.is_instance(&PyMapping::type_object(value.py()))?)
}
