//! Hostile chat templates: whatever one is, compiling and rendering it takes at most 64 MB, a second and a small stack, or
//! is an error that says which limit it exceeds.
//!
//! A stack that overflows ends the whole program. So templates are tried in programs of their own: this one, started
//! again for the test [`child`].

use std::fmt::Write as _;
use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use smol_tests::common::counting::{Counting, Memory, Random};
use smol_tests::common::{Blob, Checkpoint, TempDir, TensorDtype, data, run};
use smolconv::json::Document;
use smolrun::Message;
use smolrun::chat::{ChatOptions, ChatTemplate};
use smolrun::format::Kind;

/// Of the thread that compiles and renders: a quarter of what WebAssembly has, an eighth of what threads have. Builds
/// without optimization take more of it.
const STACK: usize = if cfg!(debug_assertions) { 1 << 20 } else { 256 << 10 };
const MOST_MEMORY: usize = 64 << 20;
/// Builds without optimization are slower, and other tests may keep the machine busy.
const MOST_TIME: Duration = Duration::from_secs(if cfg!(debug_assertions) { 10 } else { 1 });
/// How many random templates there are unless `SMOL_TEMPLATES` says otherwise.
const TEMPLATES: u64 = if cfg!(debug_assertions) { 500 } else { 5_000 };
/// What an error may say that is a limit of ours.
const LIMITS: [&str; 6] =
    ["deep in one another", " steps", "bytes of text and values", "are compiled", "not supported", "unknown"];

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// What a hostile template comes to.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    /// It lies too deep: the error is the parser's, or the interpreter's.
    Deep,
    /// It takes too many steps, or makes too much.
    Budget,
    /// It has or names what templates have not.
    Unknown,
    /// It is long and flat: all is well, or an error of another kind.
    Fine,
}

fn ends_as(end: End, result: &str) -> bool {
    let says = |limits: &[&str]| limits.iter().any(|limit| result.contains(limit));
    match end {
        End::Deep => says(&LIMITS[..1]),
        End::Budget => says(&LIMITS[1..3]),
        End::Unknown => says(&LIMITS[3..]),
        End::Fine => !says(&LIMITS[..3]),
    }
}

/// A loop of 100,000 rounds of `body`, after `before`.
fn in_loop(before: &str, body: &str) -> String {
    format!(
        "{before}{{% for i in range(317) %}}{{% for j in range(317) %}}{body}{{% endfor %}}{{% endfor %}}"
    )
}

/// `before`, `part` as often as 64,000 bytes have it, `after`.
fn long(before: &str, part: &str, after: &str) -> String {
    format!("{before}{}{after}", part.repeat(64_000 / part.len()))
}

/// `count` times `open`, `middle`, as many times `close`.
fn nest(open: &str, middle: &str, close: &str, count: usize) -> String {
    format!("{}{middle}{}", open.repeat(count), close.repeat(count))
}

