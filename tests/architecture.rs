//! The tree is what ARCHITECTURE.md says: who may use what, and where `unsafe` may stand.

use std::fs;
use std::path::{Path, PathBuf};

use smol_tests::common::repository;

/// Modules of the runtime, and those of its own that each may use.
const MAY_USE: [(&str, &[&str]); 13] = [
    ("bench", &["format", "kernels", "storage"]),
    ("format", &[]),
    ("storage", &[]),
    ("kernels", &["error", "format"]),
    ("pool", &[]),
    ("terminal", &[]),
    ("machine", &["error", "kernels", "pool", "storage"]),
    ("tokenizer", &["error", "format", "storage"]),
    ("chat", &["error", "format", "tokenizer"]),
    ("verify", &["error", "format", "model", "storage", "tokenizer"]),
    ("model", &["error", "format", "kernels", "pool", "storage"]),
    ("generate", &["chat", "error", "kernels", "model", "pool", "tokenizer"]),
    ("eval", &["error", "generate", "model", "tokenizer"]),
];

/// The only files with `unsafe`.
const UNSAFE: [&str; 10] = [
    "runtime/src/kernels/amx.rs",
    "runtime/src/kernels/avx2.rs",
    "runtime/src/kernels/avx512.rs",
    "runtime/src/kernels/avx512_bf16.rs",
    "runtime/src/kernels/neon.rs",
    "runtime/src/kernels/simd.rs",
    "runtime/src/kernels/simd128.rs",
    "runtime/src/pool.rs",
    "runtime/src/storage/aligned.rs",
    "runtime/src/storage/mod.rs",
];

#[test]
fn modules_use_only_what_they_may() {
    for (module, allowed) in MAY_USE {
        for (path, source) in sources(&repository().join("runtime/src")) {
            if !belongs_to(&path, module) {
                continue;
            }
            for used in code(&source).flat_map(|line| line.split("crate::").skip(1)).filter_map(first_name) {
                assert!(used == module || allowed.contains(&used), "{}: uses {used}", path.display());
            }
        }
    }
}

#[test]
fn every_module_is_in_the_table() {
    let root = fs::read_to_string(repository().join("runtime/src/lib.rs")).unwrap();
    let modules = root.lines().filter_map(|line| {
        let line = line.strip_prefix("pub ").unwrap_or(line);
        line.strip_prefix("mod ")?.strip_suffix(';')
    });
    let modules: Vec<_> = modules.filter(|&module| module != "error").collect();
    assert_eq!(modules.len(), MAY_USE.len(), "{modules:?}");
    for module in modules {
        assert!(MAY_USE.iter().any(|(name, _)| *name == module), "{module} is not in the table");
    }
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

fn belongs_to(path: &Path, module: &str) -> bool {
    let inside = path.strip_prefix(repository().join("runtime/src")).unwrap();
    let first = inside.components().next().unwrap().as_os_str().to_str().unwrap();
    first == module || first.strip_suffix(".rs") == Some(module)
}

/// The lines of a source that are neither comments nor its tests.
fn code(source: &str) -> impl Iterator<Item = &str> {
    let code = source.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    code.lines().filter(|line| !line.trim_start().starts_with("//"))
}

/// The identifier at the start of `text`, if it names a module.
fn first_name(text: &str) -> Option<&str> {
    let end = text.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(text.len());
    (end > 0).then_some(&text[..end])
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
