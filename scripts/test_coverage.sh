#!/usr/bin/env bash
# Line coverage of the libraries by the tests: 90 % or more.
# usage: scripts/test_coverage.sh [LCOV_FILE]
#
# Takes the dependencies that scripts/test.sh has built, and only builds this workspace's crates again, with counters.
# Installs what it lacks: rustup's llvm-tools. LCOV_FILE is where the lines are told, for an editor.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/common.sh

readonly least=90
# Programs' own files are covered by running them, and what only benchmarks call by nothing.
readonly not_library='(^|/)(tests|benches|examples|cli)/|runtime/src/bench\.rs|convert/src/bin/|/\.cargo/|/rustc/'
readonly profiles=${CARGO_TARGET_DIR:-$PWD/target}/coverage

# Counting slows kernels down many times. So the real model is left to scripts/test.sh (its tests are those that are
# ignored), as is what runs a whole model over thousands of tokens, measures what it loses at several sizes, tunes it, or
# runs a program thousands of times, and what builds one.
# A program with too little memory, or on a full disk, can't write its counts, and says so.
readonly skipped=(
    the_programs_say_so_in_one_line a_program_with_the_blob_inside no_mutation_of_a_gguf_file_does_harm
    however_they_are_computed a_sliding_sequence memory_stays_flat what_stays_are_the_first_tokens
    a_loaded_session_goes_on fast_logits_depend the_program_says_what_transformers_says two_models_are_as_far_apart
    the_farther_apart_the_fewer_bits hostile_templates_end_in no_template_does_harm a_blob_with_a_hostile_template
    smolconv_refuses_a_hostile_template kernels_keep_their_sums_in_registers too_little_memory_is_an_error_in_words
    a_calibrated_blob_expects_more a_full_disk_is_one_line_and_leaves_nothing json_has_the_fields_it_promises
    allocate pieces_of_fewer_than_32_tokens_are_exact a_batch_that_is_killed
    an_interrupt_ends_it_and_the_same_command neither_shards_nor_threads sequences_are_measured_together
    have_their_bits_in_any_batch a_fork_and_its_origin what_was_stored_is_restored
    each_request_gets_what_it_would_get_alone so_does_each_of_a_quantized_model nobody_waits_for_ever
    a_common_beginning_is_computed_and_kept_once a_report_of_numbers_that_were_kept
    quantized_matrices_larger_than_one_piece
    with_quantized_weights_they_are_near a_blob_and_its_bf16_twin another_batch_s_results_are_not_touched
    past_the_context_a_request_goes_on the_program_slides_when running_streams_have_a_token
    fast_logits_are_near_the_exact quantized_bytes_do_not_depend somebody_who_watches every_character every_kind
    rounded_attention_depends_on_no_split who_looks_on_sees_the_same_bits a_size_that_is_too_small
    a_loaded_session_shares_its_file a_blob_of_a_size_fits a_report_has_a_point a_size_is_in_the_metadata
    a_tuned_blob_has_as_many_bytes
)

need_component llvm-tools
tools=$(dirname "$(find "$(rustc --print sysroot)" -name llvm-profdata)")
readonly tools
keep_test_files_in_memory

# A thousand mutations reach the lines that ten thousand reach.
export SMOL_MUTATIONS=1000
export RUSTC_WORKSPACE_WRAPPER=$PWD/scripts/instrument.sh
rm -rf "$profiles"
mkdir -p "$profiles"
# %m-%p: a file for each program and process.
export LLVM_PROFILE_FILE=$profiles/%m-%p.profraw
step "build"
cargo test --locked --profile gate "${tested[@]}" --no-run
step "tests"
cargo test --locked --profile gate "${tested[@]}" --tests --quiet \
    --config "target.'cfg(all())'.runner = '$PWD/scripts/pinned.sh'" -- "${skipped[@]/#/--skip=}"

step "line coverage of the libraries"
# Every program that the tests may have run: tests and binaries. What a signal ended left a torn profile, which is skipped.
mapfile -t programs < <(cargo test --locked --profile gate "${tested[@]}" --no-run --message-format=json 2>/dev/null |
    grep -o '"executable":"[^"]*"' | cut -d'"' -f4)
programs+=("$built/smolrun" "$built/smolconv")
find "$profiles" -name '*.profraw' -size +0 >"$profiles/list"
"$tools/llvm-profdata" merge --sparse --failure-mode=all --input-files="$profiles/list" --output="$profiles/all.profdata"
objects=("${programs[@]:1}")
readonly shown=("${programs[0]}" "${objects[@]/#/--object=}" "--instr-profile=$profiles/all.profdata"
    "--ignore-filename-regex=$not_library")
"$tools/llvm-cov" report "${shown[@]}" | sed 's/  */ /g'
[[ -z ${1:-} ]] || "$tools/llvm-cov" export --format=lcov "${shown[@]}" >"$1"
lines=$("$tools/llvm-cov" export --format=text --summary-only "${shown[@]}" |
    python3 -c 'import json, sys; print(json.load(sys.stdin)["data"][0]["totals"]["lines"]["percent"])')
echo "lines: $lines %, expected $least % or more"
awk -v lines="$lines" -v least="$least" 'BEGIN { exit lines < least }'
