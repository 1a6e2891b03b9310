"""Sends the data of an ended allocation to the node of its replacement, as an archive that is packed while it is
sent.
"""

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final

from wharf.contract.model.refusal import Refusal, RefusalCode, invalid_request, not_found
from wharf.contract.wire.nodes import channel
from wharf.node.channel.endpoint import ChannelReply, VerbHandler
from wharf.node.confined_folder import ConfinedFolder, ConfinedPathError
from wharf.node.migration import list_migrated_folders, pack_folders
from wharf.node.tasks.folders import AllocationFolders
from wharf.world.pipes import connect_reading_end

MAX_PARALLEL_UPLOADS: Final = 2
"""Limit of uploads at a time; protects the disk of the node."""
CHUNK_BYTES: Final = 1 << 18
"""Bytes sent at a time."""
TAR_CONTENT_TYPE: Final = "application/x-tar"

EndedTasksLookup = Callable[[str], tuple[str, ...] | None]
"""Returns the tasks of an ended allocation; `None` if it has not ended. Raises `Refusal` if it is unknown."""


class MigrationUploader:
    """Handles requests of other nodes for the data of ended allocations."""

    def __init__(self, folders: AllocationFolders, find_ended_tasks: EndedTasksLookup) -> None:
        self._folders = folders
        self._find_ended_tasks = find_ended_tasks
        self._packing_threads = ThreadPoolExecutor(MAX_PARALLEL_UPLOADS, thread_name_prefix="packing")

    def handlers(self) -> dict[str, VerbHandler]:
        """Return the handler of requests for migration archives, by verb of the node channel."""
        return {"snapshot": self._snapshot}

    async def _snapshot(self, request: channel.ChannelRequest, _: AsyncIterator[bytes]) -> ChannelReply:
        """Return a reply that streams the archive of an ended allocation.

        Raises `Refusal` if the allocation is unknown, has not ended, or has no files.
        """
        tasks = self._find_ended_tasks(request.about)
        if tasks is None:
            raise invalid_request("the allocation has not ended, so its data may still change")
        root = self._folders.get_allocation_folder(request.about)
        if not any(has_folder(root, folder) for folder in list_migrated_folders(tasks)):
            raise not_found("the allocation's files are gone from its node")
        return ChannelReply(TAR_CONTENT_TYPE, chunks=self._stream_archive(root, tasks))

    async def _stream_archive(self, root: Path, tasks: tuple[str, ...]) -> AsyncGenerator[bytes, None]:
        """Yield the archive of the allocation's folder `root`, while a thread packs it into a pipe."""
        loop = asyncio.get_running_loop()
        read_end, write_end = os.pipe2(os.O_CLOEXEC)
        packing = loop.run_in_executor(self._packing_threads, _pack, root, tasks, write_end)
        reader = asyncio.StreamReader(CHUNK_BYTES)
        transport, _ = await connect_reading_end(lambda: asyncio.StreamReaderProtocol(reader), read_end)
        try:
            while chunk := await reader.read(CHUNK_BYTES):
                yield chunk
            try:
                await packing
            except OSError as error:
                raise Refusal(RefusalCode.UNAVAILABLE, f"failed to read the data: {error.strerror or error}") from error
        finally:
            transport.close()  # The thread then fails to write and ends.
            packing.add_done_callback(_consume_result)


def has_folder(root: Path, path: str) -> bool:
    """Return whether the folder `path` exists below `root`; a link is not one. Raises `OSError`."""
    try:
        with ConfinedFolder(root).open_folder(path):
            return True
    except (ConfinedPathError, FileNotFoundError):
        return False


def _pack(root: Path, tasks: tuple[str, ...], write_end: int) -> None:
    """Write the archive of `root` to the pipe `write_end`, then close the pipe. Blocks, so it is run in a thread."""
    with open(write_end, "wb") as target:
        pack_folders(root, tasks, target)


def _consume_result(packing: "asyncio.Future[None]") -> None:
    """Retrieve the result of the thread, so that asyncio does not log it as never retrieved."""
    with suppress(OSError, asyncio.CancelledError):
        packing.result()
