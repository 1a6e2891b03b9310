# Sets up the root filesystem of a task, enters it and becomes the task. Run by dash, in its own mount namespace:
#
#   launch.sh ROOT MOUNTS HOSTNAME WORK_FOLDER [DEVICE TARGET MODE USER ...] -- COMMAND [ARGUMENT ...]
#
# WHARF_WALLS, if set, is the folder of the run. Its file `walls` contains `making`, then `made` or an error. The file is
# overwritten in place, because that needs no disk space. MOUNTS has the format of /etc/fstab. Each DEVICE is allocated to
# the task. The task's environment is not set yet, because programs that run as root would obey its variables.

fail() {
    echo "the task's sandbox cannot be set up: $1" >&2
    echo "the task's sandbox cannot be set up: $1" >&8
    exit 125
}

# Opened now, because the folder cannot be reached from the new root.
if [ -n "$WHARF_WALLS" ]; then
    exec 8<>"$WHARF_WALLS/walls" 9<>"$WHARF_WALLS/news" || exit 125
else
    exec 8>/dev/null 9>/dev/null
fi
unset WHARF_WALLS
root=$1 mounts=$2 hostname=$3 work=$4
shift 4
/bin/mount --no-mtab --all --fstab "$mounts" || fail "mount"
# The only devices of every task; /dev/fd and the next are links to /proc, here as on the host.
/bin/cp --archive /dev/null /dev/zero /dev/full /dev/random /dev/urandom /dev/tty \
    /dev/fd /dev/stdin /dev/stdout /dev/stderr "$root/dev" || fail "devices"
/bin/ln --symbolic pts/ptmx "$root/dev/ptmx" || fail "devices"
while [ "$1" != -- ]; do
    /bin/mkdir --parents "$root${2%/*}" || fail "$2"
    /bin/cp --recursive --no-target-directory "$1" "$root$2" || fail "$2"
    /bin/chown "$4" "$root$2" && /bin/chmod "$3" "$root$2" || fail "$2"
    shift 4
done
shift
# A task may reopen /dev/stdout as its own user, but only root can reach the pipes by their path.
/bin/chmod a+w /proc/self/fd/1 /proc/self/fd/2 || fail "output"
[ -z "$hostname" ] || echo "$hostname" >/proc/sys/kernel/hostname || fail "hostname"
cd "$root" || fail "root"
# The former root is mounted over the new one; unmount it, so that it cannot be reached any more.
/sbin/pivot_root . . || fail "pivot_root"
/bin/umount --no-mtab --lazy . || fail "umount of the host's root"
cd "$work" 2>/dev/null || fail "work_dir $work is not a folder in the sandbox"
unset OLDPWD
echo made >&8 || fail "the run's folder cannot be written"
echo walls >&9
exec "$@" 8>&- 9>&-
