"""Real task supervisors for tests, started as the agent starts them and controlled through their socket."""

import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec

from tests.agent.processes import is_alive
from tests.control_groups import remove_groups_of
from tests.waiting import WITHIN_S, wait_until
from wharf.node.processes import find_marked_processes
from wharf.node.supervisor.messages import (
    MAX_FRAME_BYTES,
    AllRunsSent,
    ForgetRun,
    FromSupervisor,
    Hello,
    Pong,
    RunBegun,
    RunEnded,
    RunLimits,
    RunLogSettings,
    RunRequest,
    RunStarting,
    StartRun,
)
from wharf.node.supervisor.process_tracker import build_mark
from wharf.node.supervisor.task_supervisor import RUNS_FOLDER, SOCKET_FILE
from wharf.world.framing import FrameDecoder, encode_frame
from wharf.world.unix_sockets import shorten_socket_path

_decoder: Final = msgspec.msgpack.Decoder(FromSupervisor)
PATH: Final = "/usr/local/bin:/usr/bin:/bin"


class SupervisorProcess:
    """The supervisor of one folder, with one connection at a time."""

    def __init__(self, folder: Path, *, tracking_method: str = "auto", max_folder_absence_s: str = "20") -> None:
        self.folder = folder
        self.node = f"test-{os.getpid()}"
        self.logs = folder / "logs"
        self._tracking_method = tracking_method
        self._max_folder_absence_s = max_folder_absence_s
        self._connection: socket.socket | None = None
        self._frames = FrameDecoder(MAX_FRAME_BYTES)
        self._messages: dict[str, list[FromSupervisor]] = {}
        self.names: list[str] = []
        self.pid = 0
        self.tracking_method = ""
        self.limits: tuple[str, ...] = ()

    def launch(self) -> None:
        """Start the supervisor, unless it runs, and connect to it."""
        command = [sys.executable, "-m", "wharf.node.supervisor", str(self.folder), self.node]
        command += [self._tracking_method, self._max_folder_absence_s]
        with open(self.folder / "supervisor.log", "ab") as output:
            subprocess.run(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, check=True, cwd=self.folder)
        self.connect()

    def connect(self) -> None:
        self._disconnect()
        self._frames, self._messages = FrameDecoder(MAX_FRAME_BYTES), {}
        self._connection = wait_until(self._try_to_connect, what="the supervisor listens")
        wait_until(self._has_received_all_runs, what="the supervisor has reported all runs")

    def _has_received_all_runs(self) -> bool:
        self._receive()
        return "" in self._messages

    def _try_to_connect(self) -> socket.socket | None:
        connection = socket.socket(socket.AF_UNIX)
        try:
            with shorten_socket_path(self.folder / SOCKET_FILE) as path:
                connection.connect(path)
        except OSError:
            connection.close()
            return None
        return connection

    def _receive(self) -> None:
        """Read all messages that have arrived, and store them by the name of their run."""
        assert self._connection is not None
        while select.select([self._connection], [], [], 0)[0]:
            data = self._connection.recv(65_536)
            if not data:
                return
            for frame in self._frames.feed(data):
                message = _decoder.decode(frame)
                match message:
                    case Hello(pid, tracking_method, enforced_limits):
                        self.pid, self.tracking_method, self.limits = pid, tracking_method, enforced_limits
                    case AllRunsSent() | Pong():
                        self._messages.setdefault("", [])
                    case _:
                        self._messages.setdefault(message.name, []).append(message)

    def send(self, message: msgspec.Struct) -> None:
        assert self._connection is not None
        self._connection.sendall(encode_frame(message))

    def start(
        self,
        name: str,
        command: Sequence[str],
        *,
        environment: dict[str, str] | None = None,
        log: RunLogSettings | None = None,
        limits: RunLimits | None = None,
    ) -> None:
        """Request the start of a program."""
        self.names.append(name)
        request = RunRequest(
            name,
            tuple(command),
            {"PATH": PATH} | (environment or {}),
            work_folder=str(self.folder),
            log=log or RunLogSettings(str(self.logs), name),
            limits=limits or RunLimits(),
        )
        self.send(StartRun(request))

    def start_script(self, name: str, script: str, **options: object) -> None:
        self.start(name, ("/bin/sh", "-c", script), **options)  # type: ignore[arg-type]  # options of `start`

    def list_messages(self, name: str) -> list[FromSupervisor]:
        """Return the messages about a run since the connection was opened."""
        self._receive()
        return [message for message in self._messages.get(name, []) if not isinstance(message, RunStarting)]

    def wait_begun(self, name: str) -> int:
        """Wait until the run has begun, and return the process id of its program."""
        found = wait_until(
            lambda: [message for message in self.list_messages(name) if isinstance(message, RunBegun)],
            what=f"{name} begins",
        )
        return found[0].pid

    def wait_ended(self, name: str, *, within_s: float = WITHIN_S) -> RunEnded:
        found = wait_until(
            lambda: [message for message in self.list_messages(name) if isinstance(message, RunEnded)],
            what=f"{name} ends",
            within_s=within_s,
        )
        return found[0]

    def forget(self, name: str) -> None:
        self.send(ForgetRun(name))

    def output(self, name: str, stream: str = "stdout") -> str:
        files = sorted(self.logs.glob(f"{name}.{stream}.*"), key=lambda file: int(file.suffix[1:]))
        return "".join(file.read_text() for file in files)

    def read_shim_pid(self, name: str) -> int:
        """Return the process id of the run's shim."""
        file = self.folder / RUNS_FOLDER / name / "pid"
        wait_until(lambda: file.exists() and file.read_text(), what="the shim has written its process id")
        return int(file.read_text().split()[0])

    def kill(self) -> None:
        """Kill the supervisor with SIGKILL and wait for its end."""
        os.kill(self.pid, signal.SIGKILL)
        wait_until(lambda: not is_alive(self.pid), what="the supervisor is dead")
        self._disconnect()

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def list_processes(self) -> list[int]:
        """Return the ids of processes with the mark of a run of this supervisor."""
        marks = frozenset(map(build_mark, self.names))
        return [pid for pid, _ in find_marked_processes(marks) if is_alive(pid)]

    def stop(self) -> None:
        """Kill the supervisor and all processes of its runs."""
        self._disconnect()
        with suppress(ProcessLookupError):
            if self.pid:
                os.kill(self.pid, signal.SIGKILL)
        for pid in self.list_processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        wait_until(
            lambda: not self.list_processes() and not is_alive(self.pid), what="all processes of the test are gone"
        )
        remove_groups_of(self.node)


@contextmanager
def running_supervisor(
    folder: Path, *, tracking_method: str = "auto", max_folder_absence_s: str = "20"
) -> Iterator[SupervisorProcess]:
    supervisor = SupervisorProcess(folder, tracking_method=tracking_method, max_folder_absence_s=max_folder_absence_s)
    try:
        supervisor.launch()
        yield supervisor
    finally:
        supervisor.stop()
