//! Whether the runtime can render a template: what it does not know is refused by name.

use std::time::UNIX_EPOCH;

use smolrun::Message;
use smolrun::chat::{ChatOptions, ChatTemplate};

/// Compiles `template`; an error names what the runtime does not know, and its line.
pub(super) fn compile(template: &str) -> Result<ChatTemplate, String> {
    let template = ChatTemplate::new(template).map_err(|error| error.to_string())?;
    match template.unknown() {
        Some(what) => Err(format!("{what} is not supported")),
        None => Ok(template),
    }
}

/// A tool with all that templates ask for, whose names and texts mean nothing.
const TOOLS: &str = r#"[{"type": "function", "function": {"name": "text", "description": "text", "parameters":
    {"type": "object", "properties": {"text": {"type": "string", "description": "text"}}, "required": ["text"]}}}]"#;

/// Renders short conversations, without and with tools. Templates refuse some of them, by design; one has to work.
pub(super) fn render(template: &str) -> Result<(), String> {
    let template = compile(template)?;
    let [system, user, assistant] = ["system", "user", "assistant"].map(|role| Message::new(role, "text"));
    let conversations = [vec![user.clone()], vec![user.clone(), assistant, user.clone()], vec![system, user]];
    let options = ChatOptions::default().now(UNIX_EPOCH).variable("bos_token", "").variable("eos_token", "");
    let with_tools = options.clone().tools(TOOLS).map_err(|error| error.to_string())?;
    let pairs = [&options, &with_tools]
        .into_iter()
        .flat_map(|options| conversations.iter().map(move |messages| (messages, options)));
    let mut results = pairs.map(|(messages, options)| template.render(messages, options));
    let first = results.next().map_or(Ok(()), |first| first.map(drop));
    first.or_else(|error| if results.any(|result| result.is_ok()) { Ok(()) } else { Err(error.to_string()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(template: &str) -> String {
        compile(template).map(drop).expect_err(template)
    }

    #[test]
    fn what_is_not_known_is_refused_by_name_and_line() {
        for (template, expected) in [
            ("x\n{% include 'a' %}", "statement include (line 2) is not supported"),
            ("{%- autoescape true %}{% endautoescape %}", "statement autoescape (line 1) is not supported"),
            ("{{ x | trim | urlize }}", "filter urlize (line 1) is not supported"),
            ("{% filter wordwrap %}{% endfilter %}", "filter wordwrap (line 1) is not supported"),
            ("{{ x is not callable }}", "test callable (line 1) is not supported"),
            ("{{ x is escaped }}", "test escaped (line 1) is not supported"),
            ("{{ x.removeprefix('a') }}", "method removeprefix (line 1) is not supported"),
            ("{{ lipsum(3) }}", "function lipsum (line 1) is not supported"),
            ("{{ 'open", "syntax error"),
        ] {
            let error = refused(template);
            assert!(error.contains(expected), "{template}: {error}");
        }
    }

    #[test]
    fn what_is_known_is_let_through_and_variables_are_named() {
        let template = "{% macro say(x) %}{{ x.strip() }}{% endmacro %}{% raw %}{{ lipsum() }}{% endraw %}{# urlize() #}\
            {% if not (a is not none) and b in (c) %}{{ say('x | urlize') | trim }}{% endif %}{{ d.title }}";
        let template = compile(template).unwrap();
        for variable in ["a", "b", "c", "d", "x"] {
            assert!(template.names().any(|name| name == variable), "{variable}");
        }
        for other in ["none", "trim", "strip", "title", "lipsum", "urlize"] {
            assert!(template.names().all(|name| name != other), "{other}");
        }
    }

    #[test]
    fn a_template_that_renders_nothing_is_refused() {
        assert_eq!(render("{% if messages|length < 3 %}{{ raise_exception('three') }}{% endif %}"), Ok(()));
        assert!(render("{{ raise_exception('never') }}").unwrap_err().contains("never"));
        assert!(render("{% for x in %}").unwrap_err().contains("syntax error"));
        assert!(render("{{ messages | map('string') }}").unwrap_err().contains("cannot be printed"));
        assert_eq!(
            render("{% for tool in tools %}{{ tool.function.parameters.properties | tojson }}{% endfor %}"),
            Ok(())
        );
        assert!(
            render("{% for tool in tools %}{{ tool.none.name }}{% endfor %}")
                .unwrap_err()
                .contains("none cannot be gone")
        );
    }
}
