//! A chat template: Jinja as `transformers` sets it up.

use std::borrow::Cow;

use minijinja::value::Kwargs;
use minijinja::{Environment, Error as TemplateError, ErrorKind, Value, syntax::SyntaxConfig};

use super::{ChatOptions, Message, TemplateVariable, date, json, python};
use crate::error::{Error, Result};

/// Steps a template may take: thousands of messages, but no endless loop.
const FUEL: u64 = 10_000_000;
/// What the one template of an environment is called.
const NAME: &str = "chat_template";

/// A compiled chat template.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
}

impl ChatTemplate {
    /// Compiles Jinja source. An error says what cannot be compiled, and in which line.
    pub fn new(source: &str) -> Result<ChatTemplate> {
        let mut environment = environment().map_err(problem)?;
        environment.add_template_owned(NAME, normalize(source)).map_err(problem)?;
        Ok(ChatTemplate { environment })
    }

    /// The text of `messages`, as `apply_chat_template(tokenize=False)` renders it.
    ///
    /// `bos_token`, `eos_token` and what else a template may ask for is to be among the options' variables.
    pub fn render(&self, messages: &[Message], options: &ChatOptions) -> Result<String> {
        let text = |text: &String| Value::from(text.as_str());
        let messages: Vec<Value> = messages
            .iter()
            .map(|said| Value::from_pairs([("role", text(&said.role)), ("content", text(&said.content))]))
            .collect();
        let fixed = [
            ("messages", Value::from(messages)),
            ("tools", Value::from(())),
            ("documents", Value::from(())),
            ("add_generation_prompt", Value::from(options.add_generation_prompt)),
        ];
        let now = options.now.map(|now| ("strftime_now", strftime_now(now)));
        let variables = options.variables.iter().map(|(name, value)| (name.as_str(), value_of(value)));
        let context = Value::from_pairs(fixed.into_iter().chain(now).chain(variables));
        self.environment.get_template(NAME).and_then(|template| template.render(context)).map_err(problem)
    }
}

fn environment() -> std::result::Result<Environment<'static>, TemplateError> {
    let mut environment = Environment::new();
    environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    environment.set_fuel(Some(FUEL));
    environment.set_formatter(python::print);
    environment.set_unknown_method_callback(python::method);
    environment
        .add_filter("trim", |text: &str, chars: Option<&str>| python::trim("strip", text, chars).to_owned());
    environment.add_filter("string", |value: &Value| python::text(value));
    environment.add_test("iterable", |value: &Value| python::is_iterable(value));
    environment.add_test("sequence", |value: &Value| python::is_sequence(value));
    environment.add_filter("tojson", |value: Value, options: Kwargs| json::dumps(&value, &options));
    environment.add_function("raise_exception", |message: String| {
        Err::<String, _>(TemplateError::new(ErrorKind::InvalidOperation, message))
    });
    Ok(environment)
}

/// The source with line ends as Jinja reads them, and with `transformers`' own statement `generation`, which marks the
/// assistant's text and changes nothing in it, as the block without effect that Jinja knows.
fn normalize(source: &str) -> String {
    let mut rest = source;
    let mut normal = String::with_capacity(source.len());
    while let Some(at) = rest.find("{%") {
        let (before, statement) = rest.split_at(at + 2);
        let end = statement.find("%}").unwrap_or(statement.len());
        let (inside, after) = statement.split_at(end);
        normal += before;
        normal += &match inside.trim_matches(|c: char| c == '-' || c == '+' || c.is_whitespace()) {
            "generation" => Cow::Owned(inside.replace("generation", "with")),
            "endgeneration" => Cow::Owned(inside.replace("endgeneration", "endwith")),
            _ => Cow::Borrowed(inside),
        };
        rest = after;
    }
    normal += rest;
    normal.replace("\r\n", "\n").replace('\r', "\n")
}

fn value_of(variable: &TemplateVariable) -> Value {
    match variable {
        TemplateVariable::Flag(flag) => Value::from(*flag),
        TemplateVariable::Text(text) => Value::from(text.as_str()),
    }
}

fn strftime_now(now: std::time::SystemTime) -> Value {
    Value::from_function(move |format: &str| {
        date::strftime(now, format)
            .map_err(|problem| TemplateError::new(ErrorKind::InvalidOperation, problem))
    })
}

fn problem(error: TemplateError) -> Error {
    let mut problem = format!("{error:#}");
    if error.kind() == ErrorKind::UnknownFunction && problem.contains("strftime_now") {
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
            ("{% include 'x' %}", "template not found"),
            ("{{ 'x' | nosuch }}", "unknown filter"),
            ("{{ 'x'.nosuch() }}", "unknown method"),
            ("{{ messages[0].content", "unexpected end of input"),
            ("{{ strftime_now('%Q') }}", "%Q"),
            ("{% for i in range(10000) %}{% for j in range(10000) %}{% endfor %}{% endfor %}", "fuel"),
        ] {
            let error = render(source).expect_err(source);
            assert!(error.starts_with("chat template: ") && error.contains(expected), "{source}: {error}");
        }
        let template = ChatTemplate::new("{{ strftime_now('%Y') }}").unwrap();
        let error = template.render(&[], &ChatOptions::default()).unwrap_err().to_string();
        assert!(error.contains("ChatOptions::now"), "{error}");
    }
}
