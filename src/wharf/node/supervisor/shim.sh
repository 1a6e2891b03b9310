# Waits for one task, so that its end is known whoever else dies. Run by dash, once for each start of a task:
#
#   shim.sh FOLDER [TEXT FILE ...] -- WORK_FOLDER COMMAND [ARGUMENT ...]
#   shim.sh FOLDER --ended LINE CODE
#
# The task writes each TEXT into its FILE: by this it enters control groups. The task's environment is this script's own,
# so no variable is set before the task has been forked away: names could collide.
#
# The pipes are opened for reading and writing by the task itself, too: it is its own reader, and does not die of SIGPIPE
# when everybody else is dead. A full pipe makes it wait.

cd "$1" || exit 125
if [ "$2" = --ended ]; then
    until echo "$3
$4" >outcome; do /bin/sleep 1; done
    echo ended >&3
    while :; do read -r line <&5; done
fi
exec </dev/null 1<>out 2<>err 3<>news
# A handler, for what is ignored would stay ignored in the task.
trap : HUP INT QUIT TERM USR1 USR2 ALRM
# This file says that the task may have begun. Without it nothing is begun.
true >pid || exit 125
shift
(
    exec 3>&-
    while [ "$1" != -- ]; do
        echo "$1" >"$2"
        shift 2
    done
    shift
    cd "$1" || exit 125
    shift
    unset OLDPWD
    # A command in the background ignores SIGINT and SIGQUIT; `env` undoes it.
    exec /usr/bin/env --default-signal=INT,QUIT -- "$@"
) &
# The shell says on its standard error how a job ended: not into the task's output, which stays open all the same.
exec 4>&2 2>/dev/null 5<>own 6<&- 7<&-
# Here and below: a full disk may have room later.
until echo "$$ $!" >pid; do /bin/sleep 1; done
echo started >&3
while :; do
    wait "$!"
    code=$?
    # In the exit code alone, `exit 137` and SIGKILL look the same. What the shell says of it goes through a pipe of our
    # own, for that needs no room on the disk; the empty line ends it.
    line=
    { jobs -l; echo; } >&5
    while read -r next <&5 && [ -n "$next" ]; do line=$next; done
    case $line in "[1] + $! Running"*) continue ;; esac
    break
done
# In one write, so that nobody sees the half of it.
until echo "$line
$code" >outcome; do
    # Whose task was the first process of its namespace can start nothing when that has ended, until it is back in its own.
    [ -z "$WHARF_ALONE" ] || exec /usr/bin/nsenter --no-fork --pid=/proc/$$/ns/pid -- \
        /bin/dash "$0" "$PWD" --ended "$line" "$code"
    /bin/sleep 1
done
echo ended >&3
# What is still in the pipes is lost when nobody has them open: stay until somebody has read it, and kills us.
while :; do read -r line <&5; done