/// Everything that ever overflowed the stack, took gigabytes or did not end, by name.
fn hostile() -> Vec<(&'static str, String, End)> {
    let double = "{% set ns = namespace(x='abcdefghij') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}";
    let big = "{% set s = 'x y,' * 200000 %}{% set l = range(20000) | list %}";
    let deep_value = |make: &str| {
        format!(
            "{{% set ns = namespace(x=1) %}}{{% for i in range(100000) %}}{{% set ns.x = {make} %}}{{% endfor %}}"
        )
    };
    let wide =
        "{% set ns = namespace(x=[1]) %}{% for i in range(50) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}";
    vec![
        // Chains.
        ("1+1+1…", long("{{ 1", "+1", " }}"), End::Fine),
        ("a~a~a…", long("{{ 'a'", "~'a'", " }}"), End::Fine),
        ("-----1", long("{{ ", "-", "1 }}"), End::Fine),
        ("- - - 1", long("{{ ", "- ", "1 }}"), End::Fine),
        ("not not not", long("{{ ", "not ", "1 }}"), End::Fine),
        ("and and", long("{{ 1", " and 1", " }}"), End::Fine),
        ("or or", long("{{ 0", " or 0", " }}"), End::Fine),
        ("a.a.a…", long("{{ messages", ".a", " }}"), End::Fine),
        ("a[0][0]…", long("{{ messages", "[0]", " }}"), End::Fine),
        ("a()()…", long("{{ range", "()", " }}"), End::Fine),
        ("a|string|string…", long("{{ 1", "|string", " }}"), End::Fine),
        ("a is string is string…", long("{{ 1", " is string", " }}"), End::Fine),
        ("a[:][:]…", long("{{ messages", "[:]", "|length }}"), End::Fine),
        ("1**1**1…", long("{{ 1", "**1", " }}"), End::Fine),
        ("1*1*1…", long("{{ 1", "*1", " }}"), End::Fine),
        ("1<1<1…", long("{{ 1", "<=1", " }}"), End::Fine),
        ("1==1==1…", long("{{ 1", "==1", " }}"), End::Fine),
        ("a in a in a…", long("{{ 'a'", " in 'a'", " }}"), End::Fine),
        ("a if b else a if b…", long("{{ 1", " if 0 else 1", " }}"), End::Fine),
        ("elif elif", long("{% if 0 %}", "{% elif 0 %}", "{% endif %}"), End::Fine),
        ("1,1,1…", long("{{ [1", ",1", "]|length }}"), End::Fine),
        ("f(1,1,1…)", long("{{ dict(1", ",1", ") }}"), End::Fine),
        ("'a' 'a' 'a'…", long("{{ 'a'", " 'a'", " }}"), End::Fine),
        ("{{a}}{{a}}…", long("", "{{a}}", ""), End::Fine),
        ("{#{#…", long("", "{#", ""), End::Fine),
        ("{% raw %}…", long("", "{% raw %}{%", ""), End::Fine),
        ("64 KB of set", "{%set a=1%}".repeat(5_900), End::Fine),
        ("6,000 names", (0..6_000).map(|n| format!("{{{{a{n}}}}}")).collect(), End::Fine),
        ("(((…", nest("(", "1", ")", 10_000), End::Fine),
        // Nests.
        ("{{ (((…", format!("{{{{ {} }}}}", nest("(", "1", ")", 10_000)), End::Deep),
        ("[[[…", format!("{{{{ {} }}}}", nest("[", "1", "]", 10_000)), End::Deep),
        ("[[[… unclosed", long("{{ ", "[", ""), End::Fine),
        ("{a:{a:…", format!("{{{{ {} }}}}", nest("{'a':", "1", "}", 5_000)), End::Deep),
        ("a[a[a[…", format!("{{{{ {} }}}}", nest("a[", "1", "]", 10_000)), End::Deep),
        ("f(f(f(…", format!("{{{{ {} }}}}", nest("f(", "1", ")", 10_000)), End::Deep),
        ("f(a=f(a=…", format!("{{{{ {} }}}}", nest("f(a=", "1", ")", 10_000)), End::Deep),
        ("a|f(a|f(…", format!("{{{{ {} }}}}", nest("a|d(", "1", ")", 10_000)), End::Deep),
        ("a is eq [a is eq […", format!("{{{{ {} }}}}", nest("a is eq [", "1", "]", 5_000)), End::Deep),
        ("a is eq -(…", format!("{{{{ {} }}}}", nest("a is eq -(", "1", ")", 5_000)), End::Deep),
        ("all operators, nested", format!("{{{{ {} }}}}", nest("1 or 1 and not 1 == 1 + 1 ~ 1 * 1 ** (", "1", ")", 1_000)), End::Deep),
        ("all operators, nested as far as may be", format!("{{{{ {} }}}}", nest("0 or 1 and not 1 == 1 + 1 ~ 1 * 1 ** (", "1", ")", 37)), End::Deep),
        ("all operators, nested as far as they run", format!("{{{{ {} }}}}", nest("0 or 1 and not 1 == 1 + 1 ~ 1 * 1 ** (", "1", ")", 16)), End::Fine),
        ("((a if b else (…", format!("{{{{ {} }}}}", nest("1 if 0 else (", "1", ")", 4_000)), End::Deep),
        ("not(-(not(-(…", format!("{{{{ {} }}}}", nest("not -(", "1", ")", 7_000)), End::Deep),
        ("if if if", nest("{% if 1 %}", "x", "{% endif %}", 3_000), End::Deep),
        ("for for for", nest("{% for a in [1] %}", "x", "{% endfor %}", 2_000), End::Deep),
        ("macro in macro", nest("{% macro a() %}", "x", "{% endmacro %}", 2_000), End::Deep),
        ("call in call", nest("{% call a() %}", "x", "{% endcall %}", 2_000), End::Deep),
        ("with with with", nest("{% with %}", "x", "{% endwith %}", 2_000), End::Deep),
        ("filter in filter", nest("{% filter trim %}", "x", "{% endfilter %}", 2_000), End::Deep),
        ("set in set", nest("{% set a %}", "x", "{% endset %}", 2_500), End::Deep),
        ("generation in generation", nest("{% generation %}", "x", "{% endgeneration %}", 1_800), End::Deep),
        ("block in block", nest("{% block a %}", "x", "{% endblock %}", 2_000), End::Unknown),
        ("set (((…", format!("{{% set {} = 1 %}}", nest("(", "a", ")", 10_000)), End::Deep),
        // What calls itself.
        ("a macro in itself", "{% macro a() %}{{ a() }}{% endmacro %}{{ a() }}".into(), End::Deep),
        ("two macros", "{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}{{ a() }}{% endmacro %}{{ a() }}".into(), End::Deep),
        ("a macro twice in itself", "{% macro a() %}{{ a() }}{{ a() }}{% endmacro %}{{ a() }}".into(), End::Deep),
        ("a macro in its default", "{% macro a(x=a()) %}{% endmacro %}{{ a() }}".into(), End::Deep),
        ("a macro through a namespace", "{% set n = namespace() %}{% macro a() %}{{ n.f() }}{% endmacro %}{% set n.f = a %}{{ a() }}".into(), End::Deep),
        ("a caller that calls", "{% macro a() %}{{ caller() }}{% endmacro %}{% macro b() %}{% call a() %}{{ b() }}{% endcall %}{% endmacro %}{{ b() }}".into(), End::Deep),
        ("a caller that is kept", "{% set n = namespace() %}{% macro a() %}{% set n.f = caller %}{% endmacro %}{% with %}{% call a() %}{{ n.f() }}{% endcall %}{% endwith %}{{ n.f() }}".into(), End::Deep),
        ("a loop in itself", "{% for a in [[1]] recursive %}{{ loop([a]) }}{% endfor %}".into(), End::Fine),
        ("include of itself", "{% include 'chat_template' %}".into(), End::Unknown),
        ("include of itself, nested", nest("{% if 1 %}", "{% include 'chat_template' %}", "{% endif %}", 9), End::Unknown),
        ("extends itself", "{% extends 'chat_template' %}".into(), End::Unknown),
        ("import of itself", "{% import 'chat_template' as a %}".into(), End::Unknown),
        ("map of map", "{{ [1] | map('map', 'map', 'map', 'string') | list }}".into(), End::Unknown),
        // Values that lie deep, or hold themselves.
        ("[[[…]]] as a value", deep_value("[ns.x]"), End::Deep),
        ("{{{…}}} as a value", deep_value("{'a': ns.x}"), End::Deep),
        ("dict(a=dict(…", deep_value("dict(a=ns.x)"), End::Deep),
        ("namespaces in namespaces", deep_value("namespace(x=ns.x)"), End::Budget),
        ("a namespace in itself", "{% set ns = namespace() %}{% set ns.x = ns %}{{ ns == ns.x }}{{ ns.x.x.x is defined }}".into(), End::Fine),
        ("a wide value compared", format!("{wide}{{{{ ns.x == ns.x + [] }}}}"), End::Budget),
        ("a wide value written", format!("{wide}{{{{ ns.x | tojson }}}}"), End::Budget),
        ("a wide value sorted", format!("{wide}{{{{ [ns.x, ns.x] | sort | length }}}}"), End::Budget),
        ("a wide value looked for", format!("{wide}{{{{ [1] in ns.x }}}}{{{{ ns.x in [ns.x + []] }}}}"), End::Budget),
        // What becomes large.
        ("~ doubled", format!("{double}{{{{ ns.x | length }}}}"), End::Budget),
        ("+ doubled", double.replace("ns.x ~ ns.x", "ns.x + ns.x"), End::Budget),
        ("replace doubled", double.replace("ns.x ~ ns.x", "ns.x | replace('a', 'aaaa')"), End::Budget),
        ("list doubled", double.replace("ns.x ~ ns.x", "[ns.x] + [ns.x]").replace("'abcdefghij'", "[1]"), End::Fine),
        ("list + doubled", double.replace("ns.x ~ ns.x", "ns.x + ns.x").replace("'abcdefghij'", "[1]"), End::Budget),
        ("set block doubled", double.replace("{% set ns.x = ns.x ~ ns.x %}", "{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = y %}"), End::Budget),
        ("join doubled", double.replace("ns.x ~ ns.x", "[ns.x, ns.x] | join(ns.x)"), End::Budget),
        ("format doubled", double.replace("ns.x ~ ns.x", "'{0}{0}'.format(ns.x)"), End::Budget),
        ("upper of what grows", double.replace("ns.x ~ ns.x", "(ns.x ~ 'ŉ') | upper | replace('J', 'JJŉŉ')"), End::Budget),
        ("'a' * 2000000000", "{{ 'a' * 2000000000 }}".into(), End::Budget),
        ("2000000000 * 'a'", "{{ 2000000000 * 'a' }}".into(), End::Budget),
        ("'ab' * huge", "{{ 'ab' * 9223372036854775807 }}".into(), End::Budget),
        ("[1] * 2000000000", "{{ ([1] * 2000000000) | length }}".into(), End::Budget),
        ("range(2000000000)", "{{ range(2000000000) | length }}".into(), End::Budget),
        ("range(huge)", "{{ range(-9223372036854775807, 9223372036854775807) | length }}".into(), End::Budget),
        ("%2000000000d | format", "{{ '%2000000000d' | format(1) }}".into(), End::Unknown),
        ("{:2000000000}.format", "{{ '{:2000000000}'.format(1) }}".into(), End::Fine),
        ("indent(2000000000)", "{{ 'a\nb' | indent(2000000000) }}".into(), End::Budget),
        ("indent of many lines", format!("{{{{ {:?} | indent(60000, true, true) }}}}", "\n".repeat(20_000)), End::Budget),
        ("indent by a text", "{% set a = 'x' * 100000 %}{{ ('\n' * 10000) | indent(a, true, true) }}".into(), End::Budget),
        ("tojson(indent=2000000000)", "{{ [1] | tojson(indent=2000000000) }}".into(), End::Budget),
        ("tojson indents by much", "{% set s = 'x' * 1000000 %}{{ [[[[[[[[1]]]]]]]] | tojson(indent=s) }}".into(), End::Budget),
        ("tojson with long separators", "{% set s = 'x' * 1000000 %}{{ range(100) | list | tojson(separators=(s, s)) }}".into(), End::Budget),
        ("tojson of what becomes escapes", "{{ ('é' * 3000000) | tojson(ensure_ascii=true) }}".into(), End::Budget),
        ("a list that grows", in_loop("{% set ns = namespace(x=[]) %}", "{% set ns.x = ns.x + [1] %}"), End::Budget),
        ("append in a loop", in_loop("{% set l = [] %}", "{% set x = l.append(l) %}"), End::Fine),
        ("append to itself", "{% set l = [] %}{% set x = l.append(l) %}{{ l }}".into(), End::Fine),
        ("update, pop and the like", "{% set d = {} %}{{ d.update(d) }}{{ d.pop(1) }}{{ [1].sort() }}".into(), End::Fine),
        ("format with many fields", "{% set s = 'x' * 1000000 %}{{ ('{0}' * 100000).format(s) }}".into(), End::Budget),
        ("format with many braces", in_loop("{% set s = '{{' * 200000 %}", "{% set x = s.format() %}"), End::Budget),
        ("format with a name of many", {
            let given: String = (0..2_000).map(|n| format!("a{n}=1,")).collect();
            in_loop("{% set s = '{a1999}' * 1000 %}", &format!("{{% set x = s.format({given}) %}}"))
        }, End::Budget),
        ("safe doubled", double.replace("'abcdefghij'", "'abc<' | safe").replace("~", "+"), End::Budget),
        ("safe escapes doubled", double.replace("ns.x ~ ns.x", "('' | safe) + (ns.x ~ '&')").replace("range(60)", "range(100000)"), End::Budget),
        ("a wide value printed", format!("{wide}{{{{ ns.x }}}}"), End::Budget),
        ("a wide value as a text", format!("{wide}{{{{ ns.x | string | length }}}}"), End::Budget),
        ("a value deep in itself printed", "{% set ns = namespace(x=1) %}{% for i in range(60) %}{% set ns.x = (ns.x,) %}{% endfor %}{{ ns.x }}".into(), End::Fine),
        ("from_json, lists", "{{ ('[' * 100000) | from_json }}".into(), End::Deep),
        ("from_json, objects", "{{ ('{\"a\":' * 100000) | from_json }}".into(), End::Deep),
        ("from_json, as deep as may be", "{{ ('[' * 60 ~ ']' * 60) | from_json | tojson }}".into(), End::Fine),
        ("from_json, wide", "{{ ('[' ~ '[],' * 1000000 ~ '1]') | from_json | length }}".into(), End::Budget),
        ("from_json, one key", "{{ ('{' ~ '\"a\":1,' * 1000000 ~ '\"a\":1}') | from_json | length }}".into(), End::Budget),
        ("from_json, escapes", "{{ ('\"' ~ '\\\\u0041' * 2000000 ~ '\"') | from_json | length }}".into(), End::Budget),
        ("from_json, a long number", "{{ ('1' * 1000000) | from_json }}".into(), End::Fine),
        ("from_json of no text", "{{ messages | from_json }}{{ none | fromjson }}".into(), End::Fine),
        ("from_json of its own", double.replace("ns.x ~ ns.x", "[ns.x, ns.x] | tojson | from_json | tojson"), End::Budget),
        ("a generator that is used up", "{% set g = messages | map('length') %}{{ g | list | length }}{{ g | list }}".into(), End::Fine),
        ("tojson indents much", "{{ range(20000) | list | tojson(indent=1000) }}".into(), End::Budget),
        ("center(2000000000)", "{{ 'a' | center(2000000000) }}".into(), End::Unknown),
        ("ljust(2000000000)", "{{ 'a'.ljust(2000000000) }}".into(), End::Fine),
        ("zfill(2000000000)", "{{ 'a'.zfill(2000000000) }}".into(), End::Fine),
        ("slice(2000000000)", "{{ [1] | slice(2000000000) | list }}".into(), End::Unknown),
        ("batch(2000000000, 1)", "{{ [1] | batch(2000000000, 1) | list }}".into(), End::Unknown),
        ("lipsum(2000000000)", "{{ lipsum(2000000000) }}".into(), End::Unknown),
        ("2 ** 2000000000", "{{ 2 ** 2000000000 }}".into(), End::Fine),
        ("9 ** 9 ** 9 ** 9", "{{ 9 ** 9 ** 9 ** 9 }}".into(), End::Fine),
        ("a minus the least", "{{ -9223372036854775807 - 1 }}{{ (-9223372036854775807 - 1) // -1 }}".into(), End::Fine),
        ("a remainder of the least", "{{ (-9223372036854775807 - 1) % -1 }}{{ (-9223372036854775807 - 1) | abs }}".into(), End::Fine),
        ("strftime_now of much", "{{ strftime_now('%A' * 2000000) }}".into(), End::Budget),
        ("much text", in_loop("", &"x".repeat(300)), End::Budget),
        ("join of much", in_loop(big, "{% set x = l | join(s) %}"), End::Budget),
        // What takes long.
        ("empty loops", in_loop("", "{% for k in range(1000) %}{% endfor %}"), End::Budget),
        ("a loop with a condition", in_loop("", "{% for k in range(1000) if false %}{% endfor %}"), End::Budget),
        ("sort in a loop", in_loop(big, "{% set x = l | sort(reverse=true) %}"), End::Budget),
        ("unique in a loop", in_loop(big, "{% set x = l | unique %}"), End::Budget),
        ("unique of many", "{{ range(30000) | unique | list | length }}".into(), End::Budget),
        ("from_json in a loop", in_loop("{% set s = '\"' ~ 'x' * 1000000 ~ '\"' %}", "{% set x = s | from_json %}"), End::Budget),
        ("repr in a loop", in_loop(big, "{% set x = l | string %}"), End::Budget),
        ("repr of a text in a loop", in_loop(big, "{% set x = [s] | string %}"), End::Budget),
        ("a method by its name in a loop", in_loop("{% set d = {} %}", "{% set x = d.items %}{% set x = d['items'] %}{% set x = x.y %}"), End::Budget),
        ("min in a loop", in_loop(big, "{% set x = l | min %}"), End::Budget),
        ("join in a loop", in_loop(big, "{% set x = l | join %}"), End::Budget),
        ("upper in a loop", in_loop(big, "{% set x = s | upper %}"), End::Budget),
        ("[::-1] in a loop", in_loop(big, "{% set x = s[::-1] %}"), End::Budget),
        ("list[::-1] in a loop", in_loop(big, "{% set x = l[::-1] %}"), End::Budget),
        ("reverse in a loop", in_loop(big, "{% set x = l | reverse %}"), End::Budget),
        ("tojson in a loop", in_loop(big, "{% set x = s | tojson %}"), End::Budget),
        ("in in a loop", in_loop(big, "{% set x = -1 in l %}"), End::Budget),
        ("text in text in a loop", in_loop(big, "{% set x = 'z' in s %}"), End::Budget),
        ("== in a loop", in_loop(&format!("{big}{{% set t = s ~ '' %}}"), "{% set x = s == t %}"), End::Budget),
        ("< in a loop", in_loop(&format!("{big}{{% set t = s ~ '' %}}"), "{% set x = s < t %}"), End::Budget),
        ("list == in a loop", in_loop(&format!("{big}{{% set m = l + [] %}}"), "{% set x = l == m %}"), End::Budget),
        ("split in a loop", in_loop(big, "{% set x = s.split(',') %}"), End::Budget),
        ("words in a loop", in_loop(big, "{% set x = s.split() %}"), End::Budget),
        ("replace in a loop", in_loop(big, "{% set x = s | replace('z', '') %}"), End::Budget),
        ("strip in a loop", in_loop(big, "{% set x = s.strip('x y,') %}"), End::Budget),
        ("find in a loop", in_loop(big, "{% set x = s.rfind('z') %}"), End::Budget),
        ("count in a loop", in_loop(big, "{% set x = s.count('z') %}"), End::Budget),
        ("length in a loop", in_loop(big, "{% set x = s | length %}"), End::Budget),
        ("s[0] in a loop", in_loop(big, "{% set x = s[799999] %}"), End::Budget),
        ("last in a loop", in_loop(big, "{% set x = s | last %}"), End::Budget),
        ("map in a loop", in_loop(big, "{% set x = l | map('string') %}"), End::Budget),
        ("select in a loop", in_loop(big, "{% set x = l | select('odd') %}"), End::Budget),
        ("is lower in a loop", in_loop(big, "{% set x = s is lower %}"), End::Budget),
        ("format in a loop", in_loop(big, "{% set x = s.format() %}"), End::Budget),
        ("indent in a loop", in_loop(big, "{% set x = s | indent %}"), End::Budget),
        ("capitalize in a loop", in_loop(big, "{% set x = s | capitalize %}"), End::Budget),
        ("int in a loop", in_loop("{% set s = '1' * 1000000 %}", "{% set x = s | int %}"), End::Budget),
        ("startswith in a loop", in_loop(&format!("{big}{{% set t = s ~ '' %}}"), "{% set x = s.startswith(t) %}"), End::Budget),
        ("many names in a loop", {
            let names: String = (0..3_000).map(|n| format!("{{%set a{n}=1%}}")).collect();
            in_loop(&names, "{% set x = a2999 %}")
        }, End::Budget),
        ("a large object looked up", {
            let entries: String = (0..4_000).map(|n| format!("'k{n}':1,")).collect();
            in_loop("", &format!("{{% set x = {{{entries}}} %}}"))
        }, End::Budget),
        ("a namespace of many", {
            let names: String = (0..3_000).map(|n| format!("a{n}=1,")).collect();
            in_loop(&format!("{{% set ns = namespace({names}) %}}"), "{% set x = ns.a2999 %}")
        }, End::Budget),
        ("a macro called with many", {
            let names: String = (0..2_000).map(|n| format!("a{n},")).collect();
            let given: String = (0..2_000).map(|n| format!("a{n}=1,")).collect();
            in_loop(&format!("{{% macro f({}) %}}{{% endmacro %}}", names.trim_end_matches(',')), &format!("{{% set x = f({given}) %}}"))
        }, End::Budget),
        // What is too long.
        ("65,537 bytes", "x".repeat((64 << 10) + 1), End::Unknown),
        ("50 MB", "{{ x }}".repeat(50 << 17), End::Unknown),
    ]
}

