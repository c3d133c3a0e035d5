#!/usr/bin/env bash
# The kernels of other processors: NEON under qemu's emulation, WebAssembly SIMD under Node. Their unit tests, and
# the SHA-256 of the logits of 300 positions, which must be this processor's.
# usage: scripts/test_targets.sh
#
# Installs what it lacks: Rust targets by rustup; a linker, qemu-user and nodejs by apt.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly blob=target/other/tales.bin
mkdir -p target/other

step() { printf '\n== %s\n' "$*" >&2; }

install() { # COMMAND PACKAGE...
    command -v "$1" >/dev/null && return
    step "${*:2}, by apt"
    apt-get update -q && apt-get install -q -y --no-install-recommends "${@:2}"
}

install aarch64-linux-gnu-gcc gcc-aarch64-linux-gnu libc6-dev-arm64-cross
install qemu-aarch64 qemu-user
install node nodejs
for target in aarch64-unknown-linux-gnu wasm32-wasip1; do
    rustup target list --installed | grep -qx "$target" || rustup target add "$target"
done

export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER='qemu-aarch64 -L /usr/aarch64-linux-gnu'
# Node 20 has relaxed SIMD behind a flag, later ones have it without.
relaxed=$(node --v8-options | grep -o -- '--experimental-wasm-relaxed-simd' | head -1 || true)
export CARGO_TARGET_WASM32_WASIP1_RUNNER="node --no-warnings $relaxed $PWD/scripts/run_wasi.mjs"

cargo run --locked --release --quiet -p smolconv -- models/tales-4m -o "$blob" --force
expected=$(cargo run --locked --release --quiet -p smolrun --example hash_logits -- "$blob" 2 300)
echo "$expected"
expected=$(head -1 <<<"$expected")

check() { # NAME TARGET RUSTFLAGS SETS: the sets that must give the same bits
    local name=$1 target=$2 found
    export RUSTFLAGS=$3 CARGO_TARGET_DIR=target/other
    step "$name: unit tests of the kernels"
    cargo test --locked --release --target "$target" -p smolrun --no-default-features --lib kernels
    step "$name: the same logits"
    found=$(cargo run --locked --release --quiet --target "$target" -p smolrun --no-default-features \
        --example hash_logits -- "$PWD/$blob" 1 300)
    echo "$found"
    [[ $(grep -cx "${expected%% *} \($4\)" <<<"$found") == $(wc -l <<<"$found") ]] || {
        echo "scripts/test_targets.sh: $name: expected ${expected%% *} of each of $4" >&2
        exit 1
    }
    unset RUSTFLAGS CARGO_TARGET_DIR
}

check neon aarch64-unknown-linux-gnu '' 'neon\|scalar'
check wasm-relaxed wasm32-wasip1 '-C target-feature=+simd128,+relaxed-simd' 'simd128\|scalar'

# Without relaxed SIMD there is no fused multiply-add: the one set whose bits are its own.
export RUSTFLAGS='-C target-feature=+simd128' CARGO_TARGET_DIR=target/other
step "wasm: unit tests of the kernels"
cargo test --locked --release --target wasm32-wasip1 -p smolrun --no-default-features --lib kernels
