"""Keeps the open files of a process, and its limit of open files, out of the programs that it starts."""

import contextlib
import os
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Final

FIRST_PRIVATE_DESCRIPTOR: Final = 3
"""Descriptors below are standard input, output and errors, which every program inherits."""
_OWN_DESCRIPTORS_FOLDER: Final = "/proc/self/fd"


def close_on_exec() -> None:
    """Set close-on-exec for every open descriptor of this process except standard input, output and errors.

    A process inherits descriptors that its parent names, such as the lock of the data folder. Call this first, so that
    programs of tasks do not inherit them too: a task could hold, release or write what they refer to.
    """
    for name in os.listdir(_OWN_DESCRIPTORS_FOLDER):
        descriptor = int(name)
        if descriptor >= FIRST_PRIVATE_DESCRIPTOR:
            try:
                os.set_inheritable(descriptor, False)
            except OSError:
                continue  # The descriptor with which the folder was listed.


PRLIMIT_PATH: Final = Path("/usr/bin/prlimit")
MAX_OPEN_FILES: Final = 65_536
"""The most open files that `allow_many_open_files` allows."""


_program_limits: list[int] = []
"""The limit of open files that this process had before it raised its own; empty if it has not."""


def allow_many_open_files() -> int:
    """Raise this process's limit of open files as far as allowed. Return the former limit, for the programs it starts.

    Programs of users may not expect a larger limit than usual: start them inside of `limiting_open_files`, or, in a process
    with threads, by way of `list_limiting_words`.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < limit:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
            _program_limits[:] = [soft]
    return soft


def require_open_files(count: int) -> int:
    """Raise this process's limit of open files to `count` if it is lower, as far as allowed. Return the limit in force.

    Only for processes that start no programs of users: they would inherit the limit.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= count:
        return count if soft == resource.RLIM_INFINITY else soft
    limit = count if hard == resource.RLIM_INFINITY else min(hard, count)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    except (OSError, ValueError):
        return soft
    return limit


def get_open_file_limit_of_programs() -> int:
    """Return the limit of open files for programs: the one that this process had before it raised its own."""
    return _program_limits[0] if _program_limits else resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def list_limiting_words() -> tuple[str, ...]:
    """Return words that, in front of a command, give it the limit that this process had before it raised its own.

    A process with threads cannot lower its own limit during a start, because the threads open files too.
    """
    if not _program_limits or not PRLIMIT_PATH.exists():
        return ()
    return (str(PRLIMIT_PATH), f"--nofile={_program_limits[0]}:")


@contextlib.contextmanager
def limiting_open_files(limit: int) -> Iterator[None]:
    """Give programs that are started in the `with` block this limit of open files. Only for processes with one thread."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