fn conversation() -> Vec<Message> {
    let turns = [
        ("system", "Be short."),
        ("user", " Hi <b>\"é\"\n"),
        ("assistant", "<think>\nHm.\n</think>\n\nHello"),
    ];
    turns
        .iter()
        .chain(&turns[1..])
        .chain(&turns[1..2])
        .map(|(role, text)| Message::new(*role, *text))
        .collect()
}

/// What `work` came to, the most bytes that were alive at a time, and how long it took.
fn measured<T>(work: impl FnOnce() -> T) -> (T, usize, Duration) {
    let before = Memory::now();
    Memory::begin();
    let began = cpu_time();
    let result = work();
    let time = cpu_time().saturating_sub(began);
    (result, Memory::now().most.saturating_sub(before.alive), time)
}

/// What compiling and rendering came to.
fn render(source: &str, messages: &[Message]) -> (Result<String, String>, usize, Duration) {
    let options = ChatOptions::default().now(std::time::UNIX_EPOCH);
    let options = options.variable("bos_token", "<s>").variable("eos_token", "</s>");
    let work = || ChatTemplate::new(source).and_then(|template| template.render(messages, &options));
    let (result, memory, time) = measured(work);
    (result.map_err(|error| error.to_string()), memory, time)
}

/// How long this thread has run, so that what else the machine does changes nothing; elsewhere, the time that has passed.
fn cpu_time() -> Duration {
    static START: OnceLock<Instant> = OnceLock::new();
    let text = fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanoseconds = text.split(' ').next().and_then(|number| number.parse().ok());
    nanoseconds.map_or_else(|| START.get_or_init(Instant::now).elapsed(), Duration::from_nanos)
}

