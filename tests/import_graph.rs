//! No file or folder of a crate imports another in a circle, but for a module and its own submodules.
//!
//! A name is followed through `use` to the file that has it, so that a parent's re-exports hide no circle between children.
//! What is only compiled for tests does not count.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs;
use std::path::{Path, PathBuf};

use smol_tests::common::{TempDir, repository};

/// The names of a module and those that it lies in, the outermost first; empty for the crate itself.
pub(crate) type Module = Vec<String>;

/// Every circle of the crate below `root`, and of each program in `root/bin`, in words.
fn circles(root: &Path) -> Vec<String> {
    let mut found = circles_among(&imports(root));
    let programs = fs::read_dir(root.join("bin")).into_iter().flatten().flatten();
    let mut programs: Vec<PathBuf> =
        programs.map(|entry| entry.path()).filter(|path| path.is_dir()).collect();
    programs.sort();
    found.extend(programs.iter().flat_map(|program| circles(program)));
    found
}

/// Which module of the crate below `root` uses which, but for those of which one lies in the other.
pub(crate) fn imports(root: &Path) -> BTreeSet<(Module, Module)> {
    let mut modules = BTreeMap::new();
    read_modules(root, &[], &mut modules);
    let tests: BTreeSet<Module> = modules.values().flat_map(|source| source.tests.clone()).collect();
    modules.retain(|module, _| !tests.iter().any(|test| module.starts_with(test)));
    let mut found = BTreeSet::new();
    for (module, source) in &modules {
        for used in source.paths.iter().filter_map(|path| file_of(path, &modules)) {
            if !used.starts_with(module) && !module.starts_with(&used) {
                found.insert((module.clone(), used));
            }
        }
    }
    found
}

/// What is read of a file.
struct Source {
    /// Every path that it names, from the crate's root.
    paths: Vec<Vec<String>>,
    /// What names mean that it brings in by `use`.
    names: BTreeMap<String, Vec<String>>,
    /// Submodules that only tests have.
    tests: Vec<Module>,
}

/// Reads every file below `folder`, which holds the submodules of `module`; programs are crates of their own.
fn read_modules(folder: &Path, module: &[String], modules: &mut BTreeMap<Module, Source>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let mut inner = module.to_vec();
        if path.is_dir() && !(module.is_empty() && name == "bin") {
            inner.push(name);
            read_modules(&path, &inner, modules);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let is_outer = name == "mod" || module.is_empty() && ["lib", "main"].contains(&name.as_str());
            inner.extend((!is_outer).then_some(name));
            let source = Reader::new(&fs::read_to_string(&path).unwrap(), inner.clone()).read();
            modules.insert(inner, source);
        }
    }
}

/// The module whose file has what `path` names.
fn file_of(path: &[String], modules: &BTreeMap<Module, Source>) -> Option<Module> {
    let mut path = path.to_vec();
    for _ in 0..16 {
        let len = (0..=path.len()).rev().find(|&len| modules.contains_key(&path[..len]))?;
        let (module, rest) = path.split_at(len);
        let meant = rest.first().and_then(|name| modules[module].names.get(name));
        match meant {
            Some(meant) if meant[..] != path[..=len] => path = [meant, &rest[1..]].concat(),
            _ => return Some(module.to_vec()),
        }
    }
    None // a name that means itself: another crate's
}

/// The circles between neighbors: files and folders that lie in one folder.
fn circles_among(imports: &BTreeSet<(Module, Module)>) -> Vec<String> {
    let mut folders: BTreeMap<&[String], BTreeMap<&str, BTreeSet<&str>>> = BTreeMap::new();
    for (from, to) in imports {
        let shared = from.iter().zip(to).take_while(|(from, to)| from == to).count();
        folders.entry(&from[..shared]).or_default().entry(&from[shared]).or_default().insert(&to[shared]);
    }
    let circle = |(folder, graph): (&[String], BTreeMap<&str, BTreeSet<&str>>)| {
        let circles = graph.keys().filter_map(|start| way_back(start, &graph));
        let shortest = circles.min_by_key(Vec::len)?;
        Some(format!("{}: {}", [&["crate".to_owned()], folder].concat().join("::"), shortest.join(" -> ")))
    };
    folders.into_iter().filter_map(circle).collect()
}

