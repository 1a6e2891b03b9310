"""Which snapshots there are in a folder, when the next is due, and which are to go.

What a snapshot file looks like is known to `wharf.cluster.engines.snapshot_file`, what goes into it to `wharf.agent.snapshots.commands`.
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
    return Path(settings.snapshots.folder) if settings.snapshots.folder else data_folder / SNAPSHOT_FOLDER


def build_snapshot_name(now_ns: int) -> str:
    return f"wharf-{datetime.fromtimestamp(now_ns // SECOND, tz=UTC).strftime(_STAMP)}{SNAPSHOT_SUFFIX}"


def list_scheduled_snapshots(folder: Path) -> list[Path]:
    """Those that an agent saved by itself, oldest first. Files of other names are none of its business."""
    if not folder.is_dir():
        return []
    return sorted(file for file in folder.iterdir() if _NAME.fullmatch(file.name))


def get_newest_time_ns(folder: Path) -> int | None:
    found = list_scheduled_snapshots(folder)
    if not found:
        return None
    stamp = _NAME.fullmatch(found[-1].name)
    assert stamp is not None
    return int(datetime.strptime(stamp[1], _STAMP).replace(tzinfo=UTC).timestamp()) * SECOND


def compute_wait_s(interval_s: float, *, now_ns: int, newest_ns: int | None) -> float:
    """How long until the next is due: a restart neither saves one at once nor begins the interval anew."""
    if newest_ns is None:
        return interval_s
    return min(interval_s, max(0.0, interval_s - (now_ns - newest_ns) / SECOND))


def select_surplus(files: Sequence[Path], *, keep_count: int) -> Sequence[Path]:
    return files[:-keep_count] if keep_count else files
