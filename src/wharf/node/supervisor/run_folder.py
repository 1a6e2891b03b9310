"""The folder of one run, from which a later supervisor can restore everything it needs.

The folder is complete when the file `order` is in it, and only then the program is started. `order.copy` has the same
content, because a damaged `order` must not cost a task its output. The shim writes `pid` just before it starts the program,
and `outcome` at the program's end. While the disk is full, both files can exist and be empty.
"""

import errno
import os
import shutil
from pathlib import Path
from typing import Final

import msgspec

from wharf.node.processes import Process
from wharf.node.supervisor.messages import RunEnded, RunLogSettings

PIPES: Final = ("out", "err", "news", "own")
"""Output, errors, notifications of the shim, and the shim's own pipe."""
REQUEST_FILE: Final = "order"
REQUEST_COPY_FILE: Final = "order.copy"
MAX_FILE_BYTES: Final = 4096
UNKNOWN_OUTCOME: Final = "unknown"
SANDBOX_FILE: Final = "walls"
"""Written by the launch script: the state of the sandbox, or why it cannot be set up."""
SANDBOX_PENDING: Final = "making"
SANDBOX_READY: Final = "made"
MAX_NUMBER_DIGITS: Final = 19
"""A process id or start time with more digits is damaged."""
LINE_BYTES: Final = 256
"""The state is padded to this length, so that the launch script can overwrite it in place on a full disk."""


class StoredRun(msgspec.Struct, frozen=True):
    """The part of a run's request that a later supervisor needs.

    The environment is not stored, because it may hold secrets.
    """

    name: str  # of the run
    boot_id: str  # the boot of the machine in which it was started
    log: RunLogSettings


