#!/usr/bin/env bash
# Runs a test program's tests in several processes, one for each processor, which stay on their own: cargo's runner
# (target.*.runner) for programs that count what they run. Threads on two processors that add to one counter wait for each
# other most of the time.
# usage: scripts/pinned.sh PROGRAM ARGUMENT...
set -euo pipefail

readonly at_once=16 # tests of a process: fewer make the processors end together, more share the blobs that they convert

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

run() { # PROGRAM TEST...: on the processor of this `slot`
    local processors
    read -ra processors <<<"$PROCESSORS"
    taskset -c "${processors[slot]}" "$1" --exact --quiet --test-threads=1 "${@:2}" >>"$LOGS/$slot" 2>&1
}
export -f run
export PROCESSORS="${processors[*]}" LOGS=$logs

status=0
sed -n 's/: test$//p' "$logs/list" |
    xargs --no-run-if-empty --max-args="$at_once" --max-procs="${#processors[@]}" --process-slot-var=slot \
        bash -c 'run "$@"' pinned "$1" || status=$?
cat "$logs"/[0-9]* 2>/dev/null || true
exit "$status"
