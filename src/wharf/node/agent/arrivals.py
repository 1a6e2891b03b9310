"""Fetches what an allocation kept on another node: through servers, since a node has no open port.

Bounded in time, bytes and files. What has come becomes the new allocation's folder in one moment, or is thrown away.
"""

import asyncio
import logging
import os
from pathlib import Path
from typing import BinaryIO, Final

from wharf.client import AsyncClient, Unreachable
from wharf.model.refusal import Code, Refusal
from wharf.node.agent.folders import AllocationFolders
from wharf.node.agent.servers import NodeIdentity
from wharf.node.artifacts.archives import Budget
from wharf.node.migrating import BrokenOff, NotWhole, unpack
from wharf.wire import shapes

log = logging.getLogger(__name__)

WAIT_S: Final = 60.0
AGAIN_S: Final = 1.0
TRIES: Final = 7
"""How often data are asked for that cannot be had just now, over a minute: who gives them, or passes them on, may be about
to come back."""
WHOLE_S: Final = 3_600.0
MB: Final = 1 << 20
FILES_MAX: Final = 1_000_000
PASSING: Final = frozenset({Code.UNAVAILABLE, Code.NO_LEADER})
NO_PATH: Final = "No path to node"
"""What servers say of a node that keeps no channel open just now."""


class NotArrived(Exception):
    """Why there is nothing."""


class Arrivals:
    def __init__(self, client: AsyncClient, identity: NodeIdentity, folders: AllocationFolders) -> None:
        self._client = client
        self._identity = identity
        self._folders = folders

    async def fetch(self, order: shapes.DesiredAllocation, *, size_mb: int) -> str:
        """Wait for the former allocation's end, and have what it kept. What is to be said of it; empty: nothing.

        Raises NotArrived.
        """
        wanted = order.allocation
        former = await self._ended(wanted.previous_allocation)
        if former is None:
            raise NotArrived("servers know it no more")
        if former.node_id == self._identity.id or self._folders.of(wanted.id).exists():
            return ""  # What is here changes hands here; or it came before this agent was killed.
        try:
            async with asyncio.timeout(WHOLE_S):
                size = await self._have(order, former, size_mb)
        except TimeoutError:
            raise NotArrived(f"they have not come within {WHOLE_S:,.0f} s") from None
        except OSError as error:
            raise NotArrived(f"they cannot be written here: {error.strerror}") from error
        except NotWhole as error:
            raise NotArrived(f"what came is not whole: {error}") from error
        finally:
            await asyncio.shield(asyncio.to_thread(self._folders.drop_arrival, wanted.id))
        return f"The data of allocation {former.id} came from node {former.node_id}: {size / MB:,.1f} MB"

    async def _ended(self, former_id: str) -> shapes.FormerAllocation | None:
        """As soon as nobody waits for it any more. None: there is no such allocation."""
        index = 0
        while True:
            try:
                told = await self._client.node_agents.former(
                    self._identity.id, self._identity.secret_id, former_id, index=index, wait_s=WAIT_S
                )
                if told.value.is_out_of_the_way:
                    return told.value
                index = told.index
                continue
            except Unreachable as error:
                log.info("no server tells whether a former allocation has ended: %s", error)
            except Refusal as refusal:
                index = 0
                if refusal.code is Code.UNKNOWN:
                    return None
                log.info("no server tells whether a former allocation has ended: %s", refusal)
            await asyncio.sleep(AGAIN_S)

    async def _have(self, order: shapes.DesiredAllocation, former: shapes.FormerAllocation, size_mb: int) -> int:
        """Raises NotArrived, NotWhole, OSError."""
        id, tasks = order.allocation.id, tasks_of(order)
        # More than its share of the disk may have been written, and is not thrown away while there is room.
        budget = Budget(max(size_mb * MB, self._folders.free_bytes() // 2), FILES_MAX)
        archive = self._folders.archive_of_arrival(id)
        for again in range(TRIES):
            place = await asyncio.to_thread(self._folders.begin_arrival, id, tasks)
            try:
                size = await self._load(former, archive, max_bytes=max(size_mb * MB, self._folders.free_bytes() // 2))
                await asyncio.to_thread(self._settle, id, archive, tasks, place, budget)
                return size
            except (Refusal, Unreachable, BrokenOff) as error:
                if again == TRIES - 1 or not is_passing(error):
                    raise NotArrived(f"node {former.node_id} does not give them: {error}") from error
            await asyncio.sleep(AGAIN_S * 2**again)
        raise AssertionError("the last try answers or raises")

    async def _load(self, former: shapes.FormerAllocation, archive: Path, *, max_bytes: int) -> int:
        size = 0
        with archive_file(archive) as file:
            async for piece in self._client.files.snapshot(former.id, migrate_token=former.migrate_token):
                size += len(piece)
                if size > max_bytes:
                    raise NotArrived(f"they are more than {max_bytes:,} bytes")
                await asyncio.to_thread(file.write, piece)
        return size

    def _settle(self, id: str, archive: Path, tasks: tuple[str, ...], place: Path, budget: Budget) -> None:
        unpack(archive, tasks, place, budget)
        archive.unlink()
        os.sync()  # The journal will say that it is here: after a power cut it must be.
        self._folders.end_arrival(id)


def is_passing(error: Refusal | Unreachable | BrokenOff) -> bool:
    return isinstance(error, (Unreachable, BrokenOff)) or error.code in PASSING or error.text == NO_PATH


def archive_file(archive: Path) -> BinaryIO:
    return os.fdopen(os.open(archive, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb")


def tasks_of(order: shapes.DesiredAllocation) -> tuple[str, ...]:
    group = order.job.group(order.allocation.task_group) if order.job is not None else None
    return tuple(task.name for task in (group.tasks if group is not None else None) or ())
