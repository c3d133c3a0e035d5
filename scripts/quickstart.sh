#!/usr/bin/env bash
# From a clone to a fairy tale: build both programs, convert the model in the repository, generate.
# usage: scripts/quickstart.sh [PROMPT]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Shows a command as it would be typed, then runs it.
run() {
    printf '+ %s\n' "$(printf '%q ' "$@")" >&2
    "$@"
}

run cargo build --release --locked --bins
run target/release/smolconv models/tales-4m -o target/tales.bin --force
run target/release/smolrun target/tales.bin "${1:-Once upon a time}" --max-tokens 200 \
    --temperature 0.7 --top-p 0.9 --seed 5 --stats < /dev/null
