#!/usr/bin/env bash
# Runs a test program's tests in several processes, one for each processor, which stay on their own: cargo's runner
# (target.*.runner) for programs that count what they run. Threads on two processors that add to one counter wait for each
# other most of the time.
# usage: scripts/pinned.sh PROGRAM ARGUMENT...
set -euo pipefail

processors=() # those that it may run on
installed=$(nproc --all)
for ((number = 0; number < installed; number++)); do
    ! taskset -c "$number" true 2>/dev/null || processors+=("$number")
done
((${#processors[@]} > 0)) || { echo "pinned.sh: taskset (of util-linux) pins to no processor" >&2 && exit 1; }
logs=$(mktemp -d)
readonly logs
trap 'rm -rf "$logs"' EXIT
"$@" --list --format terse >"$logs/list" # a program that can't list its tests fails here
mapfile -t tests < <(sed -n 's/: test$//p' "$logs/list")

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
