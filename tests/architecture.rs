//! The tree is what ARCHITECTURE.md says: who may use what, and where `unsafe` may stand.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use smol_tests::common::repository;

/// The only files with `unsafe`.
const UNSAFE: [&str; 10] = [
    "runtime/src/exec/pool.rs",
    "runtime/src/kernels/isa/amx.rs",
    "runtime/src/kernels/isa/avx2.rs",
    "runtime/src/kernels/isa/avx512.rs",
    "runtime/src/kernels/isa/avx512_bf16.rs",
    "runtime/src/kernels/isa/neon.rs",
    "runtime/src/kernels/isa/simd128.rs",
    "runtime/src/kernels/simd.rs",
    "runtime/src/storage/aligned.rs",
    "runtime/src/storage/mod.rs",
];

/// What each module may use, by the table in ARCHITECTURE.md.
type Table = BTreeMap<String, BTreeSet<String>>;

/// A module's path in its crate: `["kernels", "isa", "avx2"]`.
type Module = Vec<String>;

#[test]
fn modules_use_only_what_they_may() {
    assert_eq!(breaches(&table(), &runtime()), BTreeSet::new());
}

#[test]
fn modules_may_not_use_one_another_in_a_circle() {
    let edges = table().into_iter().map(|(module, uses)| (vec![module], uses.into_iter().map(|m| vec![m])));
    assert_eq!(circle(&edges.map(|(module, uses)| (module, uses.collect())).collect()), None);
}

/// But for two that are left: a session makes generators, which hold it; and the interpreter of templates is recursive, from
/// values to the functions on them and back.
#[test]
fn files_import_one_another_in_no_circle() {
    let mut imports = imports(&runtime());
    let is_in = |module: &Module, name: &str| module.iter().any(|part| part == name);
    for (module, imported) in &mut imports {
        imported.retain(|imported| !(is_in(module, "session") && is_in(imported, "generator")));
        imported.retain(|imported| !(is_in(module, "jinja") && is_in(imported, "jinja")));
    }
    assert_eq!(circle(&imports), None);
}

#[test]
fn every_module_is_in_the_table() {
    let root = fs::read_to_string(repository().join("runtime/src/lib.rs")).unwrap();
    let modules = root.lines().filter_map(|line| {
        let line = line.strip_prefix("pub ").unwrap_or(line);
        line.strip_prefix("mod ")?.strip_suffix(';')
    });
    let modules: BTreeSet<String> = modules.map(str::to_owned).collect();
    assert_eq!(modules, table().into_keys().collect());
}

/// The tests above see every way to name a module, and fail on what the table does not list.
#[test]
fn an_import_that_is_not_listed_is_found() {
    let uses = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
    let table: Table =
        [("low", uses(&[])), ("middle", uses(&["low"]))].map(|(m, uses)| (m.to_owned(), uses)).into();
    let found = |source: &str| {
        let module = vec!["middle".to_owned(), "inner".to_owned()];
        breaches(&table, &BTreeMap::from([(module, source.to_owned())])).len()
    };
    for allowed in [
        "use crate::low::Thing;",
        "use crate::{low, middle::inner::Other};",
        "use super::super::low::{Thing, Other};",
        "use super::Other;",
        "// use crate::high::Thing;",
        "fn f() {}\n#[cfg(test)]\nmod tests {\n    use crate::high::Thing;\n}",
    ] {
        assert_eq!(found(allowed), 0, "{allowed}");
    }
    for breach in [
        "use crate::high::Thing;",
        "pub(crate) use crate::{\n    low::Thing,\n    high::{A, B},\n};",
        "use super::super::high;",
        "use super::super::{low, high};",
        "fn f() -> crate::high::Thing { todo() }",
        "fn f() { super::super::high::thing() }",
    ] {
        assert_eq!(found(breach), 1, "{breach}");
    }
}

