#!/usr/bin/env bash
# The Python package on clusters: Ray with three nodes, Spark with two executors, Daft's native runner, and jobs from
# files into files. Every engine must give what `smolrun batch` gives, also where nodes, executors and drivers are
# killed.
# usage: scripts/test_cluster.sh
#
# 5,000 prompts on each engine with models/tales-4m, 200 with the real model in q4: 9 minutes on two cores of Zen 4,
# with a wheel and the q4 blob at hand. SMOL_CLUSTER_PROMPTS and SMOL_CLUSTER_REAL_PROMPTS are other counts,
# 0 for no real model. No other script calls this one: it would take too much of the gate's time.
#
# Installs what it lacks: maturin, the engines and the packages they need by pip, into the cache of scripts/test.sh;
# Java by apt. SMOL_PYTHON is the interpreter, by default python3. SMOL_WHEEL is a wheel that is there, SMOL_CLUSTER_BLOB
# a q4 blob of the real model.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

source scripts/common.sh

readonly package=bindings/python
readonly work=${CARGO_TARGET_DIR:-$PWD/target}/cluster
readonly python=${SMOL_PYTHON:-python3}
export SMOL_CLUSTER_PROMPTS=${SMOL_CLUSTER_PROMPTS:-5000}
export SMOL_CLUSTER_REAL_PROMPTS=${SMOL_CLUSTER_REAL_PROMPTS:-200}

"$python" -c 'import venv, ensurepip' 2>/dev/null || install_packages python3 python3-venv
need java openjdk-17-jre-headless
keep_test_files_in_memory

wheel=${SMOL_WHEEL:-}
if [[ -z $wheel ]]; then
    step "a wheel"
    build_wheel "$python" "$work/dist"
    wheel=$(ls "$work"/dist/smolrun-*.whl)
fi

step "an environment with the engines"
readonly venv=$work/venv
[[ -x $venv/bin/python ]] || "$python" -m venv "$venv"
"$venv/bin/pip" install --quiet --disable-pip-version-check --force-reinstall --no-deps "$wheel"
# Ray's metrics need the extra `default`.
"$venv/bin/pip" install --quiet --disable-pip-version-check "$wheel[jobs,ray,spark,daft]" 'ray[default]' \
    numpy psutil pytest mypy ruff

step "types"
(cd "$package" && "$venv/bin/ruff" check --isolated --select E,F,W,B,UP --ignore B905 --line-length 120 \
    cluster python/smolrun/*.py)
(cd "$package" && "$venv/bin/ruff" format --isolated --line-length 120 --check cluster)
(cd "$package/cluster" && "$venv/bin/mypy" --strict --allow-untyped-calls --config-file ../pyproject.toml \
    --cache-dir "$work/mypy" .)

if ((SMOL_CLUSTER_REAL_PROMPTS)) && [[ -z ${SMOL_CLUSTER_BLOB:-} ]]; then
    step "the real model in q4"
    fetch_real_model
    export SMOL_CLUSTER_BLOB=$work/q4.bin
    [[ -e $SMOL_CLUSTER_BLOB ]] || "$venv/bin/smolconv" "$SMOL_REAL_MODEL" -o "$SMOL_CLUSTER_BLOB" --dtype q4
fi

for tests in jobs distribute memory daft ray spark; do
    step "$tests"
    (cd "$package/cluster" && "$venv/bin/python" -m pytest -q -p no:cacheprovider --durations=3 \
        --basetemp "${SMOL_TEST_DIR:-$work}/cluster-tests" "test_$tests.py")
done
rm -rf "${SMOL_TEST_DIR:-$work}/cluster-tests"
step "all of the cluster's tests passed"
