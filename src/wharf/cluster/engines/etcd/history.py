"""Reads of etcd's history: the writes since an index, and the ends of leases.

etcd serves history by a watch that starts in the past, and by reads at a past revision. Such a watch does not report
that it has caught up, so a read must end at an event that is known to be the last.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

from wharf.cluster.engines.etcd import messages
from wharf.cluster.engines.etcd.client import EtcdRefusal, EtcdRefusalReason, EtcdWatch, WatchBroken, WatchCompacted
from wharf.cluster.engines.etcd.layout import Epoch, decode_head
from wharf.cluster.engines.etcd.messages import ProtobufMessage
from wharf.cluster.engines.etcd.session import EtcdSession
from wharf.cluster.engines.port import FollowerBehind, LogUnavailable

_MAX_SINGLE_READS: Final = 64
"""A write whose reply was lost is usually among the newest: up to this number, single reads are faster than a watch."""


class LeaseEnding(NamedTuple):
    """A record of a lease that no longer exists: the lease ended, or a write deleted the record."""

    table: str
    revision: int  # The etcd revision at which the record was deleted.
    held_key: bytes  # The etcd key that marks the record as belonging to a lease.
    held_revision: int  # The revision at which that key was last written.


@asynccontextmanager
async def open_history_watch(session: EtcdSession, request: ProtobufMessage) -> AsyncIterator[EtcdWatch]:
    """Open a watch for the duration of the `with` block. Raises `LogUnavailable` when it breaks."""
    try:
        watch = await session.client.open_watch(request)
        try:
            yield watch
        finally:
            watch.stop()
    except WatchBroken as error:
        raise LogUnavailable(str(error)) from error


async def find_write(session: EtcdSession, write_id: str, since_index: int) -> int | None:
    """Return the index of the write with this id, searching from the index `since_index`; None if it was not committed.

    First prevents the write from being committed later (moves the fence). Raises `FollowerBehind` if the log does not
    reach back to `since_index`.
    """
    # Fence first: a write that is still in flight must not be committed after this returned None.
    await session.fence_writes()
    status = await session.read_status()
    epoch = status.epoch
    if not epoch.fence:
        return None
    first = epoch.to_revision(since_index)
    if first < epoch.since:
        if epoch.number:
            raise FollowerBehind(f"the log began epoch {epoch.number} after index {since_index}")
        first = epoch.since
    head, head_id = status.head_revision, status.head_write_id
    for _ in range(_MAX_SINGLE_READS):
        if head < first:
            return None
        if head_id == write_id:
            return epoch.to_index(head)
        head, head_id = await _read_head_before(session, head, since_index)
    return await _search_heads(session, write_id, since_index, first=first, last=head, epoch=epoch)


async def _read_head_before(session: EtcdSession, revision: int, since_index: int) -> tuple[int, str]:
    """Return the revision and id of the newest write before this revision; 0 and an empty id if there is none."""
    try:
        reply = await session.send_request("range", messages.build_range(session.keys.head, b"", revision=revision - 1))
    except EtcdRefusal as error:
        raise _build_behind_error(session, since_index) from error
    for pair in reply.kvs:
        return int(pair.mod_revision), decode_head(pair.value).id
    return 0, ""


async def _search_heads(
    session: EtcdSession, write_id: str, since_index: int, *, first: int, last: int, epoch: Epoch
) -> int | None:
    """Return the index of the write with this id between the revisions `first` and `last`, or None.

    A watch reads the head key (which every write puts) at each of these revisions.
    """
    if last < first:
        return None
    try:
        async with open_history_watch(session, messages.build_watch(session.keys.head, b"", revision=first)) as watch:
            while True:
                for event in (await watch.read_response()).events:
                    if decode_head(event.kv.value).id == write_id:
                        return epoch.to_index(event.kv.mod_revision)
                    if event.kv.mod_revision >= last:
                        return None
    except WatchCompacted as error:
        raise _build_behind_error(session, since_index) from error


def _build_behind_error(session: EtcdSession, since_index: int) -> FollowerBehind:
    return FollowerBehind(
        f"{session.settings.describe()} is compacted; it no longer reaches back to index {since_index}"
    )


async def list_lease_endings(session: EtcdSession, epoch: Epoch, *, last_revision: int) -> list[LeaseEnding]:
    """Return the records of leases that no longer exist at `last_revision`, each with the revision of its deletion.

    When a lease ends, etcd deletes its record without a trace in the current state. So a binary search reads the record at
    past revisions until it finds the first one at which the record is missing. (A watch would be
    much slower: etcd serves about ten thousand revisions of history a second.) If the revision is compacted, the latest
    possible one is returned. This only happens if another program compacted etcd, because the engine stores the endings
    before its own compactions.

    Raises `EtcdRefusal` when `last_revision` itself is compacted.
    """
    generation_keys = session.get_generation_keys(epoch)
    reply = await session.send_request(
        "range",
        messages.build_range(generation_keys.held, generation_keys.held_end, revision=last_revision, keys_only=True),
    )
    endings = []
    for pair in reply.kvs:
        record_key = generation_keys.convert_held_key(pair.key)
        if await _record_exists(session, record_key, last_revision):
            continue
        present_revision, absent_revision = int(pair.mod_revision), last_revision
        while absent_revision - present_revision > 1:
            middle = (present_revision + absent_revision) // 2
            try:
                is_present = await _record_exists(session, record_key, middle)
            except EtcdRefusal as error:
                if error.reason is not EtcdRefusalReason.COMPACTED:
                    raise
                is_present = True
            present_revision, absent_revision = (middle, absent_revision) if is_present else (present_revision, middle)
        endings.append(
            LeaseEnding(generation_keys.split_record_key(record_key)[0], absent_revision, pair.key, pair.mod_revision)
        )
    return endings


async def _record_exists(session: EtcdSession, key: bytes, revision: int) -> bool:
    reply = await session.send_request("range", messages.build_range(key, b"", revision=revision, keys_only=True))
    return bool(reply.kvs)
