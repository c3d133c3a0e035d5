//! A chat template: Jinja as `transformers` sets it up.

use super::jinja::{Limits, Template, Value, list_of};
use super::json::Json;
use super::{ChatOptions, Message, TemplateVariable};
use crate::error::{Error, Result};

/// A compiled chat template.
///
/// A template comes from a file that anybody may have made. Compiling and rendering it takes bounded time, memory and
/// stack, or is an error that says which limit it exceeds. A source has at most 64 KB and nests at most 40 deep.
/// Rendering may take 4,000,000 steps and make 32 MB of text and values. It may take 64 more of either for each byte of
/// the conversation, tools and documents included, where each message counts as 64 more bytes.
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
        self.render_guarded(messages, options, None)
    }

    /// As [`ChatTemplate::render`], of texts with this guard in them.
    pub(super) fn render_guarded(
        &self,
        messages: &[Message],
        options: &ChatOptions,
        guard: Option<char>,
    ) -> Result<String> {
        let told = messages.iter().map(Message::value).collect::<Result<_>>()?;
        let fixed = [
            ("messages", list_of(told).map_err(problem)?),
            ("tools", json(&options.tools)?),
            ("documents", json(&options.documents)?),
            ("add_generation_prompt", Value::Bool(options.add_generation_prompt)),
        ];
        let variables = options.variables.iter().map(|(name, value)| (name.as_str(), value_of(value)));
        let texts = messages.iter().flat_map(Message::texts).chain(options.texts());
        let limits = Limits::of(texts.map(str::len).sum(), messages.len());
        let variables = fixed.into_iter().chain(variables);
        self.template.render(variables, options.now, limits, guard).map_err(problem)
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

/// What was given, or none.
fn json(given: &Option<Json>) -> Result<Value> {
    given.as_ref().map_or(Ok(Value::None), Json::value).map_err(problem)
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

    /// Jinja2 3.1.6 with the settings of transformers 5.23 rendered them.
    #[test]
    fn python_s_values_are_what_they_are_in_jinja2() {
        for (source, expected) in [
            // Lists, tuples and objects as text.
            (
                "{{ [1, 'a', none] }} {{ (1, 'b') }} {{ {'a': [true]} }} {{ () }}",
                "[1, 'a', None] (1, 'b') {'a': [True]} ()",
            ),
            ("{{ {'a': 1}.items() }} {{ {'a': 1} | items | list }}", "dict_items([('a', 1)]) [('a', 1)]"),
            ("{{ {'b': 1, 'a': 2} | dictsort }} {{ [1, 2] | string ~ [] }}", "[('a', 2), ('b', 1)] [1, 2][]"),
            (
                "{{ (1,) + (2,) }} {{ (1,) == [1] }} {{ [1] * 2 }} {{ (1, 2)[1:] }}",
                "(1, 2) False [1, 1] (2,)",
            ),
            ("{{ range(3) | list }} {{ range(9)[2] }} {{ range(2) == range(2) }}", "[0, 1, 2] 2 True"),
            // What can be gone through once.
            ("{{ [3, 1] | map('string') | list }} {{ 'yes' if [] | select }}", "['3', '1'] yes"),
            ("{{ ['b', 'A', 'a', 'B'] | unique | join }} {{ [1, 2] | reverse | list }}", "bA [2, 1]"),
            ("{{ [1, 2] | map('abs') | reverse }} {{ {'a': 1} | reverse | first }}", "[2, 1] a"),
            (
                "{{ tools | selectattr('a') | list }} {{ none | map('upper') | first }} {{ 0 | reject | list }}",
                "[]  []",
            ),
            (
                "{% set g = [1] | select %}{{ g is iterable }}{{ g is sequence }}{{ g[0] is defined }}",
                "TrueFalseFalse",
            ),
            (
                "{{ {'a': 1}.keys() is sequence }} {{ {'a': 1}.values() | length }} {{ {}.keys()[0] }}",
                "False 1 ",
            ),
            (
                "{{ 1 in [1, 2] | map('abs') }} {{ [1, 2] | select('==', 2) | first }} {{ {'a': 3} | last }}",
                "True 2 a",
            ),
            // Methods that are named and not called come before keys.
            (
                "{% set d = {'items': 1, 'x': 2} %}{{ d['items'] }} {{ d.x }} {{ d.items.y is defined }}",
                "1 2 False",
            ),
            (
                "{{ 'yes' if {}['items'] }} {{ 'yes' if {}.keys }} {{ {'pop': 1}.pop is defined }}",
                "yes yes False",
            ),
            (
                "{{ [{'items': 1}, {}] | map(attribute='items') | first }} {{ {}.copy() }} {{ [1].copy() }}",
                "1 {} [1]",
            ),
            // What is marked as safe.
            (
                "{{ ('<' | safe) + '<\\'\"&>' }} {{ '<' + ('<' | safe) }} {{ ('<' | safe) ~ '<' }}",
                "<&lt;&#39;&#34;&amp;&gt; &lt;< <<",
            ),
            (
                "{{ ('a' | safe + 'b' | safe) is string }} {{ 'a' | safe | tojson }} {{ 'a' | safe == 'a' }}",
                "True \"a\" True",
            ),
            (
                "{{ [1] | safe }} {{ ('a' | safe | string) + '<' }} {{ 'a' in 'ab' | safe }} {{ 'ab' | safe | length }}",
                "[1] a&lt; True 2",
            ),
            // JSON.
            (
                "{{ '[1, {\"a\": \"é\"}]' | from_json }} {{ ('{\"a\": 1}' | fromjson).a }}",
                "[1, {'a': 'é'}] 1",
            ),
            (
                "{{ [1, 'é'] | tojson(true) }} {{ {'b': 1, 'a': 2} | tojson(separators=(',', ':'), sort_keys=true) }}",
                "[1, \"\\u00e9\"] {\"a\":2,\"b\":1}",
            ),
            // Texts.
            (
                "{{ '{}-{x}'.format(1, x=[2]) }} {{ 'a1' | replace(1, 2) }} {{ 'ab'.startswith(('x', 'a')) }}",
                "1-[2] a2 True",
            ),
            (
                "{{ messages[0].none is none }} {{ none.x is defined }} {{ none['x'] is defined }}",
                "False False False",
            ),
        ] {
            assert_eq!(render(source).as_deref(), Ok(expected), "{source}");
        }
    }

    /// Of each, Jinja2 3.1.6 with the settings of transformers 5.23 raises an error, or prints an address.
    #[test]
    fn what_jinja2_refuses_is_refused() {
        for (source, expected) in [
            ("{% for tool in tools %}{% endfor %}", "a none cannot be gone through"),
            ("{{ tools[1:] }}", "a none cannot be sliced"),
            ("{{ nosuch[1:] }}", "an undefined value"),
            ("{{ none | join }}", "a none cannot be gone through"),
            ("{{ nosuch | int }}", "int of an undefined value"),
            ("{{ nosuch | dictsort }}", "dictsort: expected a map, found undefined"),
            ("{% set l = [] %}{% set x = l.append(1) %}", "access to append of a sequence is unsafe"),
            ("{{ {}.update({}) }}", "access to update of a map is unsafe"),
            ("{{ {'a': 1}.pop('a') }}", "access to pop of a map is unsafe"),
            ("{% set x = namespace(_a=1) %}", "an attribute cannot be called _a"),
            ("{% set x = namespace() %}{% set x._a = 1 %}", "an attribute cannot be called _a"),
            ("{{ 'a' + nosuch }}", "variable nosuch is undefined"),
            ("{{ nosuch * 2 }}", "variable nosuch is undefined"),
            (
                "{{ 'a' + messages[0].nosuch }}",
                "tried to use + operator on unsupported types string and undefined",
            ),
            ("{{ [1] + (2,) }}", "tried to use + operator on unsupported types sequence and tuple"),
            ("{{ {}.keys() + [] }}", "tried to use + operator on unsupported types dict_keys and sequence"),
            ("{{ range(2) * 2 }}", "tried to use * operator on unsupported types range and number"),
            ("{{ [1] | select | length }}", "cannot calculate length of value of type generator"),
            ("{{ [1] | select | last }}", "last of a generator"),
            ("{{ [1] | select | tojson }}", "tojson of generator is not supported"),
            ("{{ {}.values() | tojson }}", "tojson of dict_values is not supported"),
            ("{{ ([1] | select)[0:] }}", "a generator cannot be sliced"),
            ("{{ [1] | map('string') }}", "a generator cannot be printed"),
            ("{{ {}.items }}", "a method cannot be printed"),
            ("{% set f = {}.items %}{{ f() }}", "a method cannot be called"),
            ("{{ [1] < (2,) }}", "have no order"),
            ("{{ 'ab'.startswith(['a']) }}", "a sequence is no string"),
            (
                "{{ 'x' | from_json }}",
                "from_json: expected JSON, found 'x' at line 1, column 1, where a value should be (line 1)",
            ),
            ("{{ 1 | from_json }}", "from_json: expected a string, found number"),
            ("{{ '{} {0}'.format(1) }}", "are mixed"),
            // Python would go on as with an empty list, or with its own methods.
            ("{% set g = [1] | select %}{{ g | list }}{{ g | list }}", "was gone through before"),
            ("{{ 'a' | safe | upper }}", "upper of a safe string is not supported"),
            ("{{ ('a' | safe)[0] }}", "items of a safe string are not supported"),
            ("{{ ('a' | safe).strip() }}", "unknown method: strip of a safe string"),
        ] {
            let error = render(source).expect_err(source);
            assert!(error.contains(expected), "{source}: {error}");
        }
    }

    #[test]
    fn tools_and_documents_are_passed_through() {
        let template = ChatTemplate::new(
            "{% for tool in tools %}{{ tool | tojson }}{% endfor %}|{{ documents[0].text }}",
        );
        let options = ChatOptions::default().tools(r#"[{"b": 1, "a": "é"}]"#).unwrap();
        let options = options.documents(r#"[{"text": "x"}]"#).unwrap();
        assert_eq!(template.unwrap().render(&[], &options).unwrap(), r#"{"b": 1, "a": "é"}|x"#);
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
