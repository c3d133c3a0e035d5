//! What the tests of the workspace have built is not built again for its bindings, and the page has no other versions.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::Command;

use smol_tests::common::repository;
use toml::Table;

/// What has other features is compiled again, and with it all that needs it.
#[test]
fn the_bindings_have_the_features_that_the_tests_have() {
    let tests = features(&["smolrun", "smolconv", "smolrun-cli", "smol-tests"], "normal,build,dev");
    for binding in ["smolrun-c", "smolrun-python"] {
        for (package, others) in features(&[binding], "normal,build") {
            let Some(expected) = tests.get(&package) else { continue };
            assert!(
                others.is_subset(expected),
                "{package}: {binding} has {others:?}, tests have {expected:?}"
            );
        }
    }
}

/// The features of every package, as text: those of proc macros and those of programs may differ.
fn features(packages: &[&str], edges: &str) -> BTreeMap<String, BTreeSet<String>> {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["tree", "--locked", "--prefix=none", "--no-dedupe", "--format={p}|{f}", "--edges", edges]);
    cargo.args(packages.iter().map(|package| format!("--package={package}")));
    let output = cargo.current_dir(repository()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let mut features = BTreeMap::<_, BTreeSet<_>>::new();
    for line in String::from_utf8(output.stdout).unwrap().lines() {
        let Some((package, names)) = line.split_once('|') else { continue };
        let name: Vec<&str> = package.split(' ').take(2).collect(); // and version
        features.entry(name.join(" ")).or_default().insert(names.to_owned());
    }
    features
}

#[test]
fn the_page_has_the_versions_of_the_workspace() {
    let root = versions("Cargo.lock");
    for (name, versions) in versions("bindings/wasm/Cargo.lock") {
        let Some(expected) = root.get(&name) else { continue };
        for version in versions {
            let alike = expected.iter().any(|expected| is_compatible(expected, &version));
            assert!(
                !alike || expected.contains(&version),
                "bindings/wasm has {name} {version}, the workspace has {expected:?}: cargo update --precise"
            );
        }
    }
}

/// The versions of each package in a lock file.
fn versions(path: &str) -> BTreeMap<String, Vec<String>> {
    let mut versions = BTreeMap::<_, Vec<_>>::new();
    for package in read(path).parse::<Table>().unwrap()["package"].as_array().unwrap() {
        let text = |key: &str| package[key].as_str().unwrap().to_owned();
        versions.entry(text("name")).or_default().push(text("version"));
    }
    versions
}

/// Whether cargo may take one version for the other.
fn is_compatible(a: &str, b: &str) -> bool {
    let first = |version: &str| {
        let parts: Vec<u64> = version.split('.').map_while(|part| part.parse().ok()).collect();
        let length = parts.iter().position(|&part| part > 0).unwrap_or(2) + 1;
        parts[..length.min(parts.len())].to_vec()
    };
    first(a) == first(b)
}

fn read(path: &str) -> String {
    fs::read_to_string(repository().join(path)).unwrap()
}
