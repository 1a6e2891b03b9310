"""A process that saves one snapshot, removes those that are too many, and ends."""

import contextlib
import logging
from pathlib import Path

from wharf.agent import saving, snapshots
from wharf.agent.life import CannotStart, Life
from wharf.agent.log_access import engine_for
from wharf.agent.refusal import Refused
from wharf.engines.port import Unavailable

log = logging.getLogger(__name__)


async def run(life: Life) -> None:
    settings = life.order.settings
    folder = snapshots.folder_of(settings, Path(life.order.data_folder))
    engine = engine_for(life.order.settings, life.world)
    path = folder / snapshots.name_at(life.world.now_ns())
    try:
        await engine.open()
        try:
            facts = await saving.save(engine, path, world=life.world)
        finally:
            await engine.close()
    except (Unavailable, Refused) as error:
        raise CannotStart(str(error)) from error
    removed = snapshots.to_remove(snapshots.scheduled(folder), keep=settings.snapshots.keep)
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
