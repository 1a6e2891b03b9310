"""The feed out of etcd: events grouped by revision into whole batches, resumed after a break.

One response of a watch carries whole revisions. Where a lost line is found again, the watch begins at the last revision
that was handed on; asking for one more than is needed lets etcd say when anything in between is compacted away.
"""

import asyncio
from collections import deque
from collections.abc import Iterable
from itertools import groupby
from typing import Final

from wharf.engines import etcd_messages as messages
from wharf.engines.etcd_client import EtcdWatch, WatchBroken, WatchCompacted
from wharf.engines.etcd_door import EtcdDoor
from wharf.engines.etcd_layout import Epoch, GenerationKeys, Head, decode_epoch, decode_head
from wharf.engines.etcd_messages import Message
from wharf.engines.port import LEASE_ENDED, Batch, Behind, Change, Unavailable
from wharf.model.changes import Cause, CauseKind

_PAUSE_S: Final = 0.1


class EtcdFeed:
    def __init__(self, door: EtcdDoor, after: int) -> None:
        self._door = door
        self._after = after
        self._watch: EtcdWatch | None = None
        self._ready: deque[Batch] = deque()
        self._epoch: Epoch | None = None
        self._rows: GenerationKeys = door.rows
        self._at = 0  # The revision up to which everything was handed on.
        self._broken_since_s: float | None = None

    def __aiter__(self) -> "EtcdFeed":
        return self

    async def __anext__(self) -> Batch:
        while not self._ready:
            try:
                response = await self._read()
            except BaseException:
                # Also when the caller gives up waiting: gRPC ends a stream whose read is cancelled.
                self._stop()
                raise
            self._take(response)
        return self._ready.popleft()

    def _stop(self) -> None:
        if self._watch is not None:
            self._watch.stop()
            self._watch = None

    # --- the stream ---

    async def _read(self) -> Message:
        while True:
            try:
                if self._watch is None:
                    self._watch = await self._open()
                response = await self._watch.read()
            except WatchCompacted as error:
                raise Behind(f"{self._door.settings.where()} is {error}; the feed does not reach back") from error
            except (WatchBroken, Unavailable) as error:
                self._stop()
                await self._bear(error)
                continue
            self._broken_since_s = None
            return response

    async def _bear(self, error: Exception) -> None:
        """A short break is nobody's business; a long one is."""
        door = self._door
        now_s = door.world.monotonic_s()
        if self._broken_since_s is None:
            self._broken_since_s = now_s
        if door.client.closed or now_s - self._broken_since_s >= door.settings.request_timeout_s:
            raise Unavailable(str(error)) from error
        await asyncio.sleep(_PAUSE_S)

    async def _open(self) -> EtcdWatch:
        door = self._door
        await door.verify()
        look = await door.look()
        if self._epoch is None:
            self._begin(look.epoch, look.revision)
        elif look.epoch.number != self._epoch.number:
            raise Behind(f"the log began epoch {look.epoch.number}; load it again")
        elif not self._epoch.fence:
            self._count_by(look.epoch)  # Founded while we were away; the founding is still to come in the feed.
        return await door.client.watch(messages.watch(door.keys.all, door.keys.all_end, revision=self._at))

    def _begin(self, epoch: Epoch, revision: int) -> None:
        at = epoch.revision_of(self._after) if epoch.fence else revision
        if at > revision or (not epoch.fence and self._after > 0):
            raise Behind(f"the log never came as far as index {self._after}")
        if at < epoch.since - 1 or (epoch.number and at < epoch.since):
            raise Behind(f"index {self._after} is of an earlier epoch of the log")
        self._at = at
        self._count_by(epoch)

    def _count_by(self, epoch: Epoch) -> None:
        self._epoch = epoch
        self._rows = self._door.rows_of(epoch)

    # --- the events ---

    def _take(self, response: Message) -> None:
        self._door.saw(response.header.revision)
        for revision, group in groupby(response.events, key=_revision_of):
            if revision <= self._at:
                continue
            batch = self._batch_of(revision, group)
            self._at = revision
            if batch is not None:
                self._ready.append(batch)

    def _batch_of(self, revision: int, events: Iterable[Message]) -> Batch | None:
        keys, rows = self._door.keys, self._rows
        head: Head | None = None
        puts: list[Change] = []
        dropped: list[tuple[str, str]] = []
        for event in events:
            key = event.kv.key
            if key.startswith(rows.rows):
                table, name = rows.place(key)
                if messages.is_delete(event):
                    dropped.append((table, name))
                else:
                    puts.append(Change(table, name, event.kv.value))
            elif key == keys.head:
                head = self._head_of(event)
            elif key == keys.epoch:
                self._on_epoch(event)
        assert self._epoch is not None, "a watch is opened by an epoch"
        index = self._epoch.index_of(revision)
        if head is not None:
            if len(puts) != head.puts:
                raise Behind(f"the batch at index {index} came with {len(puts)} of its {head.puts} records")
            self._door.saw_write(revision, head.id)
            puts.extend(Change(table, name, None) for table, name in head.drops)
            return Batch(index, head.id, head.kind, head.cause, puts)
        if dropped:
            changes = [Change(table, name, None) for table, name in dropped]
            return Batch(index, "", LEASE_ENDED, Cause(CauseKind.LEASE), changes)
        return None

    def _head_of(self, event: Message) -> Head:
        if messages.is_delete(event):
            raise Behind("the keys of the log were deleted in etcd")
        return decode_head(event.kv.value)

    def _on_epoch(self, event: Message) -> None:
        """Mostly a fence, which is nothing to followers; else the founding, or a new epoch."""
        if messages.is_delete(event):
            raise Behind("the keys of the log were deleted in etcd")
        epoch = decode_epoch(event.kv.value, event.kv.mod_revision)
        assert self._epoch is not None, "a watch is opened by an epoch"
        self._door.adopt(epoch)
        if epoch.number != self._epoch.number:
            raise Behind(f"the log began epoch {epoch.number}; load it again")
        if not self._epoch.fence:
            self._count_by(epoch)


def _revision_of(event: Message) -> int:
    return int(event.kv.mod_revision)