/// Runs `work` where the stack is small.
fn on_small_stack(work: impl FnOnce() + Send + 'static) {
    let stack = std::env::var("SMOL_TEMPLATE_STACK").map_or(STACK, |bytes| bytes.parse().unwrap());
    std::thread::Builder::new().stack_size(stack).spawn(work).unwrap().join().unwrap();
}

/// What other tests start a program for. Templates lie in the directory, or are random ones with these seeds.
#[test]
#[ignore = "other tests start it"]
fn child() {
    let Ok(task) = std::env::var("SMOL_TEMPLATE_TASK") else { return };
    on_small_stack(move || match task.split_once("seeds ") {
        Some(("", seeds)) => {
            let (from, to) = seeds.split_once(' ').unwrap();
            try_random(from.parse().unwrap()..to.parse().unwrap());
        }
        _ => try_files(Path::new(&task)),
    });
}

/// What the program started for `task` says, line by line, and whether it came to its end.
fn run_child(task: &str) -> (Vec<String>, bool) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--ignored", "--exact", "child", "--nocapture"]).env("SMOL_TEMPLATE_TASK", task);
    let output = command.output().unwrap();
    let lines = String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect();
    (lines, output.status.success())
}

fn try_files(directory: &Path) {
    for number in 0_usize.. {
        let Ok(source) = fs::read_to_string(directory.join(number.to_string())) else { return };
        println!("begin {number}");
        let (result, memory, time) = render(&source, &conversation());
        tell("render", number, result, memory, time);
        let (result, memory, time) = measured(|| {
            let document = Document::read(&directory.join(number.to_string()))?;
            smolconv::tokenizer::chat_template::read(Some(&document), None)
        });
        let result = result.map(Option::unwrap_or_default).map_err(|error| error.to_string());
        tell("convert", number, result, memory, time);
    }
}

