"""Real supervisors for tests: started as the agent starts them, spoken to over their socket, ended by process id."""

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
from wharf.node.supervisor.messages import (
    MAX_FRAME_BYTES,
    AllRunsSent,
    ForgetRun,
    FromSupervisor,
    Hello,
    RunBegun,
    RunEnded,
    RunLimits,
    RunLogSettings,
    RunRequest,
    RunStarting,
    StartRun,
)
from wharf.node.supervisor.process_tracker import build_mark
from wharf.node.supervisor.processes import find_marked_processes
from wharf.node.supervisor.task_supervisor import RUNS_FOLDER, SOCKET_FILE
from wharf.world.framing import FrameDecoder, encode_frame
from wharf.world.unix_sockets import shorten_socket_path

_decoder: Final = msgspec.msgpack.Decoder(FromSupervisor)
PATH: Final = "/usr/local/bin:/usr/bin:/bin"


class ASupervisor:
    """The supervisor of one folder, with one connection at a time."""

    def __init__(self, folder: Path, *, way: str = "auto") -> None:
        self.folder = folder
        self.node = f"test-{os.getpid()}"
        self.logs = folder / "logs"
        self._way = way
        self._connection: socket.socket | None = None
        self._frames = FrameDecoder(MAX_FRAME_BYTES)
        self._told: dict[str, list[FromSupervisor]] = {}
        self.names: list[str] = []
        self.pid = 0
        self.finds_by = ""
        self.bounds: tuple[str, ...] = ()

    def begin(self) -> None:
        """Start it, if there is none, and listen to it."""
        words = [sys.executable, "-m", "wharf.node.supervisor", str(self.folder), self.node, self._way]
        with open(self.folder / "said.txt", "ab") as said:
            subprocess.run(words, stdin=subprocess.DEVNULL, stdout=said, stderr=said, check=True, cwd=self.folder)
        self.connect()

    def connect(self) -> None:
        self._hang_up()
        self._frames, self._told = FrameDecoder(MAX_FRAME_BYTES), {}
        self._connection = wait_until(self._try_to_connect, what="the supervisor listens")
        wait_until(self._has_heard_all, what="all runs are told")

    def _has_heard_all(self) -> bool:
        self._hear()
        return "" in self._told

    def _try_to_connect(self) -> socket.socket | None:
        connection = socket.socket(socket.AF_UNIX)
        try:
            with shorten_socket_path(self.folder / SOCKET_FILE) as path:
                connection.connect(path)
        except OSError:
            connection.close()
            return None
        return connection

    def _hear(self) -> None:
        assert self._connection is not None
        while select.select([self._connection], [], [], 0)[0]:
            data = self._connection.recv(65_536)
            if not data:
                return
            for frame in self._frames.feed(data):
                message = _decoder.decode(frame)
                match message:
                    case Hello(pid, finds_by, bounds):
                        self.pid, self.finds_by, self.bounds = pid, finds_by, bounds
                    case AllRunsSent():
                        self._told.setdefault("", [])
                    case _:
                        self._told.setdefault(message.name, []).append(message)

    def say(self, message: msgspec.Struct) -> None:
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
        self.names.append(name)
        order = RunRequest(
            name,
            tuple(command),
            {"PATH": PATH} | (environment or {}),
            work_folder=str(self.folder),
            log=log or RunLogSettings(str(self.logs), name),
            limits=limits or RunLimits(),
        )
        self.say(StartRun(order))

    def shell(self, name: str, script: str, **options: object) -> None:
        self.start(name, ("/bin/sh", "-c", script), **options)  # type: ignore[arg-type]  # handed through

    def told(self, name: str) -> list[FromSupervisor]:
        """All that was told of a run since the connection was made."""
        self._hear()
        return [message for message in self._told.get(name, []) if not isinstance(message, RunStarting)]

    def begun(self, name: str) -> int:
        """Wait until it has begun; the process id of its program."""
        found = wait_until(
            lambda: [message for message in self.told(name) if isinstance(message, RunBegun)], what=f"{name} begins"
        )
        return found[0].pid

    def ended(self, name: str, *, within_s: float = WITHIN_S) -> RunEnded:
        found = wait_until(
            lambda: [message for message in self.told(name) if isinstance(message, RunEnded)],
            what=f"{name} ends",
            within_s=within_s,
        )
        return found[0]

    def forget(self, name: str) -> None:
        self.say(ForgetRun(name))

    def output(self, name: str, stream: str = "stdout") -> str:
        files = sorted(self.logs.glob(f"{name}.{stream}.*"), key=lambda file: int(file.suffix[1:]))
        return "".join(file.read_text() for file in files)

    def shim(self, name: str) -> int:
        """The process id of the run's shim."""
        file = self.folder / RUNS_FOLDER / name / "pid"
        wait_until(lambda: file.exists() and file.read_text(), what="the shim has written its number down")
        return int(file.read_text().split()[0])

    def kill(self) -> None:
        """As by `kill -9`, and wait until it is gone."""
        os.kill(self.pid, signal.SIGKILL)
        wait_until(lambda: not is_alive(self.pid), what="the supervisor is dead")
        self._hang_up()

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def left(self) -> list[int]:
        """Processes that carry the mark of a run of ours."""
        marks = frozenset(map(build_mark, self.names))
        return [pid for pid, _ in find_marked_processes(marks) if is_alive(pid)]

    def end(self) -> None:
        self._hang_up()
        with suppress(ProcessLookupError):
            if self.pid:
                os.kill(self.pid, signal.SIGKILL)
        for pid in self.left():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not self.left() and not is_alive(self.pid), what="nothing of the test is left")
        remove_groups_of(self.node)


@contextmanager
def a_supervisor(folder: Path, *, way: str = "auto") -> Iterator[ASupervisor]:
    supervisor = ASupervisor(folder, way=way)
    try:
        supervisor.begin()
        yield supervisor
    finally:
        supervisor.end()
