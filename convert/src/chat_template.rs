//! Where a checkpoint keeps its chat template.

use serde::Deserialize;
use serde_json::Value;

use crate::error::Result;
use crate::json::Document;

/// An entry of a `chat_template` that lists several.
#[derive(Deserialize)]
struct Named {
    name: String,
    template: String,
}

/// The Jinja source of the chat template, if there is one.
///
/// `chat_template.jinja` wins over `tokenizer_config.json`, as in transformers; of several named templates it is the
/// one named `default`. An empty template counts as none.
pub fn read(jinja: Option<&Document>, tokenizer_config: Option<&Document>) -> Result<Option<String>> {
    let template = match (jinja, tokenizer_config) {
        (Some(jinja), _) => Some(jinja.text()?.to_owned()),
        (None, Some(config)) => in_tokenizer_config(config)?,
        (None, None) => None,
    };
    Ok(template.filter(|template| !template.is_empty()))
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
