"""A full read out of etcd: pages of records at one pinned revision, then the marks that tell the last changes."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Final

from wharf.cluster.engines.etcd import messages
from wharf.cluster.engines.etcd.client import EtcdRefusal, EtcdRefusalReason
from wharf.cluster.engines.etcd.history import list_lease_endings
from wharf.cluster.engines.etcd.layout import Epoch, EpochHistory, decode_past_epoch, raise_marks
from wharf.cluster.engines.etcd.messages import ProtobufMessage
from wharf.cluster.engines.etcd.session import EtcdSession
from wharf.cluster.engines.port import FollowerBehind, LogPosition, LogUnavailable, StoredRecord

_SLICE_ROWS: Final = 1_000
"""Pages are large, because etcd counts a whole range for each; slices are small, because nobody may hold the loop."""


class EtcdLoad:
    def __init__(self, session: EtcdSession) -> None:
        self._door = session
        self._standing: LogPosition | None = None

    async def iter_slices(self) -> AsyncIterator[Sequence[StoredRecord]]:
        """Raises `Behind` when a compaction overtakes the read: begin another."""
        look = await self._door.read_status()
        epoch, revision = look.epoch, look.revision
        if not epoch.fence:
            self._standing = LogPosition(0, {})
            return
        marks: dict[str, int] = {}
        rows = self._door.get_generation_keys(epoch)
        past = await self._past(epoch, revision)
        start, more = rows.records, True
        while more:
            reply = await self._page(start, rows.records_end, revision)
            pairs, more = reply.kvs, reply.more
            for first in range(0, len(pairs), _SLICE_ROWS):
                some = []
                for pair in pairs[first : first + _SLICE_ROWS]:
                    table, key = rows.split_record_key(pair.key)
                    at = pair.mod_revision
                    some.append(StoredRecord(table, key, epoch.to_index(at), pair.value, past.find_write_index(at)))
                    if at > marks.get(table, 0):
                        marks[table] = at
                yield some
                await asyncio.sleep(0)
            if pairs:
                start = pairs[-1].key + b"\0"
        raise_marks(marks, await self._marks(epoch, revision))
        try:
            for ending in await list_lease_endings(self._door, epoch, last_revision=revision):
                raise_marks(marks, {ending.table: ending.revision})
        except EtcdRefusal as error:
            raise FollowerBehind(f"the log was compacted or replaced while it was read: {error}") from error
        last_changes = {table: epoch.to_index(max(mark, epoch.since)) for table, mark in marks.items()}
        since = epoch.to_index(epoch.since) if epoch.number else 0
        self._standing = LogPosition(epoch.to_index(revision), last_changes, epoch.number, since)

    async def get_position(self) -> LogPosition:
        assert self._standing is not None, "the standing of a load is known after its last slice"
        return self._standing

    async def _past(self, epoch: Epoch, revision: int) -> EpochHistory:
        if not epoch.number:
            return EpochHistory(epoch, [])
        rows = self._door.get_generation_keys(epoch)
        reply = await self._page(rows.past, rows.past_end, revision)
        return EpochHistory(epoch, [decode_past_epoch(pair.value) for pair in reply.kvs])

    async def _marks(self, epoch: Epoch, revision: int) -> dict[str, int]:
        rows = self._door.get_generation_keys(epoch)
        last = await self._page(rows.last, rows.last_end, revision)
        marks = {rows.read_mark_table(pair.key): int(pair.mod_revision) for pair in last.kvs}
        ended = await self._page(rows.ended, rows.ended_end, revision)
        raise_marks(marks, {rows.read_mark_table(pair.key): int(pair.value) for pair in ended.kvs})
        return marks

    async def _page(self, start: bytes, end: bytes, revision: int) -> ProtobufMessage:
        request = messages.build_range(start, end, limit=self._door.settings.page_rows, revision=revision)
        try:
            return await self._door.send_request("range", request)
        except EtcdRefusal as error:
            if error.reason in (EtcdRefusalReason.COMPACTED, EtcdRefusalReason.FUTURE):
                raise FollowerBehind(f"the log was compacted or replaced while it was read: {error}") from error
            raise LogUnavailable(str(error)) from error
