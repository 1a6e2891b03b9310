"""Watches files and passes the text of a changed file to a callback, which interprets it.

Files are checked by path, so that a replaced file or a changed link is noticed like a write. A file that disappears is
reported, and the last version stays in use.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from wharf.limits.toml.problems import InvalidFile
from wharf.world import World
from wharf.world.tasks import cancel_tasks

log = logging.getLogger(__name__)

POLL_INTERVAL_S: Final = 0.5
"""How soon a change is noticed."""

Stamp = tuple[int, int, int]
"""Inode, modification time in nanoseconds, and size of a file. It changes whenever the file does."""


def read_stamp(path: Path) -> Stamp | None:
    """Return inode, modification time and size of a file, or `None` if they cannot be read."""
    try:
        status = path.stat()
    except OSError:
        return None
    return (status.st_ino, status.st_mtime_ns, status.st_size)


class WatchedFile:
    """A watched file. `apply` receives its new text; it raises `InvalidFile` if it rejects the text.

    `purpose` is the name of the file in the log, such as `rules`. `others` are files that belong to it, such as the key of a
    certificate: a change of one of them counts as a change of the file.
    """

    def __init__(
        self,
        path: Path,
        purpose: str,
        apply: Callable[[str], Awaitable[None]],
        *,
        others: tuple[Path, ...] = (),
    ) -> None:
        self.path: Final = path
        self._paths: Final = (path, *others)
        self.purpose: Final = purpose
        self.problem = ""
        """What is wrong with the current file; empty if it is in use."""
        self._apply = apply
        self._last_stamp = self._read_stamps()
        self._is_missing = False
        """Whether the last check did not find the file."""

    def _read_stamps(self) -> tuple[Stamp, ...] | None:
        """Return the stamps of the file and of those that belong to it, or `None` if one cannot be read."""
        stamps = [stamp for path in self._paths if (stamp := read_stamp(path)) is not None]
        return tuple(stamps) if len(stamps) == len(self._paths) else None

    async def check(self, *, is_forced: bool = False) -> bool:
        """Apply the file if it changed, or in any case if `is_forced`. Return whether it was applied.

        If it cannot be read or is rejected, `problem` is set to the reason and a warning is logged.
        """
        stamp = self._read_stamps()
        was_missing, self._is_missing = self._is_missing, stamp is None
        if stamp is None and not is_forced and not was_missing:
            return False  # Editors replace a file in two steps: report it if the next check does not find it either.
        if stamp == self._last_stamp and not is_forced:
            return False
        self._last_stamp = stamp
        try:
            await self._apply(self.path.read_text("utf-8"))
        except InvalidFile as error:
            self.problem = str(error)
        except FileNotFoundError:
            self.problem = f"{self.path} does not exist any more: the limiter cannot start again without it; restore it"
        except (OSError, UnicodeDecodeError) as problem:
            self.problem = f"{self.path} cannot be read: {problem}"
        else:
            self.problem = ""
            log.info("file loaded purpose=%s path=%s", self.purpose, self.path)
            return True
        log.warning(
            "file rejected, previous version stays in use purpose=%s path=%s error=%s",
            self.purpose,
            self.path,
            self.problem,
        )
        return False


class FileWatcher:
    """Checks files periodically, and applies those that changed."""

    def __init__(self, world: World, files: list[WatchedFile]) -> None:
        self.files: Final = files
        self._world = world
        self._task: asyncio.Task[None] | None = None

    def add(self, file: WatchedFile) -> None:
        """Check one more file from now on."""
        self.files.append(file)

    def open(self) -> None:
        self._task = self._world.start_task(self._keep_polling(), name="limits: watch files")

    async def close(self) -> None:
        """Stop checking."""
        if self._task is not None:
            await cancel_tasks(self._task)
            self._task = None

    async def reload_all(self) -> None:
        """Read all files again, changed or not, at the request of an operator."""
        for file in self.files:
            await file.check(is_forced=True)

    async def _keep_polling(self) -> None:
        """Check all files every `POLL_INTERVAL_S` seconds, until the task is cancelled."""
        while True:
            await asyncio.sleep(POLL_INTERVAL_S)
            for file in self.files:
                await file.check()
