//! The tree is what ARCHITECTURE.md says: who may use what, and where `unsafe` may stand.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use smol_tests::common::{TempDir, repository};

use crate::import_graph::{Module, imports};

/// The only files with `unsafe`.
const UNSAFE: [&str; 13] = [
    "bindings/c/src/exports.rs",
    "bindings/c/src/raw.rs",
    "bindings/c/src/structs.rs",
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

/// What each module may use, by a table in ARCHITECTURE.md.
type Table = BTreeMap<String, BTreeSet<String>>;

/// A crate's sources, and what stands before its table.
const CRATES: [(&str, &str); 2] =
    [("runtime/src", "`runtime/` is the crate"), ("convert/src", "`convert/` is the crate")];

#[test]
fn modules_use_only_what_they_may() {
    for (folder, before) in CRATES {
        assert_eq!(breaches(&table(before), &repository().join(folder)), BTreeSet::new(), "{folder}");
    }
}

#[test]
fn every_module_is_in_its_table() {
    for (folder, before) in CRATES {
        let root = fs::read_to_string(repository().join(folder).join("lib.rs")).unwrap();
        let modules = root.lines().filter_map(|line| {
            let line = line.strip_prefix("pub ").unwrap_or(line);
            line.strip_prefix("mod ")?.strip_suffix(';')
        });
        let modules: BTreeSet<String> = modules.map(str::to_owned).collect();
        let in_table: BTreeSet<String> =
            table(before).into_keys().filter(|name| !name.contains('/')).collect();
        assert_eq!(modules, in_table, "{folder}");
    }
}

/// However it is written: see `tests/import_graph.rs`, which reads the imports.
#[test]
fn an_import_that_is_not_listed_is_found() {
    let uses = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
    let table: Table = [("low", uses(&[])), ("middle", uses(&["low"])), ("high", uses(&["low", "middle"]))]
        .map(|(module, uses)| (module.to_owned(), uses))
        .into();
    let found = |source: &str| {
        let temp = TempDir::new();
        let write = |name: &str, text: &str| fs::write(temp.join(name), text).unwrap();
        fs::create_dir(temp.join("middle")).unwrap();
        write("lib.rs", "mod low;\nmod middle;\nmod high;\npub use self::high::Thing;");
        write("low.rs", "");
        write("high.rs", "use crate::{low, middle};");
        write("middle/mod.rs", "mod inner;");
        write("middle/inner.rs", source);
        breaches(&table, temp.path())
    };
    for allowed in [
        "use crate::low::Thing;",
        "use crate::{low, middle::Other};",
        "use super::super::low::{Thing, Other};",
        "// use crate::high::Thing;",
        "fn f() {}\n#[cfg(test)]\nmod tests {\n    use crate::high::Thing;\n}",
    ] {
        assert_eq!(found(allowed), BTreeSet::new(), "{allowed}");
    }
    for breach in [
        "use crate::high::Thing;",
        "pub(crate) use crate::{\n    low::Thing,\n    high::{A, B},\n};",
        "use super::super::{low, high};",
        "use crate::Thing;",
        "fn f() { super::super::high::thing() }",
    ] {
        assert_eq!(found(breach), BTreeSet::from(["middle::inner uses high".to_owned()]), "{breach}");
    }
}

#[test]
fn unsafe_stands_in_the_listed_files_only() {
    let root = repository().canonicalize().unwrap();
    let mut found = Vec::new();
    for folder in ["bindings/c/src", "runtime/src", "convert/src"] {
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

/// The rows of the first table after `before` in ARCHITECTURE.md: the names in their first and last cells.
fn table(before: &str) -> Table {
    let text = fs::read_to_string(repository().join("ARCHITECTURE.md")).unwrap();
    let (_, after) = text.split_once(before).expect("the crate is described");
    let (_, rows) =
        after.split_once("| module | what it does | may use |\n|---|---|---|\n").expect("its table");
    let names = |cell: &str| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>();
    let rows = rows.lines().take_while(|line| line.starts_with('|')).map(|row| {
        let cells: Vec<_> = row.trim_matches('|').split('|').collect();
        assert_eq!(cells.len(), 3, "{row}");
        let is_plain = ["nothing of ours", "the crate's public API"].contains(&cells[2].trim());
        assert!(is_plain || !names(cells[2]).is_empty(), "{row}");
        (names(cells[0]).remove(0), names(cells[2]).into_iter().collect())
    });
    rows.collect()
}

/// What modules of the crate below `root` use that the table does not list for them.
fn breaches(table: &Table, root: &Path) -> BTreeSet<String> {
    let is_breach = |(from, to): &(Module, Module)| from[0] != to[0] && !table[&from[0]].contains(&to[0]);
    let breaches = imports(root).into_iter().filter(is_breach);
    breaches.map(|(from, to)| format!("{} uses {}", from.join("::"), to[0])).collect()
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
