# What the scripts that test have in common; they source it in the repository's root.

readonly cache=${SMOL_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/smolconv}
readonly python_tools=$cache/python-tools
readonly real_model=smollm2-135m-instruct
export SMOL_REAL_MODEL=${SMOL_REAL_MODEL:-$cache/$real_model}
# Programs and tests, as the profile `gate` in Cargo.toml builds them.
readonly built=${CARGO_TARGET_DIR:-$PWD/target}/gate

# What is built and tested by cargo. Benchmarks are only linted: the library has a feature for them, which no user's build
# has. The C library and the Python package have scripts of their own.
readonly tested=(-p smolrun -p smolconv -p smolrun-cli -p smol-tests)

step() { printf '\n== %s (after %d s)\n' "$*" "$SECONDS" >&2; }

install_packages() { # PACKAGE...: by apt
    step "$*, by apt"
    apt-get update -q && apt-get install -q -y --no-install-recommends "$@"
}

need() { # COMMAND PACKAGE...
    command -v "$1" >/dev/null || install_packages "${@:2}"
}

need_component() { # NAME...: of rustup
    local name
    for name in "$@"; do
        rustup component list --installed | grep -q "^$name" || rustup component add "$name"
    done
}

need_target() { # TRIPLE...: of rustup
    local target
    for target in "$@"; do
        rustup target list --installed | grep -qx "$target" || rustup target add "$target"
    done
}

need_python_tool() { # COMMAND PACKAGE: of PyPI, into $python_tools/bin
    [[ -x $python_tools/bin/$1 ]] && return
    python3 -c 'import venv, ensurepip' 2>/dev/null || install_packages python3 python3-venv
    [[ -x $python_tools/bin/pip ]] || python3 -m venv "$python_tools"
    "$python_tools/bin/pip" install --quiet --disable-pip-version-check "$2"
}

# The real model is rebuilt with Python where the hub can't be reached.
fetch_real_model() {
    [[ -e $SMOL_REAL_MODEL/model.safetensors ]] && return
    python3 -c 'import venv, ensurepip' 2>/dev/null || install_packages python3 python3-venv
    scripts/fetch_model.sh "$real_model" "$SMOL_REAL_MODEL"
}

# The programs, as the tests build them: with a test beside them, the dependencies' features are those of `cargo test`.
build_programs() {
    cargo build --locked --profile gate --quiet "${tested[@]}" --bins --examples --test registry
}

# A wheel of the Python package, with scripts/test.sh's artifacts as far as they are there.
build_wheel() { # PYTHON DIST
    need_python_tool maturin 'maturin>=1.9,<2'
    PYO3_PYTHON=$(command -v "$1") && export PYO3_PYTHON
    rm -rf "$2"
    "$python_tools/bin/maturin" build --quiet --profile gate --locked --manifest-path bindings/python/Cargo.toml --out "$2" \
        --interpreter "$PYO3_PYTHON" --compatibility linux
}

# Tests write many small files, and wait until they are on the disk: in memory there is nothing to wait for.
keep_test_files_in_memory() {
    [[ -z ${SMOL_TEST_DIR:-} && -w /dev/shm ]] || return 0
    local free
    free=$(df -Pk /dev/shm | awk 'NR == 2 { print $4 }')
    ((free < 2 * 1024 * 1024)) || export SMOL_TEST_DIR=/dev/shm
}
