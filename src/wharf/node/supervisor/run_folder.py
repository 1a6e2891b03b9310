"""What is kept of one run, in a folder of its own: enough for a supervisor that comes later to know all about it.

A run's folder is whole when the order is in it, before its program is started: who finds one knows that the start was
wanted, and by what lies in it, how far it came. `pid` is made by the shim just before the program, `outcome` at its end.
Both may be there and still empty: while a disk is full.
"""

import errno
import os
import shutil
from pathlib import Path
from typing import Final

import msgspec

from wharf.node.supervisor.messages import RunEnded, RunLogSettings
from wharf.node.supervisor.processes import Process

PIPES: Final = ("out", "err", "news", "own")
MAX_FILE_BYTES: Final = 4096
UNKNOWN_OUTCOME: Final = "unknown"
SANDBOX_FILE: Final = "walls"
SANDBOX_PENDING: Final = "making"
SANDBOX_READY: Final = "made"
LINE_BYTES: Final = 256


class StoredRun(msgspec.Struct, frozen=True):
    """What a later supervisor needs of the order. Not the environment: secrets may be in it."""

    name: str
    boot_id: str
    log: RunLogSettings


class RunFolder:
    def __init__(self, path: Path) -> None:
        self.path = path
        self._text = str(path)

    @property
    def name(self) -> str:
        return self.path.name

    def create(self, kept: StoredRun) -> None:
        """Raises OSError. Whole from the moment that the order is in it."""
        os.mkdir(self._text, 0o700)
        for pipe in PIPES:
            os.mkfifo(f"{self._text}/{pipe}", 0o600)
        self._put("order", msgspec.msgpack.encode(kept))

    def read_stored_run(self) -> StoredRun:
        """Raises OSError, and MsgspecError where it was not made wholly."""
        return msgspec.msgpack.decode((self.path / "order").read_bytes(), type=StoredRun)

    def has_started(self) -> bool:
        """Whether the program may have begun."""
        return os.path.exists(f"{self._text}/pid")

    def write_task(self, process: Process) -> None:
        self._put("task", f"{process.pid} {process.start_ticks}\n".encode())

    def read_task(self) -> Process | None:
        """As it was written down; None where it was not, or not wholly."""
        words = self._line("task")
        return Process(int(words[0]), int(words[1])) if len(words) == 2 else None

    def read_shim_pid(self) -> int | None:
        """As it says itself."""
        words = self._line("pid")
        return int(words[0]) if len(words) == 2 else None

    def read_task_pid(self) -> int | None:
        """Of the program, as its shim knows it."""
        words = self._line("pid")
        return int(words[1]) if len(words) == 2 else None

    def mark_sandbox_pending(self) -> None:
        """Raises OSError."""
        self._put(SANDBOX_FILE, SANDBOX_PENDING.ljust(LINE_BYTES).encode())

    def is_sandbox_pending(self) -> bool:
        """Whether the program is not there yet, for walls around it are still being made."""
        return self._walls() == SANDBOX_PENDING

    def is_sandbox_missing(self) -> bool:
        """Though there should be some."""
        return self._walls() not in ("", SANDBOX_READY)

    def read_sandbox_error(self) -> str:
        """Nothing where they were made, or none were to be."""
        said = self._walls()
        return "" if said in (SANDBOX_PENDING, SANDBOX_READY) else said

    def _walls(self) -> str:
        return self._read(SANDBOX_FILE).partition("\n")[0].strip()

    def read_outcome(self) -> RunEnded | None:
        """How it ended; None while nobody knows that it has."""
        text = self._read("outcome")
        return parse_outcome(self.name, text) if text else None

    def write_unknown_outcome(self) -> None:
        self._put("outcome", f"{UNKNOWN_OUTCOME}\n".encode())

    def remove(self) -> None:
        """With all that is in it."""
        try:
            for name in os.listdir(self._text):
                os.unlink(f"{self._text}/{name}")
            os.rmdir(self._text)
        except OSError:
            shutil.rmtree(self.path, ignore_errors=True)

    def _line(self, name: str) -> list[str]:
        text = self._read(name)
        return text.split() if text.endswith("\n") else []

    def _read(self, name: str) -> str:
        try:
            file = os.open(f"{self._text}/{name}", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return ""
        try:
            return os.read(file, MAX_FILE_BYTES).decode()
        finally:
            os.close(file)

    def _put(self, name: str, data: bytes) -> None:
        """In one write: nobody sees a half of so little, but where the machine itself fails, and then all is over."""
        file = os.open(f"{self._text}/{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            if os.write(file, data) < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        finally:
            os.close(file)


def parse_outcome(name: str, text: str) -> RunEnded:
    """From the shell's line about the job, and the exit code below it: `[1] + 4711 Done(3)` and `3`.

    What did not end by itself is told by the name of its signal; the code is then 128 + the signal.
    """
    lines = text.splitlines()
    if len(lines) != 2 or not lines[1].isdecimal():
        return RunEnded(name, exit_code=-1, is_known=False)
    code = int(lines[1])
    words = lines[0].split(maxsplit=3)
    if len(words) == 4 and words[3].startswith("Done"):
        return RunEnded(name, exit_code=code)
    return RunEnded(name, exit_code=code, signal=code - 128)
