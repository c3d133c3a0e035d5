//! A chat template: Jinja as `transformers` sets it up.

use super::jinja::{Limits, Template, Value};
use super::{ChatOptions, Message, TemplateVariable};
use crate::error::{Error, Result};

/// A compiled chat template.
///
/// A template comes from a file that anybody may have made. Compiling and rendering it takes bounded time, memory and
/// stack, or is an error that says which limit it exceeds. A source has at most 64 KB and nests at most 40 deep.
/// Rendering may take 4,000,000 steps and make 32 MB of text and values. It may take 64 more of either for each byte of
/// the conversation, where each message counts as 64 more bytes.
#[derive(Debug)]
pub struct ChatTemplate {
    template: Template,
}

impl ChatTemplate {
    /// Compiles Jinja source. An error says what cannot be compiled, and in which line.
    pub fn new(source: &str) -> Result<ChatTemplate> {
        Ok(ChatTemplate { template: Template::new(source).map_err(problem)? })
    }

    /// The text of `messages`, as `apply_chat_template(tokenize=False)` renders it.
    ///
    /// `bos_token`, `eos_token` and whatever else a template may ask for must be among the options' variables.
    pub fn render(&self, messages: &[Message], options: &ChatOptions) -> Result<String> {
        let of_message = |said: &Message| {
            Value::record([("role", said.role.as_str().into()), ("content", said.content.as_str().into())])
        };
        let fixed = [
            ("messages", Value::records(messages.iter().map(of_message).collect())),
            ("tools", Value::None),
            ("documents", Value::None),
            ("add_generation_prompt", Value::Bool(options.add_generation_prompt)),
        ];
        let variables = options.variables.iter().map(|(name, value)| (name.as_str(), value_of(value)));
        let said = messages.iter().map(|said| said.role.len() + said.content.len());
        let told = options.variables.iter().map(|(_, value)| match value {
            TemplateVariable::Flag(_) => 0,
            TemplateVariable::Text(text) => text.len(),
        });
        let limits = Limits::of(said.chain(told).sum(), messages.len());
        self.template.render(fixed.into_iter().chain(variables), options.now, limits).map_err(problem)
    }

    /// The names of all variables and functions that the template reads or sets.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.template.names()
    }

    /// The first filter, test, method or function that is not known, and its line: rendering fails where it is reached.
    pub fn unknown(&self) -> Option<&str> {
        self.template.unknown()
    }
}

fn value_of(variable: &TemplateVariable) -> Value {
    match variable {
        TemplateVariable::Flag(flag) => Value::Bool(*flag),
        TemplateVariable::Text(text) => Value::from(text.as_str()),
    }
}

fn problem(mut problem: String) -> Error {
    if problem.starts_with("function strftime_now is unknown") {
        problem += ": the template asks for the date: name it with ChatOptions::now";
    }
    Error::Template { problem }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::super::{ChatOptions, Message};
    use super::ChatTemplate;

    fn render(source: &str) -> Result<String, String> {
        let messages = [Message::new("user", " Hi "), Message::new("assistant", "b\u{1c}")];
        let options = ChatOptions::default()
            .now(UNIX_EPOCH + Duration::from_secs(86_400 * 59))
            .variable("thinking", false)
            .variable("name", "x")
            .variable("name", "Smol");
        let text = ChatTemplate::new(source).and_then(|template| template.render(&messages, &options));
        text.map_err(|error| error.to_string())
    }

    #[test]
    fn templates_render_as_jinja2_renders_them() {
        for (source, expected) in [
            ("{{ messages[0]['content'] }}|{{ messages[1].content.strip() }}", " Hi |b"),
            ("{{ messages[1].content | trim }}{{ 'xyx' | trim('x') }}", "by"),
            (
                "{{ true }} {{ none }} {{ tools }} {{ nosuch }} {{ thinking }} {{ 1 }}",
                "True None None  False 1",
            ),
            ("{% if tools is not none or documents %}x{% endif %}{{ name }}", "Smol"),
            (
                "{{ messages[::-1][0].role }} {{ messages[1:] | length }} {{ messages[-1].role }}",
                "assistant 1 assistant",
            ),
            (
                "{% for m in messages %}{% if loop.last %}{% break %}{% endif %}{{ m.role }}{% endfor %}",
                "user",
            ),
            (
                "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
                "2",
            ),
            ("{{ messages[0] | tojson }}", r#"{"role": "user", "content": " Hi "}"#),
            ("{{ strftime_now('%d %b %Y') }}", "01 Mar 1970"),
            ("a\r\n{% generation %}\r\nb\r{%- endgeneration -%}\n c\n", "a\nbc"),
            ("{% if true %}\n  x\n  {% endif %}\ny", "  x\ny"),
            ("{{ 'a</think>b'.split('</think>')[-1] }} {{ 'abc'.startswith('ab') }}", "b True"),
            ("{% macro say(x, y='!') %}{{ x }}{{ y }}{% endmacro %}{{ say('hi') }}", "hi!"),
            (
                "{{ true | string }}{{ 'x' is iterable and 'x' is sequence and messages[0] is sequence }}",
                "TrueTrue",
            ),
            (
                "{{ nosuch is iterable }}{{ 1 is iterable }}{{ 1 is sequence }}{{ 'x' in nosuch }}",
                "TrueFalseFalseFalse",
            ),
            ("{{ 'yes' if add_generation_prompt }}", "yes"),
        ] {
            assert_eq!(render(source).as_deref(), Ok(expected), "{source}");
        }
    }

    #[test]
    fn what_a_template_cannot_do_is_said() {
        for (source, expected) in [
            ("{{ raise_exception('only two roles') }}", "only two roles"),
            ("{% include 'x' %}", "statement include (line 1) is not supported"),
            ("{{ 'x' | nosuch }}", "unknown filter"),
            ("{{ 'x'.nosuch() }}", "unknown method"),
            ("{{ messages[0].content", "unexpected end of input"),
            ("{{ strftime_now('%Q') }}", "%Q"),
            (
                "{% for i in range(10000) %}{% for j in range(10000) %}{% endfor %}{% endfor %}",
                "it takes more than 4009728 steps",
            ),
        ] {
            let error = render(source).expect_err(source);
            assert!(error.starts_with("chat template: ") && error.contains(expected), "{source}: {error}");
        }
        let template = ChatTemplate::new("{{ strftime_now('%Y') }}").unwrap();
        let error = template.render(&[], &ChatOptions::default()).unwrap_err().to_string();
        assert!(error.contains("ChatOptions::now"), "{error}");
    }
}
