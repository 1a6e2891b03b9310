"""Starts the processes of an agent for the supervisor: as copies of the fork server, or one by one as programs.

An agent with one process, and a system that gives orphans to nobody, use programs. So does an agent whose fork server has
ended: it starts no second one, because a process that was killed for lack of memory would be killed again.
"""

import contextlib
import ctypes
import logging
import os
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Container, Sequence
from typing import Final, Protocol

from wharf.agent.supervision.fork_protocol import MAX_REQUEST_BYTES, ForkRequest, decode_reply, encode_message
from wharf.config.environment import ENVIRONMENT_PREFIX

_PR_SET_CHILD_SUBREAPER: Final = 36
_FORK_SERVER_ARGUMENT: Final = "copies-itself-for-each-process"
"""An argument that says what the fork server does. Its copies need its length, to show their own command lines."""

log = logging.getLogger(__name__)


class StartedProcess(Protocol):
    """A process of the agent, as `subprocess.Popen` describes it too."""

    @property
    def pid(self) -> int:
        """The process id; 0 as long as the fork server has not started it."""
        ...

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal, or `None` while the process runs."""
        ...

    def kill(self) -> None:
        """End the process at once."""
        ...

    def wait(self) -> int:
        """Wait for the end of a process that was killed. Return its exit code."""
        ...


class ForkedProcess:
    """A process that the fork server starts. Once it runs, it is a child of this process like any other."""

    def __init__(self, kill_fork_server: Callable[[], None]) -> None:
        self.pid = 0
        self._kill_fork_server = kill_fork_server
        self._exit_code: int | None = None
        self._program: subprocess.Popen[bytes] | None = None

    def set_started(self, pid: int) -> None:
        """Note that the fork server has started the process."""
        self.pid = pid

    def start_as_program(self, program: subprocess.Popen[bytes]) -> None:
        """Use this program instead, because the fork server cannot start the process."""
        self.pid, self._program = program.pid, program

    def is_killed(self) -> bool:
        """Return whether the process was killed before it was started."""
        return not self.pid and self._exit_code is not None

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal, or `None` while the process runs or is not started yet."""
        if self._program is not None:
            return self._program.poll()
        if self._exit_code is None and self.pid:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._exit_code = os.waitstatus_to_exitcode(status)
        return self._exit_code

    def kill(self) -> None:
        """End the process at once. A fork server that has not started it yet is ended too: it may hang."""
        if self._program is not None:
            self._program.kill()
        elif self.poll() is None:
            if self.pid:
                os.kill(self.pid, signal.SIGKILL)  # No other process has this id until the exit code was read.
            else:
                self._exit_code = -signal.SIGKILL
                self._kill_fork_server()

    def wait(self) -> int:
        """Wait for the end of a process that was killed. Return its exit code."""
        if self._program is not None:
            return self._program.wait()
        if self._exit_code is None:
            self._exit_code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self._exit_code


class _Start:
    """A start that the fork server has not reported yet."""

    def __init__(self, process: ForkedProcess, request: ForkRequest, channel: socket.socket) -> None:
        self.process = process
        self.request = request
        self.channel = channel
        """The end of the channel for the process, kept for a start as a program."""


