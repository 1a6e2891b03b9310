"""Saves, inspects and restores snapshots for commands and scheduled snapshots, with or without a running agent.

The content of snapshots is decided in `wharf.cluster.server.snapshots`.
"""

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

from wharf.agent.cluster_marker import accept_restored_cluster
from wharf.agent.engine import build_command_engine
from wharf.agent.errors import CommandError
from wharf.agent.snapshots import schedule
from wharf.agent.snapshots.transfer import UNKNOWN_RESTORE_ADVICE, UNKNOWN_RESTORE_TEXT
from wharf.cluster.engines.port import LogEngine, LogUnavailable, RestoreOutcomeUnknown
from wharf.cluster.engines.snapshot_file import UNLIMITED, SnapshotInfo, SnapshotLimits, SnapshotUnusable
from wharf.cluster.server import snapshots as saving
from wharf.cluster.server.snapshot_archive import SnapshotArchiveReader
from wharf.cluster.server.snapshot_check import check_snapshot
from wharf.cluster.server.snapshots import SnapshotFailed
from wharf.config.settings import AgentSettings
from wharf.world import RealWorld, World

__all__ = [
    "SnapshotInfo",
    "get_snapshot_path",
    "inspect_snapshot_file",
    "restore_snapshot",
    "run_restore_command",
    "run_save_command",
    "save_snapshot",
]


async def save_snapshot(engine: LogEngine, path: Path, *, world: World) -> SnapshotInfo:
    """Save the state to `path` and return facts about the snapshot. Raises `CommandError`."""
    try:
        return await saving.save_state(engine, path, world=world)
    except (SnapshotFailed, LogUnavailable) as error:
        raise CommandError(str(error)) from error


def inspect_snapshot_file(path: Path) -> SnapshotInfo:
    """Read and check the whole archive or snapshot file, and return facts about it. Raises `CommandError`."""
    try:
        return SnapshotArchiveReader(path, UNLIMITED, name=str(path)).read_info()
    except SnapshotUnusable as error:
        raise CommandError(str(error)) from error


async def restore_snapshot(engine: LogEngine, path: Path, limits: SnapshotLimits) -> int:
    """Replace the content of the engine's log and return the new log index.

    All records are read and checked before anything is replaced. Raises `CommandError`.
    """
    try:
        with tempfile.TemporaryDirectory(prefix="wharf-snapshot-") as folder:
            checked = Path(folder) / "checked.bin"
            info = await asyncio.to_thread(check_snapshot, path, checked, limits, name=str(path))
            return await saving.restore_state(engine, checked, info)
    except RestoreOutcomeUnknown as error:
        raise CommandError(f"{UNKNOWN_RESTORE_TEXT} ({error}); {UNKNOWN_RESTORE_ADVICE}") from error
    except (SnapshotFailed, LogUnavailable, OSError) as error:
        raise CommandError(str(error)) from error


def get_snapshot_path(file: Path | None, *, world: World, can_replace: bool = False) -> Path:
    """Return the path to write a snapshot to.

    Raises `CommandError` if the file exists or its folder does not. Folders are not created, so that a misspelt path is
    noticed.
    """
    path = file or Path(schedule.build_snapshot_name(world.now_ns()))
    if not path.parent.is_dir():
        raise CommandError(f"there is no folder {path.parent}: make it first")
    if path.exists() and not can_replace:
        raise CommandError(f"{path} exists already: choose another name, or replace it with --force")
    return path


async def run_save_command(settings: AgentSettings, path: Path) -> SnapshotInfo:
    """Save a snapshot with or without a running agent. Raises `CommandError`."""
    world = RealWorld()
    async with _open_engine(settings, world, can_create=False) as engine:
        return await save_snapshot(engine, path, world=world)


async def run_restore_command(settings: AgentSettings, file: Path) -> int:
    """Restore a snapshot with or without a running agent, and return the new log index. Raises `CommandError`."""
    async with _open_engine(settings, RealWorld(), can_create=True) as engine:
        index = await restore_snapshot(engine, file, SnapshotLimits(settings.snapshots.max_size.bytes))
    accept_restored_cluster(settings)
    return index


@contextlib.asynccontextmanager
async def _open_engine(settings: AgentSettings, world: World, *, can_create: bool) -> AsyncIterator[LogEngine]:
    """Yield the open log engine of a command, and close it at the end of the block.

    Raises `CommandError` if it cannot be opened.
    """
    engine = build_command_engine(settings, world, can_create=can_create)
    try:
        await engine.open()
    except LogUnavailable as error:
        raise CommandError(str(error)) from error
    try:
        yield engine
    finally:
        await engine.close()
