#!/usr/bin/env bash
# Build the page: a model as tuned q3 in parts, the npm package with its WebAssembly, the demo.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() {
    cat <<EOF
usage: scripts/build_web.sh [--dist DIR] [--limit BYTES] [--blob FILE] [MODEL_DIR]
       scripts/build_web.sh --package

MODEL_DIR     a Hugging Face directory, as scripts/fetch_model.sh makes one; beside it the page always has models/tales-4m
--dist DIR    where the page goes [default: dist]
--blob FILE   what smolconv made of MODEL_DIR, instead of converting it (--dtype q3 --tune 3) now, which takes long
--limit BYTES fail if the page is larger [default: $limit]
--package     only the npm package: bindings/wasm/lib

SMOL_BIN may be a folder with smolconv and smolrun, else they are built. Installs what it lacks: the Rust target and std's
source, Node by apt, TypeScript, esbuild and binaryen by npm.
EOF
}

limit=70000000
dist=dist
package_only=
model_dir=
model_blob=
while (($#)); do
    case $1 in
        --dist) dist=$2 && shift ;;
        --limit) limit=$2 && shift ;;
        --blob) model_blob=$2 && shift ;;
        --package) package_only=yes ;;
        -h | --help) usage && exit ;;
        -*) usage >&2 && exit 2 ;;
        *) model_dir=${1%/} ;;
    esac
    shift
done

readonly package=bindings/wasm
readonly module_limit=400000
readonly work=${CARGO_TARGET_DIR:-$PWD/target}/web
step() { printf '\n== %s (after %d s)\n' "$*" "$SECONDS" >&2; }

need() { # COMMAND PACKAGE...
    command -v "$1" >/dev/null && return
    step "${*:2}, by apt"
    apt-get update -q && apt-get install -q -y --no-install-recommends "${@:2}"
}

# The program that makes the glue.
build_bindgen() {
    step "wasm-bindgen"
    CARGO_TARGET_DIR=$work/bindgen cargo build --locked --quiet --manifest-path "$package/Cargo.toml" -p smolrun-bindgen
}

install_tools() {
    need node nodejs
    need npm npm
    rustup target list --installed | grep -qx wasm32-unknown-unknown || rustup target add wasm32-unknown-unknown
    rustup component list --installed | grep -qx rust-src || rustup component add rust-src
    [[ -e $package/node_modules/.package-lock.json ]] || (cd "$package" && npm ci --no-audit --no-fund)
}

# One module for each set of features: a module that has an instruction which the engine does not know is refused whole. All
# import the memory that they run in, so that one glue serves all.
build_modules() { # THREADS: nothing, or _threads
    local features=(--enable-simd --enable-bulk-memory --enable-sign-ext --enable-mutable-globals
        --enable-nontrapping-float-to-int --enable-multivalue --enable-reference-types ${1:+--enable-threads})
    build_module "simd$1" +simd128 "${features[@]}"
    build_module "relaxed$1" +simd128,+relaxed-simd "${features[@]}" --enable-relaxed-simd
}

build_module() { # NAME FEATURES WASM_OPT_FLAGS...
    local name=$1 features=$2 std=() flags=(-C link-arg=--import-memory) target=$work/target
    # Messages name source files: not by where they lie on this machine.
    flags+=("--remap-path-prefix=$PWD=smolrun" "--remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=cargo")
    flags+=("--remap-path-prefix=$(rustc --print sysroot)/lib/rustlib/src/rust=std")
    if [[ $name == *_threads ]]; then
        # Threads need a std with atomics, which rustup has as source only, and which cargo builds where unstable options
        # are unlocked. It is the same stable compiler as for all else.
        export RUSTC_BOOTSTRAP=1
        std=(-Z build-std=std,panic_abort)
        target+=-threads # cargo waits for a folder that another one builds in
        features+=,+atomics,+bulk-memory,+mutable-globals
        flags+=(-C link-arg=--shared-memory -C link-arg=--max-memory=4294967296)
        for symbol in __wasm_init_tls __tls_size __tls_align __tls_base; do flags+=(-C "link-arg=--export=$symbol"); done
    fi
    step "the module $name"
    RUSTFLAGS="-C target-feature=$features ${flags[*]}" CARGO_TARGET_DIR=$target \
        CARGO_PROFILE_RELEASE_LTO=fat CARGO_PROFILE_RELEASE_CODEGEN_UNITS=1 \
        cargo build --locked --release --target wasm32-unknown-unknown "${std[@]}" --manifest-path "$package/Cargo.toml"
    "$work/bindgen/debug/smolrun-bindgen" "$target/wasm32-unknown-unknown/release/smolrun_wasm.wasm" "$work/$name"
    optimize "$name" "${@:3}"
}

