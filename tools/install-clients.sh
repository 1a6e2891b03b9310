#!/bin/sh
# Installs existing clients of code hosts and schedulers into a folder of their own, for `make clients`: they are asked as
# black boxes and are no part of what is built. What is there already stays.
set -eu

place=$1
mkdir -p "$place"

if [ ! -x "$place/python/bin/python" ]; then
    python3 -m venv "$place/python"
    "$place/python/bin/pip" install -q PyGithub requests python-nomad
fi
if [ ! -d "$place/node/node_modules/@octokit/plugin-throttling" ]; then
    npm install --silent --no-audit --no-fund --prefix "$place/node" @octokit/core @octokit/plugin-throttling
fi
if [ ! -x "$place/lfs/usr/bin/git-lfs" ]; then
    mkdir -p "$place/lfs"
    (cd "$place/lfs" && apt-get download -q git-lfs && dpkg -x git-lfs_*.deb .)
fi
