"""What this process saw is left where its neighbours on the same store find it, and theirs is read: for operators only.

It works beside requests, in pieces, and what the store does not take in time is dropped and counted, never waited for.
"""

import contextlib
import re
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

from wharf.limits.core.caller import Caller, Case, CredentialKind
from wharf.limits.desk.tally import MINUTE_MS, Row, Tally
from wharf.limits.stores.port import Records, StoreLost

WAITING_MOST: Final = 10_000
WRITTEN_AT_ONCE: Final = 1_000
ROWS_MOST: Final = 200
"""Of one process in one minute: those who asked most."""
TOLD_EVERY_MS: Final = 5_000
CLOCKS_APART_MS: Final = 60_000
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

    def row(self) -> Row:
        caller = Caller(
            kind=self.kind,
            case=Case.NONE,  # Ceilings are not asked for here.
            owner=self.owner,
            address="",
            user=self.user,
            app=self.app,
            installation=self.installation,
            repository=self.repository,
            token=self.token,
        )
        return Row(
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


class Sharing:
    def __init__(self, tally: Tally, process: str, *, kept_ms: int) -> None:
        self.records: Records | None = None
        """Where it is left; None where a process is alone."""
        self.lost = 0
        """Decisions that others will not find here."""
        self._tally = tally
        self.process: Final = process
        self._kept_ms = kept_ms
        self._decisions: deque[tuple[str, bytes]] = deque()
        self._told_ms = 0

    def note(self, request_id: str, told: bytes) -> None:
        """A decision that is kept."""
        if self.records is None:
            return
        if len(self._decisions) >= WAITING_MOST:
            self._decisions.popleft()
            self.lost += 1
        self._decisions.append((request_id, told))

    async def write(self, now_ms: int, *, is_last: bool = False) -> None:
        """Leave what is not left yet. Raises StoreLost; then it is tried again as long as there is room for it."""
        records = self.records
        if records is None:
            return
        while self._decisions:
            some = [self._decisions.popleft() for _ in range(min(len(self._decisions), WRITTEN_AT_ONCE))]
            try:
                await records.write_decisions(some)
            except StoreLost:
                room = max(0, WAITING_MOST - len(self._decisions))
                self.lost += max(0, len(some) - room)
                self._decisions.extendleft(reversed(some[len(some) - min(room, len(some)) :]))
                raise
        if now_ms - self._told_ms >= TOLD_EVERY_MS or is_last:
            since_ms, self._told_ms = self._told_ms, now_ms
            for minute in {max(since_ms, now_ms - MINUTE_MS) // MINUTE_MS, now_ms // MINUTE_MS}:
                rows = list(self._tally.rows(since_ms=minute * MINUTE_MS, until_ms=minute * MINUTE_MS))
                if rows:
                    rows.sort(key=lambda row: row.total, reverse=True)
                    await records.write_activity(minute, self.process, _encode(list(_told(rows[:ROWS_MOST]))))

    async def find(self, request_id: str) -> dict[str, Any] | None:
        """A decision that any process left. Raises StoreLost."""
        second = _ID_SECOND.fullmatch(request_id)
        if self.records is None or second is None:
            return None
        told = await self.records.find_decision(request_id, int(second[1], 16) * 1_000 - CLOCKS_APART_MS)
        found: dict[str, Any] | None = None if told is None else msgspec.json.decode(told)
        return found

    async def seen(self, *, now_ms: int, since_ms: int, until_ms: int | None = None) -> dict[str, list[Row]]:
        """What each process saw: this one whole, others as far as they left it; this one alone while the store is away."""
        self._tally.fold(now_ms)
        rows = {self.process: list(self._tally.rows(since_ms=since_ms, until_ms=until_ms))}
        if self.records is None:
            return rows
        last = min(now_ms, now_ms if until_ms is None else until_ms) // MINUTE_MS
        first = max(since_ms, now_ms - self._kept_ms) // MINUTE_MS
        with contextlib.suppress(StoreLost):
            for process, parts in (await self.records.read_activity(range(first, last + 1))).items():
                if process != self.process:
                    rows[process] = [seen.row() for part in parts for seen in _decode(part)]
        return rows


def _told(rows: Iterable[Row]) -> Iterator[_Seen]:
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
