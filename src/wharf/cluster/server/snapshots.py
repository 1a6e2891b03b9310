"""Saves and restores the whole state.

The records of the leader, members and known servers are left out: they describe the servers of one cluster, some contain
secrets, and they would never expire in a restored log. A restore takes two steps: `snapshot_check` reads the whole snapshot and
writes what will be restored to a new file, then the log is replaced by that file.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from pathlib import Path
from typing import Final

from wharf import __version__
from wharf.cluster.engines.election import LEADER_TABLE, MEMBERS_TABLE
from wharf.cluster.engines.port import Load, LogEngine, LogPosition, StoredRecord
from wharf.cluster.engines.snapshot_file import SnapshotInfo, SnapshotUnusable, restore_verified, save_snapshot
from wharf.cluster.state.tables import KNOWN_SERVERS
from wharf.world import World

OMITTED_TABLES: Final = frozenset((LEADER_TABLE, MEMBERS_TABLE, KNOWN_SERVERS.name))
"""Tables that are not part of a snapshot."""

KEYRING_REQUIREMENT: Final = "the key of its cluster's keyring (keyring.key) to decrypt tokens, variables and logins"


class SnapshotFailed(Exception):
    """A snapshot cannot be saved or restored. The message says why."""


async def save_state(engine: LogEngine, path: Path, *, world: World) -> SnapshotInfo:
    """Write the current state to a new file. Raises `SnapshotFailed`, or `LogUnavailable` of the engine."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        program = f"wharf {__version__}"
        return await save_snapshot(
            _SnapshotEngine(engine), path, world=world, program=program, needs=[KEYRING_REQUIREMENT]
        )
    except OSError as error:
        raise SnapshotFailed(f"cannot create folder {path.parent}: {error.strerror}") from error
    except SnapshotUnusable as error:
        raise SnapshotFailed(str(error)) from error


async def restore_state(engine: LogEngine, checked: Path, info: SnapshotInfo) -> int:
    """Replace the content of the log by a snapshot that `check_snapshot` wrote, and return the new log index.

    Raises `SnapshotFailed`, or `LogUnavailable` of the engine.
    """
    try:
        return await restore_verified(engine, checked, info)
    except SnapshotUnusable as error:
        raise SnapshotFailed(str(error)) from error


class _SnapshotEngine:
    """A log engine without the leader and member records, which snapshots do not contain."""

    def __init__(self, engine: LogEngine) -> None:
        self._engine = engine

    def load(self) -> "_SnapshotLoad":
        return _SnapshotLoad(self._engine.load())


class _SnapshotLoad:
    """A load of the whole state without the leader and member records."""

    def __init__(self, load: Load) -> None:
        self._load = load

    def iter_slices(self) -> AsyncIterator[Sequence[StoredRecord]]:
        return _without_leased(self._load.iter_slices())

    async def get_position(self) -> LogPosition:
        return await self._load.get_position()


async def _without_leased(
    slices: AsyncIterator[Sequence[StoredRecord]],
) -> AsyncGenerator[Sequence[StoredRecord], None]:
    """Yield the records without the leader and member records."""
    async for rows in slices:
        yield [row for row in rows if row.table not in OMITTED_TABLES]