fn tell(what: &str, number: usize, result: Result<String, String>, memory: usize, time: Duration) {
    let text = result.unwrap_or_else(|error| error);
    // The beginning names the file, the end says the limit.
    let end: String = text.chars().skip(text.chars().count().saturating_sub(250)).collect();
    println!("{what} {number} {memory} {} {end:?}", time.as_millis());
}

#[test]
fn hostile_templates_end_in_an_error_that_says_the_limit() {
    let (mut table, mut failures) = (String::new(), Vec::new());
    let temp = TempDir::new();
    for (name, source, end) in &hostile() {
        fs::write(temp.join("0"), source).unwrap();
        let (lines, is_well) = run_child(temp.path().to_str().unwrap());
        for what in ["render", "convert"] {
            let line = lines.iter().find_map(|line| line.strip_prefix(what)?.strip_prefix(" 0 "));
            let Some((memory, rest)) = line.and_then(|line| line.split_once(' ')).filter(|_| is_well) else {
                failures.push(format!("{name}, {what}: the program died"));
                continue;
            };
            let (time, result) = rest.split_once(' ').unwrap();
            let (memory, time): (usize, u64) = (memory.parse().unwrap(), time.parse().unwrap());
            writeln!(table, "{name}\t{what}\t{time} ms\t{:.1} MB\t{result}", memory as f64 / 1e6).unwrap();
            // The converter renders up to three conversations; what the runtime does not know it refuses before.
            let most_time = if what == "convert" { MOST_TIME * 3 } else { MOST_TIME };
            let is_refused = |words| what == "convert" && result.contains(words);
            let is_end = ends_as(*end, result)
                || is_refused("not supported")
                || is_refused("expected at most 16777216 bytes");
            if memory > MOST_MEMORY || Duration::from_millis(time) > most_time || !is_end {
                failures
                    .push(format!("{name}, {what}: {memory} bytes, {time} ms, expected {end:?}: {result}"));
            }
        }
    }
    println!("{table}");
    assert!(failures.is_empty(), "{failures:#?}");
}

