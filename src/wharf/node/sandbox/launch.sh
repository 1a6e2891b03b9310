# Makes the root that a task sees, goes into it for good, and becomes the task. Run by dash, in a mount namespace of its own:
#
#   launch.sh ROOT MOUNTS HOSTNAME WORK_FOLDER [DEVICE TARGET MODE USER ...] -- COMMAND [ARGUMENT ...]
#
# WHARF_WALLS is, where it is set, the folder of the run: its file `walls` says `making`, then `made`, or why they cannot be.
# It is written over, for that needs no room on the disk. MOUNTS is a file as `fstab` is one. Each DEVICE is one that the task was given. Nothing of the task's environment is here yet: what it names would be obeyed by
# programs that still may do everything.

fail() {
    echo "the walls around the task cannot be made: $1" >&2
    echo "the walls around the task cannot be made: $1" >&8
    exit 125
}

# Opened now: no way leads back to that folder.
if [ -n "$WHARF_WALLS" ]; then
    exec 8<>"$WHARF_WALLS/walls" 9<>"$WHARF_WALLS/news" || exit 125
else
    exec 8>/dev/null 9>/dev/null
fi
unset WHARF_WALLS
root=$1 mounts=$2 hostname=$3 work=$4
shift 4
/bin/mount --no-mtab --all --fstab "$mounts" || fail "mount"
# Only these of all devices; what the host has as links to /proc is a link here, too.
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
# A task opens /dev/stdout anew, as its own user: the pipes behind it lie where only we can come by name.
/bin/chmod a+w /proc/self/fd/1 /proc/self/fd/2 || fail "output"
[ -z "$hostname" ] || echo "$hostname" >/proc/sys/kernel/hostname || fail "hostname"
cd "$root" || fail "root"
# The former root lies above the new one, and is taken away: no way leads back.
/sbin/pivot_root . . || fail "pivot_root"
/bin/umount --no-mtab --lazy . || fail "umount in the task's root"
cd "$work" 2>/dev/null || fail "work_dir $work is no folder there"
unset OLDPWD
echo made >&8 || fail "its folder cannot be written"
echo walls >&9
exec "$@" 8>&- 9>&-
