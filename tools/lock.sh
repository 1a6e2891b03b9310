#!/bin/sh
# Writes requirements/*.txt from requirements/*.in: exact versions with hashes, for all platforms, no index address.
# Locked versions do not change; UPGRADE=1 selects the newest versions.
set -eu
cd "$(dirname "$0")/.."

# The resolver has its own locked environment, so that the package's environment does not contain it.
tools=.venv/lock
if ! cmp -s requirements/lock.txt "$tools/lock.txt"; then
    .venv/bin/python -m venv --clear "$tools"
    "$tools/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/lock.txt
    cp requirements/lock.txt "$tools/lock.txt"
fi

# dev includes run and build. It is resolved first, and its versions constrain the others, so that they never differ.
compile() {
    name=$1
    shift
    "$tools/bin/uv" pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-header \
        --python-version 3.11 ${UPGRADE:+--upgrade} "$@" --output-file "requirements/$name.txt" "requirements/$name.in"
}
compile dev
compile run --constraints requirements/dev.txt
compile build --constraints requirements/dev.txt
compile bench --constraints requirements/dev.txt
compile lock
