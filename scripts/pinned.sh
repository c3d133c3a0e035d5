#!/usr/bin/env bash
# Runs a test program's tests in several processes, one for each processor, which stay on their own: cargo's runner
# (target.*.runner) for programs that count what they run. Threads on two processors that add to one counter wait for each
# other most of the time.
# usage: scripts/pinned.sh PROGRAM ARGUMENT...
set -euo pipefail

processors=()
for ((number = 0; number < $(nproc --all); number++)); do
    ! taskset -c "$number" true 2>/dev/null || processors+=("$number") # those that it may run on
done
logs=$(mktemp -d)
readonly logs
trap 'rm -rf "$logs"' EXIT
mapfile -t tests < <("$@" --list --format terse | sed -n 's/: test$//p')

running=()
for ((first = 0; first < ${#processors[@]} && first < ${#tests[@]}; first++)); do
    share=()
    for ((i = first; i < ${#tests[@]}; i += ${#processors[@]})); do
        share+=("${tests[i]}")
    done
    taskset -c "${processors[first]}" "$1" --exact --test-threads=1 --quiet "${share[@]}" >"$logs/$first" 2>&1 &
    running+=($!)
done
status=0
for first in "${!running[@]}"; do
    wait "${running[first]}" || status=$?
    cat "$logs/$first"
done
exit "$status"
