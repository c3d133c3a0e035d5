#!/usr/bin/env bash
# What scripts/release.sh made: each file installed into an empty environment, and models/tales-4m told by it.
# usage: scripts/test_release.sh [--again] [DIST]
#
# DIST is by default dist/release; what is not there is made first. --again makes all of it once more, from a clone that
# lies elsewhere, and compares each byte. A build takes many minutes, so that scripts/test_more.sh does not call this.
# Installs what it lacks: qemu and compilers by apt; a Python for AArch64 is only unpacked. Needs user namespaces, or
# root.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/common.sh

again=
[[ ${1:-} != --again ]] || { again=yes && shift; }
dist=$(realpath -m "${1:-dist/release}")
readonly dist again
readonly tools=$cache/release-tools
readonly work=${CARGO_TARGET_DIR:-$PWD/target}/release-test
readonly blob=$work/root/tales.bin
readonly arm=$work/aarch64
readonly told=("Once upon a time" -n 20 --temperature 0)

same() { diff "$work/expected" - && echo "$1: the same text"; } # WHAT

unpack() { # NAME: one archive of the release, as a folder below $work
    mkdir -p "$work/unpacked"
    tar xf "$dist"/"$1" -C "$work/unpacked"
}

# Whose Python is AArch64's: Debian's packages, unpacked.
fetch_arm_python() {
    local packages=$cache/aarch64-packages apt
    apt=(apt-get -q -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o Dir::State="$packages/state"
        -o Dir::State::status="$packages/status" -o Dir::Cache="$packages")
    mkdir -p "$packages"/{state/lists/partial,archives/partial} "$arm"
    : >"$packages/status"
    "${apt[@]}" update
    "${apt[@]}" install -y --download-only --no-install-recommends python3-minimal libpython3-stdlib
    local package
    for package in "$packages"/archives/*.deb; do dpkg -x "$package" "$arm"; done
}
on_arm() { qemu-aarch64 -L "$arm" "$@"; }

checksums() {
    step "checksums, and no path of this machine"
    (cd "$dist" && sha256sum --check --quiet SHA256SUMS)
    diff <(cd "$dist" && ls | grep -v SHA256SUMS) <(awk '{ print $2 }' "$dist/SHA256SUMS")
    local file
    for file in "$dist"/*.tar.gz "$dist"/*.tgz "$dist"/*.crate; do unpack "${file##*/}"; done
    for file in "$dist"/*.whl; do python3 -m zipfile -e "$file" "$work/unpacked/${file##*/}"; done
    find "$work/unpacked" -name '*.wasm.gz' -exec gunzip -k {} +
    ! grep -rlF "$HOME/" "$work/unpacked" "$dist"/*.json || exit 1
    # maturin's own list of crates says where they lay.
    ! grep -rlF --exclude-dir=sboms /tmp/smolrun-release "$work/unpacked" "$dist"/*.json || exit 1
}

programs() {
    step "static programs in an empty chroot"
    local enter=(env -i "$(command -v chroot)") folder
    ((EUID == 0)) || enter=(unshare --map-root-user env -i chroot)
    cp -r models/tales-4m "$work/unpacked"/smolrun-*-x86_64-linux/{smolrun,smolconv} "$work/root"
    "${enter[@]}" "$work/root" /smolconv /tales-4m -o /tales.bin --dtype q8 --quiet
    "${enter[@]}" "$work/root" /smolrun /tales.bin "${told[@]}" </dev/null | tee "$work/expected"
    folder=$(echo "$work/unpacked"/smolrun-*-aarch64-linux)
    qemu-aarch64 "$folder/smolconv" models/tales-4m -o "$work/tales-arm.bin" --dtype q8 --quiet
    cmp "$work/tales-arm.bin" "$blob"
    qemu-aarch64 "$folder/smolrun" "$blob" "${told[@]}" </dev/null | same "AArch64, under qemu"
}

c_library() { # PROCESSOR COMPILER...
    local prefix=$work/unpacked/libsmolrun-$version-$1-linux flags
    step "the C library for $1"
    read -ra flags < <(PKG_CONFIG_PATH=$prefix/lib/pkgconfig pkg-config --define-prefix --cflags --libs smolrun)
    "${@:2}" -std=c++17 bindings/c/examples/tales.cpp "${flags[@]}" -o "$work/tales-$1"
}

# What examples/tales.cpp tells: three tales by a session, and by a scheduler.
tales() {
    local seed
    for seed in 1 2 3 1 2 3; do
        echo -n "$seed:Once upon a time"
        "$work/root/smolrun" "$blob" "Once upon a time" -n 40 --temperature 0.8 --seed "$seed" </dev/null
    done
}

readonly python_code="
import sys, smolrun
model = smolrun.load(sys.argv[1])
for piece in model.generate('Once upon a time', max_tokens=20, temperature=0, stream=True):
    print(piece, end='')
print()"

wheels() {
    step "the wheel in an empty environment"
    python3 -m venv "$work/venv"
    "$work/venv/bin/pip" install --quiet --disable-pip-version-check --no-index --find-links "$dist" smolrun
    env -i "$work/venv/bin/python" -c "$python_code" "$blob" | same "the wheel"
    env -i "$work/venv/bin/smolrun" "$blob" "${told[@]}" </dev/null | same "the wheel's program"
    step "the wheel for AArch64, under qemu"
    "$work/venv/bin/pip" install --quiet --disable-pip-version-check --no-index --find-links "$dist" \
        --target "$arm/site" --platform manylinux2014_aarch64 --only-binary=:all: --python-version 3.11 smolrun
    PYTHONPATH=$arm/site on_arm "$arm"/usr/bin/python3 -c "$python_code" "$blob" | same "the wheel for AArch64"
}

npm_package() {
    step "the npm package in an empty folder"
    mkdir "$work/node"
    (
        cd "$work/node"
        npm install --silent --no-audit --no-fund --offline "$dist"/smolrun-*.tgz
        cat >tell.mjs <<'END'
import { Smol } from 'smolrun';
const model = await Smol.load(process.argv[2]);
const told = model.generate('Once upon a time', { maxTokens: 20, temperature: 0 });
for await (const piece of told) process.stdout.write(piece);
process.stdout.write('\n');
model.close();
END
        node tell.mjs "$blob"
    ) | same "Node"
}

crates() {
    step "the crates in an empty project"
    local at=$work/unpacked patches=() name
    for name in smolrun smolconv; do patches+=(--config "patch.crates-io.$name.path='$at/$name-$version'"); done
    mkdir -p "$work/project/src"
    cp runtime/examples/generate.rs "$work/project/src/main.rs"
    printf '%s\n' '[workspace]' '[package]' 'name = "project"' 'edition = "2024"' '[dependencies]' "smolrun = \"$version\"" \
        >"$work/project/Cargo.toml"
    export CARGO_TARGET_DIR=$work/target
    (cd "$work/project" && cargo run --quiet "${patches[@]}" -- "$blob" "Once upon a time") >"$work/told-by-the-crate"
    head -c 200 "$work/told-by-the-crate"
    for name in smolconv smolrun-cli; do
        (cd "$at" && cargo install --quiet --debug "${patches[@]}" --path "$name-$version" --root "$work/installed")
    done
    "$work/installed/bin/smolrun" "$blob" "${told[@]}" </dev/null | same "cargo install"
    "$work/installed/bin/smolconv" verify "$blob"
}

sbom() {
    step "the list of what it is made of"
    "$tools/bin/python" - "$dist/smolrun-$version.cdx.json" <<'END'
import json
import sys

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

text = open(sys.argv[1]).read()
found = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
components = {component["name"]: component for component in json.loads(text)["components"]}
print(len(components), "components,", found or "valid")
sys.exit(found is not None or not {"memmap2", "pyo3", "ring", "smolrun", "wasm-bindgen"} <= components.keys())
END
}

made_again() {
    step "all of it once more, from elsewhere"
    rm -rf "$work/clone" "$work/again" /tmp/smolrun-release/target
    git clone --quiet . "$work/clone"
    "$work/clone/scripts/release.sh" "$work/again"
    diff -r "$dist" "$work/again"
    echo "the same bytes"
}

[[ -e $dist ]] || scripts/release.sh "$dist"
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
readonly version
need qemu-aarch64 qemu-user
need g++ g++
need pkg-config pkg-config
rm -rf "$work"
mkdir -p "$work/root"
checksums
programs
fetch_arm_python
c_library x86_64 g++
LD_LIBRARY_PATH=$work/unpacked/libsmolrun-$version-x86_64-linux/lib "$work/tales-x86_64" "$blob" | diff - <(tales)
c_library aarch64 "$tools/bin/python" -m ziglang c++ -target aarch64-linux-gnu.2.36
on_arm -E LD_LIBRARY_PATH="$work/unpacked/libsmolrun-$version-aarch64-linux/lib" "$work/tales-aarch64" "$blob" |
    diff - <(tales)
wheels
npm_package
crates
sbom
[[ -z $again ]] || made_again
step "all of the release passed"
