"""Enters the sandbox of a running task, and becomes a command in it:

    enter PID UID GID GROUPS CAPABILITIES [CGROUP ...] -- COMMAND [ARGUMENT ...]

Each CGROUP is the file `cgroup.procs` of a control group of the task. The command joins it before it enters.
"""

import os
import sys

from wharf.node.sandbox_setup.kernel import (
    ENVIRONMENT_DESCRIPTOR,
    FAILED_EXIT_CODE,
    check,
    close_all_except,
    forbid_imports,
    hide_from_tasks,
    libc,
    restore_signals,
    take_privileges,
)

NAMESPACES = ("ipc", "uts", "net", "pid", "mnt")
NOT_FOUND_EXIT_CODE = 127
"""The exit code of a command whose program does not exist."""
SIGSTOP = 19
SIGCONT = 18


def main(arguments: list[str]) -> None:
    """Enter the sandbox and become the command; never returns."""
    try:
        _enter(arguments)
    except BaseException as error:
        # Nothing else may handle it: a traceback would read files of the sandbox.
        os.write(2, f"the task's sandbox cannot be entered: {error}\n".encode(errors="replace"))
        os._exit(FAILED_EXIT_CODE)


def _enter(arguments: list[str]) -> None:
    """Enter the sandbox and become the command. Raises OSError."""
    hide_from_tasks()
    pid, uid, gid, groups, capabilities, *rest = arguments
    end = rest.index("--")
    cgroups, command = rest[:end], rest[end + 1 :]
    environment = dict(os.environ)
    for path in cgroups:
        cgroup = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        os.write(cgroup, b"0")
        os.close(cgroup)
    root = os.open(f"/proc/{pid}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    namespaces = [os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC) for name in NAMESPACES]
    forbid_imports()
    for descriptor, name in zip(namespaces, NAMESPACES, strict=True):
        check(libc.setns(descriptor, 0), name)
    os.fchdir(root)
    os.chroot(".")
    close_all_except((ENVIRONMENT_DESCRIPTOR,))
    restore_signals()
    # Only a child is in the other PID namespace.
    if child := os.fork():
        os.close(ENVIRONMENT_DESCRIPTOR)
        _end_like(child)
    take_privileges(int(uid), int(gid), [int(each) for each in groups.split(",") if each], int(capabilities))
    os.execve(command[0], command, environment)


def _end_like(child: int) -> None:
    """Wait for the child, and end in the way in which it ended; stop and continue with it."""
    while True:
        _, status = os.waitpid(child, os.WUNTRACED)
        if os.WIFSTOPPED(status):
            os.kill(os.getpid(), SIGSTOP)
            os.kill(child, SIGCONT)
            continue
        if os.WIFSIGNALED(status):
            os.kill(os.getpid(), os.WTERMSIG(status))
        os._exit(os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status))


if __name__ == "__main__":
    main(sys.argv[1:])
