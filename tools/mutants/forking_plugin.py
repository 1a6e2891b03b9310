"""The pytest plugin that collects the tests of a package once, and forks a process for each mistake that is to be tried.

MUTANT_SOCKET is the number of a socket. Each request is a line of JSON (`Request`), and so is each reply (`Reply`). The
forked process plants the mistake and goes on as if pytest had been started for the chosen tests: it runs them, prints the
summary to the requested file and exits with pytest's status.
"""

import contextlib
import gc
import json
import os
import random
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

from tools.mutants.planting import CallRecorder, CannotPlant, LoadedFunctions, Planting

POLL_SECONDS = 0.003


@dataclass(frozen=True, slots=True)
class Request:
    """Run tests in a forked process. `path` names the file that has a mistake in `line`; empty if no file has one."""

    path: str
    line: int
    test_seconds: dict[str, float]  # By test, in the order in which they run: after how many seconds it hangs.
    seconds: float  # For all tests together.
    output: str  # The file for what pytest prints.
    temporary: str  # The folder for temporary files of the tests.


@dataclass(frozen=True, slots=True)
class Reply:
    """`code` is the exit status of pytest, negative after a signal, or None if its time was over."""

    code: int | None = None
    has_hanging_test: bool = False  # The last test took longer than its own limit, and was ended.
    last_test: str = ""  # The one that started last.
    obstacle: str = ""  # Not empty: nothing was run, because the mistake needs a process of its own.


def pytest_configure(config: pytest.Config) -> None:
    if number := os.environ.pop("MUTANT_SOCKET", None):
        config.pluginmanager.register(_ForkingRunner(socket.socket(fileno=int(number))))


_calls = CallRecorder()
if "MUTANT_SOCKET" in os.environ:
    _calls.start()  # pytest imports this module before any module of the project.


class _ForkingRunner:
    def __init__(self, connection: socket.socket) -> None:
        connection.set_inheritable(False)
        self._connection = connection
        self._last_test_file: Path | None = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        """Serve requests until the socket is closed. In a forked process, return None, so that pytest runs the tests."""
        _calls.stop()
        loaded = LoadedFunctions(Path("src"), _calls.list_functions())
        items = {item.nodeid: item for item in session.items}
        gc.collect()
        gc.freeze()  # A forked process does not copy pages only because its garbage collector visits them.
        self._send(Reply())
        for request in self._read_requests():
            tests = [items[name] for name in request.test_seconds if name in items]
            last_test_file = Path(request.output).with_suffix(".last")
            last_test_file.write_text("")
            try:
                planting = self._prepare(loaded, request, tests)
            except CannotPlant as obstacle:
                self._send(Reply(obstacle=str(obstacle)))
                continue
            child_id = os.fork()
            if child_id == 0:
                self._connection.close()
                self._last_test_file = last_test_file
                _prepare_child(session.config, request)
                if planting is not None:
                    planting.apply()
                session.items[:] = tests
                return None
            watch = _TestWatch(last_test_file, request.test_seconds)
            code = wait_for_group(child_id, request.seconds, watch.is_hanging)
            self._send(Reply(code, code is None and watch.is_hanging(), last_test_file.read_text()))
        return True

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        if self._last_test_file is not None:
            self._last_test_file.write_text(nodeid)

    def _prepare(self, loaded: LoadedFunctions, request: Request, tests: list[pytest.Item]) -> Planting | None:
        if threading.active_count() > 1:
            raise CannotPlant("threads were started when the tests were collected")
        if not tests:
            raise CannotPlant("none of the tests is collected")
        return loaded.prepare(Path(request.path), request.line) if request.path else None

    def _read_requests(self) -> Iterator[Request]:
        with self._connection.makefile("r", encoding="utf-8") as lines:
            for line in lines:
                yield Request(**json.loads(line))

    def _send(self, reply: Reply) -> None:
        self._connection.sendall(json.dumps(asdict(reply)).encode() + b"\n")


class _TestWatch:
    """Watches for how long the current test has been running, by the file to which each test writes its name."""

    def __init__(self, file: Path, seconds: Mapping[str, float]) -> None:
        self._file = file
        self._seconds = seconds

    def is_hanging(self) -> bool:
        running_s = time.time() - self._file.stat().st_mtime
        # The shortest limit spares reading the file each time.
        return running_s > min(self._seconds.values()) and running_s > self._seconds.get(self._file.read_text(), 0.0)


def _prepare_child(config: pytest.Config, request: Request) -> None:
    """Give the process what a newly started one has: a session, an output, a random state and a temporary folder."""
    os.setsid()
    random.seed()
    os.environ["PYTEST_DEBUG_TEMPROOT"] = request.temporary
    sys.stdout.flush()
    sys.stderr.flush()
    # The capture holds files that all forked processes would share, and copies of the former output.
    capture = config.pluginmanager.getplugin("capturemanager")
    capture.stop_global_capturing()
    output = os.open(request.output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    capture.start_global_capturing()
    capture.suspend_global_capture()


def wait_for_group(child_id: int, seconds: float, is_hanging: Callable[[], bool] = lambda: False) -> int | None:
    """Wait for a process that leads a process group, then end the group and all descendants.

    Return its exit status, or None if its time was over or `is_hanging` returned that it makes no progress.
    """
    deadline = time.monotonic() + seconds
    is_over = False
    while not is_over and time.monotonic() < deadline and not is_hanging():
        # The process remains as a zombie, so its id cannot belong to another process.
        is_over = os.waitid(os.P_PID, child_id, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        if not is_over:
            time.sleep(POLL_SECONDS)
    for process_id in [] if is_over else list_descendants(child_id):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process_id, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child_id, signal.SIGKILL)
    _, status = os.waitpid(child_id, 0)
    return os.waitstatus_to_exitcode(status) if is_over else None


def list_descendants(process_id: int) -> list[int]:
    """Return the ids of the processes that a process started, and of those that they started, also in other sessions."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parent_id = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent_id, []).append(int(folder.name))
    found = [process_id]
    for ancestor in found:
        found.extend(children.get(ancestor, ()))
    return found[1:]
