"""Sets up the root file system of a task, enters it and becomes the task, in a mount namespace of its own:

    launch HOSTNAME WORK_FOLDER UID GID GROUPS CAPABILITIES -- COMMAND [ARGUMENT ...]

The plan of the mounts is read from a descriptor. WHARF_WALLS, if set, is the folder of the run: its file `walls` contains
`making`, then `made` or an error. The file is overwritten in place, because that needs no disk space. The task's
environment is not set yet.
"""

import os
import sys

from wharf.node.sandbox_setup.kernel import (
    ENVIRONMENT_DESCRIPTOR,
    FAILED_EXIT_CODE,
    MNT_DETACH,
    MS_NODEV,
    MS_NOEXEC,
    MS_NOSUID,
    MS_RDONLY,
    SetupError,
    check,
    close_all_except,
    forbid_imports,
    hide_from_tasks,
    libc,
    restore_signals,
    take_privileges,
)
from wharf.node.sandbox_setup.mount_tree import MountTree

PLAN_DESCRIPTOR = 7
MAX_PLAN_BYTES = 4 << 20
"""Limit of the plan; a job's list of volumes is much shorter."""
MAX_ERROR_BYTES = 250
"""Limit of an error in the file `walls`, whose line is 256 bytes long."""
SANDBOX_VARIABLE = "WHARF_WALLS"
WORDS_OF_STEP = 4
READ_ONLY_PROC_ENTRIES = (
    *("sys", "sysrq-trigger", "irq", "bus", "fs", "acpi", "scsi", "timer_list"),
    "latency_stats",
)
"""Entries of `/proc` by which root in the sandbox could change settings of the host."""
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
"""The only devices of every task."""
DEVICE_LINKS = (
    *(("fd", "/proc/self/fd"), ("stdin", "/proc/self/fd/0"), ("stdout", "/proc/self/fd/1")),
    *(("stderr", "/proc/self/fd/2"), ("ptmx", "pts/ptmx")),
)
SHARED_MEMORY_OPTIONS = "mode=1777,size=64m"