class ChildStarter:
    """Starts processes, and reaps the orphans that the kernel gives to this process."""

    def __init__(self, selector: selectors.BaseSelector, on_started: Callable[[], None]) -> None:
        """`on_started` is called after the fork server has started a process. The process may have ended already."""
        self._selector = selector
        self._on_started = on_started
        self._connection: socket.socket | None = None
        self._fork_server: subprocess.Popen[bytes] | None = None
        self._starts: dict[int, _Start] = {}
        self._last_number = 0

    def start_fork_server(self) -> None:
        """Start the fork server, if the system gives the processes that it starts to this process."""
        if not _adopt_orphans():
            return
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._fork_server = _run_module("wharf.agent.fork_server", theirs, _FORK_SERVER_ARGUMENT)
        ours.setblocking(False)
        self._connection = ours
        self._selector.register(ours, selectors.EVENT_READ, self._on_reply)

    def start(self, part: str, role: str, channel: socket.socket, descriptors: Sequence[int]) -> StartedProcess:
        """Start the process of this name and role. `channel` is its end of the channel to the supervisor."""
        if self._connection is None:
            return _start_program(part, channel, descriptors)
        assert self._fork_server is not None
        self._last_number += 1
        request = ForkRequest(self._last_number, part, role, tuple(descriptors))
        process = ForkedProcess(self._fork_server.kill)
        self._starts[request.number] = _Start(process, request, channel.dup())
        try:
            socket.send_fds(self._connection, [encode_message(request)], [channel.fileno(), *descriptors])
        except OSError as error:  # It has ended, or it does not read.
            self._give_up_fork_server(str(error))
        return process

    def reap_orphans(self, children: Container[int]) -> None:
        """Reap processes that this process has adopted and that are not among its own children."""
        while not self._starts:  # During a start, an unknown process may be the one that was started.
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None or ended.si_pid in children or self._is_fork_server(ended.si_pid):
                return
            os.waitpid(ended.si_pid, 0)

    def close(self) -> None:
        """End the fork server. Call after the end of all processes."""
        if self._connection is not None:
            self._give_up_fork_server("")

    def _is_fork_server(self, pid: int) -> bool:
        """Return whether this is the fork server. Reap it if it has ended."""
        return self._fork_server is not None and self._fork_server.pid == pid and self._fork_server.poll() is None

    def _on_reply(self) -> None:
        """Note which process has started."""
        assert self._connection is not None
        try:
            data = self._connection.recv(MAX_REQUEST_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._give_up_fork_server("it has ended")
            return
        reply = decode_reply(data)
        start = self._starts.pop(reply.number)
        if reply.pid:
            start.process.set_started(reply.pid)
            start.channel.close()
        else:
            self._start_as_program(start)
        self._on_started()

    def _give_up_fork_server(self, reason: str) -> None:
        """End the fork server, and start as programs what it has not started."""
        assert self._connection is not None
        assert self._fork_server is not None
        if reason:
            log.warning("fork server lost; processes start as programs, more slowly", extra={"why": reason})
        self._selector.unregister(self._connection)
        self._connection.close()
        self._connection = None
        self._fork_server.kill()
        self._fork_server.wait()
        starts, self._starts = self._starts, {}
        for start in starts.values():
            self._start_as_program(start)

    def _start_as_program(self, start: _Start) -> None:
        with start.channel:
            if not start.process.is_killed():
                program = _start_program(start.request.part, start.channel, start.request.descriptors)
                start.process.start_as_program(program)


def _start_program(part: str, channel: socket.socket, descriptors: Sequence[int]) -> subprocess.Popen[bytes]:
    return _run_module("wharf.agent.child", channel, part, descriptors=descriptors)


def _run_module(
    module: str, channel: socket.socket, *arguments: str, descriptors: Sequence[int] = ()
) -> subprocess.Popen[bytes]:
    """Run a module with the channel as standard input, in a process group of its own.

    Such a group gets no signals of the terminal: the supervisor stops the processes in order.
    """
    return subprocess.Popen(
        # -P: a module in the current folder must not replace a module of the same name.
        [sys.executable, "-P", "-m", module, *arguments],
        stdin=channel.fileno(),
        stdout=2,
        pass_fds=descriptors,
        process_group=0,
        env={name: value for name, value in os.environ.items() if not name.startswith(ENVIRONMENT_PREFIX)},
    )


def _adopt_orphans() -> bool:
    """Ask the kernel to give orphans among the descendants of this process to it. Return whether it does."""
    with contextlib.suppress(AttributeError, OSError):
        return bool(ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)
    return False
