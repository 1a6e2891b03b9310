"""Replacing the whole log in etcd.

The new rows go into a generation of their own, which nobody reads; one transaction then puts it in force. A restore
that is cut off leaves the old state in force and some unread keys, which the next restore sweeps away. Two restores at
once: the one that began last wins, the other is refused.
"""

from collections.abc import AsyncIterator, Sequence
from typing import Final

from wharf.engines import etcd_messages as messages
from wharf.engines.etcd_client import EtcdRefusal, ReplyLost
from wharf.engines.etcd_door import HEADROOM, EtcdDoor
from wharf.engines.etcd_layout import Epoch, GenerationKeys, encode, next_epoch_value
from wharf.engines.etcd_messages import Message
from wharf.engines.port import Row, Standing, Unavailable

_SWEPT_AT_ONCE: Final = 10_000
_ATTEMPTS: Final = 10


async def restore_into(door: EtcdDoor, slices: AsyncIterator[Sequence[Row]], standing: Standing) -> int:
    restoring = Restoring(door, door.world.new_id())
    await restoring.begin()
    async for rows in slices:
        await restoring.put(rows)
    index = await restoring.put_in_force(standing)
    await restoring.sweep()
    return index


class Restoring:
    def __init__(self, door: EtcdDoor, generation: str) -> None:
        self._door = door
        self._generation = generation
        self._keys: GenerationKeys = door.keys.generation(generation)
        self._claim = 0  # The revision of our claim: greater puts of the same key are other restores.
        self._tables: dict[str, None] = {}
        self._waiting: list[Message] = []
        self._waiting_bytes = 0

    async def begin(self) -> None:
        claim = messages.transaction(success=[messages.put(self._door.keys.restoring, self._generation.encode())])
        self._claim = int((await self._send(claim)).header.revision)
        await self.sweep()

    async def put(self, rows: Sequence[Row]) -> None:
        settings = self._door.settings
        for row in rows:
            self._tables[row.table] = None
            operation = messages.put(self._keys.row(row.table, row.key), row.data)
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
        still_ours = messages.moved_at(self._door.keys.restoring, self._claim)
        if not (await self._send(messages.transaction([still_ours], waiting))).succeeded:
            raise Unavailable("another restore began after this one and goes on in its place; the log is as it was")

    async def put_in_force(self, standing: Standing) -> int:
        """One step: before it everybody reads the old rows, after it the new."""
        door = self._door
        for _ in range(_ATTEMPTS):
            look = await door.look()
            known = look.epoch
            tables = [*self._tables, *standing.last_changes, *await self._tables_of(known)]
            for table in dict.fromkeys(tables):
                self._waiting.append(messages.put(self._keys.last_of(table), b""))
                if len(self._waiting) >= door.settings.max_txn_ops - 1:
                    await self._flush()
            await self._flush()
            told = known.index_of(look.revision) if known.fence else 0
            base = max(told, standing.index) + HEADROOM
            number = max(known.number, standing.epoch) + 1
            value = next_epoch_value(number=number, generation=self._generation, base=base)
            revision = await door.put_epoch(
                known,
                encode(value),
                [messages.delete(door.keys.restoring)],
                compare=[messages.moved_at(door.keys.restoring, self._claim)],
            )
            if revision is not None:
                await door.look()
                return revision + base
        raise Unavailable("the restore could not be put in force: the epoch moved on, or another restore began")

    async def _tables_of(self, epoch: Epoch) -> list[str]:
        """The tables that hold or held anything: one key each is enough to know."""
        door, rows = self._door, self._door.rows_of(epoch)
        tables: list[str] = []
        for start, end in ((rows.last, rows.last_end), (rows.ended, rows.ended_end)):
            reply = await door.ask("range", messages.page(start, end, keys_only=True))
            tables.extend(rows.table_of_mark(pair.key) for pair in reply.kvs)
        held = await door.ask("range", messages.page(rows.held, rows.held_end, keys_only=True))
        tables.extend(rows.place(rows.row_of_held(pair.key))[0] for pair in held.kvs)
        start = rows.rows
        while True:
            reply = await door.ask("range", messages.page(start, rows.rows_end, limit=1, keys_only=True))
            if not reply.kvs:
                return tables
            table, _ = rows.place(reply.kvs[0].key)
            tables.append(table)
            start = rows.after_table(table)

    async def sweep(self) -> None:
        """Take away the generations that are neither in force nor ours, some keys at a time."""
        door = self._door
        keep = [self._keys.all, door.rows_of((await door.look()).epoch).all]
        keep_ranges = sorted(keep)
        starts = [door.keys.generations, *(messages.end_of(root) for root in keep_ranges)]
        ends = [*keep_ranges, messages.end_of(door.keys.generations)]
        for start, end in zip(starts, ends, strict=True):
            while start < end:
                reply = await door.ask("range", messages.page(start, end, limit=_SWEPT_AT_ONCE, keys_only=True))
                if not reply.kvs:
                    break
                last = reply.kvs[-1].key + b"\0"
                await self._send(messages.transaction(success=[messages.delete_range(start, last)]))
                start = last

    async def _send(self, request: Message) -> Message:
        """What is sent here may be carried out twice without harm, and nobody reads it yet."""
        try:
            return await self._door.client.commit(request)
        except (EtcdRefusal, ReplyLost) as error:
            raise Unavailable(f"the restore was cut off and the log is as it was: {error}") from error
