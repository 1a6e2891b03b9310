"""What an agent and its supervisor say to each other: framed msgpack over a Unix socket. Each thing may be said twice."""

from collections.abc import Iterator
from typing import Final, TypeAlias

import msgspec

HEADER_BYTES: Final = 4
MAX_FRAME_BYTES: Final = 4_000_000


class RunLogSettings(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where a program's output is kept, and how much of it."""

    folder: str
    task: str
    max_files: int = 10
    max_file_bytes: int = 10_000_000
    is_off: bool = False


class RunLimits(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a program may use at most, where the machine lets us say so. 0: no bound."""

    memory_mb: int = 0
    cpu_shares: int = 0
    """Against other programs, when all want more than there is."""
    oom_score: int = 0
    """How soon the kernel takes it when the machine's memory is out."""
    processes: int = 0
    """With threads, at one time."""
    cores: str = ""
    """Those that it runs on, as ranges; empty: any."""


class RunRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """One start of one program. The same name again starts nothing."""

    name: str
    command: tuple[str, ...]
    environment: dict[str, str]
    work_folder: str
    log: RunLogSettings
    limits: RunLimits = RunLimits()
    network: str = ""
    """The file of the network namespace that it is in; empty: the machine's."""
    leads_itself: bool = False
    """The command becomes a session's leader and another user by its own means. The task's environment is among its papers
    then, and `environment` is that of the programs in between."""
    has_own_pids: bool = False
    """It is the first process of a namespace, whose others end with it."""
    has_walls: bool = False
    """The command makes walls around itself before it becomes the program, and says so in the file `walls` of its run."""
    papers: tuple[str, ...] = ()
    """Texts that the program finds as files at its descriptors 6, 7, and so on."""


class StartRun(msgspec.Struct, frozen=True, tag="StartRun"):
    order: RunRequest


class SignalRun(msgspec.Struct, frozen=True, tag="SignalRun"):
    """To the whole group of the program's process."""

    name: str
    signal: int


class KillRun(msgspec.Struct, frozen=True, tag="KillRun"):
    """The program with all that it started."""

    name: str


class ForgetRun(msgspec.Struct, frozen=True, tag="ForgetRun"):
    """The agent has written down how it ended."""

    name: str


class ShutDown(msgspec.Struct, frozen=True, tag="ShutDown"):
    """End, once nothing runs."""


class Hello(msgspec.Struct, frozen=True, tag="Hello"):
    """The first word. After it every run is told, and then `AllTold`."""

    pid: int
    finds_by: str
    """How it finds what a program started and left behind: `cgroup`, or `mark` (in the environment)."""
    limits: tuple[str, ...] = ()
    """What it can put bounds on: `cpu`, `memory`."""


class RunBegun(msgspec.Struct, frozen=True, tag="RunBegun"):
    name: str
    pid: int


class RunRefused(msgspec.Struct, frozen=True, tag="RunRefused"):
    """It was not started and will not be."""

    name: str
    why: str


class RunEnded(msgspec.Struct, frozen=True, tag="RunEnded"):
    name: str
    exit_code: int = 0
    signal: int = 0
    is_known: bool = True
    is_out_of_memory: bool = False


class RunStarting(msgspec.Struct, frozen=True, tag="RunStarting"):
    name: str


class AllRunsSent(msgspec.Struct, frozen=True, tag="AllTold"):
    pass


FromAgent: TypeAlias = StartRun | SignalRun | KillRun | ForgetRun | ShutDown
FromSupervisor: TypeAlias = Hello | RunStarting | RunBegun | RunRefused | RunEnded | AllRunsSent

_encoder: Final = msgspec.msgpack.Encoder()


class UndecodableMessage(Exception):
    """The other side sends what cannot be read."""


def encode_frame(message: msgspec.Struct) -> bytes:
    body = _encoder.encode(message)
    return len(body).to_bytes(HEADER_BYTES, "big") + body


class MessageReader:
    """Bytes as they come, given out as whole frames."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Raises UndecodableMessage where a frame is larger than any can be."""
        self._rest += data
        while len(self._rest) >= HEADER_BYTES:
            size = int.from_bytes(self._rest[:HEADER_BYTES], "big")
            if size > MAX_FRAME_BYTES:
                raise UndecodableMessage(f"a frame of {size} bytes")
            if len(self._rest) < HEADER_BYTES + size:
                return
            frame, self._rest = self._rest[HEADER_BYTES : HEADER_BYTES + size], self._rest[HEADER_BYTES + size :]
            yield frame
