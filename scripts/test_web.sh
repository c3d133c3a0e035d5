#!/usr/bin/env bash
# The page and the npm package: built, then tried in Chromium, Firefox and Node against the native program.
# usage: scripts/test_web.sh
#
# Installs what it lacks: browsers by apt, and what scripts/build_web.sh needs. SMOL_REAL_MODEL is the real model's folder,
# by default in the cache of scripts/test.sh; SMOL_REAL_Q3 the blob that smolconv makes of it with
# --dtype q3, if it was made already; SMOL_SCREENSHOTS a folder to keep pictures of the page in.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly cache=${SMOL_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/smolconv}
readonly real=${SMOL_REAL_MODEL:-$cache/smollm2-135m-instruct}
readonly package=bindings/wasm
readonly built=${CARGO_TARGET_DIR:-$PWD/target}/release
readonly work=${CARGO_TARGET_DIR:-$PWD/target}/web

step() { printf '\n== %s (after %d s)\n' "$*" "$SECONDS" >&2; }

need() { # COMMAND PACKAGE...
    command -v "$1" >/dev/null && return
    step "${*:2}, by apt"
    apt-get update -q && apt-get install -q -y --no-install-recommends "${@:2}"
}

need chromium chromium fonts-dejavu-core
need firefox-esr firefox-esr
[[ -e $real/model.safetensors ]] || scripts/fetch_model.sh smollm2-135m-instruct "$real"

# As scripts/test.sh has built them: with a test beside them, the dependencies' features are those of `cargo test`.
export CARGO_PROFILE_RELEASE_LTO=false CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16
cargo build --locked --release --quiet --workspace --bins --examples --test registry
SMOL_BIN=$built scripts/build_web.sh --dist "$work/dist" ${SMOL_REAL_Q3:+--blob "$SMOL_REAL_Q3"} "$real"
"$built/smolconv" models/tales-4m -o "$work/tales-4m-f32.bin" --force --quiet

step "format and lints of the crate for WebAssembly"
cargo fmt --check --manifest-path "$package/Cargo.toml"
RUSTFLAGS='-C target-feature=+simd128' CARGO_TARGET_DIR=$work/target cargo clippy --locked --quiet \
    --manifest-path "$package/Cargo.toml" --target wasm32-unknown-unknown -- -D warnings

export SMOL_WEB_DIST=$work/dist SMOL_TALES_F32=$work/tales-4m-f32.bin SMOL_TALES_Q4=$work/tales-4m.bin
export SMOL_REAL_BLOB=$work/smollm2-135m-instruct.bin SMOLRUN=$built/smolrun

# Its tests have limits of their own; this one is for what they leave behind, which it ends.
readonly limit=$((${SMOL_PATIENCE_MS:-120000} * 15 / 1000))
export SMOL_TEST_RUN=test_web-$$
end_left() { node "$package/test/left.mjs" "$SMOL_TEST_RUN"; }
trap end_left EXIT
run_tests() { # FILE
    local status=0
    timeout --foreground --kill-after=30 "$limit" node --test --test-reporter=spec "$1" || status=$?
    end_left
    ((status != 124 && status != 137)) || echo "scripts/test_web.sh: ${1##*/} did not end within $limit seconds" >&2
    return "$status"
}

# One file after the other: each has a browser, and some look at the time.
for file in "$package"/test/*.test.mjs; do
    step "${file##*/}"
    run_tests "$file"
done
step "all of the page and the package passed"
