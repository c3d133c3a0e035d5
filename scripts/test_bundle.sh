#!/usr/bin/env bash
# A static program with a model in it: in an empty chroot, and how fast it starts beside the program and its blob.
# usage: scripts/test_bundle.sh [BLOB]
#
# BLOB is by default models/tales-4m as q8. The build takes minutes, so that scripts/test_more.sh does not call this. Needs
# user namespaces, or root.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/common.sh

readonly triple=x86_64-unknown-linux-musl
readonly work=${CARGO_TARGET_DIR:-$PWD/target}/bundle-test
readonly programs=${CARGO_TARGET_DIR:-$PWD/target}/$triple/release
readonly program=$programs/smolrun

need_target "$triple"
step "static programs"
CARGO_PROFILE_RELEASE_LTO=fat CARGO_PROFILE_RELEASE_CODEGEN_UNITS=1 CARGO_PROFILE_RELEASE_STRIP=symbols \
    cargo build --locked --release --quiet -p smolrun-cli -p smolconv --no-default-features --target "$triple"
rm -rf "$work"
mkdir -p "$work/root"
blob=${1:-$work/tales.bin}
[[ -n ${1:-} ]] || "$programs/smolconv" models/tales-4m -o "$blob" --dtype q8 --quiet
"$program" bundle "$blob" -o "$work/root/chat" --no-chat

step "an empty chroot"
enter=(chroot)
((EUID == 0)) || enter=(unshare --map-root-user chroot)
"${enter[@]}" "$work/root" /chat "Once upon a time" -n 20 --temperature 0 </dev/null | tee "$work/answer"
"$work/root/chat" "Once upon a time" -n 20 --temperature 0 </dev/null | diff - "$work/answer"
[[ -s $work/answer && $(ls -A "$work/root") == chat ]]

step "start"
python3 - "$work/root/chat" "$program" "$blob" <<'END'
import statistics
import subprocess
import sys
import time

bundle, program, blob = sys.argv[1:]
TOLD = ["Once", "-n", "1", "--temperature", "0"]
COMMANDS = {"bundle": [bundle, *TOLD], "program and blob": [program, blob, *TOLD]}
times = {name: [] for name in COMMANDS}
for _ in range(52):
    for name, command in COMMANDS.items():
        start = time.perf_counter()
        subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=True)
        times[name].append((time.perf_counter() - start) * 1000)
medians = {name: statistics.median(found[2:]) for name, found in times.items()}
for name, median in medians.items():
    print(f"{name}: {median:.2f} ms")
sys.exit(medians["bundle"] - medians["program and blob"] > 3)
END
ls -l "$work/root/chat"
step "all passed"
