#!/usr/bin/env bash
# Makes .venv ready: creates it on first use, rebuilds it after an interruption, updates it when the pins change.
# Every `make` target runs this first; when all is well it does nothing. When it cannot, it says one sentence and
# leaves with exit code 2.
#
#   tools/install.sh              the core: requirements.txt and this package
#   tools/install.sh browser      the core, then requirements-browser.txt; so do deepspeed, advanced and grading
#
# A stamp per part says what was installed, and where (a virtual environment cannot be moved), and is written last:
# without the core's stamp nothing in .venv is trusted.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=.venv/bin/python
log=.cache/install.log
oldest="3.11"

fail() {
    printf 'shardlab: %s\n' "$1" >&2
    exit 2
}

works() { "$1" -c '' 2>/dev/null; }

is_new_enough() { "$1" -c "import sys; sys.exit(sys.version_info < (${oldest/./, }))"; }

can_make_venv() { "$1" -c 'import ensurepip, venv' 2>/dev/null; } # Debian ships ensurepip apart from python3

find_python() {
    local candidate too_old="" no_venv=""
    for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11 python3.14}; do
        if ! works "$candidate"; then
            continue
        elif ! is_new_enough "$candidate"; then
            too_old="$candidate is $("$candidate" -c 'import platform; print(platform.python_version())')"
        elif ! can_make_venv "$candidate"; then
            no_venv="$candidate"
        else
            echo "$candidate"
            return
        fi
    done
    if [ -n "$no_venv" ]; then
        fail "$no_venv lacks ensurepip and cannot make a virtual environment; add it (Debian, Ubuntu: sudo apt install python3-venv) and run again."
    fi
    fail "Python $oldest or newer is needed${too_old:+, and $too_old}; install one (Debian, Ubuntu: sudo apt install python3 python3-venv; macOS: brew install python@3.13) or name yours: make PYTHON=/path/to/python3 tour"
}

show_progress() { # pip's long report goes to the log; a person sees one line that moves
    if [ ! -t 2 ]; then
        cat >>"$log"
        return
    fi
    tee -a "$log" | awk '
        /^ *Collecting / { line = sprintf("  %d packages found, now %s", ++found, $2) }
        /^ *Downloading / { line = sprintf("  downloading %s %s %s", $2, $3, $4) }
        /^Installing collected packages/ { line = "  putting the packages in place" }
        line { printf "\r%-72.72s", line; fflush(); line = "" }
        END { printf "\r%-72s\r", "" }' >&2
}

explain_failure() {
    if grep -qiE 'name resolution|NewConnectionError|ConnectTimeout|ReadTimeout|ProxyError|unreachable' "$log"; then
        fail "the package index cannot be reached; check the network, then run the same command again (details: $log)."
    elif grep -qi 'no space left' "$log"; then
        fail "the disk is full; free 3 GiB (8 GiB with CUDA), then run the same command again (details: $log)."
    fi
    fail "the packages could not be installed; run the same command again (details: $log): $(tail -n 1 "$log")"
}

contents() { # of the stamp of part $1
    pwd
    sed '/^\[tool/,$d' pyproject.toml # the package and its commands; settings of tools install nothing
    cat requirements.txt
    if [ "$1" != core ]; then cat "requirements-$1.txt"; fi
}

installed() { contents "$1" | cmp -s - ".venv/shardlab-$1.installed" && works "$python"; }

pip_install() {
    mkdir -p .cache
    : >"$log"
    "$python" -m pip install --disable-pip-version-check --no-input --progress-bar off --retries 2 "$@" 2>&1 \
        | show_progress || explain_failure
}

install_core() {
    local stamp=.venv/shardlab-core.installed chosen started=$SECONDS
    if [ ! -f "$stamp" ] || ! works "$python"; then
        chosen=$(find_python)
        echo "Installing Shardlab's core into .venv with $chosen (about 1.5 GiB, more with CUDA; a few minutes) ..." >&2
        "$chosen" -m venv --clear .venv 2>/dev/null || fail "no virtual environment can be made in $PWD; check that you may write there and that the disk has room."
    else
        echo "The pinned packages changed: updating .venv ..." >&2
    fi
    rm -f .venv/*.installed
    pip_install -r requirements.txt -e .
    contents core >"$stamp.half"
    mv "$stamp.half" "$stamp"
    echo "Installed in $((SECONDS - started)) s." >&2
}

install_track() {
    echo "Installing requirements-$1.txt into .venv ..." >&2
    pip_install -r requirements.txt -r "requirements-$1.txt"
    contents "$1" >".venv/shardlab-$1.installed"
}

[ -w . ] || fail "$PWD is not writable for $(id -un); copy the course to a folder of yours and run again."
installed core || install_core
for track in "$@"; do
    [ -f "requirements-$track.txt" ] || fail "there is no requirements-$track.txt here; there is: $(ls requirements*.txt | tr '\n' ' ')"
    installed "$track" || install_track "$track"
done
