"""Shared records: decisions and activity that each process writes to the store, so that operators can read all of them.

Records are written in batches, independent of requests. Records that the store does not accept in time are dropped and
counted.
"""

import contextlib
import functools
import re
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

from wharf.limits.core.callers.caller import Caller, CallerClass, CredentialKind
from wharf.limits.core.resources import get_organization
from wharf.limits.core.rule import MINUTE_MS
from wharf.limits.decisions.activity import ActivityCounts, ActivityRow
from wharf.limits.decisions.activity_folding import fold_rows
from wharf.limits.stores.port import RecordStore, StoreUnavailable
from wharf.world import World

MAX_PENDING_DECISIONS: Final = 10_000
WRITE_BATCH_DECISIONS: Final = 1_000
MAX_ROWS_PER_MINUTE: Final = 1_000
"""Rows that one process writes for one minute, about 120 KB. Limits the memory of Redis, to 170 MB for each process if every minute
of a day is full, and the work of those who read them. More rows are folded, so that sums stay exact.
"""
MAX_ROWS_OF_ORGANIZATION: Final = 400
"""Those of one organization: enough for its 50 busiest callers and the sums of the others."""
ACTIVITY_INTERVAL_MS: Final = 5_000
MAX_CLOCK_SKEW_MS: Final = 60_000
_ID_SECOND: Final = re.compile(r"[0-9A-F:]+:([0-9A-F]{1,12})")


