"""The snapshots of the servers: when each has saved the last one, of which state, and whether the next one is late."""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from wharf.contract.wire.operator import AutopilotServer, ScheduledSnapshots
from wharf.web.rendering import count_noun, format_age, format_span
from wharf.web.views.states import State, Tone

MEGABYTE: Final = 1024 * 1024
LATE_AFTER_INTERVALS: Final = 2
"""A snapshot is late if none was saved within this many intervals: then one failed, and the log of the server says why."""
NOT_KNOWN: Final = State("not known", Tone.WAIT)
NO_SCHEDULE: Final = State("saves none by itself", Tone.IDLE)


class SnapshotRow(msgspec.Struct, frozen=True):
    """The last snapshot that a server has saved on schedule."""

    server: str
    state: State
    saved_ns: int = 0
    age: str = ""
    index: int = 0
    newer_entries: int = 0
    """How many entries of the log are newer than the snapshot."""
    size: str = ""
    name: str = ""
    schedule: str = ""
    """How often it saves one, and how many it retains, such as "every 1h, keeps 24"."""
    problem: str = ""


class SnapshotsView(msgspec.Struct, frozen=True):
    """The snapshots of all servers."""

    sentence: str
    is_bad: bool
    """Whether a person should do something."""
    rows: tuple[SnapshotRow, ...]


def build_snapshots_view(
    servers: Sequence[AutopilotServer], found: Mapping[str, ScheduledSnapshots | None], index: int, now_ns: int
) -> SnapshotsView:
    """Return the snapshots of the servers. `found` has them by the ID of the server; `None`: it did not answer.

    `index` is the log index of the state.
    """
    rows = tuple(_build_row(server.name, found.get(server.id), index, now_ns) for server in servers)
    newest = max(rows, key=lambda row: row.saved_ns, default=None)
    if newest is None or not newest.saved_ns:
        has_schedule = any(row.schedule for row in rows)
        is_known = all(row.state is not NOT_KNOWN for row in rows)
        nothing = "No snapshot was saved yet" if has_schedule else "No server saves snapshots by itself"
        return SnapshotsView(nothing if is_known else "The last snapshot is not known", True, rows)
    is_late = all(row.state.tone is not Tone.GOOD for row in rows)
    return SnapshotsView(f"The last snapshot was saved {newest.age} ago by {newest.server}", is_late, rows)


def _build_row(server: str, snapshots: ScheduledSnapshots | None, index: int, now_ns: int) -> SnapshotRow:
    if snapshots is None:
        return SnapshotRow(server, NOT_KNOWN, problem="the server did not say it")
    schedule = ""
    if snapshots.interval:
        retained = count_noun(snapshots.keep, "snapshot", "snapshots")
        schedule = f"every {format_span(snapshots.interval)}, keeps {retained}"
    problem = f"{snapshots.folder} cannot be read: {snapshots.problem}" if snapshots.problem else ""
    if not snapshots.snapshots:
        state = NO_SCHEDULE if not schedule else NOT_KNOWN if problem else State("none yet", Tone.WAIT)
        return SnapshotRow(server, state, schedule=schedule, problem=problem)
    newest = snapshots.snapshots[0]
    return SnapshotRow(
        server=server,
        state=_describe_state(snapshots, now_ns - newest.saved_at),
        saved_ns=newest.saved_at,
        age=format_age(newest.saved_at, now_ns),
        index=newest.index,
        newer_entries=max(0, index - newest.index) if newest.index else 0,
        size=_format_bytes(newest.size_bytes),
        name=newest.name,
        schedule=schedule,
        problem=problem,
    )


def _describe_state(snapshots: ScheduledSnapshots, age_ns: int) -> State:
    if not snapshots.interval:
        return State("saved, none is scheduled", Tone.WAIT)
    if age_ns > LATE_AFTER_INTERVALS * snapshots.interval:
        return State("late", Tone.BAD)
    return State("saved", Tone.GOOD)


def _format_bytes(size_bytes: int) -> str:
    """Return a size, such as "12.3 MB" or "40 kB"."""
    return f"{size_bytes / MEGABYTE:,.1f} MB" if size_bytes >= MEGABYTE else f"{max(1, size_bytes // 1_024)} kB"
