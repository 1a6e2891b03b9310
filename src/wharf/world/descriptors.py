"""Keeps the open files of a process out of the programs that it starts."""

import os
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
