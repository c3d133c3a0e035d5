#!/usr/bin/env python3
"""What released files are made of, as CycloneDX in JSON: every crate that the manifests' crates are built from for
Linux or WebAssembly, with its version, license and checksum. The same text each time.

usage: sbom.py VERSION MANIFEST... (needs cyclonedx-python-lib, and Python 3.11)
"""

import json
import subprocess
import sys
import tomllib
import uuid
from datetime import datetime, timezone
from os import environ
from pathlib import Path

from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import LicenseExpression
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

LINUX = ("x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu")


def metadata(manifest: Path, target: str) -> dict:
    """What cargo knows of a crate and of what it needs on `target`."""
    command = ["cargo", "metadata", "--locked", "--format-version=1", f"--filter-platform={target}"]
    return json.loads(subprocess.check_output([*command, f"--manifest-path={manifest}"]))


def checksums(manifest: Path) -> dict[tuple[str, str], str]:
    """The SHA-256 of packages from a registry, by name and version."""
    workspace = next(folder for folder in manifest.resolve().parents if (folder / "Cargo.lock").exists())
    packages = tomllib.loads((workspace / "Cargo.lock").read_text())["package"]
    return {(package["name"], package["version"]): package.get("checksum", "") for package in packages}


def component(package: dict, checksum: str) -> Component:
    """A package. `/` between licenses is what crates used to write for OR."""
    name, version = package["name"], package["version"]
    license = (package["license"] or "").replace("/", " OR ")
    return Component(
        name=name,
        version=version,
        type=ComponentType.LIBRARY,
        bom_ref=f"{name}@{version}",
        purl=PackageURL("cargo", None, name, version),
        licenses=[LicenseExpression(license)] if license else [],
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=checksum)] if checksum else [],
    )


def needed(found: dict) -> dict[str, list[str]]:
    """The ids of the packages that the root is built from, each with those that it needs itself."""
    nodes = {node["id"]: node for node in found["resolve"]["nodes"]}
    needs, open_ids = {}, [found["resolve"]["root"]]
    while open_ids:
        id = open_ids.pop()
        if id not in needs:
            built = (dep for dep in nodes[id]["deps"] if any(kind["kind"] != "dev" for kind in dep["dep_kinds"]))
            needs[id] = [dep["pkg"] for dep in built]
            open_ids += needs[id]
    return needs


def main() -> None:
    """Prints it."""
    version, *manifests = sys.argv[1:]
    bom, components, depends = Bom(), {}, {}
    for manifest in map(Path, manifests):
        known = checksums(manifest)
        for target in ["wasm32-unknown-unknown"] if "wasm" in manifest.parts else LINUX:
            found = metadata(manifest, target)
            packages = {package["id"]: package for package in found["packages"]}
            for id, needs in needed(found).items():
                package = packages[id]
                made = component(package, known.get((package["name"], package["version"]), ""))
                ref = components.setdefault(made.bom_ref.value, made).bom_ref.value
                depends.setdefault(ref, set()).update("{name}@{version}".format(**packages[need]) for need in needs)
    bom.components = components.values()
    for ref, needs in depends.items():
        bom.register_dependency(components[ref], [components[need] for need in needs])
    whole = Component(name="smolrun", version=version, type=ComponentType.APPLICATION, bom_ref=f"release@{version}")
    bom.metadata.component = whole
    bom.register_dependency(whole, [made for made in components.values() if not made.hashes])
    bom.metadata.timestamp = datetime.fromtimestamp(int(environ["SOURCE_DATE_EPOCH"]), timezone.utc)
    bom.serial_number = uuid.uuid5(uuid.NAMESPACE_URL, " ".join(sorted(depends)))
    print(JsonV1Dot6(bom).output_as_string(indent=2))


if __name__ == "__main__":
    main()
