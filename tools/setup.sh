#!/bin/sh
# Creates or updates .venv/: the environment, the locked dependencies, and the package itself (editable).
#
# It stores copies of the files from which it installed. If they are equal to the current files, it does nothing and needs no
# network.
set -eu
cd "$(dirname "$0")/.."

lock=requirements/dev.txt
installed=.venv/installed # Copies of the files from which the environment was made.
python=.venv/bin/python

create_environment() {
    base=$(tools/find-python.sh)
    echo "Creating .venv with $base ..."
    "$base" -m venv --clear .venv
}

is_usable() { # The environment starts, was made for this folder, and contains pip.
    [ -x "$python" ] || return 1
    if [ -e "$installed/place" ]; then
        # Programs of an environment contain its path: one that was moved or copied is created again.
        [ "$(cat "$installed/place")" = "$PWD" ] || return 1
        "$python" -c '' >/dev/null 2>&1
    else
        "$python" -m pip --version >/dev/null 2>&1
    fi
}

has_requested_python() { # False if PYTHON=... names another interpreter than that of the environment.
    [ -n "${PYTHON:-}" ] || return 0
    describe='import sys; print(sys.version, sys.base_prefix)'
    [ "$("$PYTHON" -c "$describe")" = "$("$python" -c "$describe")" ]
}

if ! is_usable || ! has_requested_python; then
    create_environment
fi
mkdir -p "$installed"
printf '%s\n' "$PWD" >"$installed/place"

if ! cmp -s "$lock" "$installed/dev.txt"; then
    echo "Installing the dependencies of $lock (on the first run or after a change) ..."
    rm -f "$installed/dev.txt"
    if ! "$python" -m pip install --quiet --disable-pip-version-check --no-input --require-hashes -r "$lock"; then
        echo "Could not install the dependencies; the lines above say why. The first installation needs a network." >&2
        exit 1
    fi
    cp "$lock" "$installed/dev.txt"
fi

compiled=src/wharf/limits/core/counting/usual_calls.c
if ! cmp -s pyproject.toml "$installed/pyproject.toml" || ! cmp -s "$compiled" "$installed/usual_calls.c"; then
    echo "Installing the package itself (editable) ..."
    # --no-index: the build tools are among the locked dependencies, so this needs no network.
    "$python" -m pip install --quiet --disable-pip-version-check --no-input \
        --no-index --no-deps --no-build-isolation --editable .
    cp pyproject.toml "$installed/pyproject.toml"
    cp "$compiled" "$installed/usual_calls.c"
fi
