# Becomes a command beside a task that runs within walls. Run by dash:
#
#   enter.sh [GROUP ...] -- COMMAND [ARGUMENT ...]
#
# Each GROUP is a file by which the command enters a control group of the task, before it forks anything.

while [ "$1" != -- ]; do
    echo 0 >"$1" || exit 125
    shift
done
shift
exec "$@"
