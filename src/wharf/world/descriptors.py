"""Keeps the open files of a process, and its limit of open files, out of the programs that it starts."""

import contextlib
import os
import resource
from collections.abc import Iterator
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


MAX_OPEN_FILES: Final = 65_536
"""The most open files that `allow_many_open_files` allows."""


def allow_many_open_files() -> int:
    """Raise this process's limit of open files as far as allowed. Return the former limit, for the programs it starts.

    Programs may not expect a larger limit than usual: start them inside of `limiting_open_files`.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < limit:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    return soft


@contextlib.contextmanager
def limiting_open_files(limit: int) -> Iterator[None]:
    """Give programs that are started in the `with` block this limit of open files. Only for processes with one thread."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