/// What an expression is, so that most random ones mean something.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Sort {
    Text,
    Number,
    List,
    Any,
}

/// Expressions in which `T`, `N`, `L` and `A` stand for one of that sort. The first of each sort have no other in them.
const TEXTS: [&str; 34] = [
    "'abc'",
    "' x\\n y '",
    "a",
    "b",
    "ns.x",
    "message.role",
    "(T + T)",
    "(A ~ T ~ N)",
    "(T * N)",
    "(T if A else T)",
    "T | trim",
    "T | upper",
    "T | capitalize",
    "T | replace('a', T)",
    "T | indent(3, true)",
    "(N) | string",
    "(A) | tojson(indent=2)",
    "L | join(T)",
    "(T)[::-1]",
    "(T)[1:]",
    "(T)[:-1:2]",
    "(T).strip()",
    "(T).lstrip('a')",
    "(T).replace('b', T)",
    "'{0} {0}'.format(T)",
    "'{} {x}'.format(T, x=A)",
    "L | string",
    "(A) | tojson(ensure_ascii=true, separators=(T, T))",
    "((T) | safe + T) ~ T",
    "m(T)",
    "message.get('content', T)",
    "nosuch | default(T)",
    "L | map('string') | first | default(T, true)",
    "(T or T)",
];
const NUMBERS: [&str; 16] = [
    "1",
    "7",
    "2.5",
    "9000000000",
    "(N + N)",
    "(N - N * N)",
    "(N // 3 % 5)",
    "(N ** 2)",
    "-N",
    "(N) | abs",
    "L | length",
    "T | int",
    "(T).find(T)",
    "(T).count('a')",
    "(A is defined) | int",
    "[N, N] | max",
];
const LISTS: [&str; 21] = [
    "[]",
    "messages",
    "[1, 2, 'x']",
    "[T, T]",
    "[L, A]",
    "(L + L)",
    "(L)[1:]",
    "(L)[::-1]",
    "range(N % 50)",
    "range(N)",
    "(T).split('b')",
    "(T).split()",
    "L | reverse | list",
    "[T, T, T] | sort",
    "L | unique | list",
    "(T, A)",
    "dict(x=A, y=T).items()",
    "L | tojson | from_json",
    "messages | selectattr('role', 'equalto', T) | list",
    "messages | map(attribute='content') | list",
    "{'role': T, 'x': A} | dictsort",
];
const ANY: [&str; 19] = [
    "true",
    "none",
    "nosuch",
    "messages[0]",
    "T",
    "N",
    "L",
    "T == T",
    "N < N",
    "T in L",
    "'a' not in T",
    "not A",
    "(A and A)",
    "(A or A)",
    "A is string",
    "A is not none",
    "L is iterable",
    "{'role': A, 'content': T}",
    "loop",
];
/// What is put into templates that were good.
const WORDS: [&str; 24] = [
    "a",
    "messages",
    "nosuch",
    "loop.index",
    "none",
    "'x'",
    "7",
    " | trim",
    " | tojson",
    " | length",
    " | sort",
    "[0]",
    "[::-1]",
    ".role",
    ".split('a')",
    "(1)",
    " is string",
    " is defined",
    " + ",
    " ~ ",
    " not ",
    " in ",
    " if ",
    " or ",
];

