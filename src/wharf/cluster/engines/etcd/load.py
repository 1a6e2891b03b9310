"""A full read from etcd: pages of records at one revision, then the marks that give the last changes of tables."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Final

from wharf.cluster.engines.etcd import messages
from wharf.cluster.engines.etcd.client import EtcdRefusal, EtcdRefusalReason
from wharf.cluster.engines.etcd.history import list_lease_endings
from wharf.cluster.engines.etcd.layout import Epoch, EpochHistory, decode_past_epoch, raise_marks
from wharf.cluster.engines.etcd.messages import ProtobufMessage
from wharf.cluster.engines.etcd.session import EtcdSession
from wharf.cluster.engines.port import FollowerBehind, LoadBase, LogPosition, LogUnavailable, StoredRecord

_SLICE_RECORDS: Final = 1_000
"""Records in a slice. Pages are large because etcd counts the whole range for each; slices are small to keep the event
loop responsive."""


class EtcdLoad(LoadBase):
    """A full read of a log in etcd."""

    def __init__(self, session: EtcdSession) -> None:
        self._session = session

    async def iter_slices(self) -> AsyncIterator[Sequence[StoredRecord]]:
        """Yield all records. Raises `FollowerBehind` when a compaction interrupts the read."""
        status = await self._session.read_status()
        epoch, revision = status.epoch, status.revision
        if not epoch.fence:
            self._position = LogPosition(0, {})
            return
        marks: dict[str, int] = {}
        generation_keys = self._session.get_generation_keys(epoch)
        past = await self._read_epoch_history(epoch, revision)
        start, has_more = generation_keys.records, True
        while has_more:
            reply = await self._read_page(start, generation_keys.records_end, revision)
            pairs, has_more = reply.kvs, reply.more
            for first in range(0, len(pairs), _SLICE_RECORDS):
                records = []
                for pair in pairs[first : first + _SLICE_RECORDS]:
                    table, key = generation_keys.split_record_key(pair.key)
                    revision_written = pair.mod_revision
                    records.append(
                        StoredRecord(
                            table,
                            key,
                            epoch.to_index(revision_written),
                            pair.value,
                            past.find_write_index(revision_written),
                        )
                    )
                    if revision_written > marks.get(table, 0):
                        marks[table] = revision_written
                yield records
                await asyncio.sleep(0)
            if pairs:
                start = pairs[-1].key + b"\0"
        raise_marks(marks, await self._read_marks(epoch, revision))
        try:
            for ending in await list_lease_endings(self._session, epoch, last_revision=revision):
                raise_marks(marks, {ending.table: ending.revision})
        except EtcdRefusal as error:
            raise FollowerBehind(f"the log was compacted or replaced while it was read: {error}") from error
        last_changes = {table: epoch.to_index(max(mark, epoch.since)) for table, mark in marks.items()}
        since = epoch.to_index(epoch.since) if epoch.number else 0
        self._position = LogPosition(epoch.to_index(revision), last_changes, epoch.number, since)

    async def _read_epoch_history(self, epoch: Epoch, revision: int) -> EpochHistory:
        """Read how earlier epochs numbered the log, as of this revision."""
        if not epoch.number:
            return EpochHistory(epoch, [])
        generation_keys = self._session.get_generation_keys(epoch)
        reply = await self._read_page(generation_keys.past, generation_keys.past_end, revision)
        return EpochHistory(epoch, [decode_past_epoch(pair.value) for pair in reply.kvs])

    async def _read_marks(self, epoch: Epoch, revision: int) -> dict[str, int]:
        """Return the revision of the last deletion in each table, from the keys `last` and `ended`.

        A later change that stored a record is not included: the record itself shows it.
        """
        generation_keys = self._session.get_generation_keys(epoch)
        last = await self._read_page(generation_keys.last, generation_keys.last_end, revision)
        marks = {generation_keys.read_mark_table(pair.key): int(pair.mod_revision) for pair in last.kvs}
        ended = await self._read_page(generation_keys.ended, generation_keys.ended_end, revision)
        raise_marks(marks, {generation_keys.read_mark_table(pair.key): int(pair.value) for pair in ended.kvs})
        return marks

    async def _read_page(self, start: bytes, end: bytes, revision: int) -> ProtobufMessage:
        """Read one page at a revision. Raises `FollowerBehind` if the revision is compacted or unknown."""
        request = messages.build_range(start, end, limit=self._session.settings.page_rows, revision=revision)
        try:
            return await self._session.send_request("range", request)
        except EtcdRefusal as error:
            if error.reason in (EtcdRefusalReason.COMPACTED, EtcdRefusalReason.FUTURE):
                raise FollowerBehind(f"the log was compacted or replaced while it was read: {error}") from error
            raise LogUnavailable(str(error)) from error