/// The shortest way from `start` to itself.
fn way_back<'a>(start: &'a str, graph: &BTreeMap<&'a str, BTreeSet<&'a str>>) -> Option<Vec<&'a str>> {
    let (mut ways, mut seen) = (VecDeque::from([vec![start]]), BTreeSet::new());
    while let Some(way) = ways.pop_front() {
        for &next in graph.get(way.last()?).into_iter().flatten() {
            let longer = [&way[..], &[next]].concat();
            if next == start {
                return Some(longer);
            }
            if seen.insert(next) {
                ways.push_back(longer);
            }
        }
    }
    None
}

/// Reads the tokens of a file.
struct Reader {
    tokens: Vec<String>,
    position: usize,
    /// The module that the file is, and those that are written out in it, with the depth of the braces around each.
    module: Module,
    written_out: Vec<(String, usize)>,
    source: Source,
}

impl Reader {
    fn new(text: &str, module: Module) -> Reader {
        let source = Source { paths: Vec::new(), names: BTreeMap::new(), tests: Vec::new() };
        Reader { tokens: tokens(text), position: 0, module, written_out: Vec::new(), source }
    }

    fn read(mut self) -> Source {
        let mut depth = 0;
        while self.position < self.tokens.len() {
            match self.token(0) {
                "#" if self.is_for_tests() => self.skip_item(),
                "mod" if self.token(2) == "{" => {
                    self.written_out.push((self.token(1).to_owned(), depth));
                    self.position += 2;
                }
                "{" => {
                    depth += 1;
                    self.position += 1;
                }
                "}" => {
                    depth -= 1;
                    self.written_out.pop_if(|(_, outside)| *outside == depth);
                    self.position += 1;
                }
                "use" => {
                    self.position += 1;
                    self.read_use(Vec::new());
                }
                "crate" | "self" | "super" if self.token(1) == "::" => {
                    let path = self.read_path();
                    self.add(path, None);
                }
                _ => self.position += 1,
            }
        }
        self.source
    }

    fn token(&self, ahead: usize) -> &str {
        self.tokens.get(self.position + ahead).map_or("", String::as_str)
    }

    /// Whether `#[cfg(test)]`, or `all` of that and more, comes next.
    fn is_for_tests(&self) -> bool {
        let next: Vec<&str> = (0..7).map(|ahead| self.token(ahead)).collect();
        next.starts_with(&["#", "[", "cfg", "(", "test", ")"])
            || next[..] == ["#", "[", "cfg", "(", "all", "(", "test"]
    }

    /// Goes past an attribute and what it is for.
    fn skip_item(&mut self) {
        let mut depth = 0;
        loop {
            match self.token(0) {
                "mod" if self.token(2) == ";" => {
                    let test = [&self.module[..], &[self.token(1).to_owned()]].concat();
                    self.source.tests.push(test);
                }
                "{" | "[" | "(" => depth += 1,
                "}" | "]" | ")" => depth -= 1,
                _ => {}
            }
            let is_end = depth == 0 && ["}", ";", ""].contains(&self.token(0));
            self.position += 1;
            if is_end {
                return;
            }
        }
    }

    /// Names joined by `::`.
    fn read_path(&mut self) -> Vec<String> {
        let mut path = Vec::new();
        while is_name(self.token(0)) {
            path.push(self.token(0).to_owned());
            self.position += 1;
            match self.token(0) {
                "::" => self.position += 1,
                _ => break,
            }
        }
        path
    }

    /// Reads what follows `use`, or lies in braces after `prefix`.
    fn read_use(&mut self, prefix: Vec<String>) {
        let path = [prefix, self.read_path()].concat();
        match self.token(0) {
            "{" => {
                self.position += 1;
                while !["}", ""].contains(&self.token(0)) {
                    match self.token(0) {
                        "," => self.position += 1,
                        _ => self.read_use(path.clone()),
                    }
                }
                self.position += 1;
            }
            "*" => {
                self.position += 1;
                self.add(path, None);
            }
            "as" => {
                let name = self.token(1).to_owned();
                self.position += 2;
                self.add(path, Some(name));
            }
            _ if path.is_empty() => self.position += 1, // `::` before the name of a crate
            _ => {
                let last = path.iter().rev().find(|name| *name != "self").cloned();
                self.add(path, last);
            }
        }
    }

