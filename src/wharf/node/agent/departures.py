"""Answers a node that wants what an ended allocation kept here: one archive, made while it is sent."""

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final

from wharf.model.refusal import Code, Refusal, invalid, unknown
from wharf.node.agent.asked import Answer
from wharf.node.agent.channel import Reply
from wharf.node.agent.folders import AllocationFolders
from wharf.node.migrating import kept_folders, pack
from wharf.wire import channel

AT_ONCE: Final = 2
PIECE_BYTES: Final = 1 << 18
TAR: Final = "application/x-tar"

TasksOf = Callable[[str], tuple[str, ...] | None]
"""The tasks of an allocation that has ended, by its id; None: it has not. Raises Refusal where it is not known."""


class Departures:
    def __init__(self, folders: AllocationFolders, tasks_of: TasksOf) -> None:
        self._folders = folders
        self._tasks_of = tasks_of
        self._packing = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="packing")

    def answers(self) -> dict[str, Answer]:
        return {"snapshot": self._snapshot}

    async def _snapshot(self, question: channel.Ask, _: AsyncIterator[bytes]) -> Reply:
        tasks = self._tasks_of(question.about)
        if tasks is None:
            raise invalid("the allocation has not ended: what it keeps still changes")
        root = self._folders.of(question.about)
        if not any((root / folder).is_dir() for folder in kept_folders(tasks)):
            raise unknown("the allocation's files are gone from its node")
        return Reply(TAR, parts=self._archive(root, tasks))

    async def _archive(self, root: Path, tasks: tuple[str, ...]) -> AsyncGenerator[bytes, None]:
        loop = asyncio.get_running_loop()
        reading, writing = os.pipe2(os.O_CLOEXEC)
        packed = loop.run_in_executor(self._packing, _pack, root, tasks, writing)
        reader = asyncio.StreamReader(PIECE_BYTES)
        transport, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(reading, "rb", 0)
        )
        try:
            while piece := await reader.read(PIECE_BYTES):
                yield piece
            try:
                await packed
            except OSError as error:
                raise Refusal(Code.UNAVAILABLE, f"what it keeps cannot be read: {error.strerror or error}") from error
        finally:
            transport.close()  # The packing ends by itself: nobody reads what it writes.
            packed.add_done_callback(_heard)


def _pack(root: Path, tasks: tuple[str, ...], writing: int) -> None:
    with open(writing, "wb") as target:
        pack(root, tasks, target)


def _heard(packed: "asyncio.Future[None]") -> None:
    with suppress(OSError, asyncio.CancelledError):
        packed.result()
