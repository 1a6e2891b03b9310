"""What this process saw is left where its neighbours on the same store find it, and theirs is read: for operators only.

It works beside requests, in pieces, and what the store does not take in time is dropped and counted, never waited for.
"""

import contextlib
import re
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

from wharf.limits.core.callers.caller import Caller, CallerClass, CredentialKind
from wharf.limits.decisions.activity import MINUTE_MS, ActivityCounts, ActivityRow
from wharf.limits.stores.port import RecordStore, StoreUnavailable

MAX_PENDING_DECISIONS: Final = 10_000
WRITE_BATCH_DECISIONS: Final = 1_000
MAX_ROWS_PER_MINUTE: Final = 200
"""Of one process in one minute: those who asked most."""
ACTIVITY_INTERVAL_MS: Final = 5_000
MAX_CLOCK_SKEW_MS: Final = 60_000
_ID_SECOND: Final = re.compile(r"[0-9A-F:]+:([0-9A-F]{1,12})")


class _Seen(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A row, as it is told to others."""

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

    def row(self) -> ActivityRow:
        caller = Caller(
            kind=self.kind,
            caller_class=CallerClass.NONE,  # Ceilings are not asked for here.
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
        )


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(list[_Seen]).decode


class SharedRecords:
    def __init__(self, activity: ActivityCounts, process: str, *, kept_ms: int) -> None:
        self.record_store: RecordStore | None = None
        """Where it is left; None where a process is alone."""
        self.dropped_decisions = 0
        """Decisions that others will not find here."""
        self._tally = activity
        self.process_id: Final = process
        self._kept_ms = kept_ms
        self._decisions: deque[tuple[str, bytes]] = deque()
        self._told_ms = 0

    def record_decision(self, request_id: str, entry: bytes) -> None:
        """A decision that is kept."""
        if self.record_store is None:
            return
        if len(self._decisions) >= MAX_PENDING_DECISIONS:
            self._decisions.popleft()
            self.dropped_decisions += 1
        self._decisions.append((request_id, entry))

    async def write(self, now_ms: int, *, is_last: bool = False) -> None:
        """Leave what is not left yet. Raises StoreLost; then it is tried again as long as there is room for it."""
        records = self.record_store
        if records is None:
            return
        while self._decisions:
            some = [self._decisions.popleft() for _ in range(min(len(self._decisions), WRITE_BATCH_DECISIONS))]
            try:
                await records.write_decisions(some)
            except StoreUnavailable:
                room = max(0, MAX_PENDING_DECISIONS - len(self._decisions))
                self.dropped_decisions += max(0, len(some) - room)
                self._decisions.extendleft(reversed(some[len(some) - min(room, len(some)) :]))
                raise
        if now_ms - self._told_ms >= ACTIVITY_INTERVAL_MS or is_last:
            since_ms, self._told_ms = self._told_ms, now_ms
            for minute in {max(since_ms, now_ms - MINUTE_MS) // MINUTE_MS, now_ms // MINUTE_MS}:
                rows = list(self._tally.list_rows(since_ms=minute * MINUTE_MS, until_ms=minute * MINUTE_MS))
                if rows:
                    rows.sort(key=lambda row: row.total, reverse=True)
                    await records.write_activity(
                        minute, self.process_id, _encode(list(_told(rows[:MAX_ROWS_PER_MINUTE])))
                    )

    async def find_decision(self, request_id: str) -> dict[str, Any] | None:
        """A decision that any process left. Raises StoreUnavailable."""
        second = _ID_SECOND.fullmatch(request_id)
        if self.record_store is None or second is None:
            return None
        told = await self.record_store.find_decision(request_id, int(second[1], 16) * 1_000 - MAX_CLOCK_SKEW_MS)
        found: dict[str, Any] | None = None if told is None else msgspec.json.decode(told)
        return found

    async def read_activity(
        self, *, now_ms: int, since_ms: int, until_ms: int | None = None
    ) -> dict[str, list[ActivityRow]]:
        """What each process saw: this one whole, others as far as they left it; this one alone while the store is away."""
        self._tally.fold_counts(now_ms)
        rows = {self.process_id: list(self._tally.list_rows(since_ms=since_ms, until_ms=until_ms))}
        if self.record_store is None:
            return rows
        last = min(now_ms, now_ms if until_ms is None else until_ms) // MINUTE_MS
        first = max(since_ms, now_ms - self._kept_ms) // MINUTE_MS
        with contextlib.suppress(StoreUnavailable):
            for process, parts in (await self.record_store.read_activity(range(first, last + 1))).items():
                if process != self.process_id:
                    rows[process] = [seen.row() for part in parts for seen in _decode(part)]
        return rows


def _told(rows: Iterable[ActivityRow]) -> Iterator[_Seen]:
    for row in rows:
        caller = row.caller
        yield _Seen(
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
        )
