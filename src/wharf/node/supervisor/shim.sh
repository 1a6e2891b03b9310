# Waits for one task, so that its end is known whoever else dies. Run by dash, once for each start of a task:
#
#   shim.sh FOLDER [FILE ...] -- WORK_FOLDER COMMAND [ARGUMENT ...]
#
# Each FILE is the list of processes of a control group; the task enters it. The task's environment is this script's own,
# so no variable is set before the task has been forked away: names could collide.
#
# The pipes are opened for reading and writing by the task itself, too: it is its own reader, and does not die of SIGPIPE
# when everybody else is dead. A full pipe makes it wait.

cd "$1" || exit 125
exec </dev/null 1<>out 2<>err 3<>news
# A handler, for what is ignored would stay ignored in the task.
trap : HUP INT QUIT TERM USR1 USR2 ALRM
: >begun
shift
(
    exec 3>&-
    while [ "$1" != -- ]; do
        echo 0 >"$1"
        shift
    done
    shift
    cd "$1" || exit 125
    shift
    unset OLDPWD
    # A command in the background ignores SIGINT and SIGQUIT; `env` undoes it.
    exec /usr/bin/env --default-signal=INT,QUIT -- "$@"
) &
# The shell says on its standard error how a job ended: not into the task's output, which stays open all the same.
exec 4>&2 2>/dev/null
echo "$!" >pid
echo started >&3
while :; do
    wait "$!"
    code=$?
    # In the exit code alone, `exit 137` and SIGKILL look the same.
    jobs -l >outcome.new
    read -r line <outcome.new
    case $line in "[1] + $! Running"*) continue ;; esac
    break
done
echo "$code" >>outcome.new
/bin/mv outcome.new outcome
echo ended >&3
# What is still in the pipes is lost when nobody has them open: stay until somebody has read it, and kills us.
until read -r line <end || [ ! -p end ]; do :; done
