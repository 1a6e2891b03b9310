"""Downloads the data of an allocation's predecessor from another node, through the servers, because nodes have no
open port.

Time, bytes and files are limited. The data become the folder of the new allocation atomically, or are deleted.
"""

import asyncio
import logging
import os
from pathlib import Path
from typing import BinaryIO, Final

from wharf.contract.client import AsyncClient, Unreachable
from wharf.contract.client.errors import get_requested_delay_s
from wharf.contract.model.refusal import Refusal, RefusalCode, RefusalReason
from wharf.contract.wire.nodes import messages
from wharf.node.credentials import NodeCredentials
from wharf.node.fair_queue import ItemOwner, QueueFull
from wharf.node.migration import InvalidMigrationArchive, TruncatedArchive, unpack_folders
from wharf.node.tasks.folders import AllocationFolders
from wharf.node.threads import ThreadGroup, run_in_owned_thread, run_in_thread
from wharf.node.unpacking.budget import CopyBudget
from wharf.world import World
from wharf.world.backoff import Backoff, draw_delay_s

log = logging.getLogger(__name__)

PREDECESSOR_POLL_S: Final = 60.0
"""How long a server may hold a request until the predecessor changes."""
MIN_RETRY_DELAY_S: Final = 1.0
"""The longest delay after a first failed attempt; it doubles with each further one."""
MAX_RETRY_DELAY_S: Final = 32.0
"""The longest delay between two attempts. Limits the load of servers and nodes that are overloaded."""
MAX_DOWNLOAD_ATTEMPTS: Final = 7
"""Attempts, over about a minute, in which a server or the other node may come back."""
MAX_DOWNLOAD_S: Final = 3_600.0
"""Time limit of a download; the allocation waits for it."""
BYTES_PER_MB: Final = 1 << 20
MAX_FILES: Final = 1_000_000
"""Limit of files in one download; protects the inodes of the node."""
TRANSIENT_CODES: Final = frozenset({RefusalCode.UNAVAILABLE, RefusalCode.NO_LEADER})
NO_NODE_PATH_TEXT: Final = "No path to node"
"""The reply of servers before 0.2, which send no reason. Recognized during an upgrade: to give up loses the data."""
"""Refusals after which another attempt may succeed."""


class MigrationError(Exception):
    """The error of predecessor data that cannot be downloaded; the text says why."""


