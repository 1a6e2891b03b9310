"""Saving, inspecting and restoring snapshots beside a running agent or without one, for commands and for the agent itself.

What goes into a snapshot and what must not come out of one is known to `wharf.server.saving`.
"""

import contextlib
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from wharf.agent import snapshots
from wharf.agent.log_access import engine_for_command
from wharf.agent.refusal import Refused
from wharf.config.settings import Settings
from wharf.engines.port import Engine, Unavailable
from wharf.engines.snapshot import SnapshotFacts, SnapshotRefused, inspect_snapshot
from wharf.server import saving
from wharf.server.saving import SavingRefused
from wharf.server.snapshot_archive import ArchiveRefused, is_archive, unpack
from wharf.world import RealWorld, World

__all__ = ["SnapshotFacts", "file_to_save", "inspect", "restore", "restore_by_command", "save", "save_by_command"]


async def save(engine: Engine, path: Path, *, world: World) -> SnapshotFacts:
    """Raises Refused."""
    try:
        return await saving.save(engine, path, world=world)
    except (SavingRefused, Unavailable) as error:
        raise Refused(str(error)) from error


def inspect(path: Path) -> SnapshotFacts:
    """Read the whole file and check it. Raises Refused."""
    try:
        with _snapshot_in(path) as file:
            return inspect_snapshot(file)
    except SnapshotRefused as error:
        raise Refused(str(error)) from error


async def restore(engine: Engine, path: Path) -> int:
    """Replace all that the engine's log holds, and answer the index where it stands then.

    Every record is read before anything is replaced. Raises Refused.
    """
    try:
        with _snapshot_in(path) as file:
            return await saving.restore(engine, file)
    except (SavingRefused, Unavailable) as error:
        raise Refused(str(error)) from error


@contextlib.contextmanager
def _snapshot_in(path: Path) -> Iterator[Path]:
    """The file itself, or what an archive that was saved over HTTP holds."""
    if not is_archive(path):
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="wharf-snapshot-") as folder:
        file = Path(folder) / path.name
        try:
            unpack(path, file)
        except ArchiveRefused as error:
            raise Refused(f"the snapshot {path} cannot be used: {error}") from error
        yield file


def file_to_save(file: Path | None, *, world: World, may_replace: bool = False) -> Path:
    """Where a snapshot may be written. It makes no folder, for a misspelt path would go unseen. Raises Refused."""
    path = file or Path(snapshots.name_at(world.now_ns()))
    if not path.parent.is_dir():
        raise Refused(f"there is no folder {path.parent}: make it first")
    if path.exists() and not may_replace:
        raise Refused(f"{path} is there already: choose another name, or replace it with --force")
    return path


async def save_by_command(settings: Settings, path: Path) -> SnapshotFacts:
    """Beside a running agent or without one. Raises Refused."""
    world = RealWorld()
    async with _opened(settings, world, may_be_new=False) as engine:
        return await save(engine, path, world=world)


async def restore_by_command(settings: Settings, file: Path) -> int:
    """Raises Refused."""
    async with _opened(settings, RealWorld(), may_be_new=True) as engine:
        return await restore(engine, file)


@contextlib.asynccontextmanager
async def _opened(settings: Settings, world: World, *, may_be_new: bool) -> AsyncIterator[Engine]:
    engine = engine_for_command(settings, world, may_be_new=may_be_new)
    try:
        await engine.open()
    except Unavailable as error:
        raise Refused(str(error)) from error
    try:
        yield engine
    finally:
        await engine.close()
