"""Replaces the whole log in etcd.

The new records are written into their own generation, which nobody reads; one transaction then activates it. An
interrupted restore leaves the old state active and some unused keys, which the next restore deletes. If two restores
run, the one that began last wins and the other fails.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Final

from wharf.cluster.engines.etcd import messages
from wharf.cluster.engines.etcd.client import EtcdRefusal, ReplyLost
from wharf.cluster.engines.etcd.layout import Epoch, GenerationKeys, encode_value, make_next_epoch_value
from wharf.cluster.engines.etcd.messages import ProtobufMessage
from wharf.cluster.engines.etcd.session import EPOCH_INDEX_HEADROOM, EtcdSession
from wharf.cluster.engines.port import LogPosition, LogUnavailable, RestoreOutcomeUnknown, StoredRecord

_DELETE_PAGE_KEYS: Final = 10_000
_MAX_ATTEMPTS: Final = 10


async def restore_log(
    session: EtcdSession, slices: AsyncIterator[Sequence[StoredRecord]], position: LogPosition
) -> int:
    """Replace the log by these records, which were read at `position`, and return the index of the log afterwards."""
    restore = EtcdRestore(session, session.world.new_id())
    await restore.begin()
    async for records in slices:
        await restore.add_records(records)
    index = await restore.activate(position)
    with suppress(LogUnavailable):  # The next restore deletes them.
        await restore.delete_unused_generations()
    return index


class EtcdRestore:
    """One restore: fills a generation, then activates it."""

    def __init__(self, session: EtcdSession, generation: str) -> None:
        self._session = session
        self._generation = generation
        self._keys: GenerationKeys = session.keys.build_generation_keys(generation)
        self._claim = 0  # Revision of our claim: a greater revision of the same key is another restore.
        self._tables: dict[str, None] = {}
        self._pending: list[ProtobufMessage] = []
        self._pending_bytes = 0

    async def begin(self) -> None:
        """Claim the restore and delete the generations that earlier restores left."""
        claim = messages.build_transaction(
            success=[messages.build_put(self._session.keys.restoring, self._generation.encode())]
        )
        self._claim = int((await self._send(claim)).header.revision)
        await self.delete_unused_generations()

    async def add_records(self, records: Sequence[StoredRecord]) -> None:
        """Write records, as many in each transaction as fit."""
        settings = self._session.settings
        for record in records:
            self._tables[record.table] = None
            operation = messages.build_put(self._keys.build_record_key(record.table, record.key), record.data)
            size = operation.ByteSize() + 16
            is_full = len(self._pending) >= settings.max_txn_ops - 1
            if self._pending and (is_full or self._pending_bytes + size > settings.max_request_bytes * 0.9):
                await self._flush()
            self._pending.append(operation)
            self._pending_bytes += size

    async def _flush(self) -> None:
        """Write the pending operations, unless another restore has begun."""
        operations, self._pending, self._pending_bytes = self._pending, [], 0
        if not operations:
            return
        claim_holds = messages.compare_revision(self._session.keys.restoring, self._claim)
        if not (await self._send(messages.build_transaction([claim_holds], operations))).succeeded:
            raise LogUnavailable("another restore began after this one and replaces it; the log is unchanged")

    async def activate(self, position: LogPosition) -> int:
        """Activate the new records in one step and return the index. Before it everybody reads the old records,
        afterwards the new ones."""
        session = self._session
        for _ in range(_MAX_ATTEMPTS):
            status = await session.read_status()
            epoch = status.epoch
            tables = [*self._tables, *position.last_changes, *await self._list_tables(epoch)]
            for table in dict.fromkeys(tables):
                self._pending.append(messages.build_put(self._keys.build_last_key(table), b""))
                if len(self._pending) >= session.settings.max_txn_ops - 1:
                    await self._flush()
            await self._flush()
            last_index = epoch.to_index(status.revision) if epoch.fence else 0
            base = max(last_index, position.index) + EPOCH_INDEX_HEADROOM
            number = max(epoch.number, position.epoch) + 1
            value = make_next_epoch_value(number=number, generation=self._generation, base=base)
            try:
                revision = await session.put_epoch(
                    epoch,
                    encode_value(value),
                    [messages.build_delete(session.keys.restoring)],
                    compare=[messages.compare_revision(session.keys.restoring, self._claim)],
                )
            except LogUnavailable as error:
                if isinstance(error.__cause__, ReplyLost):
                    raise RestoreOutcomeUnknown(str(error)) from error
                raise
            if revision is not None:
                with suppress(LogUnavailable):  # The new records are active already.
                    await session.read_status()
                return revision + base
        raise LogUnavailable("the restore could not be activated: the epoch changed, or another restore began")

    async def _list_tables(self, epoch: Epoch) -> list[str]:
        """Return the tables that hold or held records. Reads one key of each table."""
        session, keys = self._session, self._session.get_generation_keys(epoch)
        tables: list[str] = []
        for start, end in ((keys.last, keys.last_end), (keys.ended, keys.ended_end)):
            reply = await session.send_request("range", messages.build_range(start, end, keys_only=True))
            tables.extend(keys.read_mark_table(pair.key) for pair in reply.kvs)
        held = await session.send_request("range", messages.build_range(keys.held, keys.held_end, keys_only=True))
        tables.extend(keys.split_record_key(keys.convert_held_key(pair.key))[0] for pair in held.kvs)
        start = keys.records
        while True:
            reply = await session.send_request(
                "range", messages.build_range(start, keys.records_end, limit=1, keys_only=True)
            )
            if not reply.kvs:
                return tables
            table, _ = keys.split_record_key(reply.kvs[0].key)
            tables.append(table)
            start = keys.find_table_end(table)

    async def delete_unused_generations(self) -> None:
        """Delete the generations that are neither active nor ours, page by page."""
        session = self._session
        kept_prefixes = [self._keys.prefix, session.get_generation_keys((await session.read_status()).epoch).prefix]
        keep_ranges = sorted(kept_prefixes)
        starts = [session.keys.generations, *(messages.find_prefix_end(root) for root in keep_ranges)]
        ends = [*keep_ranges, messages.find_prefix_end(session.keys.generations)]
        for start, end in zip(starts, ends, strict=True):
            while start < end:
                reply = await session.send_request(
                    "range", messages.build_range(start, end, limit=_DELETE_PAGE_KEYS, keys_only=True)
                )
                if not reply.kvs:
                    break
                last = reply.kvs[-1].key + b"\0"
                await self._send(messages.build_transaction(success=[messages.build_delete_range(start, last)]))
                start = last

    async def _send(self, request: ProtobufMessage) -> ProtobufMessage:
        """Send a transaction that is safe to repeat, because nobody reads the new generation yet."""
        try:
            return await self._session.client.commit_transaction(request)
        except (EtcdRefusal, ReplyLost) as error:
            raise LogUnavailable(f"the restore was interrupted and the log is unchanged: {error}") from error
