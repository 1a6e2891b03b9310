"""What is kept of one run, in a folder of its own: enough for a supervisor that comes later to know all about it.

A run's folder appears whole, before its program is started: who finds one knows that the start was wanted, and by what
lies in it, how far it came. `begun` is made by the shim just before the program, `pid` and `outcome` by it too; `outcome`
is put there in one piece.
"""

import contextlib
import os
import shutil
from pathlib import Path
from typing import Final

import msgspec

from wharf.node.supervisor.messages import LogOrder, RunEnded
from wharf.node.supervisor.processes import Process

PIPES: Final = ("out", "err", "news", "end")
UNKNOWN: Final = "unknown"


class Kept(msgspec.Struct, frozen=True):
    """What a later supervisor needs of the order. Not the environment: secrets may be in it."""

    name: str
    boot_id: str
    log: LogOrder


class RunFolder:
    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def name(self) -> str:
        return self.path.name

    def make(self, kept: Kept) -> None:
        draft = self.path.with_name(f".{self.name}")
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(mode=0o700)
        for pipe in PIPES:
            os.mkfifo(draft / pipe, 0o600)
        (draft / "order").write_bytes(msgspec.msgpack.encode(kept))
        draft.rename(self.path)

    def kept(self) -> Kept:
        return msgspec.msgpack.decode((self.path / "order").read_bytes(), type=Kept)

    def has_begun(self) -> bool:
        return (self.path / "begun").exists()

    def note_shim(self, process: Process) -> None:
        self._put("shim", f"{process.pid} {process.start_ticks}\n")

    def shim(self) -> Process | None:
        return self._process("shim")

    def note_task(self, process: Process) -> None:
        self._put("task", f"{process.pid} {process.start_ticks}\n")

    def task(self) -> Process | None:
        return self._process("task")

    def pid(self) -> int | None:
        """Of the program, as its shim knows it."""
        text = self._read("pid")
        return int(text) if text.endswith("\n") else None

    def outcome(self) -> RunEnded | None:
        """How it ended; None while nobody knows that it has."""
        text = self._read("outcome")
        return read_outcome(self.name, text) if text else None

    def note_unknown(self) -> None:
        self._put("outcome", f"{UNKNOWN}\n")

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)

    def _process(self, name: str) -> Process | None:
        words = self._read(name).split()
        return Process(int(words[0]), int(words[1])) if len(words) == 2 else None

    def _read(self, name: str) -> str:
        with contextlib.suppress(OSError):
            return (self.path / name).read_text()
        return ""

    def _put(self, name: str, text: str) -> None:
        draft = self.path / f"{name}.draft"
        draft.write_text(text)
        draft.rename(self.path / name)


def read_outcome(name: str, text: str) -> RunEnded:
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
