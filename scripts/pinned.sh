#!/usr/bin/env bash
# Runs a test program's tests in several processes, at any time one on each processor, some tests at a time: cargo's
# runner (target.*.runner) for programs that count what they run. Threads on two processors that add to one counter wait
# for each other most of the time.
# usage: scripts/pinned.sh PROGRAM ARGUMENT...
set -euo pipefail

readonly most=16 # tests of a process: fewer make the processors end together, more share the blobs that they convert

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
each=$(((${#tests[@]} + ${#processors[@]} - 1) / ${#processors[@]}))

run() { # PROGRAM TEST...: on the processor of this `slot`
    local processors
    read -ra processors <<<"$PROCESSORS"
    taskset -c "${processors[slot]}" "$1" --exact --quiet --test-threads=1 "${@:2}" >>"$LOGS/$slot" 2>&1
}
export -f run
export PROCESSORS="${processors[*]}" LOGS=$logs

status=0
((${#tests[@]} == 0)) || printf '%s\n' "${tests[@]}" |
    xargs --max-args="$((each < most ? each : most))" --max-procs="${#processors[@]}" --process-slot-var=slot \
        bash -c 'run "$@"' pinned "$1" || status=$?
cat "$logs"/[0-9]* 2>/dev/null || true
exit "$status"
