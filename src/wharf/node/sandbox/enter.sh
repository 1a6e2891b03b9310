# Joins a task's control groups and becomes a command in the task's sandbox. Run by dash:
#
#   enter.sh [GROUP ...] -- COMMAND [ARGUMENT ...]
#
# Each GROUP is the file `cgroup.procs` of a control group of the task. The command joins it before it forks.

while [ "$1" != -- ]; do
    echo 0 >"$1" || exit 125
    shift
done
shift
exec "$@"
