"""The feed from etcd: events grouped by revision into batches, resumed after a disconnection.

One response of a watch contains whole revisions. After a disconnection, the watch starts at the last revision that was
returned: requesting one revision too many lets etcd report that later ones are compacted.
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
from wharf.world.backoff import Backoff

_MIN_RETRY_DELAY_S: Final = 0.1
"""The longest delay after a watch broke for the first time; it doubles with each further failure."""
_MAX_RETRY_DELAY_S: Final = 0.5
"""The longest delay before a watch is reopened."""


class EtcdFeed:
    """The batches after an index, for one follower."""

    def __init__(self, session: EtcdSession, after: int) -> None:
        self._session = session
        self._after = after
        self._watch: EtcdWatch | None = None
        self._ready: deque[Batch] = deque()
        self._epoch: Epoch | None = None
        self._generation_keys: GenerationKeys = session.generation_keys
        self._revision = 0  # All batches up to this revision were returned.
        self._broken_since_s: float | None = None
        self._backoff = Backoff(session.world.random, min_s=_MIN_RETRY_DELAY_S, max_s=_MAX_RETRY_DELAY_S)

    def __aiter__(self) -> "EtcdFeed":
        return self

    async def __anext__(self) -> Batch:
        while not self._ready:
            try:
                response = await self._read()
            except BaseException:
                # Also when the caller cancels: gRPC ends a stream whose read is cancelled.
                self._stop()
                raise
            self._add_events(response)
        return self._ready.popleft()

    def _stop(self) -> None:
        if self._watch is not None:
            self._watch.stop()
            self._watch = None

    # --- the stream ---

    async def _read(self) -> ProtobufMessage:
        """Return the next response of the watch; reopen the watch when it breaks."""
        while True:
            try:
                if self._watch is None:
                    self._watch = await self._open()
                response = await self._watch.read_response()
            except WatchCompacted as error:
                raise FollowerBehind(
                    f"{self._session.settings.describe()} is {error}; the feed does not reach back"
                ) from error
            except (WatchBroken, LogUnavailable) as error:
                self._stop()
                await self._wait_before_retry(error)
                continue
            self._broken_since_s = None
            self._backoff.reset()
            return response

    async def _wait_before_retry(self, error: Exception) -> None:
        """Pause before the watch is reopened. Raises `LogUnavailable` if it has been broken for the request timeout."""
        session = self._session
        now_s = session.world.monotonic_s()
        if self._broken_since_s is None:
            self._broken_since_s = now_s
        if session.client.is_closed or now_s - self._broken_since_s >= session.settings.request_timeout_s:
            raise LogUnavailable(str(error)) from error
        await asyncio.sleep(self._backoff.next_delay_s())

    async def _open(self) -> EtcdWatch:
        """Open a watch where the feed stopped. Raises `FollowerBehind` if the log began another epoch."""
        session = self._session
        await session.verify_log()
        status = await session.read_status()
        if self._epoch is None:
            self._set_start(status.epoch, status.revision)
        elif status.epoch.number != self._epoch.number:
            raise FollowerBehind(f"the log began epoch {status.epoch.number}; load it again")
        elif not self._epoch.fence:
            self._use_epoch(
                status.epoch
            )  # The log was first written while we were disconnected; the feed still returns that write.
        return await session.client.open_watch(
            messages.build_watch(session.keys.prefix, session.keys.prefix_end, revision=self._revision)
        )

    def _set_start(self, epoch: Epoch, revision: int) -> None:
        """Set the etcd revision after which the feed starts: the one of the index that the reader has reached.

        `revision` is the newest revision of etcd. A log without an epoch record (`fence` 0) is empty, so the feed starts
        there. Raises `FollowerBehind` if the index was never reached, or is of an epoch before `epoch`. The first epoch
        also serves a reader that has index 0, just before its beginning.
        """
        start_revision = epoch.to_revision(self._after) if epoch.fence else revision
        if start_revision > revision or (not epoch.fence and self._after > 0):
            raise FollowerBehind(f"the log never reached index {self._after}")
        if start_revision < epoch.since - 1 or (epoch.number and start_revision < epoch.since):
            raise FollowerBehind(f"index {self._after} is of an earlier epoch of the log")
        self._revision = start_revision
        self._use_epoch(epoch)

    def _use_epoch(self, epoch: Epoch) -> None:
        """Number batches by this epoch from now on."""
        self._epoch = epoch
        self._generation_keys = self._session.get_generation_keys(epoch)

    # --- the events ---

    def _add_events(self, response: ProtobufMessage) -> None:
        """Add the batches of a response to the queue."""
        self._session.record_revision(response.header.revision)
        for revision, group in groupby(response.events, key=_get_revision):
            if revision <= self._revision:
                continue
            batch = self._build_batch(revision, group)
            self._revision = revision
            if batch is not None:
                self._ready.append(batch)

    def _build_batch(self, revision: int, events: Iterable[ProtobufMessage]) -> Batch | None:
        """Build the batch of one revision; None if it contains no change of a record."""
        keys, generation_keys = self._session.keys, self._generation_keys
        head: HeadValue | None = None
        puts: list[EncodedChange] = []
        deleted: list[tuple[str, str]] = []
        for event in events:
            key = event.kv.key
            if key.startswith(generation_keys.records):
                table, name = generation_keys.split_record_key(key)
                if messages.is_delete(event):
                    deleted.append((table, name))
                else:
                    puts.append(EncodedChange(table, name, event.kv.value))
            elif key == keys.head:
                head = self._decode_head(event)
            elif key == keys.epoch:
                self._on_epoch(event)
        assert self._epoch is not None, "opening a watch sets the epoch"
        index = self._epoch.to_index(revision)
        if head is not None:
            if len(puts) != head.puts:
                raise FollowerBehind(f"the batch at index {index} came with {len(puts)} of its {head.puts} records")
            self._session.record_write(revision, head.id)
            puts.extend(EncodedChange(table, name, None) for table, name in head.drops)
            return Batch(index, head.id, head.kind, head.cause, puts)
        if deleted:
            changes = [EncodedChange(table, name, None) for table, name in deleted]
            return Batch(index, "", LEASE_ENDED_KIND, Cause(CauseKind.LEASE), changes)
        return None

    def _decode_head(self, event: ProtobufMessage) -> HeadValue:
        if messages.is_delete(event):
            raise FollowerBehind("the keys of the log were deleted in etcd")
        return decode_head(event.kv.value)

    def _on_epoch(self, event: ProtobufMessage) -> None:
        """Adopt an epoch. Mostly it is only a new fence; a new epoch number raises `FollowerBehind`."""
        if messages.is_delete(event):
            raise FollowerBehind("the keys of the log were deleted in etcd")
        epoch = decode_epoch(event.kv.value, event.kv.mod_revision)
        assert self._epoch is not None, "opening a watch sets the epoch"
        self._session.adopt_epoch(epoch)
        if epoch.number != self._epoch.number:
            raise FollowerBehind(f"the log began epoch {epoch.number}; load it again")
        if not self._epoch.fence:
            self._use_epoch(epoch)


def _get_revision(event: ProtobufMessage) -> int:
    return int(event.kv.mod_revision)
