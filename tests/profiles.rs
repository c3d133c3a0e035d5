//! The profile `gate` stands in two manifests: what the tests of the workspace have built is not built again for Python.

use std::fs;

use smol_tests::common::repository;
use toml::{Table, Value};

/// Crates that are members of the workspace, and so have the profile's own level there.
const MEMBERS: [&str; 3] = ["smolconv", "smolrun", "smolrun-cli"];

#[test]
fn python_builds_for_the_gate_as_the_workspace_does() {
    let [root, python] = ["Cargo.toml", "bindings/python/Cargo.toml"].map(manifest);
    let built_for_python = read("bindings/python/Cargo.lock");

    assert_eq!(gate(&root), gate(&python));
    let [mut of_root, of_python] = [&root, &python].map(|manifest| packages(manifest).clone());
    of_root.retain(|name, _| name == "*" || built_for_python.contains(&format!("name = \"{name}\"\n")));
    for name in MEMBERS {
        let level = Table::from_iter([("opt-level".to_owned(), gate(&root)["opt-level"].clone())]);
        of_root.insert(name.to_owned(), Value::Table(level));
    }
    assert_eq!(of_root, of_python);
}

fn read(path: &str) -> String {
    fs::read_to_string(repository().join(path)).unwrap()
}

fn manifest(path: &str) -> Table {
    read(path).parse().unwrap()
}

/// The profile with what it inherits, but for single packages.
fn gate(manifest: &Table) -> Table {
    let mut settings: Table = toml::from_str("opt-level = 3\npanic = \"unwind\"\nstrip = \"none\"").unwrap();
    for profile in ["release", "gate"] {
        settings.extend(manifest["profile"][profile].as_table().unwrap().clone());
    }
    settings.remove("package");
    settings
}

/// What the profile says of single packages.
fn packages(manifest: &Table) -> &Table {
    manifest["profile"]["gate"]["package"].as_table().unwrap()
}
