"""Processes that the fork server starts for the supervisor, and what happens if it does not."""

import ctypes
import os
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.agent.processes import children_of, role_of
from tests.waiting import wait_until
from wharf.agent.supervision.child_starter import ChildStarter, StartedProcess
from wharf.node.supervisor.selector_loop import iter_callbacks

PR_SET_CHILD_SUBREAPER = 36


class Starter:
    """A starter with its selector loop. Each process waits for its first message until `close`."""

    def __init__(self) -> None:
        self.selector = selectors.DefaultSelector()
        self.reported_count = 0
        self.starter = ChildStarter(self.selector, self._count_report)
        self.channels: list[socket.socket] = []

    def _count_report(self) -> None:
        self.reported_count += 1

    def start(self, *descriptors: int) -> StartedProcess:
        ours, theirs = socket.socketpair()
        self.channels.append(ours)
        with theirs:
            return self.starter.start("store", "store", theirs, descriptors)

    def run(self) -> None:
        """Handle what is ready."""
        if self.selector.get_map():
            for call in iter_callbacks(self.selector, self.selector.select(0)):
                call()

    def wait_started(self, process: StartedProcess) -> int:
        def read_pid() -> int:
            self.run()
            return process.pid

        return wait_until(read_pid, what="the process was started")

    def wait_end(self, process: StartedProcess) -> int:
        def read_end() -> list[int]:
            self.run()
            exit_code = process.poll()
            return [] if exit_code is None else [exit_code]

        return wait_until(read_end, what="the process has ended")[0]

    def find_fork_server(self) -> int:
        (pid,) = [pid for pid in children_of(os.getpid()) if b"wharf.agent.fork_server" in read_command_line(pid)]
        return pid


def read_command_line(pid: int) -> list[bytes]:
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        return file.read().rstrip(b"\0").split(b"\0")


@pytest.fixture
def starter() -> Iterator[Starter]:
    starter = Starter()
    starter.starter.start_fork_server()
    try:
        yield starter
    finally:
        starter.starter.close()
        for channel in starter.channels:
            channel.close()
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def test_a_process_is_a_child_of_the_starter_with_its_own_command_line_group_and_files(starter: Starter) -> None:
    reading, writing = os.pipe()
    process = starter.start(writing)
    os.close(writing)
    pid = starter.wait_started(process)

    wait_until(lambda: role_of(pid) == "store", what="the process shows its own command line")
    assert pid in children_of(os.getpid())
    assert os.getpgid(pid) == pid
    assert {"0", "1", "2", str(writing)} <= set(os.listdir(f"/proc/{pid}/fd"))
    assert os.readlink(f"/proc/{pid}/fd/{writing}").startswith("pipe:")
    assert process.poll() is None
    process.kill()
    assert starter.wait_end(process) == -signal.SIGKILL
    assert os.read(reading, 1) == b""  # The fork server holds no copy.
    os.close(reading)


def test_a_process_ends_when_its_channel_is_closed(starter: Starter) -> None:
    process = starter.start()
    starter.wait_started(process)
    starter.channels[0].close()

    assert starter.wait_end(process) == 1


def test_processes_start_as_programs_after_the_fork_server_was_killed(starter: Starter) -> None:
    os.kill(starter.find_fork_server(), signal.SIGKILL)
    before, after = starter.start(), starter.start()
    pids = [starter.wait_started(process) for process in (before, after)]

    wait_until(lambda: [role_of(pid) for pid in pids] == ["store", "store"], what="both run as programs")
    for process in (before, after):
        process.kill()
        assert starter.wait_end(process) == -signal.SIGKILL


def test_a_process_that_a_hanging_fork_server_does_not_start_can_be_killed(starter: Starter) -> None:
    os.kill(starter.find_fork_server(), signal.SIGSTOP)
    process = starter.start()
    process.kill()

    assert starter.wait_end(process) == -signal.SIGKILL
    assert process.pid == 0
    replacement = starter.start()
    assert starter.wait_started(replacement) > 0
    replacement.kill()
    assert starter.wait_end(replacement) == -signal.SIGKILL


def test_adopted_orphans_are_reaped_and_own_children_are_not(starter: Starter) -> None:
    process = starter.start()
    pid = starter.wait_started(process)
    code = "import os, signal; pid = os.fork(); print(pid, flush=True) if pid else signal.pause()"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        orphan = int(parent.stdout.readline())
    process.kill()
    wait_until(lambda: os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG), what="the child has ended")

    starter.starter.reap_orphans({pid})
    assert starter.wait_end(process) == -signal.SIGKILL
    os.kill(orphan, signal.SIGKILL)
    wait_until(lambda: os.waitid(os.P_PID, orphan, os.WEXITED | os.WNOWAIT | os.WNOHANG), what="the orphan has ended")
    starter.starter.reap_orphans(set())

    assert not os.path.exists(f"/proc/{orphan}")
