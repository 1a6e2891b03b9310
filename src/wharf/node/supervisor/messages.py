"""What an agent and its supervisor say to each other: framed msgpack over a Unix socket. Each thing may be said twice."""

from collections.abc import Iterator
from typing import Final, TypeAlias

import msgspec

HEAD_BYTES: Final = 4
FRAME_BYTES_MAX: Final = 4_000_000


class LogOrder(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where a program's output is kept, and how much of it."""

    folder: str
    task: str
    max_files: int = 10
    max_file_bytes: int = 10_000_000
    is_off: bool = False


class Limits(msgspec.Struct, frozen=True, omit_defaults=True):
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


class RunOrder(msgspec.Struct, frozen=True, omit_defaults=True):
    """One start of one program. The same name again starts nothing."""

    name: str
    command: tuple[str, ...]
    environment: dict[str, str]
    work_folder: str
    log: LogOrder
    limits: Limits = Limits()
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
    order: RunOrder


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


class AllTold(msgspec.Struct, frozen=True, tag="AllTold"):
    pass


FromAgent: TypeAlias = StartRun | SignalRun | KillRun | ForgetRun | ShutDown
FromSupervisor: TypeAlias = Hello | RunStarting | RunBegun | RunRefused | RunEnded | AllTold

_encoder: Final = msgspec.msgpack.Encoder()


class Riddle(Exception):
    """The other side sends what cannot be read."""


def framed(message: msgspec.Struct) -> bytes:
    body = _encoder.encode(message)
    return len(body).to_bytes(HEAD_BYTES, "big") + body


class Frames:
    """Bytes as they come, given out as whole frames."""

    def __init__(self) -> None:
        self._rest = b""

    def add(self, data: bytes) -> Iterator[bytes]:
        """Raises Riddle where a frame is larger than any can be."""
        self._rest += data
        while len(self._rest) >= HEAD_BYTES:
            size = int.from_bytes(self._rest[:HEAD_BYTES], "big")
            if size > FRAME_BYTES_MAX:
                raise Riddle(f"a frame of {size} bytes")
            if len(self._rest) < HEAD_BYTES + size:
                return
            frame, self._rest = self._rest[HEAD_BYTES : HEAD_BYTES + size], self._rest[HEAD_BYTES + size :]
            yield frame
