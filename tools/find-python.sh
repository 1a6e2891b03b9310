#!/bin/sh
# Prints the Python interpreter for the virtual environment: $PYTHON if it is set, otherwise the newest suitable one on the
# path. An interpreter is suitable if it starts, is version 3.11 or newer, and can create virtual environments. Debian has a
# separate package for the last one.
set -eu

is_suitable() {
    "$1" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

is_new_enough() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

if [ -n "${PYTHON:-}" ]; then
    if is_suitable "$PYTHON"; then
        printf '%s\n' "$PYTHON"
        exit 0
    fi
    echo "PYTHON=$PYTHON does not suit: Wharf needs Python 3.11 or newer with the modules venv and ensurepip." >&2
    exit 1
fi

# First the versions for which the locked dependencies have binary packages, newest first; then the plain names. A name on the
# path may be a wrapper that cannot start, so each one is tried.
candidates="python3.14 python3.13 python3.12 python3.11 python3 python"
for candidate in $candidates; do
    if command -v "$candidate" >/dev/null 2>&1 && is_suitable "$candidate"; then
        command -v "$candidate"
        exit 0
    fi
done

# New enough, but without venv: Debian and Ubuntu have it in the package pythonX.Y-venv. Try to install it.
for candidate in $candidates; do
    if command -v "$candidate" >/dev/null 2>&1 && is_new_enough "$candidate"; then
        version=$("$candidate" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
        "$(dirname "$0")/install-programs.sh" "-=python$version-venv" >&2
        if is_suitable "$candidate"; then
            command -v "$candidate"
            exit 0
        fi
        echo "Python $version is here, but it cannot make virtual environments: install its venv module" \
            "(on Debian and Ubuntu the package python$version-venv), then run this command again." >&2
        exit 1
    fi
done

echo "Wharf needs Python 3.11 or newer, and none is on the path: install one, or name it with PYTHON=/path/to/python3." >&2
exit 1
