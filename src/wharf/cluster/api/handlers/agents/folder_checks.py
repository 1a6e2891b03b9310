"""Checks of folders in threads, at most one of each folder at a time. A hung disk then occupies one thread, not one for each
request."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")


class _RunningCheck(NamedTuple):
    """A check that runs in a thread. A thread that waits for a disk cannot be ended."""

    check: Callable[[Path], Any]  # Each check has its own result type.
    future: asyncio.Future[Any]


class FolderChecks:
    """The checks of folders that one process runs."""

    def __init__(self) -> None:
        self._running: dict[Path, _RunningCheck] = {}
        """By folder. Callers check only folders of the configuration, so there are few."""

    async def run(self, check: Callable[[Path], T], folder: Path) -> T:
        """Return the result of the check, or raise its exception.

        The caller shares the same check if it runs already, and waits for another check of the same folder. It sets the
        timeout: if the caller is canceled, the check continues.
        """
        while (running := self._running.get(folder)) is not None and running.check is not check:
            await asyncio.wait((running.future,))
        if running is None:
            future = asyncio.get_running_loop().run_in_executor(None, check, folder)
            running = self._running[folder] = _RunningCheck(check, future)
            future.add_done_callback(lambda ended: self._remove(folder, ended))
        await asyncio.wait((running.future,))
        result: T = running.future.result()
        return result

    def _remove(self, folder: Path, ended: asyncio.Future[Any]) -> None:
        """Allow the next check of the folder."""
        del self._running[folder]
        if not ended.cancelled():
            ended.exception()  # Nobody may wait any more: without this, asyncio would log the exception.
