"""A full read out of etcd: pages of records at one pinned revision, then the marks that tell the last changes."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Final

from wharf.engines import etcd_messages as messages
from wharf.engines.etcd_client import EtcdRefusal, Reason
from wharf.engines.etcd_door import EtcdDoor
from wharf.engines.etcd_history import lease_endings
from wharf.engines.etcd_layout import Epoch, Past, decode_past_epoch, raise_to
from wharf.engines.etcd_messages import Message
from wharf.engines.port import Behind, Row, Standing, Unavailable

_SLICE_ROWS: Final = 1_000
"""Pages are large, because etcd counts a whole range for each; slices are small, because nobody may hold the loop."""


class EtcdLoad:
    def __init__(self, door: EtcdDoor) -> None:
        self._door = door
        self._standing: Standing | None = None

    async def slices(self) -> AsyncIterator[Sequence[Row]]:
        """Raises `Behind` when a compaction overtakes the read: begin another."""
        look = await self._door.look()
        epoch, revision = look.epoch, look.revision
        if not epoch.fence:
            self._standing = Standing(0, {})
            return
        marks: dict[str, int] = {}
        rows = self._door.rows_of(epoch)
        past = await self._past(epoch, revision)
        start, more = rows.rows, True
        while more:
            reply = await self._page(start, rows.rows_end, revision)
            pairs, more = reply.kvs, reply.more
            for first in range(0, len(pairs), _SLICE_ROWS):
                some = []
                for pair in pairs[first : first + _SLICE_ROWS]:
                    table, key = rows.place(pair.key)
                    at = pair.mod_revision
                    some.append(Row(table, key, epoch.index_of(at), pair.value, past.index_of(at)))
                    if at > marks.get(table, 0):
                        marks[table] = at
                yield some
                await asyncio.sleep(0)
            if pairs:
                start = pairs[-1].key + b"\0"
        raise_to(marks, await self._marks(epoch, revision))
        try:
            for ending in await lease_endings(self._door, epoch, up_to=revision):
                raise_to(marks, {ending.table: ending.revision})
        except EtcdRefusal as error:
            raise Behind(f"the log was compacted or replaced while it was read: {error}") from error
        last_changes = {table: epoch.index_of(max(mark, epoch.since)) for table, mark in marks.items()}
        since = epoch.index_of(epoch.since) if epoch.number else 0
        self._standing = Standing(epoch.index_of(revision), last_changes, epoch.number, since)

    async def standing(self) -> Standing:
        assert self._standing is not None, "the standing of a load is known after its last slice"
        return self._standing

    async def _past(self, epoch: Epoch, revision: int) -> Past:
        if not epoch.number:
            return Past(epoch, [])
        rows = self._door.rows_of(epoch)
        reply = await self._page(rows.past, rows.past_end, revision)
        return Past(epoch, [decode_past_epoch(pair.value) for pair in reply.kvs])

    async def _marks(self, epoch: Epoch, revision: int) -> dict[str, int]:
        rows = self._door.rows_of(epoch)
        last = await self._page(rows.last, rows.last_end, revision)
        marks = {rows.table_of_mark(pair.key): int(pair.mod_revision) for pair in last.kvs}
        ended = await self._page(rows.ended, rows.ended_end, revision)
        raise_to(marks, {rows.table_of_mark(pair.key): int(pair.value) for pair in ended.kvs})
        return marks

    async def _page(self, start: bytes, end: bytes, revision: int) -> Message:
        request = messages.page(start, end, limit=self._door.settings.page_rows, revision=revision)
        try:
            return await self._door.ask("range", request)
        except EtcdRefusal as error:
            if error.reason in (Reason.COMPACTED, Reason.FUTURE):
                raise Behind(f"the log was compacted or replaced while it was read: {error}") from error
            raise Unavailable(str(error)) from error
