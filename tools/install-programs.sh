#!/bin/sh
# Installs the system programs that tests use and that are missing, from the distribution, where that may be done
# (apt-get and root); else says what to install. Arguments are program=package, or -=package where the package has no
# program to look for. It never fails the caller: a test whose program is missing says so itself.
#
# A package that brings a service must not leave it running, or starting with the machine: our tests start their own.
set -eu

missing=""
for pair in "$@"; do
    program=${pair%%=*}
    if [ "$program" = "-" ] || ! command -v "$program" >/dev/null 2>&1; then
        missing="$missing ${pair#*=}"
    fi
done
[ -n "$missing" ] || exit 0

if ! command -v apt-get >/dev/null 2>&1 || [ "$(id -u)" -ne 0 ]; then
    echo "Missing here and not ours to install: please install$missing (names of Debian's packages), then run this again." \
        "Until then, tests that need them are reported as skipped." >&2
    exit 0
fi

# The distribution asks this file before it starts a service; 101 means no. One that is there already is left alone
# if it says no too, and is put back otherwise.
policy=/usr/sbin/policy-rc.d
kept=""
put_policy_back() {
    rm -f "$policy"
    if [ -n "$kept" ]; then mv "$kept" "$policy"; fi
}
if [ -e "$policy" ]; then
    kept="$policy.before-wharf"
    mv "$policy" "$kept"
fi
trap put_policy_back EXIT
trap 'exit 1' HUP INT TERM
printf '#!/bin/sh\nexit 101\n' >"$policy"
chmod 755 "$policy"

install_missing() {
    # shellcheck disable=SC2086 # The list is meant to be split.
    DEBIAN_FRONTEND=noninteractive apt-get install --yes --quiet --no-install-recommends \
        -o DPkg::Lock::Timeout=120 $missing </dev/null
}

echo "Installing$missing (once) ..."
log=$(mktemp)
if ! install_missing >"$log" 2>&1; then
    # The package lists may be missing or old.
    { apt-get update --quiet -o DPkg::Lock::Timeout=120 && install_missing; } >"$log" 2>&1 || {
        tail -n 5 "$log" >&2
        rm -f "$log"
        echo "Could not install$missing. Tests that need them are reported as skipped." >&2
        exit 0
    }
fi
rm -f "$log"

# Not started now; nor with the machine.
if command -v systemctl >/dev/null 2>&1; then
    for package in $missing; do
        for unit in $(dpkg -L "$package" | grep -E '/systemd/system/[^/]+\.(service|socket|timer)$' | sed 's#.*/##'); do
            systemctl disable --quiet "$unit" >/dev/null 2>&1 || true
        done
    done
fi
