"""Files that are watched: what changed is told once, with its text. Reading what it means is for whoever asked.

Files are looked at by name, so that one that is replaced, or a link that leads elsewhere, is seen like one that is
written to. A file that goes away changes nothing.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from wharf.limits.toml.problems import InvalidFile
from wharf.world import World

log = logging.getLogger(__name__)

POLL_INTERVAL_S: Final = 0.5

Stamp = tuple[int, int, int]


def read_stamp(path: Path) -> Stamp | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return (found.st_ino, found.st_mtime_ns, found.st_size)


class WatchedFile:
    """`take` is given the new text. It raises FileRefused for what cannot be used, and then changes nothing."""

    def __init__(self, path: Path, purpose: str, apply: Callable[[str], Awaitable[None]]) -> None:
        self.path: Final = path
        self.purpose: Final = purpose
        self.problem = ""
        """What is wrong with the file as it stands; empty while it is in force."""
        self._take = apply
        self._seen = read_stamp(path)

    async def check(self, *, is_forced: bool = False) -> bool:
        """Take the file if it changed. Whether it was taken."""
        stamp = read_stamp(self.path)
        if stamp is None or (stamp == self._seen and not is_forced):
            return False
        self._seen = stamp
        try:
            await self._take(self.path.read_text("utf-8"))
        except InvalidFile as refused:
            self.problem = str(refused)
        except (OSError, UnicodeDecodeError) as problem:
            self.problem = f"{self.path} cannot be read: {problem}"
        else:
            self.problem = ""
            log.info("%s was read and is in force: the %s", self.path, self.purpose)
            return True
        log.warning("%s is not used; what was in force before goes on:\n%s", self.path, self.problem)
        return False


class FileWatcher:
    def __init__(self, world: World, files: list[WatchedFile]) -> None:
        self.files: Final = files
        self._world = world
        self._task: asyncio.Task[None] | None = None

    def open(self) -> None:
        self._task = self._world.start_task(self._keep_looking(), name="limits: watch files")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def reload_all(self) -> None:
        """Read all of them again, changed or not: an operator asked for it."""
        for file in self.files:
            await file.check(is_forced=True)

    async def _keep_looking(self) -> None:
        while True:
            await asyncio.sleep(POLL_INTERVAL_S)
            for file in self.files:
                await file.check()
