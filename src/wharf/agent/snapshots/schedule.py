"""Scheduled snapshots: their names and folder, when the next one is due, and which ones to delete.

The file format is in `wharf.cluster.engines.snapshot_file`, saving in `wharf.agent.snapshots.commands`. Decision record 0179
says which files are trusted.
"""

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

from wharf.agent.data_folder import SNAPSHOT_FOLDER
from wharf.agent.identity import read_server_id
from wharf.cluster.engines.snapshot_file import SNAPSHOT_MAGIC, SnapshotUnusable, read_snapshot_index
from wharf.cluster.server.agent_interface import SnapshotEntry, SnapshotSchedule
from wharf.config.settings import AgentSettings
from wharf.contract.model.times import SECOND

SNAPSHOT_SUFFIX: Final = ".snap"
SERVER_TAG_CHARS: Final = 8
"""How many characters of a server's id are in the names of its snapshots, so that servers can share a folder."""
MAX_LISTED_SNAPSHOTS: Final = 100
"""Limits the files whose sizes are read for one request."""
FIRST_SNAPSHOT_DELAY_S: Final = 60.0
"""The longest wait of a server without a snapshot. A whole interval would never end for a server that restarts more often."""
_NAME: Final = re.compile(r"wharf-(\d{8}T\d{6}Z)(?:-([0-9a-f]{8}))?\.snap", re.ASCII)
_STAMP: Final = "%Y%m%dT%H%M%SZ"


class ScheduledSnapshot(NamedTuple):
    """A snapshot that this server saved on schedule. The time is that of its name."""

    time_ns: int
    path: Path


def get_snapshot_folder(settings: AgentSettings, data_folder: Path) -> Path:
    """Return the configured folder, or the default one in the data folder."""
    return Path(settings.snapshots.folder) if settings.snapshots.folder else data_folder / SNAPSHOT_FOLDER


def build_server_tag(data_folder: Path) -> str:
    """Return the part of the names of snapshots that names the server of this data folder; empty if it has no id yet."""
    return read_server_id(data_folder)[:SERVER_TAG_CHARS].lower()


def build_snapshot_name(now_ns: int, *, server_tag: str = "") -> str:
    """Return the file name of a snapshot saved at this time."""
    stamp = datetime.fromtimestamp(now_ns // SECOND, tz=UTC).strftime(_STAMP)
    return f"wharf-{stamp}{server_tag and f'-{server_tag}'}{SNAPSHOT_SUFFIX}"


def list_scheduled_snapshots(folder: Path, *, server_tag: str = "") -> list[ScheduledSnapshot]:
    """Return the snapshots that this server saved on schedule, oldest first. Raises `OSError`.

    Other files are ignored: those of other servers, with other names, or without the content of a snapshot. Older versions
    saved snapshots without the server in their names; they count as those of this server.
    """
    found: list[ScheduledSnapshot] = []
    try:
        entries = os.scandir(folder)
    except FileNotFoundError:
        return []
    with entries:
        for entry in entries:
            time_ns = _parse_name(entry.name, server_tag)
            if time_ns is not None and entry.is_file(follow_symlinks=False) and _is_snapshot(entry.path):
                found.append(ScheduledSnapshot(time_ns, folder / entry.name))
    return sorted(found)


def read_schedule(settings: AgentSettings, data_folder: Path, *, now_ns: int) -> SnapshotSchedule:
    """Return the snapshots that this server has saved on schedule, the newest first, with the log index of the newest."""
    folder, snapshots = get_snapshot_folder(settings, data_folder), settings.snapshots
    found: list[SnapshotEntry] = []
    problem = ""
    try:
        files = list_scheduled_snapshots(folder, server_tag=build_server_tag(data_folder))
    except OSError as error:
        files, problem = [], error.strerror or str(error)
    for file in [each for each in reversed(files) if each.time_ns <= now_ns][:MAX_LISTED_SNAPSHOTS]:
        with suppress(OSError):  # It was deleted meanwhile.
            index = 0 if found else _find_index(file.path)
            found.append(SnapshotEntry(file.path.name, file.time_ns, file.path.stat().st_size, index))
    return SnapshotSchedule(snapshots.interval.ns, snapshots.keep, str(folder), tuple(found), problem)


def _find_index(path: Path) -> int:
    """Return the log index of a snapshot; 0 if the file is damaged."""
    try:
        return read_snapshot_index(path)
    except SnapshotUnusable:
        return 0


def list_partial_files(folder: Path, *, server_tag: str) -> list[Path]:
    """Return the incomplete files of this server's snapshot processes that were killed. Raises `OSError`."""
    if not server_tag:
        return []
    return [file for file in folder.glob(f".wharf-*-{server_tag}{SNAPSHOT_SUFFIX}.*.partial") if file.is_file()]


def get_newest_time_ns(snapshots: Sequence[ScheduledSnapshot], *, now_ns: int) -> int | None:
    """Return when the newest snapshot was saved, or `None` if there is none.

    A time ahead of the clock is wrong, or the clock was. Such a snapshot does not show when the next one is due.
    """
    return max((each.time_ns for each in snapshots if each.time_ns <= now_ns), default=None)


def compute_wait_s(interval_s: float, *, now_ns: int, newest_ns: int | None) -> float:
    """Return the seconds until the next snapshot is due, counted from the newest one.

    So a restart neither saves a snapshot immediately nor restarts the interval. Without a snapshot, the first one is due soon.
    """
    if newest_ns is None:
        return min(interval_s, FIRST_SNAPSHOT_DELAY_S)
    return min(interval_s, max(0.0, interval_s - (now_ns - newest_ns) / SECOND))


def select_surplus(
    snapshots: Sequence[ScheduledSnapshot], *, keep_count: int, now_ns: int, saved: Path | None = None
) -> list[Path]:
    """Return the oldest snapshots beyond `keep_count`, which is at least 1.

    Snapshots with a time ahead of the clock count as the oldest: a jump of the clock, or a name that someone made up, must
    not displace those that are saved from now on. The snapshot `saved`, which was just saved, is never surplus.
    """
    ordered = sorted(snapshots, key=lambda each: (each.path == saved, each.time_ns <= now_ns, each.time_ns))
    return [each.path for each in ordered[:-keep_count]]


def _parse_name(name: str, server_tag: str) -> int | None:
    """Return the time in the name of a snapshot, or `None` if it is not the name of one of this server."""
    match = _NAME.fullmatch(name)
    if match is None or match[2] not in (None, server_tag):
        return None
    try:
        return int(datetime.strptime(match[1], _STAMP).replace(tzinfo=UTC).timestamp()) * SECOND
    except ValueError:  # Such as the 99th of a month.
        return None


def _is_snapshot(path: str) -> bool:
    """Return whether the file begins as a snapshot does. An empty or foreign file must not count as one that is kept."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return os.read(descriptor, len(SNAPSHOT_MAGIC)) == SNAPSHOT_MAGIC
    except OSError:
        return False
    finally:
        os.close(descriptor)
