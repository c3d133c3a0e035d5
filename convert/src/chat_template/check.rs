//! Whether a template uses what the runtime knows, and only that: what it does not know is refused by name.
//!
//! The lists hold what does the same there as in Jinja and Python.

use std::collections::BTreeSet;
use std::time::UNIX_EPOCH;

use minijinja::machinery::{Token, tokenize};
use minijinja::syntax::SyntaxConfig;
use smolrun::{ChatOptions, ChatTemplate, Message};

const STATEMENTS: [&str; 20] = [
    "break",
    "call",
    "continue",
    "elif",
    "else",
    "endcall",
    "endfilter",
    "endfor",
    "endgeneration",
    "endif",
    "endmacro",
    "endset",
    "endwith",
    "filter",
    "for",
    "generation",
    "if",
    "macro",
    "set",
    "with",
];
const FILTERS: [&str; 31] = [
    "abs",
    "attr",
    "capitalize",
    "count",
    "d",
    "default",
    "dictsort",
    "first",
    "float",
    "indent",
    "int",
    "items",
    "join",
    "last",
    "length",
    "list",
    "lower",
    "map",
    "max",
    "min",
    "reject",
    "rejectattr",
    "replace",
    "reverse",
    "select",
    "selectattr",
    "sort",
    "string",
    "tojson",
    "trim",
    "upper",
];
const TESTS: [&str; 29] = [
    "boolean",
    "defined",
    "divisibleby",
    "eq",
    "equalto",
    "even",
    "false",
    "float",
    "ge",
    "greaterthan",
    "gt",
    "in",
    "integer",
    "iterable",
    "le",
    "lessthan",
    "lower",
    "lt",
    "mapping",
    "ne",
    "none",
    "number",
    "odd",
    "sameas",
    "sequence",
    "string",
    "true",
    "undefined",
    "upper",
];
const METHODS: [&str; 18] = [
    "capitalize",
    "count",
    "endswith",
    "find",
    "get",
    "items",
    "join",
    "keys",
    "lower",
    "lstrip",
    "replace",
    "rfind",
    "rstrip",
    "split",
    "startswith",
    "strip",
    "upper",
    "values",
];
const FUNCTIONS: [&str; 6] = ["caller", "dict", "namespace", "raise_exception", "range", "strftime_now"];
/// What may stand before an open parenthesis without being called.
const WORDS: [&str; 11] = ["and", "call", "elif", "else", "for", "if", "in", "is", "not", "or", "set"];

/// What a template names.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Names<'a> {
    /// Everything that is not a filter, a test, a method or a statement: variables, fields, functions.
    pub(super) variables: BTreeSet<&'a str>,
}

/// The names in `template`; an error names what is not known, and its line.
pub(super) fn names(template: &str) -> Result<Names<'_>, String> {
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    let tokens = tokenize(template, false, syntax.map_err(|error| error.to_string())?);
    let tokens: Vec<_> = tokens.collect::<Result<_, _>>().map_err(|error| format!("{error:#}"))?;
    let macros = macros(&tokens);
    let mut names = Names::default();
    for (at, (token, span)) in tokens.iter().enumerate() {
        let Token::Ident(name) = *token else { continue };
        let before = |back: usize| at.checked_sub(back).map(|at| &tokens[at].0);
        let is_called = matches!(tokens.get(at + 1), Some((Token::ParenOpen, _)));
        let (what, is_known) = match (before(1), before(2)) {
            (Some(Token::BlockStart), _) => ("statement", STATEMENTS.contains(&name)),
            (Some(Token::Pipe), _) | (Some(Token::Ident("filter")), Some(Token::BlockStart)) => {
                ("filter", FILTERS.contains(&name))
            }
            (Some(Token::Ident("is")), _) if name == "not" => continue,
            (Some(Token::Ident("is")), _) | (Some(Token::Ident("not")), Some(Token::Ident("is"))) => {
                ("test", TESTS.contains(&name))
            }
            (Some(Token::Dot), _) => ("method", !is_called || METHODS.contains(&name)),
            _ => {
                names.variables.insert(name);
                let is_function = FUNCTIONS.contains(&name) || macros.contains(name);
                ("function", !is_called || is_function || WORDS.contains(&name))
            }
        };
        if !is_known {
            return Err(format!("{what} {name} (line {}) is not supported", span.start_line));
        }
    }
    Ok(names)
}

