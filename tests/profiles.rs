//! What the tests of the workspace have built is not built again for the bindings: the profile `gate` stands in three
//! manifests, and versions in several lock files.

use std::collections::BTreeMap;
use std::fs;

use smol_tests::common::repository;
use toml::Table;

#[test]
fn the_bindings_build_for_the_gate_as_the_workspace_does() {
    let root = manifest("Cargo.toml");
    for binding in ["c", "python"] {
        let other = manifest(&format!("bindings/{binding}/Cargo.toml"));
        let built = read(&format!("bindings/{binding}/Cargo.lock"));

        assert_eq!(gate(&root), gate(&other), "{binding}");
        let [mut of_root, of_other] = [&root, &other].map(|manifest| packages(manifest).clone());
        of_root.retain(|name, _| built.contains(&format!("name = \"{name}\"\n")));
        assert_eq!(of_root, of_other, "{binding}");
    }
}

/// So what both need is built once.
#[test]
fn the_bindings_have_the_versions_of_the_workspace() {
    let root = versions("Cargo.lock");
    for binding in ["c", "python", "wasm"] {
        for (name, versions) in versions(&format!("bindings/{binding}/Cargo.lock")) {
            let Some(expected) = root.get(&name) else { continue };
            for version in versions {
                let alike = expected.iter().any(|expected| is_compatible(expected, &version));
                assert!(
                    !alike || expected.contains(&version),
                    "bindings/{binding} has {name} {version}, the workspace has {expected:?}: cargo update --precise"
                );
            }
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
