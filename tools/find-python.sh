#!/bin/sh
# Prints the Python to build the virtual environment with: $PYTHON if it is given, else the newest suitable one on the
# path. Suitable means 3.11 or newer, able to start, and able to make virtual environments (Debian packs that apart).
set -eu

suits() {
    "$1" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

new_enough() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

if [ -n "${PYTHON:-}" ]; then
    if suits "$PYTHON"; then
        printf '%s\n' "$PYTHON"
        exit 0
    fi
    echo "PYTHON=$PYTHON does not suit: Wharf needs Python 3.11 or newer with the modules venv and ensurepip." >&2
    exit 1
fi

# The versions that the locked dependencies are known to have builds for come first, newest first; then whatever
# the plain names mean here. A name on the path may be a shim that cannot start, so each is tried.
candidates="python3.14 python3.13 python3.12 python3.11 python3 python"
for candidate in $candidates; do
    if command -v "$candidate" >/dev/null 2>&1 && suits "$candidate"; then
        command -v "$candidate"
        exit 0
    fi
done

# New enough, but without venv: Debian and its kin pack it as pythonX.Y-venv, which we may be able to install.
for candidate in $candidates; do
    if command -v "$candidate" >/dev/null 2>&1 && new_enough "$candidate"; then
        version=$("$candidate" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
        "$(dirname "$0")/install-programs.sh" "-=python$version-venv" >&2
        if suits "$candidate"; then
            command -v "$candidate"
            exit 0
        fi
        echo "Python $version is here, but it cannot make virtual environments: install its venv module" \
            "(on Debian and Ubuntu the package python$version-venv), then run this again." >&2
        exit 1
    fi
done

echo "Wharf needs Python 3.11 or newer, and none is on the path: install one, or name it with PYTHON=/path/to/python3." >&2
exit 1
