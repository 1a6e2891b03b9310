"""The snapshot process: saves one scheduled snapshot, deletes surplus ones, and ends."""

import logging
from collections.abc import Iterable
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
    data_folder = Path(context.order.data_folder)
    folder = schedule.get_snapshot_folder(settings, data_folder)
    retention = SnapshotRetention(context, folder, schedule.build_server_tag(data_folder))
    # Before the snapshot is saved, so that leftovers and a lowered number of snapshots do not keep the disk full.
    retention.delete_surplus()
    engine = build_engine(context.order.settings, context.world)
    path = folder / schedule.build_snapshot_name(context.world.now_ns(), server_tag=retention.server_tag)
    try:
        await engine.open()
        try:
            facts = await commands.save_snapshot(engine, path, world=context.world)
        finally:
            await engine.close()
    except (LogUnavailable, CommandError) as error:
        raise StartupError(str(error)) from error
    removed_count = retention.delete_surplus(path)
    log.info(
        "snapshot saved",
        extra={
            "file": str(path),
            "bytes": facts.size_bytes,
            "index": facts.trailer.standing.index,
            "removed": removed_count,
        },
    )


class SnapshotRetention:
    """Deletes surplus snapshots of this server, and what its killed snapshot processes left."""

    def __init__(self, context: ProcessContext, folder: Path, server_tag: str) -> None:
        self.server_tag = server_tag
        self._context = context
        self._folder = folder

    def delete_surplus(self, saved: Path | None = None) -> int:
        """Delete surplus snapshots, but never `saved`, and incomplete files. Return how many snapshots were deleted."""
        keep_count = self._context.order.settings.snapshots.keep
        try:
            _delete_files(schedule.list_partial_files(self._folder, server_tag=self.server_tag))
            snapshots = schedule.list_scheduled_snapshots(self._folder, server_tag=self.server_tag)
        except OSError as error:
            log.warning("snapshots cannot be listed folder=%s error=%s", self._folder, error)
            return 0
        now_ns = self._context.world.now_ns()
        return _delete_files(schedule.select_surplus(snapshots, keep_count=keep_count, now_ns=now_ns, saved=saved))


def _delete_files(files: Iterable[Path]) -> int:
    """Delete the files and return how many were deleted. One that cannot be deleted is logged and does not protect others."""
    count = 0
    for file in files:
        try:
            file.unlink()
            count += 1
        except FileNotFoundError:  # Another server that shares the folder was first.
            pass
        except OSError as error:
            log.warning("surplus snapshot not deleted file=%s error=%s", file, error)
    return count