#[test]
fn a_circle_is_found() {
    let module = |name: &str| vec!["a".to_owned(), name.to_owned()];
    let sources = |last: &str| {
        BTreeMap::from([
            (vec!["a".to_owned()], "mod x;\nmod y;\nmod z;\nuse self::x::X;".to_owned()),
            (module("x"), "use super::y::Y;".to_owned()),
            (module("y"), "use crate::a::{A, z::Z};".to_owned()),
            (module("z"), last.to_owned()),
        ])
    };
    assert_eq!(circle(&imports(&sources("use super::A;"))), None);
    let found = circle(&imports(&sources("use super::{A, x::X};"))).expect("a circle");
    assert_eq!(found.len(), 3, "{found:?}");
}

#[test]
fn unsafe_stands_in_the_listed_files_only() {
    let root = repository().canonicalize().unwrap();
    let mut found = Vec::new();
    for folder in ["runtime/src", "convert/src"] {
        for (path, source) in sources(&root.join(folder)) {
            if code(&source).any(|line| line.contains("unsafe ")) {
                found.push(path.strip_prefix(&root).unwrap().to_str().unwrap().to_owned());
            }
        }
    }
    found.sort();
    assert_eq!(found, UNSAFE);
}

#[test]
fn the_library_never_prints_or_exits() {
    for (path, source) in sources(&repository().join("runtime/src")) {
        for line in code(&source) {
            for word in ["println!", "print!", "dbg!", "process::exit", "abort("] {
                assert!(!line.contains(word), "{}: {line}", path.display());
            }
        }
    }
}

/// A file that no program has in it would be tests that never run.
#[test]
fn every_file_of_tests_is_in_a_program() {
    let folder = repository().join("tests");
    let read = |name: &str| fs::read_to_string(folder.join(name)).unwrap();
    let (modules, targets) = (read("main.rs"), read("Cargo.toml"));
    for entry in fs::read_dir(&folder).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let Some(module) = name.strip_suffix(".rs") else { continue };
        let is_module = modules.contains(&format!("\nmod {module};\n"));
        assert!(is_module || targets.contains(&format!("path = \"{name}\"\n")), "{name} is in no program");
    }
}

/// The rows of the table of the runtime's modules in ARCHITECTURE.md: the names in their last cells.
fn table() -> Table {
    let text = fs::read_to_string(repository().join("ARCHITECTURE.md")).unwrap();
    let (_, rows) =
        text.split_once("| module | what it does | may use |\n|---|---|---|\n").expect("the table");
    let names = |cell: &str| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>();
    let rows = rows.lines().take_while(|line| line.starts_with('|')).map(|row| {
        let cells: Vec<_> = row.trim_matches('|').split('|').collect();
        assert_eq!(cells.len(), 3, "{row}");
        assert!(!names(cells[2]).is_empty() || cells[2].contains("nothing"), "{row}");
        (names(cells[0]).remove(0), names(cells[2]).into_iter().collect())
    });
    rows.collect()
}

/// The runtime's modules with their sources.
fn runtime() -> BTreeMap<Module, String> {
    let root = repository().join("runtime/src");
    let modules = sources(&root).into_iter().map(|(path, source)| {
        let path = path.strip_prefix(&root).unwrap().with_extension("");
        let mut module: Module = path.iter().map(|part| part.to_str().unwrap().to_owned()).collect();
        module.pop_if(|last| last == "mod" || last == "lib");
        (module, source)
    });
    modules.collect()
}

/// What modules use that the table does not list for them.
fn breaches(table: &Table, modules: &BTreeMap<Module, String>) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (module, source) in modules {
        let Some(first) = module.first() else { continue };
        for path in paths(module, source) {
            let Some(used) = path.first() else { continue };
            if used != first && !table[first].contains(used) {
                found.insert(format!("{} uses {used}", module.join("::")));
            }
        }
    }
    found
}