def main(arguments: list[str]) -> None:
    """Set up the sandbox and become the program; never returns."""
    status = news = -1
    try:
        hide_from_tasks()
        if folder := os.environ.pop(SANDBOX_VARIABLE, ""):
            # Opened now, because the folder cannot be reached from the new root.
            status = os.open(f"{folder}/walls", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
            news = os.open(f"{folder}/news", os.O_RDWR | os.O_CLOEXEC)
        _set_up(arguments, status, news)
    except BaseException as error:
        # Nothing else may handle it: a traceback would read files of the sandbox.
        _report(status, _describe(error))
        os._exit(FAILED_EXIT_CODE)


def _set_up(arguments: list[str], status: int, news: int) -> None:
    """Set up the sandbox and become the program. Raises SetupError and OSError."""
    hostname, work_folder, uid, gid, groups, capabilities, mark, *command = arguments
    assert mark == "--", "the command follows"
    environment = dict(os.environ)
    steps = _read_plan()
    own_umask = os.umask(0)
    _mount_all(steps)
    # A task may reopen /dev/stdout as its own user, but only root can reach the pipes by their path.
    for stream in (1, 2):
        os.fchmod(stream, os.fstat(stream).st_mode & 0o7777 | 0o222)
    if hostname:
        name = hostname.encode()
        check(libc.sethostname(name, len(name)), "hostname")
    os.umask(own_umask)
    forbid_imports()
    # The former root is mounted over the new one; unmount it, so that it cannot be reached any more.
    check(libc.pivot_root(b".", b"."), "pivot_root")
    check(libc.umount2(b".", MNT_DETACH), "umount of the host's root")
    os.chdir("/")
    retained = tuple(each for each in (status, news) if each >= 0)
    close_all_except((ENVIRONMENT_DESCRIPTOR, *retained))
    restore_signals()
    take_privileges(int(uid), int(gid), [int(each) for each in groups.split(",") if each], int(capabilities))
    # As the task's user: a link of the task in /proc could lead root to a folder of the host.
    try:
        os.chdir(work_folder)
    except OSError:
        raise SetupError(f"work_dir {work_folder} is not a folder in the sandbox") from None
    if status >= 0:
        os.pwrite(status, b"made\n", 0)
        os.write(news, b"walls\n")
    os.execve(command[0], command, environment)


def _read_plan() -> list[list[str]]:
    """Read and close the plan: steps of four words. Raises OSError."""
    data = b""
    while len(data) < MAX_PLAN_BYTES and (part := os.pread(PLAN_DESCRIPTOR, MAX_PLAN_BYTES, len(data))):
        data += part
    os.close(PLAN_DESCRIPTOR)
    words = data.decode(errors="surrogateescape").split("\0")[:-1]
    return [words[start : start + WORDS_OF_STEP] for start in range(0, len(words), WORDS_OF_STEP)]


def _mount_all(steps: list[list[str]]) -> None:
    """Mount everything, and make the new root the working folder. Raises SetupError and OSError.

    Devices come before other mounts in /dev, so that none of them leads to a folder that a task can write.
    """
    (_, folder, shared, shared_memory), *steps = steps
    # Opened first, because the tree hides the folder of the allocation.
    origins = {
        source: os.open(source, os.O_PATH | os.O_CLOEXEC)
        for source in (shared, *([shared_memory] if shared_memory else []), *_list_sources(steps))
    }
    tree = MountTree(folder)
    tree.mount("proc", "/proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    for name in READ_ONLY_PROC_ENTRIES:
        tree.protect(f"/proc/{name}")
    tree.mount("tmpfs", "/dev", MS_NOSUID | MS_NOEXEC, "size=64k,mode=0755")
    _make_devices(tree, [step for step in steps if step[0] == "device"])
    tree.mount("devpts", "/dev/pts", MS_NOSUID | MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620")
    if shared_memory:
        tree.bind(origins[shared_memory], "/dev/shm", MS_NOSUID | MS_NODEV)
    else:
        tree.mount("tmpfs", "/dev/shm", MS_NOSUID | MS_NODEV | MS_NOEXEC, SHARED_MEMORY_OPTIONS)
    tree.bind(origins[shared], "/alloc", MS_NOSUID | MS_NODEV)
    for kind, source, target, _ in steps:
        try:
            if kind == "link":
                tree.make_link(target, source)
            elif kind == "file":
                tree.bind_over_file(origins[source], target)
            elif kind != "device":
                tree.bind(origins[source], target, MS_NOSUID | MS_NODEV | (MS_RDONLY if kind == "read-only" else 0))
        except OSError as error:
            raise SetupError(f"nothing can be mounted at {target}: {error.strerror}") from error
    os.fchdir(tree.root)


def _list_sources(steps: list[list[str]]) -> list[str]:
    """Return the paths of the host that are mounted."""
    return [source for kind, source, _, _ in steps if kind not in ("link", "device")]


def _make_devices(tree: MountTree, steps: list[list[str]]) -> None:
    """Create the devices of every task and those that are allocated to this one. Raises SetupError and OSError."""
    for name in DEVICES:
        status = os.stat(f"/dev/{name}")
        tree.make_device(f"/dev/{name}", f"/dev/{name}", status.st_mode & 0o7777, status.st_uid)
    for name, text in DEVICE_LINKS:
        tree.make_link(f"/dev/{name}", text)
    for _, source, target, options in steps:
        mode, uid = options.split(":")
        try:
            tree.make_device(source, target, int(mode), int(uid))
        except OSError as error:
            raise SetupError(f"device {target}: {error.strerror}") from error


def _describe(error: BaseException) -> str:
    """Return the reason for the task's owner."""
    if isinstance(error, SetupError):
        return str(error)
    if isinstance(error, OSError):
        return f"{error.filename or error.filename2 or 'a system call'}: {error.strerror}"
    return f"{type(error).__name__}: {error}"


def _report(status: int, reason: str) -> None:
    """Write the reason to the task's stderr and to the run's folder. Errors are ignored."""
    text = f"the task's sandbox cannot be set up: {reason}".replace("\n", " ").encode(errors="replace")
    for descriptor, position, line in ((2, -1, text), (status, 0, text[:MAX_ERROR_BYTES])):
        try:
            if position < 0:
                os.write(descriptor, line + b"\n")
            elif descriptor >= 0:
                os.pwrite(descriptor, line + b"\n", position)
        except OSError:
            pass


if __name__ == "__main__":
    main(sys.argv[1:])