/// Writes random templates.
struct Author {
    random: Random,
    text: String,
}

impl Author {
    fn expression(&mut self, sort: Sort, depth: usize) {
        let (all, simple): (&[&str], usize) = match sort {
            _ if self.random.below(300) == 0 => (&ANY, 4),
            Sort::Text => (&TEXTS, 6),
            Sort::Number => (&NUMBERS, 4),
            Sort::List => (&LISTS, 3),
            Sort::Any => (&ANY, 4),
        };
        let form = all[self.random.below(if depth == 0 { simple } else { all.len() })];
        // Now and then a long chain.
        let chain = if depth > 1 && self.random.below(200) == 0 { 300 } else { 1 };
        for link in 0..chain {
            if link > 0 {
                self.text += if sort == Sort::Any { " or " } else { " + " };
            }
            for character in form.chars() {
                match character {
                    'T' => self.expression(Sort::Text, depth.saturating_sub(1)),
                    'N' => self.expression(Sort::Number, depth.saturating_sub(1)),
                    'L' => self.expression(Sort::List, depth.saturating_sub(1)),
                    'A' => self.expression(Sort::Any, depth.saturating_sub(1)),
                    other => self.text.push(other),
                }
            }
        }
    }

    fn block(&mut self, depth: usize) {
        for _ in 0..1 + self.random.below(3) {
            self.statement(depth);
        }
    }

    /// A statement with an expression in it, and what comes after it.
    fn statement(&mut self, depth: usize) {
        let (before, sort, after, end) = match self.random.below(if depth == 0 { 6 } else { 16 }) {
            0 => return self.text += "some text\n",
            1 | 2 => ("{{ ", Sort::Text, " }}", ""),
            3 => ("{% set a = ", Sort::Text, " %}", ""),
            4 => ("{% set ns.x = ", Sort::Text, " %}", ""),
            5 => ("{%- set b = b ~ ", Sort::Text, " -%}", ""),
            6 | 7 => ("{% if ", Sort::Any, " %}", "{% endif %}"),
            8 => ("{% if ", Sort::Any, " %}x{% elif b %}y{% else %}", "{% endif %}"),
            9 => ("{% for i in ", Sort::List, " %}{{ loop.index }}", "{% endfor %}"),
            10 => ("{% for message in messages if ", Sort::Any, " %}", "{% else %}none{% endfor %}"),
            11 => ("{% for i, a in {'x': ", Sort::Text, "}.items() %}", "{% break %}{% endfor %}"),
            12 => ("{% macro m(i=", Sort::Text, ", a='y') %}{{ i }}", "{% endmacro %}"),
            13 => ("{% call(i='z') m(", Sort::Text, ") %}", "{% endcall %}"),
            14 => ("{% with a = ", Sort::Text, " %}", "{% endwith %}"),
            _ => ("{% set a | replace('a', ", Sort::Text, ") %}", "{% endset %}"),
        };
        self.text += before;
        self.expression(sort, depth.min(3));
        self.text += after;
        if !end.is_empty() {
            self.block(depth - 1);
            self.text += end;
        }
    }
}

/// The template that `seed` stands for: a random one, or one of a popular model with damage done to it.
fn template(seed: u64, popular: &[String]) -> String {
    let mut random = Random(seed);
    if random.below(2) == 0 {
        let text = "{% set ns = namespace(x='') %}{% set a = 'A' %}{% set b = '' %}{% set message = messages[0] %}\
            {% macro m(i='', a='') %}{{ i }}{{ caller() if caller }}{% endmacro %}";
        let text = text.into();
        let mut author = Author { random, text };
        author.block(5);
        author.block(5);
        return author.text;
    }
    let mut text = popular[random.below(popular.len())].clone();
    for _ in 0..1 + random.below(4) {
        damage(&mut text, &popular[random.below(popular.len())], &mut random);
    }
    text
}

fn damage(text: &mut String, other: &str, random: &mut Random) {
    let place = |text: &str, random: &mut Random| {
        let at = random.below(text.len() + 1);
        (at..=text.len()).find(|&at| text.is_char_boundary(at)).unwrap_or(0)
    };
    let (a, b) = (place(text, random), place(text, random));
    let (from, to) = (a.min(b), a.max(b));
    let short = (from..to.min(from + 40)).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(from);
    match random.below(7) {
        0 => text.replace_range(from..short, ""),
        1 => {
            let piece = text[from..short].to_owned();
            text.insert_str(to, &piece);
        }
        2 => text.insert_str(from, &text[from..short].to_owned().repeat(1 + random.below(400))),
        3 => {
            let (a, b) = (place(other, random), place(other, random));
            text.insert_str(from, &other[a.min(b)..a.max(b)]);
        }
        4 => {
            let pieces = [
                "{%",
                "%}",
                "{{",
                "}}",
                "-",
                "+",
                "(",
                ")",
                "[",
                "]",
                "'",
                "\"",
                "|",
                "~",
                "{% endif %}",
                "{#",
                "\\",
            ];
            text.insert_str(from, random.pick(&pieces));
        }
        5 => text.insert_str(from, random.pick(&WORDS)),
        _ => {
            // One name for another, wherever it stands.
            let words = [
                "content", "role", "messages", "loop", "first", "message", "system", "if", "for", "set",
                "==", "not",
            ];
            let (old, new) = (random.pick(&words), random.pick(&words));
            *text = text.replacen(old, new, 1 + random.below(9));
        }
    }
}

