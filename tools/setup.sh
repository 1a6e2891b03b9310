#!/bin/sh
# Makes .venv/ whole: the environment, the locked dependencies, the package itself (editable).
#
# What was installed is kept beside it as copies of the files that said so. As long as these are equal nothing is
# done and no network is asked, so that a second run is instant and works offline.
set -eu
cd "$(dirname "$0")/.."

lock=requirements/dev.txt
kept=.venv/installed # Copies of what the environment was made from.
python=.venv/bin/python

mkdir_environment() {
    base=$(tools/find-python.sh)
    echo "Making .venv with $base ..."
    "$base" -m venv --clear .venv
}

is_usable() { # The environment starts, is of this place, and holds pip.
    [ -x "$python" ] || return 1
    if [ -e "$kept/place" ]; then
        # The programs of an environment name its folder: one that was moved or copied is made anew.
        [ "$(cat "$kept/place")" = "$PWD" ] || return 1
        "$python" -c '' >/dev/null 2>&1
    else
        "$python" -m pip --version >/dev/null 2>&1
    fi
}

is_of_wanted_python() { # PYTHON=... asks for another interpreter than the environment was made with.
    [ -n "${PYTHON:-}" ] || return 0
    which_one='import sys; print(sys.version, sys.base_prefix)'
    [ "$("$PYTHON" -c "$which_one")" = "$("$python" -c "$which_one")" ]
}

if ! is_usable || ! is_of_wanted_python; then
    mkdir_environment
fi
mkdir -p "$kept"
printf '%s\n' "$PWD" >"$kept/place"

if ! cmp -s "$lock" "$kept/dev.txt"; then
    echo "Installing what $lock names (once, or after it changed) ..."
    rm -f "$kept/dev.txt"
    if ! "$python" -m pip install --quiet --disable-pip-version-check --no-input --require-hashes -r "$lock"; then
        echo "The dependencies could not be installed; the lines above say why. The network is needed for this once." >&2
        exit 1
    fi
    cp "$lock" "$kept/dev.txt"
fi

if ! cmp -s pyproject.toml "$kept/pyproject.toml"; then
    echo "Installing the package itself (editable) ..."
    # --no-index: what builds it is among the locked dependencies, so that this never needs the network.
    "$python" -m pip install --quiet --disable-pip-version-check --no-input \
        --no-index --no-deps --no-build-isolation --editable .
    cp pyproject.toml "$kept/pyproject.toml"
fi
