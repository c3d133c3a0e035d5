//! The checkpoint's chat template: where it is kept, and whether the runtime can render it.

mod check;
mod tokens;

use std::path::Path;

use serde::Deserialize;
use serde_json::Value;
use smolrun::chat::ChatTemplate;

use crate::error::{Error, Result};
use crate::json::Document;

/// An entry of a `chat_template` that lists several.
#[derive(Deserialize)]
struct Named {
    name: String,
    template: String,
}

/// The Jinja source of the chat template, if there is one, found to be one that the runtime can render.
///
/// `chat_template.jinja` wins over `tokenizer_config.json`, as in transformers; of several named templates it is the
/// one named `default`. An empty template counts as none. Special tokens that the template names and
/// `tokenizer_config.json` defines are set in a line of their own before it.
pub fn read(jinja: Option<&Document>, tokenizer_config: Option<&Document>) -> Result<Option<String>> {
    let found = match (jinja, tokenizer_config) {
        (Some(jinja), _) => Some((&jinja.path, jinja.text()?.to_owned())),
        (None, Some(config)) => in_tokenizer_config(config)?.map(|template| (&config.path, template)),
        (None, None) => None,
    };
    let Some((path, template)) = found.filter(|(_, template)| !template.is_empty()) else { return Ok(None) };
    prepare(path, template, tokenizer_config).map(Some)
}

/// Whether the runtime can compile the `template` of the file at `path`.
pub fn check(path: &Path, template: &str) -> Result<()> {
    ChatTemplate::new(template).map(drop).map_err(|error| Error::file(path, error.to_string()))
}

fn in_tokenizer_config(config: &Document) -> Result<Option<String>> {
    let fields = config.fields()?;
    let expected = "a string or a list of objects with name and template";
    if !fields.value("chat_template").is_some_and(Value::is_array) {
        return fields.optional("chat_template", expected);
    }
    let named: Vec<Named> = fields.required("chat_template", expected)?;
    Ok(named.into_iter().find(|entry| entry.name == "default").map(|entry| entry.template))
}

fn prepare(path: &Path, template: String, tokenizer_config: Option<&Document>) -> Result<String> {
    let refuse = |problem| {
        let way_out = "an empty chat_template.jinja beside the weights leaves the template out";
        Error::file(path, format!("chat_template: {problem}; {way_out}"))
    };
    let compiled = check::compile(&template).map_err(refuse)?;
    let template = match tokenizer_config {
        Some(config) => tokens::declare(&compiled.names().collect(), &config.fields()?)? + &template,
        None => template,
    };
    check::render(&template).map_err(refuse)?;
    Ok(template)
}
