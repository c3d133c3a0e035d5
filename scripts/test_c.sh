#!/usr/bin/env bash
# The C library: built, installed into an empty folder, and used from there by C, C++ and C#. scripts/test.sh lints it.
# usage: scripts/test_c.sh [--record]
#
# Installs what it lacks: compilers, valgrind and Mono, by apt. --record writes down the ABI, after SMOLRUN_ABI_VERSION
# has a new number.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/common.sh

readonly crate=$PWD/bindings/c
readonly target=${CARGO_TARGET_DIR:-$PWD/target}
readonly work=$target/c-test
readonly prefix=$work/prefix

need gcc gcc libc6-dev
need g++ g++
need make make
need pkg-config pkg-config
need valgrind valgrind
need mcs mono-mcs mono-runtime

build_programs

step "the crate's own tests"
cd "$crate"
cargo test --locked --profile gate --quiet

step "build and install"
rm -rf "$prefix"
make --silent install PREFIX="$prefix" PROFILE=gate CARGO_TARGET_DIR="$target"
make --silent install PREFIX="$work/elsewhere" PROFILE=gate CARGO_TARGET_DIR="$target"
grep -qx "prefix=$work/elsewhere" "$work/elsewhere/lib/pkgconfig/smolrun.pc"
export PKG_CONFIG_PATH=$prefix/lib/pkgconfig LD_LIBRARY_PATH=$prefix/lib
read -ra shared < <(pkg-config --cflags --libs smolrun)
read -ra static < <(pkg-config --cflags --libs --static smolrun | sed 's/-lsmolrun/-l:libsmolrun.a/')
readonly strict=(-O1 -g -Wall -Wextra -Werror -pedantic)

# What a program that was compiled before relies on: names with their versions, types, numbers, sizes and offsets.
step "ABI"
gcc -std=c99 "${strict[@]}" tests/abi.c "${shared[@]}" -aux-info "$work/prototypes" -o "$work/abi"
mkdir -p "$work/record"
"$work/abi" >"$work/record/structs.txt"
{
    sed -n 's|^/\* .*/smolrun\.h:.*\*/ extern ||p' "$work/prototypes" | LC_ALL=C sort
    nm -D --defined-only --with-symbol-versions "$prefix/lib/libsmolrun.so" | cut -d' ' -f2,3 | LC_ALL=C sort
    sed -n 's|^ *\(SMOLRUN_[A-Z0-9_]* = [0-9]*\),.*|\1|p' include/smolrun.h
} >"$work/record/symbols.txt"
readonly recorded=abi/$(sed -n 's/^abi //p' "$work/record/structs.txt")
if [[ ${1:-} == --record ]]; then
    mkdir -p "$recorded"
    cp "$work"/record/* "$recorded"
fi
diff -r "$recorded" "$work/record" || {
    echo "scripts/test_c.sh: the ABI is not that of $recorded: a change needs a new SMOLRUN_ABI_VERSION" >&2
    exit 1
}
# Nothing but what the header declares.
diff <(grep -o 'smolrun_[a-z_]* (' "$work/record/symbols.txt" | tr -d ' (' | LC_ALL=C sort) \
    <(sed -n 's/^T \(.*\)@@SMOLRUN_1$/\1/p' "$work/record/symbols.txt")

step "blobs"
mkdir -p "$work/chat" "$work/files"
cp ../../models/tales-4m/* "$work/chat"
cp tests/template.jinja "$work/chat/chat_template.jinja"
for dtype in f32 q8; do
    "$built/smolconv" ../../models/tales-4m -o "$work/tales-$dtype.bin" --dtype "$dtype" --force --quiet
    "$built/smolconv" "$work/chat" -o "$work/chat-$dtype.bin" --dtype "$dtype" --force --quiet
    "$built/smolrun" logits "$work/tales-$dtype.bin" --ids 1,2,3,4,5,6,7 >"$work/logits-$dtype.json"
done

step "tests in C, with the shared library and with the static one"
gcc -std=c11 "${strict[@]}" tests/test.c "${shared[@]}" -lpthread -lm -o "$work/test"
gcc -std=c11 "${strict[@]}" tests/test.c "${static[@]}" -o "$work/test-static"
for dtype in f32 q8; do
    for program in test test-static; do
        "$work/$program" "$work/tales-$dtype.bin" "$work/chat-$dtype.bin" "$work/logits-$dtype.json" "$work/files"
    done
done

step "C++ on a stack of 1 MB, without threads"
g++ -std=c++17 "${strict[@]}" tests/small.cpp "${shared[@]}" -o "$work/small"
(ulimit -s 1024 && "$work/small" "$work/chat-f32.bin" "$work/files")

step "examples in C, C++ and C#: what they tell is what the program tells"
gcc -std=c11 "${strict[@]}" examples/chat.c "${shared[@]}" -o "$work/chat-c"
g++ -std=c++17 "${strict[@]}" examples/tales.cpp "${shared[@]}" -o "$work/tales"
mcs -out:"$work/Chat.exe" examples/Chat.cs
printf 'Once upon a time\nAnd then?\n' >"$work/questions"
"$work/chat-c" "$work/chat-q8.bin" "Tell tales." <"$work/questions" >"$work/answers"
answer=$("$built/smolrun" "$work/chat-q8.bin" --chat --system "Tell tales." "Once upon a time" --temperature 0.7 \
    --top-p 0.9 --seed 0 </dev/null)
[[ $(<"$work/answers") == "$answer"$'\n'* ]]
tell() { "$built/smolrun" "$work/tales-q8.bin" "Once upon a time" -n 40 --temperature 0.8 --seed "$1" </dev/null; }
diff <(mono "$work/Chat.exe" "$work/tales-q8.bin") <(tell 1)
diff <("$work/tales" "$work/tales-q8.bin") <(for _ in 1 2; do
    for seed in 1 2 3; do echo "$seed:Once upon a time$(tell "$seed")"; done
done)
! "$work/tales" "/no such blob" 2>"$work/error" || exit 1
grep -q '^/no such blob: .* (io)$' "$work/error"

step "valgrind"
# An instruction set that it knows; a small blob, since checksums take most of the time.
check=(valgrind --quiet --error-exitcode=9 --leak-check=full --show-leak-kinds=definite,indirect,possible
    --errors-for-leak-kinds=definite,indirect,possible --suppressions="$crate/tests/valgrind.supp")
export SMOLRUN_ISA=avx2
"${check[@]}" "$work/test" "$work/tales-q8.bin" "$work/chat-q8.bin" "$work/logits-q8.json" "$work/files" &
readonly testing=$!
"${check[@]}" "$work/chat-c" "$work/chat-q8.bin" "Tell tales." <<<"Once upon a time" >"$work/checked"
[[ $(<"$work/checked") == "$answer" ]]
"${check[@]}" "$work/tales" "$work/tales-q8.bin" >/dev/null
wait "$testing"
step "all of the C library passed"
