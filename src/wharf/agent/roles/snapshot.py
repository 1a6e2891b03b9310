"""A process that saves one snapshot, removes those that are too many, and ends."""

import contextlib
import logging
from pathlib import Path

from wharf.agent.engine import build_engine
from wharf.agent.errors import CommandError, StartupError
from wharf.agent.process_context import ProcessContext
from wharf.agent.snapshots import commands, schedule
from wharf.cluster.engines.port import LogUnavailable

log = logging.getLogger(__name__)


async def run(life: ProcessContext) -> None:
    settings = life.order.settings
    folder = schedule.get_snapshot_folder(settings, Path(life.order.data_folder))
    engine = build_engine(life.order.settings, life.world)
    path = folder / schedule.build_snapshot_name(life.world.now_ns())
    try:
        await engine.open()
        try:
            facts = await commands.save_snapshot(engine, path, world=life.world)
        finally:
            await engine.close()
    except (LogUnavailable, CommandError) as error:
        raise StartupError(str(error)) from error
    removed = schedule.select_surplus(schedule.list_scheduled_snapshots(folder), keep_count=settings.snapshots.keep)
    for old in removed:
        with contextlib.suppress(FileNotFoundError):
            old.unlink()
    log.info(
        "the state was saved",
        extra={
            "file": str(path),
            "bytes": facts.size_bytes,
            "index": facts.trailer.standing.index,
            "removed": len(removed),
        },
    )
