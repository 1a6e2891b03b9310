"""Scheduled snapshots: their names and folder, when the next one is due, and which ones to delete.

The file format is in `wharf.cluster.engines.snapshot_file`, saving in `wharf.agent.snapshots.commands`.
"""

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from wharf.agent.data_folder import SNAPSHOT_FOLDER
from wharf.config.settings import AgentSettings
from wharf.contract.model.times import SECOND

SNAPSHOT_SUFFIX: Final = ".snap"
_NAME: Final = re.compile(r"wharf-(\d{8}T\d{6}Z)\.snap")
_STAMP: Final = "%Y%m%dT%H%M%SZ"


def get_snapshot_folder(settings: AgentSettings, data_folder: Path) -> Path:
    """Return the configured folder, or the default one in the data folder."""
    return Path(settings.snapshots.folder) if settings.snapshots.folder else data_folder / SNAPSHOT_FOLDER


def build_snapshot_name(now_ns: int) -> str:
    """Return the file name of a snapshot saved at this time."""
    return f"wharf-{datetime.fromtimestamp(now_ns // SECOND, tz=UTC).strftime(_STAMP)}{SNAPSHOT_SUFFIX}"


def list_scheduled_snapshots(folder: Path) -> list[Path]:
    """Return the snapshots that agents saved on schedule, oldest first. Files with other names are ignored."""
    if not folder.is_dir():
        return []
    return sorted(file for file in folder.iterdir() if _NAME.fullmatch(file.name))


def get_newest_time_ns(folder: Path) -> int | None:
    """Return when the newest scheduled snapshot was saved, or `None` if there is none."""
    snapshots = list_scheduled_snapshots(folder)
    if not snapshots:
        return None
    stamp = _NAME.fullmatch(snapshots[-1].name)
    assert stamp is not None
    return int(datetime.strptime(stamp[1], _STAMP).replace(tzinfo=UTC).timestamp()) * SECOND


def compute_wait_s(interval_s: float, *, now_ns: int, newest_ns: int | None) -> float:
    """Return the seconds until the next snapshot is due, counted from the newest one; a whole interval if there is
    none.

    So a restart neither saves a snapshot immediately nor restarts the interval.
    """
    if newest_ns is None:
        return interval_s
    return min(interval_s, max(0.0, interval_s - (now_ns - newest_ns) / SECOND))


def select_surplus(files: Sequence[Path], *, keep_count: int) -> Sequence[Path]:
    """Return the oldest files beyond `keep_count`, which is at least 1. `files` are sorted, the oldest first."""
    return files[:-keep_count]
