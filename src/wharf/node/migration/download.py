"""Fetches what an allocation kept on another node: through servers, since a node has no open port.

Bounded in time, bytes and files. What has come becomes the new allocation's folder in one moment, or is thrown away.
"""

import asyncio
import logging
import os
from pathlib import Path
from typing import BinaryIO, Final

from wharf.contract.client import AsyncClient, Unreachable
from wharf.contract.model.refusal import Refusal, RefusalCode
from wharf.contract.wire.nodes import messages
from wharf.node.agent.servers.session import NodeCredentials
from wharf.node.artifacts.archives import UnpackBudget
from wharf.node.migration import InvalidArchive, TruncatedArchive, unpack_folders
from wharf.node.tasks.folders import AllocationFolders

log = logging.getLogger(__name__)

PREDECESSOR_POLL_S: Final = 60.0
RETRY_DELAY_S: Final = 1.0
MAX_DOWNLOAD_ATTEMPTS: Final = 7
"""How often data are asked for that cannot be had just now, over a minute: who gives them, or passes them on, may be about
to come back."""
MAX_DOWNLOAD_S: Final = 3_600.0
BYTES_PER_MB: Final = 1 << 20
MAX_FILES: Final = 1_000_000
TRANSIENT_CODES: Final = frozenset({RefusalCode.UNAVAILABLE, RefusalCode.NO_LEADER})
NO_PATH_TEXT: Final = "No path to node"
"""What servers say of a node that keeps no channel open just now."""


class MigrationError(Exception):
    """Why there is nothing."""


class MigrationDownloader:
    def __init__(self, client: AsyncClient, identity: NodeCredentials, folders: AllocationFolders) -> None:
        self._client = client
        self._identity = identity
        self._folders = folders

    async def fetch_predecessor_data(self, order: messages.Assignment, *, size_mb: int) -> str:
        """Wait for the former allocation's end, and have what it kept. What is to be said of it; empty: nothing.

        Raises NotArrived.
        """
        wanted = order.allocation
        former = await self._ended(wanted.previous_allocation)
        if former is None:
            raise MigrationError("servers know it no more")
        if former.node_id == self._identity.id or self._folders.get_allocation_folder(wanted.id).exists():
            return ""  # What is here changes hands here; or it came before this agent was killed.
        try:
            async with asyncio.timeout(MAX_DOWNLOAD_S):
                size = await self._have(order, former, size_mb)
        except TimeoutError:
            raise MigrationError(f"they have not come within {MAX_DOWNLOAD_S:,.0f} s") from None
        except OSError as error:
            raise MigrationError(f"they cannot be written here: {error.strerror}") from error
        except InvalidArchive as error:
            raise MigrationError(f"what came is not whole: {error}") from error
        finally:
            await asyncio.shield(asyncio.to_thread(self._folders.discard_incoming, wanted.id))
        return f"The data of allocation {former.id} came from node {former.node_id}: {size / BYTES_PER_MB:,.1f} MB"

    async def _ended(self, former_id: str) -> messages.PredecessorView | None:
        """As soon as nobody waits for it any more. None: there is no such allocation."""
        index = 0
        while True:
            try:
                told = await self._client.node_agents.read_predecessor(
                    self._identity.id, self._identity.secret_id, former_id, index=index, wait_s=PREDECESSOR_POLL_S
                )
                if told.value.is_finished_or_unknown:
                    return told.value
                index = told.index
                continue
            except Unreachable as error:
                log.info("no server tells whether a former allocation has ended: %s", error)
            except Refusal as refusal:
                index = 0
                if refusal.code is RefusalCode.NOT_FOUND:
                    return None
                log.info("no server tells whether a former allocation has ended: %s", refusal)
            await asyncio.sleep(RETRY_DELAY_S)

    async def _have(self, order: messages.Assignment, former: messages.PredecessorView, size_mb: int) -> int:
        """Raises MigrationError, InvalidArchive, OSError."""
        id, tasks = order.allocation.id, list_task_names(order)
        # More than its share of the disk may have been written, and is not thrown away while there is room.
        budget = UnpackBudget(max(size_mb * BYTES_PER_MB, self._folders.measure_free_bytes() // 2), MAX_FILES)
        archive = self._folders.get_incoming_archive(id)
        for again in range(MAX_DOWNLOAD_ATTEMPTS):
            place = await asyncio.to_thread(self._folders.create_incoming, id, tasks)
            try:
                size = await self._load(
                    former, archive, max_bytes=max(size_mb * BYTES_PER_MB, self._folders.measure_free_bytes() // 2)
                )
                await asyncio.to_thread(self._settle, id, archive, tasks, place, budget)
                return size
            except (Refusal, Unreachable, TruncatedArchive) as error:
                if again == MAX_DOWNLOAD_ATTEMPTS - 1 or not is_transient(error):
                    raise MigrationError(f"node {former.node_id} does not give them: {error}") from error
            await asyncio.sleep(RETRY_DELAY_S * 2**again)
        raise AssertionError("the last try answers or raises")

    async def _load(self, former: messages.PredecessorView, archive: Path, *, max_bytes: int) -> int:
        size = 0
        with open_archive_file(archive) as file:
            async for piece in self._client.files.snapshot(former.id, migrate_token=former.migrate_token):
                size += len(piece)
                if size > max_bytes:
                    raise MigrationError(f"they are more than {max_bytes:,} bytes")
                await asyncio.to_thread(file.write, piece)
        return size

    def _settle(self, id: str, archive: Path, tasks: tuple[str, ...], place: Path, budget: UnpackBudget) -> None:
        unpack_folders(archive, tasks, place, budget)
        archive.unlink()
        os.sync()  # The journal will say that it is here: after a power cut it must be.
        self._folders.commit_incoming(id)


def is_transient(error: Refusal | Unreachable | TruncatedArchive) -> bool:
    return (
        isinstance(error, (Unreachable, TruncatedArchive))
        or error.code in TRANSIENT_CODES
        or error.text == NO_PATH_TEXT
    )


def open_archive_file(archive: Path) -> BinaryIO:
    return os.fdopen(os.open(archive, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb")


def list_task_names(order: messages.Assignment) -> tuple[str, ...]:
    group = order.job.find_group(order.allocation.task_group) if order.job is not None else None
    return tuple(task.name for task in (group.tasks if group is not None else None) or ())
