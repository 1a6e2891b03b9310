"""Replacing the whole log in etcd.

The new rows go into a generation of their own, which nobody reads; one transaction then puts it in force. A restore
that is cut off leaves the old state in force and some unread keys, which the next restore sweeps away. Two restores at
once: the one that began last wins, the other is refused.
"""

from collections.abc import AsyncIterator, Sequence
from typing import Final

from wharf.cluster.engines.etcd import messages
from wharf.cluster.engines.etcd.client import EtcdRefusal, ReplyLost
from wharf.cluster.engines.etcd.layout import Epoch, GenerationKeys, encode_value, make_next_epoch_value
from wharf.cluster.engines.etcd.messages import ProtobufMessage
from wharf.cluster.engines.etcd.session import EPOCH_INDEX_HEADROOM, EtcdSession
from wharf.cluster.engines.port import LogPosition, LogUnavailable, StoredRecord

_SWEPT_AT_ONCE: Final = 10_000
_ATTEMPTS: Final = 10


async def restore_log(
    session: EtcdSession, slices: AsyncIterator[Sequence[StoredRecord]], position: LogPosition
) -> int:
    restoring = EtcdRestore(session, session.world.new_id())
    await restoring.begin()
    async for rows in slices:
        await restoring.add_records(rows)
    index = await restoring.activate(position)
    await restoring.delete_unused_generations()
    return index


class EtcdRestore:
    def __init__(self, session: EtcdSession, generation: str) -> None:
        self._door = session
        self._generation = generation
        self._keys: GenerationKeys = session.keys.build_generation_keys(generation)
        self._claim = 0  # The revision of our claim: greater puts of the same key are other restores.
        self._tables: dict[str, None] = {}
        self._waiting: list[ProtobufMessage] = []
        self._waiting_bytes = 0

    async def begin(self) -> None:
        claim = messages.build_transaction(
            success=[messages.build_put(self._door.keys.restoring, self._generation.encode())]
        )
        self._claim = int((await self._send(claim)).header.revision)
        await self.delete_unused_generations()

    async def add_records(self, records: Sequence[StoredRecord]) -> None:
        settings = self._door.settings
        for row in records:
            self._tables[row.table] = None
            operation = messages.build_put(self._keys.build_record_key(row.table, row.key), row.data)
            size = operation.ByteSize() + 16
            is_full = len(self._waiting) >= settings.max_txn_ops - 1
            if self._waiting and (is_full or self._waiting_bytes + size > settings.max_request_bytes * 0.9):
                await self._flush()
            self._waiting.append(operation)
            self._waiting_bytes += size

    async def _flush(self) -> None:
        waiting, self._waiting, self._waiting_bytes = self._waiting, [], 0
        if not waiting:
            return
        still_ours = messages.compare_revision(self._door.keys.restoring, self._claim)
        if not (await self._send(messages.build_transaction([still_ours], waiting))).succeeded:
            raise LogUnavailable("another restore began after this one and goes on in its place; the log is as it was")

    async def activate(self, position: LogPosition) -> int:
        """One step: before it everybody reads the old rows, after it the new."""
        door = self._door
        for _ in range(_ATTEMPTS):
            look = await door.read_status()
            known = look.epoch
            tables = [*self._tables, *position.last_changes, *await self._tables_of(known)]
            for table in dict.fromkeys(tables):
                self._waiting.append(messages.build_put(self._keys.build_last_key(table), b""))
                if len(self._waiting) >= door.settings.max_txn_ops - 1:
                    await self._flush()
            await self._flush()
            told = known.to_index(look.revision) if known.fence else 0
            base = max(told, position.index) + EPOCH_INDEX_HEADROOM
            number = max(known.number, position.epoch) + 1
            value = make_next_epoch_value(number=number, generation=self._generation, base=base)
            revision = await door.put_epoch(
                known,
                encode_value(value),
                [messages.build_delete(door.keys.restoring)],
                compare=[messages.compare_revision(door.keys.restoring, self._claim)],
            )
            if revision is not None:
                await door.read_status()
                return revision + base
        raise LogUnavailable("the restore could not be put in force: the epoch moved on, or another restore began")

    async def _tables_of(self, epoch: Epoch) -> list[str]:
        """The tables that hold or held anything: one key each is enough to know."""
        door, rows = self._door, self._door.get_generation_keys(epoch)
        tables: list[str] = []
        for start, end in ((rows.last, rows.last_end), (rows.ended, rows.ended_end)):
            reply = await door.send_request("range", messages.build_range(start, end, keys_only=True))
            tables.extend(rows.read_mark_table(pair.key) for pair in reply.kvs)
        held = await door.send_request("range", messages.build_range(rows.held, rows.held_end, keys_only=True))
        tables.extend(rows.split_record_key(rows.convert_held_key(pair.key))[0] for pair in held.kvs)
        start = rows.records
        while True:
            reply = await door.send_request(
                "range", messages.build_range(start, rows.records_end, limit=1, keys_only=True)
            )
            if not reply.kvs:
                return tables
            table, _ = rows.split_record_key(reply.kvs[0].key)
            tables.append(table)
            start = rows.find_table_end(table)

    async def delete_unused_generations(self) -> None:
        """Take away the generations that are neither in force nor ours, some keys at a time."""
        door = self._door
        keep = [self._keys.prefix, door.get_generation_keys((await door.read_status()).epoch).prefix]
        keep_ranges = sorted(keep)
        starts = [door.keys.generations, *(messages.find_prefix_end(root) for root in keep_ranges)]
        ends = [*keep_ranges, messages.find_prefix_end(door.keys.generations)]
        for start, end in zip(starts, ends, strict=True):
            while start < end:
                reply = await door.send_request(
                    "range", messages.build_range(start, end, limit=_SWEPT_AT_ONCE, keys_only=True)
                )
                if not reply.kvs:
                    break
                last = reply.kvs[-1].key + b"\0"
                await self._send(messages.build_transaction(success=[messages.build_delete_range(start, last)]))
                start = last

    async def _send(self, request: ProtobufMessage) -> ProtobufMessage:
        """What is sent here may be carried out twice without harm, and nobody reads it yet."""
        try:
            return await self._door.client.commit_transaction(request)
        except (EtcdRefusal, ReplyLost) as error:
            raise LogUnavailable(f"the restore was cut off and the log is as it was: {error}") from error
