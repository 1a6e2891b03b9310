# Makes the root that a task sees, goes into it for good, and becomes the task. Run by dash, in a mount namespace of its own:
#
#   launch.sh ROOT MOUNTS HOSTNAME WORK_FOLDER COMMAND [ARGUMENT ...]
#
# MOUNTS is a file as `fstab` is one. Nothing of the task's environment is here yet: what it names would be obeyed by
# programs that still may do everything.

fail() {
    echo "the walls around the task cannot be made: $1" >&2
    exit 125
}

/bin/mount --no-mtab --all --fstab "$2" || fail "mount"
# Only these of all devices; what the host has as links to /proc is a link here, too.
/bin/cp --archive /dev/null /dev/zero /dev/full /dev/random /dev/urandom /dev/tty \
    /dev/fd /dev/stdin /dev/stdout /dev/stderr "$1/dev" || fail "devices"
/bin/ln --symbolic pts/ptmx "$1/dev/ptmx" || fail "devices"
# A task opens /dev/stdout anew, as its own user: the pipes behind it lie where only we can come by name.
/bin/chmod a+w /proc/self/fd/1 /proc/self/fd/2 || fail "output"
[ -z "$3" ] || echo "$3" >/proc/sys/kernel/hostname || fail "hostname"
cd "$1" || fail "root"
# The former root lies above the new one, and is taken away: no way leads back.
/sbin/pivot_root . . || fail "pivot_root"
/bin/umount --no-mtab --lazy . || fail "umount in the task's root"
cd "$4" || fail "work_dir"
shift 4
unset OLDPWD
exec "$@"
