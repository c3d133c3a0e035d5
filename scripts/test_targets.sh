#!/usr/bin/env bash
# The kernels of other processors: NEON under qemu's emulation, WebAssembly SIMD under Node. Their unit tests, and
# the SHA-256 of logits, of 300 positions at a time and of single ones, which must be this processor's. NEON runs with
# and without dot products and products of matrices (i8mm), on a processor that has both, one that has only the former,
# and one that has neither. A whole conversion to q4 must give this processor's bytes there. Then what compiles for other
# systems: Windows, macOS, and 32 bits.
# usage: scripts/test_targets.sh
#
# Installs what it lacks: Rust targets by rustup; a linker, qemu-user and nodejs by apt.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

source scripts/common.sh

readonly out=target/other
mkdir -p "$out"

blob() { echo "$PWD/$out/tales-$1.bin"; } # DTYPE

unit_tests() { # TARGET
    cargo test --locked --profile gate --target "$1" -p smolrun --no-default-features --lib kernels
}

# The blob, tokens at a time and positions.
runs=('f32 300 300' 'q4 300 300' 'q4 1 20')

same_logits() { # TARGET SET...: those that must give the same bits, the fastest first
    local run dtype split positions found set
    for run in "${runs[@]}"; do
        read -r dtype split positions <<<"$run"
        found=$(cargo run --locked --profile gate --quiet --target "$1" -p smolrun --no-default-features \
            --example hash_logits -- "$(blob "$dtype")" 1 "$split" "$positions") || {
            echo "scripts/test_targets.sh: $1: hash_logits failed for $run" >&2
            return 1
        }
        diff <(for set in "${@:2}"; do echo "${expected[$run]} $set"; done) <(echo "$found") || {
            echo "scripts/test_targets.sh: $1: $run: expected the bits of this processor (<)" >&2
            return 1
        }
        echo "$found ($run)"
    done
}

same_fast_logits() { # TARGET SETS: of as many sets with int8, with the scalar one
    local found
    found=$(cargo run --locked --profile gate --quiet --target "$1" -p smolrun --no-default-features \
        --example hash_logits -- "$(blob q4)" 1 40 40 fast | grep 'fast on int8')
    echo "$found"
    [[ $(wc -l <<<"$found") == "$2" && $(uniq <<<"$found" | wc -l) == 1 ]] || {
        echo "scripts/test_targets.sh: $1: expected $2 sets of the same bits with --fast" >&2
        return 1
    }
}

convert_to_q4() { # OUT PROGRAM...: calibrated and tuned, with little to read, as emulation is slow
    head -c 3000 convert/data/calibration.txt >"$out/text.txt"
    "${@:2}" models/tales-4m -o "$1" --force --quiet --dtype q4 --tune 1 --calibrate "$out/text.txt"
}

same_conversion() { # TARGET
    local found=$out/converted-there.bin
    convert_to_q4 "$found" cargo run --locked --profile gate --quiet --target "$1" -p smolconv --no-default-features --
    cmp "$out/converted-here.bin" "$found" || {
        echo "scripts/test_targets.sh: $1: expected smolconv --dtype q4 to write the bytes of this processor" >&2
        return 1
    }
}

emulate() { # CPU: which Arm of qemu's programs run on
    export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64 -cpu $1 -L /usr/aarch64-linux-gnu"
}

neon() {
    step "neon"
    emulate max
    unit_tests aarch64-unknown-linux-gnu
    same_logits aarch64-unknown-linux-gnu neoni8mm neondotprod neon scalar
    same_fast_logits aarch64-unknown-linux-gnu 3
    same_conversion aarch64-unknown-linux-gnu
    local runs=('q4 1 20')
    step "neon on a processor with dot products only"
    emulate neoverse-n1
    same_logits aarch64-unknown-linux-gnu neondotprod neon scalar
    step "neon on a processor without dot products"
    emulate cortex-a72
    same_logits aarch64-unknown-linux-gnu neon scalar
    same_conversion aarch64-unknown-linux-gnu
}

wasm() {
    step "wasm with relaxed SIMD"
    export RUSTFLAGS='-C target-feature=+simd128,+relaxed-simd'
    unit_tests wasm32-wasip1
    same_logits wasm32-wasip1 simd128 scalar
    # Without relaxed SIMD there is no fused multiply-add: the one set whose bits are its own.
    step "wasm without relaxed SIMD"
    export RUSTFLAGS='-C target-feature=+simd128'
    unit_tests wasm32-wasip1
}

# Nothing is run there, but everything is compiled: the library and the programs. Fetching models is left out, for which
# TLS has C and assembly of its own.
other_systems() {
    local targets=(x86_64-pc-windows-gnu aarch64-apple-darwin i686-unknown-linux-gnu)
    step "cargo check for ${targets[*]}"
    cargo check --locked --quiet --profile gate "${targets[@]/#/--target=}" -p smolrun
    cargo check --locked --quiet --profile gate "${targets[@]/#/--target=}" -p smolrun-cli -p smolconv \
        --no-default-features
}

# What Arm's kernels are compiled to; scripts/test.sh looks at this processor's.
arm_code() {
    step "the compiled code of Arm's kernels"
    cargo test --locked --profile gate "${tested[@]}" --test main -- arm_kernels_keep_their_sums_in_registers
}

need aarch64-linux-gnu-gcc gcc-aarch64-linux-gnu libc6-dev-arm64-cross
need qemu-aarch64 qemu-user
need node nodejs
need_target aarch64-unknown-linux-gnu wasm32-wasip1 x86_64-pc-windows-gnu aarch64-apple-darwin i686-unknown-linux-gnu

export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
# Node 20 has relaxed SIMD behind a flag, later ones have it without.
relaxed=$(node --v8-options | grep -o -- '--experimental-wasm-relaxed-simd' | head -1 || true)
export CARGO_TARGET_WASM32_WASIP1_RUNNER="node --no-warnings $relaxed $PWD/scripts/run_wasi.mjs"

build_programs
# The second blob has matrices of every quantized dtype.
"$built/smolconv" models/tales-4m -o "$(blob f32)" --force
"$built/smolconv" models/tales-4m -o "$(blob q4)" --force --dtype q4 --keep o_proj=q8 \
    --keep embed_tokens_rare.1=q3
convert_to_q4 "$out/converted-here.bin" "$built/smolconv"
declare -A expected
for run in "${runs[@]}"; do
    read -r dtype split positions <<<"$run"
    found=$("$built/examples/hash_logits" "$(blob "$dtype")" 2 "$split" "$positions")
    echo "$found ($run)"
    expected[$run]=${found%% *}
done

# Side by side, for each is one thread's work.
for processor in neon wasm; do
    "$processor" &>"$out/$processor.log" &
done
failed=
for job in $(jobs -p); do
    wait "$job" || failed=yes
done
cat "$out"/{neon,wasm}.log
[[ -z $failed ]]

arm_code
other_systems
