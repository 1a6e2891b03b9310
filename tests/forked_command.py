"""Commands that run in a fork of the test process, which has imported their modules already.

A fork is a real process with its own folder, environment, streams and exit code. Only the start of Python is left out, which
takes a quarter of a second of processor time.
"""

import asyncio
import logging
import os
import signal
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, NoReturn

from wharf.cli import main as run_command

FIRST_OWN_DESCRIPTOR = 3
"""Descriptors 0 to 2 are the standard streams."""
WITHIN_S = 60
"""Limit for a command. Only a hanging command reaches it, and is killed."""


def run_wharf(
    folder: Path, *arguments: str, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a `wharf` command in this folder. `environment` is added to that of the tests."""
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        code = run_in_fork(
            lambda: run_command(arguments),
            folder=folder,
            environment=os.environ | (environment or {}),
            output=output,
            errors=errors,
        )
        output.seek(0)
        errors.seek(0)
        return subprocess.CompletedProcess(arguments, code, output.read().decode(), errors.read().decode())


def run_in_fork(
    main: Callable[[], object], *, folder: Path, environment: Mapping[str, str], output: IO[bytes], errors: IO[bytes]
) -> int:
    """Run `main` in a fork with an empty standard input. Return its exit code, which is negative for a signal."""
    pid = os.fork()
    if pid == 0:
        try:
            signal.alarm(WITHIN_S)
            _detach(output.fileno(), errors.fileno())
            os.chdir(folder)
            os.environ.clear()
            os.environ.update(environment)
            _run(main)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _detach(output: int, errors: int) -> None:
    """Give this fork its own standard streams, and undo what pytest and a running event loop have changed."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(output, 1)
    os.dup2(errors, 2)
    os.closerange(FIRST_OWN_DESCRIPTOR, os.sysconf("SC_OPEN_MAX"))
    sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
    sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = os.fdopen(2, "w", encoding="utf-8", closefd=False, buffering=1)
    sys.unraisablehook = sys.__unraisablehook__
    warnings.resetwarnings()
    warnings.simplefilter("ignore")
    logging.getLogger().handlers.clear()
    logging.getLogger().setLevel(logging.WARNING)
    asyncio.set_event_loop(None)


def _run(main: Callable[[], object]) -> NoReturn:
    """Run a program as Python does, and exit with its code."""
    code: object = None
    try:
        main()
    except SystemExit as request:
        code = request.code
    except BaseException:
        traceback.print_exc()
        code = 1
    if isinstance(code, str):
        print(code, file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0 if code is None else code if isinstance(code, int) else 1)
