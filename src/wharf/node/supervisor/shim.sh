# Starts one task and records how it ended, even if agent and supervisor die. Run by dash, once for each start of a task:
#
#   shim.sh FOLDER [TEXT FILE ...] -- WORK_FOLDER COMMAND [ARGUMENT ...]
#   shim.sh FOLDER --ended LINE CODE
#
# The task writes each TEXT into its FILE, which moves it into control groups. The script has the task's environment, so it
# sets no variable before it has forked the task: the names could collide.
#
# The task opens its pipes for reading and writing: as its own reader it does not die of SIGPIPE when the supervisor is
# dead. A full pipe makes it wait.

cd "$1" || exit 125
if [ "$2" = --ended ]; then
    until echo "$3
$4" >outcome; do
        [ -p own ] || exit 125
        /bin/sleep 1
    done
    echo ended >&3
    while :; do read -r line <&5; done
fi
exec </dev/null 1<>out 2<>err 3<>news
# Signals get a handler, because ignored signals would stay ignored in the task.
trap : HUP INT QUIT TERM USR1 USR2 ALRM
# This file shows that the task may have started. If it cannot be written, the task is not started.
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
    # A background command ignores SIGINT and SIGQUIT; `env` resets them.
    exec /usr/bin/env --default-signal=INT,QUIT -- "$@"
) &
# The shell prints the end of a job on standard error: keep that out of the task's output, which stays open as 4.
exec 4>&2 2>/dev/null 5<>own 6<&- 7<&-
# Retry, here and below: a full disk may have free space later. Nobody can read a folder that was deleted.
until echo "$$ $!" >pid || ! [ -p own ]; do /bin/sleep 1; done
echo started >&3
while :; do
    wait "$!"
    code=$?
    # The exit code alone does not tell `exit 137` from SIGKILL, so record the shell's job status too. It goes through a
    # pipe of the shim, because that needs no disk space; the empty line ends it.
    line=
    { jobs -l; echo; } >&5
    while read -r next <&5 && [ -n "$next" ]; do line=$next; done
    case $line in "[1] + $! Running"*) continue ;; esac
    break
done
# One write, so that no reader sees a part of it.
until echo "$line
$code" >outcome; do
    # After the end of a PID namespace's first process, this shell can start no process until it is in its own namespace.
    [ -z "$WHARF_ALONE" ] || exec /usr/bin/nsenter --no-fork --pid=/proc/$$/ns/pid -- \
        /bin/dash "$0" "$PWD" --ended "$line" "$code"
    [ -p own ] || exit 125
    /bin/sleep 1
done
echo ended >&3
# Output in the pipes is lost when all have closed them: stay until the supervisor has read it and kills this shim.
while :; do read -r line <&5; done