    /// Notes a path, and the name that it gets here.
    fn add(&mut self, path: Vec<String>, name: Option<String>) {
        let here = || self.module.iter().chain(self.written_out.iter().map(|(name, _)| name)).cloned();
        let mut absolute: Vec<String> = here().collect();
        let mut rest = &path[..];
        // What begins otherwise is a submodule's, something's here, or another crate's, which leads to no other module.
        if rest.first().is_some_and(|first| first == "crate") {
            (absolute, rest) = (Vec::new(), &rest[1..]);
        }
        while let Some(step @ ("self" | "super")) = rest.first().map(String::as_str) {
            if step == "super" {
                absolute.pop();
            }
            rest = &rest[1..];
        }
        absolute.extend(rest.iter().filter(|name| *name != "self").cloned());
        if let Some(name) = name.filter(|_| self.written_out.is_empty()) {
            self.source.names.insert(name, absolute.clone());
        }
        self.source.paths.push(absolute);
    }
}

fn is_name(token: &str) -> bool {
    token != "as" && token.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// Names, `::` and single characters of a source; no comments, and nothing of what is quoted.
fn tokens(text: &str) -> Vec<String> {
    let (mut tokens, mut rest) = (Vec::new(), text);
    while let Some(first) = rest.chars().next() {
        let word = rest.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(rest.len());
        let len = match first {
            _ if rest.starts_with("//") => rest.find('\n').unwrap_or(rest.len()),
            _ if rest.starts_with("/*") => rest.find("*/").map_or(rest.len(), |end| end + 2),
            '"' => quoted(rest),
            '\'' => character(rest),
            _ if ["r", "b", "br", "c", "cr"].contains(&&rest[..word]) && starts_quote(&rest[word..]) => {
                word + if rest[..word].ends_with('r') { raw(&rest[word..]) } else { quoted(&rest[word..]) }
            }
            _ if word > 0 => {
                tokens.push(rest[..word].to_owned());
                word
            }
            _ if rest.starts_with("::") => {
                tokens.push("::".to_owned());
                2
            }
            _ => {
                tokens.extend((!first.is_whitespace()).then(|| first.to_string()));
                first.len_utf8()
            }
        };
        rest = &rest[len..];
    }
    tokens
}

fn starts_quote(text: &str) -> bool {
    text.trim_start_matches('#').starts_with('"')
}

/// Bytes of the string that `text` begins with.
fn quoted(text: &str) -> usize {
    let mut escaped = false;
    let end = text.char_indices().skip(1).find(|&(_, c)| {
        let is_end = c == '"' && !escaped;
        escaped = c == '\\' && !escaped;
        is_end
    });
    end.map_or(text.len(), |(at, _)| at + 1)
}

/// The same of a raw string, after its `r`.
fn raw(text: &str) -> usize {
    let hashes = text.len() - text.trim_start_matches('#').len();
    let end = format!("\"{}", "#".repeat(hashes));
    text[hashes + 1..].find(&end).map_or(text.len(), |at| hashes + 1 + at + end.len())
}

/// Bytes of the character that `text` begins with, or of the quote before a lifetime.
fn character(text: &str) -> usize {
    let mut chars = text.char_indices().skip(1);
    match (chars.next(), chars.next()) {
        (Some((_, '\\')), Some((at, _))) => {
            let after = at + text[at..].chars().next().map_or(0, char::len_utf8);
            text[after..].find('\'').map_or(text.len(), |end| after + end + 1)
        }
        (Some(_), Some((at, '\''))) => at + 1,
        _ => 1,
    }
}

#[test]
fn the_runtime_and_the_program_have_no_circles() {
    for folder in ["runtime/src", "cli/src"] {
        assert_eq!(circles(&repository().join(folder)), [""; 0], "{folder}");
    }
}

#[test]
fn the_converter_has_no_circles() {
    let root = repository().join("convert/src");
    assert_eq!(circles(&root), [""; 0]);
    // That any imports are found at all, in braces and by a parent's re-export, too.
    let imports = imports(&root);
    for (from, to) in [
        ("convert", "checkpoint::tensor_map"),
        ("error", "options"),
        ("source::shards", "json"),
        ("source::gguf::tensors", "source::dtype"),
        ("write::stream", "write::plan"),
    ] {
        let module = |path: &str| -> Module { path.split("::").map(str::to_owned).collect() };
        assert!(imports.contains(&(module(from), module(to))), "{from} does not use {to}");
    }
}

/// The circles of a crate of these files.
fn circles_of(files: &[(&str, &str)]) -> Vec<String> {
    let temp = TempDir::new();
    for (name, text) in files {
        let path = temp.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    circles(&temp.join("src"))
}

#[test]
fn circles_are_found_however_they_are_written() {
    for (b, what) in [
        ("use crate::a;", "a module"),
        ("use crate::a::A;", "a name"),
        ("use crate::{\n    a::{A as Other},\n    c,\n};", "braces"),
        ("pub use super::a::*;", "super and a star"),
        ("fn b() { crate::a::run() }", "a path without use"),
        ("mod inner { use super::super::a::A; }", "a module that is written out"),
        (
            "const C: char = '\"'; use crate::a; const D: char = '\"';",
            "something between quotes that are none",
        ),
        ("use crate::A;", "a re-export"),
    ] {
        let root = "mod a;\nmod b;\nmod c;\npub use self::a::A;";
        let files =
            [("src/lib.rs", root), ("src/a.rs", "use crate::b::B;"), ("src/b.rs", b), ("src/c.rs", "")];
        assert_eq!(circles_of(&files), ["crate: a -> b -> a"], "{what}");
    }
}

#[test]
fn circles_between_folders_and_within_them_are_found() {
    let folders = [
        ("src/lib.rs", "mod a;\nmod b;\nmod c;"),
        ("src/a/mod.rs", "mod one;\nmod two;"),
        ("src/a/one.rs", "use crate::b::three;"),
        ("src/a/two.rs", ""),
        ("src/b/mod.rs", "mod three;\nmod four;"),
        ("src/b/three.rs", ""),
        ("src/b/four.rs", "use crate::c;"),
        ("src/c.rs", "use crate::a::two;"),
    ];
    assert_eq!(circles_of(&folders), ["crate: a -> b -> c -> a"]);
    let within = [
        ("src/lib.rs", "mod a;"),
        ("src/a.rs", "mod one;\nmod two;\npub use two::Two;\nuse one::One;"),
        ("src/a/one.rs", "use super::Two;"),
        ("src/a/two.rs", "use super::one::One;"),
        ("src/bin/program/main.rs", "mod x;\nmod y;"),
        ("src/bin/program/x.rs", "use crate::y;"),
        ("src/bin/program/y.rs", "use crate::x;"),
    ];
    assert_eq!(circles_of(&within), ["crate::a: one -> two -> one", "crate: x -> y -> x"]);
}

#[test]
fn parents_tests_and_what_is_quoted_make_no_circles() {
    let files = [
        ("src/lib.rs", "mod a;\nmod b;\npub use a::A;"),
        ("src/a/mod.rs", "mod one;\n#[cfg(test)]\nmod tests;\nuse self::one::One;\nuse crate::b::B;"),
        ("src/a/one.rs", "use super::A;\nuse crate::a::*;"),
        ("src/a/tests.rs", "use super::one;\nuse crate::b;"),
        (
            "src/b.rs",
            "// use crate::a;\n/* use crate::a; */\nconst B: &str = \"crate::a\"; const C: &str = r#\"use crate::a;\"#;\n\
             pub(crate) fn b<'a>() {}\n#[cfg(test)]\nuse crate::a::A;\n\
             #[cfg(test)]\nmod tests {\n    use super::*;\n    use crate::a::A;\n}",
        ),
    ];
    assert_eq!(circles_of(&files), [""; 0]);
}