fn popular() -> Vec<String> {
    let entries = fs::read_dir(data("chat/templates")).unwrap();
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.iter().map(|path| fs::read_to_string(path).unwrap()).collect()
}

fn try_random(seeds: Range<u64>) {
    let (popular, messages) = (popular(), conversation());
    let (mut rendered, mut limited, mut most) = (0, 0, (0, Duration::ZERO));
    for seed in seeds {
        println!("begin {seed}");
        let (result, memory, time) = render(&template(seed, &popular), &messages);
        rendered += u64::from(result.is_ok());
        limited +=
            u64::from(result.is_err_and(|error| LIMITS[..3].iter().any(|limit| error.contains(limit))));
        if memory > MOST_MEMORY || time > MOST_TIME {
            println!("fail seed {seed}: {memory} bytes, {time:?}");
        }
        most = (most.0.max(memory), most.1.max(time));
    }
    println!("done {rendered} {limited} {most:?}");
}

#[test]
fn no_template_does_harm() {
    let count = std::env::var("SMOL_TEMPLATES").map_or(TEMPLATES, |number| number.parse().unwrap());
    let (lines, is_well) = run_child(&format!("seeds 0 {count}"));
    let last = lines.iter().rfind(|line| line.starts_with("begin")).unwrap();
    assert!(is_well, "the program died after {last}");
    let failures: Vec<_> = lines.iter().filter(|line| line.starts_with("fail")).collect();
    assert!(failures.is_empty(), "{failures:#?}");
    let done = lines.iter().find_map(|line| line.strip_prefix("done ")).unwrap();
    println!("{count} templates, rendered and limited: {done}");
    let (rendered, rest) = done.split_once(' ').unwrap();
    let (limited, _) = rest.split_once(' ').unwrap();
    // They would mean little if none of them got anywhere, or none to a limit.
    assert!(rendered.parse::<u64>().unwrap() > count / 8, "{done}");
    assert!(limited.parse::<u64>().unwrap() > 0, "{done}");
}

/// A blob with this template in it, which no converter would write.
fn blob_with(template: &str, temp: &TempDir) -> PathBuf {
    let mut checkpoint = Checkpoint::tiny(TensorDtype::F32);
    checkpoint.files.insert("chat_template.jinja".into(), b"x".to_vec());
    let mut blob = Blob::of(&checkpoint);
    let part = blob.part(Kind::ChatTemplate);
    part.content = template.as_bytes().to_vec();
    part.shape = [template.len() as u64, 1];
    let path = temp.join("hostile.bin");
    fs::write(&path, blob.build()).unwrap();
    path
}

#[test]
fn a_blob_with_a_hostile_template_gives_an_error() {
    for (name, source, end) in hostile().iter().filter(|(.., end)| *end != End::Fine).step_by(12) {
        let temp = TempDir::new();
        let blob = blob_with(source, &temp);
        let blob = blob.to_str().unwrap();
        let chat = run("smolrun", &[blob, "--chat", "the end", "-n", "1"]);
        assert!(chat.code == 1 && ends_as(*end, &chat.stderr), "{name}: {chat:?}");
        let verify = run("smolconv", &["verify", blob]);
        let is_compiled = ChatTemplate::new(source).is_ok();
        assert_eq!(verify.code, i32::from(!is_compiled), "{name}: {verify:?}");
        assert!(
            is_compiled || verify.stderr.contains("chat template: ") && ends_as(*end, &verify.stderr),
            "{verify:?}"
        );
    }
}

#[test]
fn smolconv_refuses_a_hostile_template() {
    let temp = TempDir::new();
    let (model, out) = (temp.join("model"), temp.join("blob.bin"));
    for (name, source, end) in hostile().iter().filter(|(.., end)| *end != End::Fine).step_by(12) {
        let mut checkpoint = Checkpoint::tiny(TensorDtype::F32);
        checkpoint.files.insert("chat_template.jinja".into(), source.clone().into_bytes());
        let _ = fs::remove_dir_all(&model);
        checkpoint.write(&model);
        let converted = run("smolconv", &[model.to_str().unwrap(), "-o", out.to_str().unwrap()]);
        assert_eq!(converted.code, 1, "{name}: {converted:?}");
        let says_why = ends_as(*end, &converted.stderr) || converted.stderr.contains("not supported");
        assert!(
            converted.stderr.contains("chat_template.jinja: chat_template: ") && says_why,
            "{name}: {converted:?}"
        );
        assert!(!out.exists(), "{name}");
    }
    // Of tokenizer_config.json too.
    let mut checkpoint = Checkpoint::tiny(TensorDtype::F32);
    let config = serde_json::json!({ "chat_template": nest("{% if 1 %}", "x", "{% endif %}", 1_000) });
    checkpoint.files.insert("tokenizer_config.json".into(), config.to_string().into_bytes());
    let _ = fs::remove_dir_all(&model);
    checkpoint.write(&model);
    let converted = run("smolconv", &[model.to_str().unwrap(), "-o", out.to_str().unwrap()]);
    assert!(converted.code == 1 && converted.stderr.contains("deep in one another"), "{converted:?}");
}