/// The modules that each imports, but for its own parents and children.
fn imports(modules: &BTreeMap<Module, String>) -> BTreeMap<Module, Vec<Module>> {
    let of = |module: &Module, source: &str| {
        let files = paths(module, source).into_iter().filter_map(|mut path| {
            while !modules.contains_key(&path) {
                path.pop()?;
            }
            Some(path)
        });
        files.filter(|file| !file.starts_with(module) && !module.starts_with(file)).collect()
    };
    modules.iter().map(|(module, source)| (module.clone(), of(module, source))).collect()
}

/// Modules each of which imports the next, and the last of which the first, if there are any.
fn circle(imports: &BTreeMap<Module, Vec<Module>>) -> Option<Vec<Module>> {
    fn walk(
        imports: &BTreeMap<Module, Vec<Module>>,
        way: &mut Vec<Module>,
        done: &mut BTreeSet<Module>,
    ) -> Option<Vec<Module>> {
        let here = way.last()?.clone();
        for next in imports.get(&here).into_iter().flatten() {
            if let Some(start) = way.iter().position(|module| module == next) {
                return Some(way[start..].to_vec());
            }
            if !done.contains(next) {
                way.push(next.clone());
                if let Some(found) = walk(imports, way, done) {
                    return Some(found);
                }
                way.pop();
            }
        }
        done.insert(here);
        None
    }
    let mut done = BTreeSet::new();
    imports.keys().find_map(|module| walk(imports, &mut vec![module.clone()], &mut done))
}

/// Every path in the source of `module` that begins with `crate`, `super` or `self`, from the crate's root on. (Inside of a
/// module that is written out in the file, `super` is taken for the file's own parent.)
fn paths(module: &Module, source: &str) -> Vec<Module> {
    let code: String =
        code(source).flat_map(|line| [line.split("//").next().unwrap_or_default(), "\n"]).collect();
    let mut found = Vec::new();
    let mut rest = code.as_str();
    while let Some(start) = rest.find(|c: char| c.is_alphabetic() || c == '_') {
        let (name, after) = identifier(&rest[start..]);
        rest = after;
        if !matches!(name, "crate" | "super" | "self") || !after.starts_with("::") {
            continue;
        }
        let mut path = module.clone();
        match name {
            "crate" => path.clear(),
            "super" => _ = path.pop(),
            _ => {}
        }
        rest = tree(path, &after[2..], &mut found);
    }
    found
}

/// Reads what follows `path::`, a name, more of a path, or several in braces, and returns what comes after it.
fn tree<'a>(mut path: Module, text: &'a str, found: &mut Vec<Module>) -> &'a str {
    let mut text = text.trim_start();
    if let Some(mut inside) = text.strip_prefix('{') {
        loop {
            inside = inside.trim_start().trim_start_matches(',').trim_start();
            match inside.strip_prefix('}') {
                Some(after) => return after,
                None if inside.is_empty() => return inside,
                None => inside = tree(path.clone(), inside, found),
            }
        }
    }
    let (name, after) = identifier(text);
    text = after;
    match name {
        "super" => _ = path.pop(),
        "self" => {}
        "" => text = text.get(1..).unwrap_or_default(), // `*`
        _ => path.push(name.to_owned()),
    }
    if let Some(after) = text.strip_prefix("::") {
        return tree(path, after, found);
    }
    found.push(path);
    match text.strip_prefix(" as ") {
        Some(alias) => identifier(alias).1,
        None => text,
    }
}

/// The identifier that a text begins with, maybe none, and what follows it.
fn identifier(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(text.len()))
}

/// The lines of a source that are neither comments nor its tests.
fn code(source: &str) -> impl Iterator<Item = &str> {
    let code = source.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    code.lines().filter(|line| !line.trim_start().starts_with("//"))
}

/// Every Rust file below `folder` with its text.
fn sources(folder: &Path) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push((path.clone(), fs::read_to_string(&path).unwrap()));
        }
    }
    found
}
