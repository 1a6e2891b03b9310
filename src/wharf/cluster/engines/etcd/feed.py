"""The feed out of etcd: events grouped by revision into whole batches, resumed after a break.

One response of a watch carries whole revisions. Where a lost line is found again, the watch begins at the last revision
that was handed on; asking for one more than is needed lets etcd say when anything in between is compacted away.
"""

import asyncio
from collections import deque
from collections.abc import Iterable
from itertools import groupby
from typing import Final

from wharf.cluster.engines.etcd import messages
from wharf.cluster.engines.etcd.client import EtcdWatch, WatchBroken, WatchCompacted
from wharf.cluster.engines.etcd.layout import Epoch, GenerationKeys, HeadValue, decode_epoch, decode_head
from wharf.cluster.engines.etcd.messages import ProtobufMessage
from wharf.cluster.engines.etcd.session import EtcdSession
from wharf.cluster.engines.port import LEASE_ENDED_KIND, Batch, EncodedChange, FollowerBehind, LogUnavailable
from wharf.contract.model.log import Cause, CauseKind

_PAUSE_S: Final = 0.1


class EtcdFeed:
    def __init__(self, session: EtcdSession, after: int) -> None:
        self._door = session
        self._after = after
        self._watch: EtcdWatch | None = None
        self._ready: deque[Batch] = deque()
        self._epoch: Epoch | None = None
        self._rows: GenerationKeys = session.generation_keys
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

    async def _read(self) -> ProtobufMessage:
        while True:
            try:
                if self._watch is None:
                    self._watch = await self._open()
                response = await self._watch.read_response()
            except WatchCompacted as error:
                raise FollowerBehind(
                    f"{self._door.settings.describe()} is {error}; the feed does not reach back"
                ) from error
            except (WatchBroken, LogUnavailable) as error:
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
        if door.client.is_closed or now_s - self._broken_since_s >= door.settings.request_timeout_s:
            raise LogUnavailable(str(error)) from error
        await asyncio.sleep(_PAUSE_S)

    async def _open(self) -> EtcdWatch:
        door = self._door
        await door.verify_log()
        look = await door.read_status()
        if self._epoch is None:
            self._begin(look.epoch, look.revision)
        elif look.epoch.number != self._epoch.number:
            raise FollowerBehind(f"the log began epoch {look.epoch.number}; load it again")
        elif not self._epoch.fence:
            self._count_by(look.epoch)  # Founded while we were away; the founding is still to come in the feed.
        return await door.client.open_watch(
            messages.build_watch(door.keys.prefix, door.keys.prefix_end, revision=self._at)
        )

    def _begin(self, epoch: Epoch, revision: int) -> None:
        at = epoch.to_revision(self._after) if epoch.fence else revision
        if at > revision or (not epoch.fence and self._after > 0):
            raise FollowerBehind(f"the log never came as far as index {self._after}")
        if at < epoch.since - 1 or (epoch.number and at < epoch.since):
            raise FollowerBehind(f"index {self._after} is of an earlier epoch of the log")
        self._at = at
        self._count_by(epoch)

    def _count_by(self, epoch: Epoch) -> None:
        self._epoch = epoch
        self._rows = self._door.get_generation_keys(epoch)

    # --- the events ---

    def _take(self, response: ProtobufMessage) -> None:
        self._door.record_revision(response.header.revision)
        for revision, group in groupby(response.events, key=_revision_of):
            if revision <= self._at:
                continue
            batch = self._batch_of(revision, group)
            self._at = revision
            if batch is not None:
                self._ready.append(batch)

    def _batch_of(self, revision: int, events: Iterable[ProtobufMessage]) -> Batch | None:
        keys, rows = self._door.keys, self._rows
        head: HeadValue | None = None
        puts: list[EncodedChange] = []
        dropped: list[tuple[str, str]] = []
        for event in events:
            key = event.kv.key
            if key.startswith(rows.records):
                table, name = rows.split_record_key(key)
                if messages.is_delete(event):
                    dropped.append((table, name))
                else:
                    puts.append(EncodedChange(table, name, event.kv.value))
            elif key == keys.head:
                head = self._head_of(event)
            elif key == keys.epoch:
                self._on_epoch(event)
        assert self._epoch is not None, "a watch is opened by an epoch"
        index = self._epoch.to_index(revision)
        if head is not None:
            if len(puts) != head.puts:
                raise FollowerBehind(f"the batch at index {index} came with {len(puts)} of its {head.puts} records")
            self._door.record_write(revision, head.id)
            puts.extend(EncodedChange(table, name, None) for table, name in head.drops)
            return Batch(index, head.id, head.kind, head.cause, puts)
        if dropped:
            changes = [EncodedChange(table, name, None) for table, name in dropped]
            return Batch(index, "", LEASE_ENDED_KIND, Cause(CauseKind.LEASE), changes)
        return None

    def _head_of(self, event: ProtobufMessage) -> HeadValue:
        if messages.is_delete(event):
            raise FollowerBehind("the keys of the log were deleted in etcd")
        return decode_head(event.kv.value)

    def _on_epoch(self, event: ProtobufMessage) -> None:
        """Mostly a fence, which is nothing to followers; else the founding, or a new epoch."""
        if messages.is_delete(event):
            raise FollowerBehind("the keys of the log were deleted in etcd")
        epoch = decode_epoch(event.kv.value, event.kv.mod_revision)
        assert self._epoch is not None, "a watch is opened by an epoch"
        self._door.adopt_epoch(epoch)
        if epoch.number != self._epoch.number:
            raise FollowerBehind(f"the log began epoch {epoch.number}; load it again")
        if not self._epoch.fence:
            self._count_by(epoch)


def _revision_of(event: ProtobufMessage) -> int:
    return int(event.kv.mod_revision)
