"""Saving, inspecting and restoring snapshots beside a running agent or without one, for commands and for the agent itself.

What goes into a snapshot and what must not come out of one is known to `wharf.cluster.server.snapshots`.
"""

import contextlib
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from wharf.agent.engine import build_command_engine
from wharf.agent.errors import CommandError
from wharf.agent.snapshots import schedule
from wharf.cluster.engines.port import LogEngine, LogUnavailable
from wharf.cluster.engines.snapshot_file import SnapshotInfo, SnapshotUnusable, inspect_snapshot
from wharf.cluster.server import snapshots as saving
from wharf.cluster.server.snapshots import InvalidArchive, SnapshotFailed, is_archive, unpack_archive
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
    """Raises CommandError."""
    try:
        return await saving.save_state(engine, path, world=world)
    except (SnapshotFailed, LogUnavailable) as error:
        raise CommandError(str(error)) from error


def inspect_snapshot_file(path: Path) -> SnapshotInfo:
    """Read the whole file and check it. Raises CommandError."""
    try:
        with _snapshot_in(path) as file:
            return inspect_snapshot(file)
    except SnapshotUnusable as error:
        raise CommandError(str(error)) from error


async def restore_snapshot(engine: LogEngine, path: Path) -> int:
    """Replace all that the engine's log holds, and answer the index where it stands then.

    Every record is read before anything is replaced. Raises Refused.
    """
    try:
        with _snapshot_in(path) as file:
            return await saving.restore_state(engine, file)
    except (SnapshotFailed, LogUnavailable) as error:
        raise CommandError(str(error)) from error


@contextlib.contextmanager
def _snapshot_in(path: Path) -> Iterator[Path]:
    """The file itself, or what an archive that was saved over HTTP holds."""
    if not is_archive(path):
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="wharf-snapshot-") as folder:
        file = Path(folder) / path.name
        try:
            unpack_archive(path, file)
        except InvalidArchive as error:
            raise CommandError(f"the snapshot {path} cannot be used: {error}") from error
        yield file


def get_snapshot_path(file: Path | None, *, world: World, can_replace: bool = False) -> Path:
    """Where a snapshot may be written. It makes no folder, for a misspelt path would go unseen. Raises CommandError."""
    path = file or Path(schedule.build_snapshot_name(world.now_ns()))
    if not path.parent.is_dir():
        raise CommandError(f"there is no folder {path.parent}: make it first")
    if path.exists() and not can_replace:
        raise CommandError(f"{path} is there already: choose another name, or replace it with --force")
    return path


async def run_save_command(settings: AgentSettings, path: Path) -> SnapshotInfo:
    """Beside a running agent or without one. Raises CommandError."""
    world = RealWorld()
    async with _opened(settings, world, may_be_new=False) as engine:
        return await save_snapshot(engine, path, world=world)


async def run_restore_command(settings: AgentSettings, file: Path) -> int:
    """Raises CommandError."""
    async with _opened(settings, RealWorld(), may_be_new=True) as engine:
        return await restore_snapshot(engine, file)


@contextlib.asynccontextmanager
async def _opened(settings: AgentSettings, world: World, *, may_be_new: bool) -> AsyncIterator[LogEngine]:
    engine = build_command_engine(settings, world, can_create=may_be_new)
    try:
        await engine.open()
    except LogUnavailable as error:
        raise CommandError(str(error)) from error
    try:
        yield engine
    finally:
        await engine.close()
