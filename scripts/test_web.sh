#!/usr/bin/env bash
# The page and the npm package: built, then tried in Chromium, Firefox and Node against the native program.
# usage: scripts/test_web.sh
#
# Installs what it lacks: browsers by apt, and what scripts/build_web.sh needs. SMOL_REAL_MODEL is the real model's folder,
# by default in the cache of scripts/test.sh; SMOL_REAL_Q3 the blob that smolconv makes of it with
# --dtype q3, if it was made already; SMOL_SCREENSHOTS a folder to keep pictures of the page in.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

source scripts/common.sh

readonly package=bindings/wasm
readonly work=${CARGO_TARGET_DIR:-$PWD/target}/web

need chromium chromium fonts-dejavu-core
need firefox-esr firefox-esr
fetch_real_model

build_programs
# The blob of q3 that scripts/test.sh has made of the real model.
readonly q3=$built/test-blobs/$real_model-q3-mix.bin
[[ -n ${SMOL_REAL_Q3:-} || ! -e $q3 ]] || export SMOL_REAL_Q3=$q3
SMOL_BIN=$built scripts/build_web.sh --dist "$work/dist" ${SMOL_REAL_Q3:+--blob "$SMOL_REAL_Q3"} "$SMOL_REAL_MODEL"
"$built/smolconv" models/tales-4m -o "$work/tales-4m-f32.bin" --force --quiet

step "format and lints of the crate for WebAssembly"
cargo fmt --check --all --manifest-path "$package/Cargo.toml"
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