/// Names of the template's own macros.
fn macros<'a, Span>(tokens: &[(Token<'a>, Span)]) -> BTreeSet<&'a str> {
    let named = tokens.windows(2).filter_map(|pair| match (&pair[0].0, &pair[1].0) {
        (Token::Ident("macro"), Token::Ident(name)) => Some(*name),
        _ => None,
    });
    named.collect()
}

/// Compiles `template` and renders short conversations. Templates refuse some of them, by design; one has to work.
pub(super) fn render(template: &str) -> Result<(), String> {
    let template = ChatTemplate::new(template).map_err(|error| error.to_string())?;
    let [system, user, assistant] = ["system", "user", "assistant"].map(|role| Message::new(role, "text"));
    let conversations = [vec![user.clone()], vec![user.clone(), assistant, user.clone()], vec![system, user]];
    let options = ChatOptions::default().now(UNIX_EPOCH).variable("bos_token", "").variable("eos_token", "");
    let mut results = conversations.iter().map(|messages| template.render(messages, &options));
    let first = results.next().map_or(Ok(()), |first| first.map(drop));
    first.or_else(|error| if results.any(|result| result.is_ok()) { Ok(()) } else { Err(error.to_string()) })
}

#[cfg(test)]
mod tests {
    use super::*;

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
            let error = names(template).expect_err(template);
            assert!(error.contains(expected), "{template}: {error}");
        }
    }

    #[test]
    fn what_is_known_is_let_through_and_variables_are_named() {
        let template = "{% macro say(x) %}{{ x.strip() }}{% endmacro %}{% raw %}{{ lipsum() }}{% endraw %}{# urlize() #}\
            {% if not (a is not none) and b in (c) %}{{ say('x | urlize') | trim }}{% endif %}{{ d.title }}";
        let names = names(template).unwrap();
        for variable in ["a", "b", "c", "d", "x"] {
            assert!(names.variables.contains(variable), "{variable}");
        }
        for other in ["none", "trim", "strip", "title", "lipsum", "urlize"] {
            assert!(!names.variables.contains(other), "{other}");
        }
    }

    #[test]
    fn the_runtime_knows_every_name_in_the_lists() {
        let render = |source: String| ChatTemplate::new(&source)?.render(&[], &ChatOptions::default());
        for (names, test) in [(&FILTERS[..], "filter"), (&TESTS, "test")] {
            for name in names {
                assert_eq!(render(format!("{{{{ '{name}' is {test} }}}}")).unwrap(), "True", "{test} {name}");
            }
        }
        for name in METHODS {
            let value = if ["get", "items", "keys", "values"].contains(&name) { "{'a': 1}" } else { "'a'" };
            let error =
                render(format!("{{{{ ({value}).{name}(1, 2, 3, 4, 5) }}}}")).expect_err(name).to_string();
            assert!(!error.contains("unknown method"), "{name}: {error}");
        }
        assert!(render("{{ 'a'.nosuch(1) }}".into()).unwrap_err().to_string().contains("unknown method"));
    }

    #[test]
    fn a_template_that_renders_nothing_is_refused() {
        assert_eq!(render("{% if messages|length < 3 %}{{ raise_exception('three') }}{% endif %}"), Ok(()));
        assert!(render("{{ raise_exception('never') }}").unwrap_err().contains("never"));
        assert!(render("{% for x in %}").unwrap_err().contains("syntax error"));
        assert!(render("{{ messages }}").unwrap_err().contains("cannot be printed"));
    }
}