class RunFolder:
    """The folder of one run (one start of a task): reads and writes its files."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._path_text = str(path)

    @property
    def name(self) -> str:
        return self.path.name

    def create(self, stored_run: StoredRun) -> None:
        """Create the folder with its pipes, and store the run's request last. Raises OSError.

        So a folder with the file `order` is complete.
        """
        os.mkdir(self._path_text, 0o700)
        for pipe in PIPES:
            os.mkfifo(f"{self._path_text}/{pipe}", 0o600)
        data = msgspec.msgpack.encode(stored_run)
        self._write(REQUEST_COPY_FILE, data)
        self._write(REQUEST_FILE, data)

    def read_stored_run(self) -> StoredRun:
        """Return the stored request, from its copy if the file is missing or damaged.

        Raises OSError, and MsgspecError if both are damaged.
        """
        try:
            return self._read_stored_run(REQUEST_FILE)
        except (OSError, ValueError):
            return self._read_stored_run(REQUEST_COPY_FILE)

    def _read_stored_run(self, file: str) -> StoredRun:
        """Return the request that is stored in one of the two files. Raises OSError and MsgspecError."""
        stored_run = msgspec.msgpack.decode((self.path / file).read_bytes(), type=StoredRun)
        if stored_run.name != self.name:
            raise msgspec.ValidationError(f"the file is about the run {stored_run.name}")
        return stored_run

    def describe_run(self, boot_id: str) -> StoredRun:
        """Return the request of a run of this boot whose files are damaged: its output goes to the run's folder."""
        return StoredRun(self.name, boot_id, RunLogSettings(self._path_text, "output", max_files=1))

    def restore_pipes(self) -> list[str]:
        """Create the pipes that are missing or were replaced by files. Return their names. Raises OSError."""
        missing_pipes = [pipe for pipe in PIPES if not (self.path / pipe).is_fifo()]
        for pipe in missing_pipes:
            (self.path / pipe).unlink(missing_ok=True)
            os.mkfifo(f"{self._path_text}/{pipe}", 0o600)
        return missing_pipes

    def has_started(self) -> bool:
        """Return whether the program may have started: the shim writes the file `pid` just before."""
        return os.path.exists(f"{self._path_text}/pid")

    def write_task(self, process: Process) -> None:
        """Store the identity of the program's process. Raises OSError."""
        self._write("task", f"{process.pid} {process.start_ticks}\n".encode())

    def read_task(self) -> Process | None:
        """Return the stored process of the program; None if it is missing or incomplete."""
        words = self._read_words("task")
        return Process(int(words[0]), int(words[1])) if len(words) == 2 else None

    def read_shim_pid(self) -> int | None:
        """Return the shim's process id; None if the shim has not written it."""
        words = self._read_words("pid")
        return int(words[0]) if len(words) == 2 else None

    def read_task_pid(self) -> int | None:
        """Return the program's process id; None if the shim has not written it."""
        words = self._read_words("pid")
        return int(words[1]) if len(words) == 2 else None

    def mark_sandbox_pending(self) -> None:
        """Record that the sandbox of the run is not ready yet. Raises OSError."""
        self._write(SANDBOX_FILE, SANDBOX_PENDING.ljust(LINE_BYTES).encode())

    def is_sandbox_pending(self) -> bool:
        """Return whether the sandbox is still being set up, so that the program has not started."""
        return self._read_sandbox_state() == SANDBOX_PENDING

    def is_sandbox_missing(self) -> bool:
        """Return whether a sandbox was requested and is not ready: it is being set up, or that failed."""
        return self._read_sandbox_state() not in ("", SANDBOX_READY)

    def read_sandbox_error(self) -> str:
        """Return why the sandbox could not be set up; empty if there is no error or no sandbox."""
        sandbox_state = self._read_sandbox_state()
        return "" if sandbox_state in (SANDBOX_PENDING, SANDBOX_READY) else sandbox_state

    def _read_sandbox_state(self) -> str:
        """Return the state of the sandbox: pending, ready or an error text; empty if no sandbox was requested."""
        return self._read(SANDBOX_FILE).partition("\n")[0].strip()

    def read_outcome(self) -> RunEnded | None:
        """Return the recorded end of the program; None if no end is recorded."""
        text = self._read("outcome")
        return parse_outcome(self.name, text) if text else None

    def write_unknown_outcome(self) -> None:
        """Record that the program has ended and its exit code is lost. Raises OSError."""
        self._write("outcome", f"{UNKNOWN_OUTCOME}\n".encode())

    def remove(self) -> None:
        """Delete the folder with its content. Errors are ignored."""
        try:
            for name in os.listdir(self._path_text):
                os.unlink(f"{self._path_text}/{name}")
            os.rmdir(self._path_text)
        except OSError:
            shutil.rmtree(self.path, ignore_errors=True)

    def _read_words(self, name: str) -> list[str]:
        """Return the numbers in the single line of a file; empty if the line is incomplete or damaged, or the file is
        missing.
        """
        text = self._read(name)
        words = text.split() if text.endswith("\n") else []
        return words if all(word.isdecimal() and len(word) <= MAX_NUMBER_DIGITS for word in words) else []

    def _read(self, name: str) -> str:
        """Return the text of a file, up to MAX_FILE_BYTES; empty if it cannot be read."""
        try:
            file = os.open(f"{self._path_text}/{name}", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return ""
        try:
            return os.read(file, MAX_FILE_BYTES).decode(errors="replace")
        except OSError:  # Something has replaced the file by a folder.
            return ""
        finally:
            os.close(file)

    def _write(self, name: str, data: bytes) -> None:
        """Write a file with one system call, so that readers never see a part of it.

        Raises OSError, also if the disk is full.
        """
        file = os.open(f"{self._path_text}/{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            if os.write(file, data) < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        finally:
            os.close(file)


def parse_outcome(name: str, text: str) -> RunEnded:
    """Return the outcome of the run `name` from the text that the shim's shell wrote.

    The text has the shell's job status and the exit code in the second line, such as `[1] + 4711 Done(3)` and `3`. If a
    signal killed the program, the status has the signal's name and the code is 128 + signal number. Any other text
    gives an unknown outcome.
    """
    lines = text.splitlines()
    if len(lines) != 2 or not lines[1].isdecimal():
        return RunEnded(name, exit_code=-1, is_known=False)
    code = int(lines[1])
    words = lines[0].split(maxsplit=3)
    if len(words) == 4 and words[3].startswith("Done"):
        return RunEnded(name, exit_code=code)
    return RunEnded(name, exit_code=code, signal=code - 128)
