#!/usr/bin/env bash
# Everything that would be published, in one folder: the crates, wheels, the npm package, static programs, the C
# library, a list of all that they are made of (SBOM), and the SHA-256 of each file. From one commit, with the same
# tools, always the same bytes.
# usage: scripts/release.sh [DIST]
#
# DIST is by default dist/release, and must not be there yet. What is not committed is left out. Publishes nothing.
# Installs what it lacks: Rust targets by rustup; maturin, zig, cargo-zigbuild and cyclonedx-python-lib by pip, into the
# cache of scripts/test.sh; for the npm package see scripts/build_web.sh. scripts/test_release.sh tries what is in DIST.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/common.sh

# The path of a crate outside of a workspace is in the names of its symbols, so the path of what is built is always the
# same, wherever this clone lies.
readonly place=/tmp/smolrun-release
readonly source=$place/source
readonly tools=$cache/release-tools
readonly processors=(x86_64 aarch64)
dist=$(realpath -m "${1:-dist/release}")
readonly dist

install_tools() {
    python3 -c 'import venv, ensurepip' 2>/dev/null || install_packages python3 python3-venv
    [[ -x $tools/bin/cargo-zigbuild ]] || {
        python3 -m venv "$tools"
        "$tools/bin/pip" install --quiet --disable-pip-version-check 'maturin==1.16.*' 'ziglang==0.17.*' \
            'cargo-zigbuild==0.24.*' 'cyclonedx-python-lib[json-validation]==11.*'
    }
    need make make
    need npm npm
    need_target "${processors[@]/%/-unknown-linux-musl}" "${processors[@]/%/-unknown-linux-gnu}"
}

# A clone of the commit, in a folder that nobody else can have prepared.
check_out() {
    [[ ! -e $dist ]] || { echo "scripts/release.sh: $dist: is there already" >&2 && exit 1; }
    git diff --quiet HEAD || echo "scripts/release.sh: what is not committed is left out" >&2
    mkdir -m 700 -p "$place"
    [[ -O $place && ! -L $place ]] || { echo "scripts/release.sh: $place belongs to somebody else" >&2 && exit 1; }
    exec 9>"$place/lock"
    flock --nonblock 9 || { echo "scripts/release.sh: another one runs in $place" >&2 && exit 1; }
    rm -rf "$source" "$place/stage"
    mkdir -p "$dist"
    git clone --quiet --no-tags . "$source"
}

# Nothing of this machine or this moment goes into what is built.
settle() {
    local variable std
    local -r changing='^(CARGO_(PROFILE|BUILD|TARGET|ENCODED)_|RUSTC|RUSTFLAGS|CFLAGS|CXXFLAGS)'
    for variable in $(compgen -e | grep -E "$changing" || true); do
        unset "$variable"
    done
    SOURCE_DATE_EPOCH=$(git -C "$source" log -1 --format=%ct)
    export SOURCE_DATE_EPOCH LC_ALL=C TZ=UTC PATH=$tools/bin:$PATH CARGO_TARGET_DIR=$place/target
    # What of the standard library is compiled here is called as where it is not.
    std=/rustc/$(rustc -vV | sed -n 's/^commit-hash: //p')
    RUSTFLAGS="--remap-path-prefix=$place= --remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=cargo"
    export RUSTFLAGS="$RUSTFLAGS --remap-path-prefix=$(rustc --print sysroot)/lib/rustlib/src/rust=$std"
    export CARGO_PROFILE_RELEASE_STRIP=symbols
    umask 022
}

# A folder in $place/stage as an archive: no owners, no times, names in their order.
archive() { # NAME
    tar --create --directory "$place/stage" --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 \
        --numeric-owner --format=gnu "$1" | gzip --best --no-name >"$dist/$1.tar.gz"
}

crates() {
    step "crates"
    cargo package --quiet --locked --no-verify -p smolrun -p smolconv -p smolrun-cli
    cp "$CARGO_TARGET_DIR"/package/*.crate "$dist"
}

programs() { # PROCESSOR
    local target=$1-unknown-linux-musl name=smolrun-$version-$1-linux
    step "static programs for $1"
    cargo zigbuild --quiet --locked --release --target "$target" -p smolrun-cli -p smolconv
    mkdir -p "$place/stage/$name"
    cp "$CARGO_TARGET_DIR/$target/release"/{smolrun,smolconv} LICENSE README.md "$place/stage/$name"
    archive "$name"
}

# zig links with the symbols of an old glibc, so that the library runs with all later ones.
c_library() { # PROCESSOR
    local name=libsmolrun-$version-$1-linux
    step "the C library for $1"
    CARGO_PROFILE_RELEASE_STRIP=none make --silent -C bindings/c install TARGET="$1-unknown-linux-gnu" \
        CC="python -m ziglang cc -target $1-linux-gnu.2.17" PREFIX=/usr/local DESTDIR="$place/stage/c"
    mv "$place/stage/c/usr/local" "$place/stage/$name"
    cp LICENSE "$place/stage/$name"
    archive "$name"
}

wheel() { # PROCESSOR
    step "a wheel for $1"
    maturin build --quiet --profile wheel --locked --zig --target "$1-unknown-linux-gnu" --compatibility manylinux2014 \
        --manifest-path bindings/python/Cargo.toml --out "$dist"
}

npm_package() {
    step "the npm package"
    env -u RUSTFLAGS -u CARGO_PROFILE_RELEASE_STRIP scripts/build_web.sh --package
    cp LICENSE bindings/wasm
    npm pack --silent --pack-destination "$dist" ./bindings/wasm >/dev/null
}

install_tools
step "a clone of $(git rev-parse --short HEAD) in $source"
check_out
cd "$source"
settle
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml)
readonly version

crates
for processor in "${processors[@]}"; do
    programs "$processor"
    c_library "$processor"
    wheel "$processor"
done
npm_package
step "what all of it is made of"
python scripts/sbom.py "$version" {cli,bindings/{c,python,wasm}}/Cargo.toml >"$dist/smolrun-$version.cdx.json"
cd "$dist"
sha256sum -- * >"$place/sums"
mv "$place/sums" SHA256SUMS
ls -l
step "all is in $dist"