class _SharedRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An activity row in its stored format: the number of requests of one caller at one endpoint in one minute."""

    minute: int
    kind: CredentialKind
    owner: str
    user: str | None
    app: str | None
    installation: str | None
    repository: str | None
    token: str | None
    endpoint: str
    total: int
    primary: int
    secondary: int
    last_ms: int
    last_limited_ms: int
    # Rows that older processes wrote lack these; they belong to no organization.
    resource: str = ""
    bucket: str = ""
    shadowed: int = 0

    def row(self) -> ActivityRow:
        """Return the stored row as an `ActivityRow`, with a caller that has only the stored fields."""
        caller = Caller(
            kind=self.kind,
            caller_class=CallerClass.NONE,  # Only needed for ceilings, which these rows do not use.
            owner=self.owner,
            address="",
            user=self.user,
            app=self.app,
            installation=self.installation,
            repository=self.repository,
            token=self.token,
        )
        return ActivityRow(
            self.minute,
            caller,
            self.endpoint,
            self.total,
            self.primary,
            self.secondary,
            self.last_ms,
            self.last_limited_ms,
            self.resource,
            self.bucket,
            self.shadowed,
        )


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(list[_SharedRow]).decode


class SharedRecords:
    """Writes the decisions and the activity of this process to the store, and reads those of all processes."""

    def __init__(self, activity: ActivityCounts, process: str, world: World, *, kept_ms: int) -> None:
        self.record_store: RecordStore | None = None
        """The store of the records; `None` if no other process shares the store."""
        self.dropped_decisions = 0
        """Decisions that were dropped and that other processes cannot find."""
        self._activity = activity
        self._world = world
        self.process_id: Final = process
        self._retention_ms = kept_ms
        self._decisions: deque[tuple[str, bytes]] = deque()
        self._activity_written_ms = 0

    def record_decision(self, request_id: str, entry: bytes) -> None:
        """Queue an encoded decision for the next write. If the queue is full, the oldest one is dropped and counted.

        Does nothing if no other process shares the store.
        """
        if self.record_store is None:
            return
        if len(self._decisions) >= MAX_PENDING_DECISIONS:
            self._decisions.popleft()
            self.dropped_decisions += 1
        self._decisions.append((request_id, entry))

    async def write(self, now_ms: int, *, is_last: bool = False) -> None:
        """Write the queued decisions; write the activity too if `ACTIVITY_INTERVAL_MS` have passed or `is_last` is set.

        Raises `StoreUnavailable`. The decisions then stay queued; those that no longer fit are dropped and counted.
        """
        records = self.record_store
        if records is None:
            return
        while self._decisions:
            batch = [self._decisions.popleft() for _ in range(min(len(self._decisions), WRITE_BATCH_DECISIONS))]
            try:
                await records.write_decisions(batch)
            except StoreUnavailable:
                free_entries = max(0, MAX_PENDING_DECISIONS - len(self._decisions))
                self.dropped_decisions += max(0, len(batch) - free_entries)
                self._decisions.extendleft(reversed(batch[len(batch) - min(free_entries, len(batch)) :]))
                raise
        if now_ms - self._activity_written_ms >= ACTIVITY_INTERVAL_MS or is_last:
            since_ms, self._activity_written_ms = self._activity_written_ms, now_ms
            for minute in {max(since_ms, now_ms - MINUTE_MS) // MINUTE_MS, now_ms // MINUTE_MS}:
                rows = list(self._activity.list_rows(since_ms=minute * MINUTE_MS, until_ms=minute * MINUTE_MS))
                if rows:
                    # Rows of the current minute can change meanwhile. The last write of a minute has its final counts.
                    encoded = await self._world.run_off_loop(functools.partial(_encode_minute, rows))
                    await records.write_activity(minute, self.process_id, encoded)

    async def find_decision(self, request_id: str) -> dict[str, Any] | None:
        """Return the decision about a request from the store, whichever process wrote it; `None` if it is not stored.

        Raises `StoreUnavailable`.
        """
        id_match = _ID_SECOND.fullmatch(request_id)
        if self.record_store is None or id_match is None:
            return None
        entry = await self.record_store.find_decision(request_id, int(id_match[1], 16) * 1_000 - MAX_CLOCK_SKEW_MS)
        found: dict[str, Any] | None = None if entry is None else msgspec.json.decode(entry)
        return found

    async def read_activity(
        self, *, now_ms: int, since_ms: int, until_ms: int | None = None, organization: str | None = None
    ) -> dict[str, list[ActivityRow]]:
        """Return the activity rows by process id: all rows of this process, and the written rows of the others.

        With `organization`, rows of others that are about another organization, or none, are left out. While the store is unavailable, only the rows of this process are returned.
        """
        self._activity.add_admissions_to_rows(now_ms)
        rows = {self.process_id: list(self._activity.list_rows(since_ms=since_ms, until_ms=until_ms))}
        if self.record_store is None:
            return rows
        last = min(now_ms, now_ms if until_ms is None else until_ms) // MINUTE_MS
        first = max(since_ms, now_ms - self._retention_ms) // MINUTE_MS
        with contextlib.suppress(StoreUnavailable):
            for process, parts in (await self.record_store.read_activity(range(first, last + 1))).items():
                if process != self.process_id:
                    work = functools.partial(_decode_parts, parts, organization)
                    rows[process] = await self._world.run_off_loop(work)
        return rows


def _encode_minute(rows: list[ActivityRow]) -> bytes:
    """Return the rows of a minute in their stored format, folded if they are too many."""
    folded = fold_rows(rows, max_rows=MAX_ROWS_PER_MINUTE, max_of_organization=MAX_ROWS_OF_ORGANIZATION)
    return _encode(list(_encode_rows(folded)))


def _decode_parts(parts: Iterable[bytes], organization: str | None) -> list[ActivityRow]:
    """Return the stored rows, or only those about resources of an organization."""
    return [
        shared_row.row()
        for part in parts
        for shared_row in _decode(part)
        if organization is None or get_organization(shared_row.resource) == organization
    ]


def _encode_rows(rows: Iterable[ActivityRow]) -> Iterator[_SharedRow]:
    """Yield the rows in their stored format."""
    for row in rows:
        caller = row.caller
        yield _SharedRow(
            row.minute,
            caller.kind,
            caller.owner,
            caller.user,
            caller.app,
            caller.installation,
            caller.repository,
            caller.token,
            row.endpoint,
            row.total,
            row.primary,
            row.secondary,
            row.last_ms,
            row.last_limited_ms,
            row.resource,
            row.bucket,
            row.shadowed,
        )
