"""The end of a process, without the work by which the interpreter frees each object before the kernel frees the memory."""

import atexit
import os
import sys
import threading
from contextlib import suppress
from typing import Final, NoReturn

EXIT_OUTPUT_LOST: Final = 120
"""The exit code if the last output cannot be written, as of the interpreter."""


def exit_process(code: int) -> NoReturn:
    """End this process as `sys.exit` does, except that objects are not deleted one by one.

    Threads end, exit functions run and output is written. Deleting the objects of a process of an agent would take a tenth
    of a second of processor time. A copy of the fork server would also have to copy most of the memory that it shares.
    """
    threading._shutdown()  # type: ignore[attr-defined]  # It also ends idle threads of executors. `multiprocessing` calls it too.
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            with suppress(AttributeError, ValueError):  # The stream is missing or closed.
                stream.flush()
        except OSError:  # Output is lost, so the command did not succeed.
            code = code or EXIT_OUTPUT_LOST
    os._exit(code)
