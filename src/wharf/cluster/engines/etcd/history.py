"""Reading what happened in etcd's past: the writes since an index, the ends of leases.

etcd tells history by a watch that begins in the past, and by reads at a past revision. Such a watch never says that it
has caught up, so a read through it ends at an event known to come last.
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

_STEPS: Final = 64
"""A write whose reply was lost is mostly a few writes back: so many single steps are quicker than a watch."""


class LeaseEnding(NamedTuple):
    """A record that went with its lease, or was dropped later; `held` is the key that remembers the lease."""

    table: str
    revision: int
    held_key: bytes
    held_revision: int


@asynccontextmanager
async def open_history_watch(session: EtcdSession, request: ProtobufMessage) -> AsyncIterator[EtcdWatch]:
    try:
        watch = await session.client.open_watch(request)
        try:
            yield watch
        finally:
            watch.stop()
    except WatchBroken as error:
        raise LogUnavailable(str(error)) from error


async def find_write(session: EtcdSession, write_id: str, since: int) -> int | None:
    """The index of the write with this id, from `since` on."""
    # A write that is still on its way must not happen after we said that it did not.
    await session.fence_writes()
    look = await session.read_status()
    epoch = look.epoch
    if not epoch.fence:
        return None
    first = epoch.to_revision(since)
    if first < epoch.since:
        if epoch.number:
            raise FollowerBehind(f"the log began epoch {epoch.number} after index {since}")
        first = epoch.since
    head, head_id = look.head_revision, look.head_write_id
    for _ in range(_STEPS):
        if head < first:
            return None
        if head_id == write_id:
            return epoch.to_index(head)
        head, head_id = await _head_before(session, head, since)
    return await _find_from(session, write_id, since, first=first, last=head, epoch=epoch)


async def _head_before(door: EtcdSession, revision: int, since: int) -> tuple[int, str]:
    """The revision and id of the newest write before this revision; 0 when there is none."""
    try:
        reply = await door.send_request("range", messages.build_range(door.keys.head, b"", revision=revision - 1))
    except EtcdRefusal as error:
        raise _behind(door, since) from error
    for pair in reply.kvs:
        return int(pair.mod_revision), decode_head(pair.value).id
    return 0, ""


async def _find_from(
    door: EtcdSession, write_id: str, since: int, *, first: int, last: int, epoch: Epoch
) -> int | None:
    """Read all heads between two revisions."""
    if last < first:
        return None
    try:
        async with open_history_watch(door, messages.build_watch(door.keys.head, b"", revision=first)) as watch:
            while True:
                for event in (await watch.read_response()).events:
                    if decode_head(event.kv.value).id == write_id:
                        return epoch.to_index(event.kv.mod_revision)
                    if event.kv.mod_revision >= last:
                        return None
    except WatchCompacted as error:
        raise _behind(door, since) from error


def _behind(door: EtcdSession, since: int) -> FollowerBehind:
    return FollowerBehind(f"{door.settings.describe()} is compacted; it no longer reaches back to index {since}")


async def list_lease_endings(session: EtcdSession, epoch: Epoch, *, last_revision: int) -> list[LeaseEnding]:
    """The records that hung on a lease and are gone at this revision, with the revision at which they went.

    A lease that ends leaves no mark in the state, so the moment is looked up in history, by halving: a watch through
    history would be slower by far, as etcd serves ten thousand revisions of it a second. What was compacted away counts
    as the latest that it can have been; `compact` notes endings before, so that only others' compactions do that.

    Raises `EtcdRefusal` when this revision is compacted itself.
    """
    rows = session.get_generation_keys(epoch)
    reply = await session.send_request(
        "range", messages.build_range(rows.held, rows.held_end, revision=last_revision, keys_only=True)
    )
    endings = []
    for pair in reply.kvs:
        row = rows.convert_held_key(pair.key)
        if await _is_there(session, row, last_revision):
            continue
        there, gone = int(pair.mod_revision), last_revision
        while gone - there > 1:
            between = (there + gone) // 2
            try:
                is_there = await _is_there(session, row, between)
            except EtcdRefusal as error:
                if error.reason is not EtcdRefusalReason.COMPACTED:
                    raise
                is_there = True
            there, gone = (between, gone) if is_there else (there, between)
        endings.append(LeaseEnding(rows.split_record_key(row)[0], gone, pair.key, pair.mod_revision))
    return endings


async def _is_there(door: EtcdSession, key: bytes, revision: int) -> bool:
    reply = await door.send_request("range", messages.build_range(key, b"", revision=revision, keys_only=True))
    return bool(reply.kvs)
