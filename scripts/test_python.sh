#!/usr/bin/env bash
# The Python package: a wheel built, installed into an empty environment, and tested there. scripts/test.sh lints its
# crate.
# usage: scripts/test_python.sh
#
# Installs what it lacks: maturin and what the tests need by pip, into the cache of scripts/test.sh. SMOL_PYTHON is the
# interpreter, by default python3, 3.10 or later. SMOL_STRESS=25 makes 25 times as many of the tests' random calls,
# 1,000. SMOL_PYTHON_HOSTS=1 tries the adapters with their hosts from PyPI, too, which are large: langchain-core and
# lm-eval.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

source scripts/common.sh

readonly package=bindings/python
readonly work=${CARGO_TARGET_DIR:-$PWD/target}/python
readonly python=${SMOL_PYTHON:-python3}

step "a wheel"
build_wheel "$python" "$work/dist"

step "an empty environment"
rm -rf "$work/venv"
"$python" -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check "$work"/dist/smolrun-*.whl
"$work/venv/bin/python" -c 'import smolrun; print("smolrun", smolrun.__version__, "needs nothing else")'
"$work/venv/bin/pip" install --quiet --disable-pip-version-check numpy pytest mypy typing-extensions

step "types"
(cd "$package" && "$work/venv/bin/mypy" --strict --cache-dir "$work/mypy" tests python/smolrun)
(cd "$work" && "$work/venv/bin/stubtest" smolrun._smolrun smolrun._errors)

step "tests"
if [[ -n ${SMOL_PYTHON_HOSTS:-} ]]; then
    "$work/venv/bin/pip" install --quiet --disable-pip-version-check langchain-core lm-eval
fi
(cd "$package" && "$work/venv/bin/python" -m pytest -q -p no:cacheprovider --durations=5 tests)
step "all of the Python package passed"
