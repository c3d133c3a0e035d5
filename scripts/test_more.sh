#!/usr/bin/env bash
# What scripts/test.sh leaves out: other processors and systems, the page and the npm package, the C library, the
# Python package, coverage.
# usage: scripts/test_more.sh
#
# Each of the scripts that it calls also runs alone, and installs what it needs. Left out here, too, for they take
# many minutes: scripts/test_bundle.sh, scripts/test_cluster.sh and scripts/test_release.sh.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/common.sh

for part in test_targets test_web test_c test_python test_coverage; do
    step "$part"
    "scripts/$part.sh"
done
step "all passed"