# npm's binaryen, since Debian's does not know relaxed SIMD. What went in and how is kept, since it takes half a minute.
optimize() { # NAME WASM_OPT_FLAGS...
    local from=$work/$1/smolrun_wasm_bg.wasm to=$work/$1/optimized.wasm made
    made=$(sha256sum <"$from"; echo "${@:2}"; sha256sum <"$package/package-lock.json")
    if [[ ! -e $to || $(cat "$to.of") != "$made" ]]; then
        "$package/node_modules/.bin/wasm-opt" -O3 --strip-debug --strip-producers "${@:2}" -o "$to" "$from"
        echo "$made" >"$to.of"
    fi
    gzip --best --no-name --stdout "$to" >"$package/ts/wasm/smolrun_$1.wasm.gz"
}

build_package() {
    rm -rf "$package/ts/wasm" "$package/lib"
    mkdir -p "$package/ts/wasm" "$package/lib"
    build_modules "" &
    local without_threads=$!
    build_modules _threads &
    wait $!
    wait "$without_threads"
    cmp "$work"/{simd,relaxed}_threads/smolrun_wasm.js
    # The glue of modules with threads copies what the page cannot read in shared memory; the others' is this without that.
    cp "$work"/simd_threads/smolrun_wasm.{js,d.ts} "$package/ts/wasm/"
    step "the package"
    (cd "$package" && npx tsc)
    cp -r "$package/ts/wasm" "$package/lib/"
}

licence() { # MODEL_DIR: by the registry
    awk -F ' = ' -v name="\"$(basename "$1")\"" '
        $1 == "name" { here = $2 == name }
        here && $1 == "license" { gsub(/"/, "", $2); print $2; exit }' convert/data/registry.toml
}

# The programs of this tree, or those in SMOL_BIN.
program() { # NAME ARGS...
    if [[ -n ${SMOL_BIN:-} ]]; then "$SMOL_BIN/$1" "${@:2}"; else cargo run --locked --release --quiet -p "$1" -- "${@:2}"; fi
}

pack_model() { # MODEL_DIR LICENCE BLOB, or nothing and how it is converted: OPTION...
    local name blob
    name=$(basename "$1")
    blob=$work/$name.bin
    step "$name"
    if [[ -n $3 ]]; then
        cp "$3" "$blob"
    else
        program smolconv "$1" "${@:4}" -o "$blob" --force
    fi
    program smolrun info "$blob" --json >"$work/info.json"
    node "$package/tools/pack.mjs" "$blob" "$work/info.json" "$1/config.json" "$name" "$2" "$dist/models/$name"
}

build_page() {
    mkdir -p "$dist/smolrun/wasm"
    cp "$package"/demo/* "$dist/"
    cp "$package"/lib/wasm/*.wasm.gz "$dist/smolrun/wasm/"
    # One file for the page, one for each kind of worker: who loads a module after the other waits for each.
    "$package/node_modules/.bin/esbuild" "$package"/lib/{index,worker,thread}.js --bundle --format=esm --target=es2022 \
        --minify-syntax --minify-whitespace --outdir="$dist/smolrun" --log-level=warning
    node "$package/tools/page.mjs" "$dist"
}

report() {
    local total module bytes
    total=$(find "$dist" -type f -printf '%s\n' | awk '{ sum += $1 } END { print sum }')
    (cd "$dist" && du --bytes --summarize ./* | sort -rn)
    for module in "$dist"/smolrun/wasm/*.gz; do
        bytes=$(stat -c %s "$module")
        echo "$bytes bytes, limit $module_limit: ${module##*/}"
        ((bytes <= module_limit)) || {
            echo "scripts/build_web.sh: $module is larger than $module_limit bytes" >&2
            return 1
        }
    done
    echo "$total bytes in $dist, limit $limit"
    ((total <= limit)) || {
        echo "scripts/build_web.sh: $dist is larger than $limit bytes" >&2
        return 1
    }
}

trap 'jobs -p | xargs --no-run-if-empty kill' EXIT
install_tools
build_bindgen
build_package
[[ -n $package_only ]] && exit
rm -rf "$dist"
[[ -z $model_dir ]] || pack_model "$model_dir" "$(licence "$model_dir")" "$model_blob" --dtype q3 --tune 3
pack_model models/tales-4m Apache-2.0 '' --dtype q4
build_page
report
