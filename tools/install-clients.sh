#!/bin/sh
# Installs existing clients of code hosts and schedulers into the given folder, for `make clients`. Tests run them as black
# boxes; they are not part of the package. Clients that are already installed are left unchanged.
set -eu

folder=$1
mkdir -p "$folder"

if ! "$folder/python/bin/python" -c "import gitea, github, gitlab, nomad, requests" 2>/dev/null; then
    python3 -m venv "$folder/python"
    "$folder/python/bin/pip" install -q PyGithub requests python-gitlab py-gitea python-nomad
fi
if [ ! -d "$folder/node/node_modules/@octokit/plugin-throttling" ]; then
    npm install --silent --no-audit --no-fund --prefix "$folder/node" @octokit/core @octokit/plugin-throttling
fi
if [ ! -x "$folder/lfs/usr/bin/git-lfs" ]; then
    mkdir -p "$folder/lfs"
    (cd "$folder/lfs" && apt-get download -q git-lfs && dpkg -x git-lfs_*.deb .)
fi
