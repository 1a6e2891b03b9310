#!/bin/sh
# Installs missing system programs that tests use, if apt-get exists and the user is root. Otherwise it prints what to
# install. Arguments are program=package, or -=package if the package has no program to check for. The exit code is 0 even if
# nothing could be installed, because a test whose program is missing reports that itself.
#
# Services of installed packages must neither run now nor start at boot, because tests start their own.
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
    echo "Some programs are missing: please install$missing (names of Debian packages), then run this command again." \
        "Wharf installs them itself only as root and with apt-get. Until then, tests that need them are reported as skipped." >&2
    exit 0
fi

# Debian runs this file before it starts a service; exit code 101 forbids the start. An existing file is moved away and put
# back at the end.
policy=/usr/sbin/policy-rc.d
saved=""
restore_policy() {
    rm -f "$policy"
    if [ -n "$saved" ]; then mv "$saved" "$policy"; fi
}
if [ -e "$policy" ]; then
    saved="$policy.before-wharf"
    mv "$policy" "$saved"
fi
trap restore_policy EXIT
trap 'exit 1' HUP INT TERM
printf '#!/bin/sh\nexit 101\n' >"$policy"
chmod 755 "$policy"

install_missing() {
    # shellcheck disable=SC2086 # The list must be split into words.
    DEBIAN_FRONTEND=noninteractive apt-get install --yes --quiet --no-install-recommends \
        -o DPkg::Lock::Timeout=120 $missing </dev/null
}

echo "Installing$missing (once) ..."
log=$(mktemp)
if ! install_missing >"$log" 2>&1; then
    # The package lists may be missing or out of date.
    { apt-get update --quiet -o DPkg::Lock::Timeout=120 && install_missing; } >"$log" 2>&1 || {
        tail -n 5 "$log" >&2
        rm -f "$log"
        echo "Could not install$missing. Tests that need them are reported as skipped." >&2
        exit 0
    }
fi
rm -f "$log"

# Do not start the services at boot.
if command -v systemctl >/dev/null 2>&1; then
    for package in $missing; do
        for unit in $(dpkg -L "$package" | grep -E '/systemd/system/[^/]+\.(service|socket|timer)$' | sed 's#.*/##'); do
            systemctl disable --quiet "$unit" >/dev/null 2>&1 || true
        done
    done
fi
