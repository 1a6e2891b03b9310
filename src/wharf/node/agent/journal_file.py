"""Where the node's journal lies: bytes that are appended, made sure of, or replaced as a whole. It knows no entries."""

import asyncio
import contextlib
import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Protocol

from wharf.node.kept_file import sync_names

DAMAGED: Final = ".damaged"


class JournalFile(Protocol):
    """All but `close` raise OSError."""

    size: int

    def read(self) -> bytes:
        """All of it; nothing where there is none yet."""
        ...

    def append(self, data: bytes) -> None:
        """All of it or nothing. Afterwards it outlives this process, and not yet the machine."""
        ...

    def sync(self) -> asyncio.Future[None]:
        """Done when all that was appended until now is on the disk."""
        ...

    def replace(self, parts: Sequence[bytes]) -> None:
        """These stand in place of all that was, on the disk, or nothing has changed."""
        ...

    def keep_damaged(self, data: bytes) -> None:
        """Put aside what could not be read."""
        ...

    def close(self) -> None: ...


class FileOnDisk:
    """The real one."""

    def __init__(self, path: Path) -> None:
        self.size = 0
        self._path = path
        self._file = -1

    def read(self) -> bytes:
        try:
            return self._path.read_bytes()
        except FileNotFoundError:
            return b""

    def append(self, data: bytes) -> None:
        written = os.write(self._file, data)
        if written < len(data):  # A full disk: what was written in part must not stand before what comes next.
            os.ftruncate(self._file, self.size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.size += len(data)

    def sync(self) -> asyncio.Future[None]:
        # A descriptor of its own: the file may be replaced meanwhile.
        return asyncio.get_running_loop().run_in_executor(None, _sync, os.dup(self._file))

    def replace(self, parts: Sequence[bytes]) -> None:
        draft = self._path.with_suffix(".new")
        file = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(os.dup(file), "wb") as writing:
                writing.writelines(parts)
            os.fdatasync(file)
            draft.rename(self._path)
            sync_names(self._path.parent)
        except OSError:
            os.close(file)
            with contextlib.suppress(OSError):
                draft.unlink()
            raise
        self.close()
        self._file = file
        self.size = sum(map(len, parts))

    def keep_damaged(self, data: bytes) -> None:
        self._path.with_suffix(DAMAGED).write_bytes(data)

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _sync(file: int) -> None:
    try:
        os.fdatasync(file)
    finally:
        os.close(file)
