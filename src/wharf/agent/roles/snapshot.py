"""The snapshot process: saves one scheduled snapshot, deletes surplus ones, and ends."""

import contextlib
import logging
from pathlib import Path

from wharf.agent.engine import build_engine
from wharf.agent.errors import CommandError, StartupError
from wharf.agent.process_context import ProcessContext
from wharf.agent.snapshots import commands, schedule
from wharf.cluster.engines.port import LogUnavailable

log = logging.getLogger(__name__)


async def run(context: ProcessContext) -> None:
    """Save a snapshot and delete surplus ones. Raises `StartupError`."""
    settings = context.order.settings
    folder = schedule.get_snapshot_folder(settings, Path(context.order.data_folder))
    engine = build_engine(context.order.settings, context.world)
    path = folder / schedule.build_snapshot_name(context.world.now_ns())
    try:
        await engine.open()
        try:
            facts = await commands.save_snapshot(engine, path, world=context.world)
        finally:
            await engine.close()
    except (LogUnavailable, CommandError) as error:
        raise StartupError(str(error)) from error
    removed = schedule.select_surplus(schedule.list_scheduled_snapshots(folder), keep_count=settings.snapshots.keep)
    for old in removed:
        with contextlib.suppress(FileNotFoundError):
            old.unlink()
    log.info(
        "snapshot saved",
        extra={
            "file": str(path),
            "bytes": facts.size_bytes,
            "index": facts.trailer.standing.index,
            "removed": len(removed),
        },
    )
