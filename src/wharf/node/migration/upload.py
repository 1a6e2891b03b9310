"""Answers a node that wants what an ended allocation kept here: one archive, made while it is sent."""

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final

from wharf.contract.model.refusal import Refusal, RefusalCode, invalid_request, not_found
from wharf.contract.wire.nodes import channel
from wharf.node.channel.endpoint import ChannelReply
from wharf.node.channel.files import VerbHandler
from wharf.node.migration import list_migrated_folders, pack_folders
from wharf.node.tasks.folders import AllocationFolders

MAX_PARALLEL_UPLOADS: Final = 2
CHUNK_BYTES: Final = 1 << 18
TAR_CONTENT_TYPE: Final = "application/x-tar"

EndedTasksLookup = Callable[[str], tuple[str, ...] | None]
"""The tasks of an allocation that has ended, by its id; None: it has not. Raises Refusal where it is not known."""


class MigrationUploader:
    def __init__(self, folders: AllocationFolders, tasks_of: EndedTasksLookup) -> None:
        self._folders = folders
        self._tasks_of = tasks_of
        self._packing = ThreadPoolExecutor(MAX_PARALLEL_UPLOADS, thread_name_prefix="packing")

    def handlers(self) -> dict[str, VerbHandler]:
        return {"snapshot": self._snapshot}

    async def _snapshot(self, question: channel.ChannelRequest, _: AsyncIterator[bytes]) -> ChannelReply:
        tasks = self._tasks_of(question.about)
        if tasks is None:
            raise invalid_request("the allocation has not ended: what it keeps still changes")
        root = self._folders.get_allocation_folder(question.about)
        if not any((root / folder).is_dir() for folder in list_migrated_folders(tasks)):
            raise not_found("the allocation's files are gone from its node")
        return ChannelReply(TAR_CONTENT_TYPE, chunks=self._archive(root, tasks))

    async def _archive(self, root: Path, tasks: tuple[str, ...]) -> AsyncGenerator[bytes, None]:
        loop = asyncio.get_running_loop()
        reading, writing = os.pipe2(os.O_CLOEXEC)
        packed = loop.run_in_executor(self._packing, _pack, root, tasks, writing)
        reader = asyncio.StreamReader(CHUNK_BYTES)
        transport, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(reading, "rb", 0)
        )
        try:
            while piece := await reader.read(CHUNK_BYTES):
                yield piece
            try:
                await packed
            except OSError as error:
                raise Refusal(
                    RefusalCode.UNAVAILABLE, f"what it keeps cannot be read: {error.strerror or error}"
                ) from error
        finally:
            transport.close()  # The packing ends by itself: nobody reads what it writes.
            packed.add_done_callback(_heard)


def _pack(root: Path, tasks: tuple[str, ...], writing: int) -> None:
    with open(writing, "wb") as target:
        pack_folders(root, tasks, target)


def _heard(packed: "asyncio.Future[None]") -> None:
    with suppress(OSError, asyncio.CancelledError):
        packed.result()