class MigrationDownloader:
    """Downloads the data of a replaced allocation (the predecessor) from another node."""

    def __init__(
        self, world: World, client: AsyncClient, identity: NodeCredentials, folders: AllocationFolders
    ) -> None:
        self._world = world
        self._client = client
        self._identity = identity
        self._folders = folders

    async def fetch_predecessor_data(self, assignment: messages.Assignment, *, size_mb: int) -> str:
        """Wait until the predecessor has ended, then download its data into the allocation's folder.

        Return a text for the task's history; empty if there was nothing to download. Raises `MigrationError`.
        """
        assigned = assignment.allocation
        predecessor = await self._wait_for_end(assigned.previous_allocation)
        if predecessor is None:
            raise MigrationError("the allocation no longer exists")
        if predecessor.node_id == self._identity.id or self._folders.get_allocation_folder(assigned.id).exists():
            return ""  # The data are on this node, or were downloaded before a restart of the agent.
        try:
            async with asyncio.timeout(MAX_DOWNLOAD_S):
                size = await self._download_with_retries(assignment, predecessor, size_mb)
        except TimeoutError:
            raise MigrationError(f"the download took more than {MAX_DOWNLOAD_S:,.0f} s") from None
        except OSError as error:
            raise MigrationError(f"cannot write the data on this node: {error.strerror}") from error
        except QueueFull as error:
            raise MigrationError(f"too many downloads wait on the node: {error}") from error
        except InvalidMigrationArchive as error:
            raise MigrationError(f"invalid archive: {error}") from error
        finally:
            await asyncio.shield(run_in_thread(ThreadGroup.MIGRATION, self._folders.discard_incoming, assigned.id))
        return f"Downloaded the data of allocation {predecessor.id} from node {predecessor.node_id}: {size / BYTES_PER_MB:,.1f} MB"

    async def _wait_for_end(self, predecessor_id: str) -> messages.PredecessorView | None:
        """Wait until the predecessor has ended and return its state; `None` if it does not exist.

        Failed requests are repeated.
        """
        index = 0
        backoff = Backoff(self._world.random, min_s=MIN_RETRY_DELAY_S, max_s=MAX_RETRY_DELAY_S)
        while True:
            try:
                response = await self._client.node_agents.read_predecessor(
                    self._identity.id, self._identity.secret_id, predecessor_id, index=index, wait_s=PREDECESSOR_POLL_S
                )
                if response.value.is_finished_or_unknown:
                    return response.value
                index = response.index
                backoff.reset()
                continue
            except Unreachable as error:
                delay_s = backoff.next_delay_s()
                log.info("failed to read the state of a predecessor error=%s", error)
            except Refusal as refusal:
                index = 0
                if refusal.code is RefusalCode.NOT_FOUND:
                    return None
                delay_s = backoff.next_delay_s(get_requested_delay_s(refusal))
                log.info("failed to read the state of a predecessor error=%s", refusal)
            await asyncio.sleep(delay_s)

    async def _download_with_retries(
        self, assignment: messages.Assignment, predecessor: messages.PredecessorView, size_mb: int
    ) -> int:
        """Download and unpack the data, with retries. Return the size of the archive in bytes.

        Raises `MigrationError`, `InvalidMigrationArchive` and `OSError`.
        """
        id, tasks = assignment.allocation.id, list_task_names(assignment)
        owner = ItemOwner(assignment.allocation.namespace, assignment.allocation.job_id, id)
        archive = self._folders.get_incoming_archive(id)
        for attempt in range(MAX_DOWNLOAD_ATTEMPTS):
            incoming_folder = await run_in_thread(ThreadGroup.MIGRATION, self._folders.create_incoming, id, tasks)
            try:
                # The tasks may have written more than the group requested; accept it while the disk has space.
                max_bytes = max(size_mb * BYTES_PER_MB, self._folders.measure_free_bytes() // 2)
                size = await self._download_archive(predecessor, archive, max_bytes=max_bytes)
                budget, unpack = CopyBudget(max_bytes, MAX_FILES), self._unpack_and_commit
                await run_in_owned_thread(
                    ThreadGroup.MIGRATION, owner, budget.cancel, unpack, id, archive, tasks, incoming_folder, budget
                )
                return size
            except (Refusal, Unreachable, TruncatedArchive) as error:
                if attempt == MAX_DOWNLOAD_ATTEMPTS - 1 or not is_transient(error):
                    raise MigrationError(f"download from node {predecessor.node_id} failed: {error}") from error
                requested_s = get_requested_delay_s(error)
            await asyncio.sleep(
                draw_delay_s(
                    self._world.random,
                    attempt + 1,
                    min_s=MIN_RETRY_DELAY_S,
                    max_s=MAX_RETRY_DELAY_S,
                    requested_s=requested_s,
                )
            )
        raise AssertionError("unreachable: the last attempt returns or raises")

    async def _download_archive(self, predecessor: messages.PredecessorView, archive: Path, *, max_bytes: int) -> int:
        """Download the archive to a file and return its size in bytes.

        Raises `MigrationError` if it is larger than `max_bytes`, and `Refusal`, `Unreachable` and `OSError`.
        """
        size = 0
        with open_archive_file(archive) as file:
            async for chunk in self._client.files.snapshot(predecessor.id, migrate_token=predecessor.migrate_token):
                size += len(chunk)
                if size > max_bytes:
                    raise MigrationError(f"the data are larger than {max_bytes:,} bytes")
                await run_in_thread(ThreadGroup.MIGRATION, file.write, chunk)
        return size

    def _unpack_and_commit(
        self, id: str, archive: Path, tasks: tuple[str, ...], incoming_folder: Path, budget: CopyBudget
    ) -> None:
        """Unpack the archive, sync it to the disk, and make the result the allocation's folder."""
        unpack_folders(archive, tasks, incoming_folder, budget)
        budget.require_needed()
        archive.unlink()
        os.sync()  # The journal will record that the data are here, so they must survive a power cut.
        self._folders.commit_incoming(id)


def is_transient(error: Refusal | Unreachable | TruncatedArchive) -> bool:
    """Return whether another attempt to download may succeed after this error."""
    return (
        isinstance(error, (Unreachable, TruncatedArchive))
        or error.code in TRANSIENT_CODES
        or error.reason is RefusalReason.NO_NODE_PATH
        or (error.code is RefusalCode.NOT_FOUND and error.text == NO_NODE_PATH_TEXT)
    )


def open_archive_file(archive: Path) -> BinaryIO:
    """Create or truncate the file for the archive and return it, open for writing. Raises `OSError`."""
    return os.fdopen(os.open(archive, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb")


def list_task_names(assignment: messages.Assignment) -> tuple[str, ...]:
    """Return the names of the tasks of the allocation's group."""
    group = assignment.job.find_group(assignment.allocation.task_group) if assignment.job is not None else None
    return tuple(task.name for task in (group.tasks if group is not None else None) or ())
