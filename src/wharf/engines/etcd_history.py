"""Reading what happened in etcd's past: the writes since an index, the ends of leases.

etcd tells history by a watch that begins in the past, and by reads at a past revision. Such a watch never says that it
has caught up, so a read through it ends at an event known to come last.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

from wharf.engines import etcd_messages as messages
from wharf.engines.etcd_client import EtcdRefusal, EtcdWatch, Reason, WatchBroken, WatchCompacted
from wharf.engines.etcd_door import EtcdDoor
from wharf.engines.etcd_layout import Epoch, decode_head
from wharf.engines.etcd_messages import Message
from wharf.engines.port import Behind, Unavailable

_STEPS: Final = 64
"""A write whose reply was lost is mostly a few writes back: so many single steps are quicker than a watch."""


class Ending(NamedTuple):
    """A record that went with its lease, or was dropped later; `held` is the key that remembers the lease."""

    table: str
    revision: int
    held: bytes
    held_revision: int


@asynccontextmanager
async def watching(door: EtcdDoor, request: Message) -> AsyncIterator[EtcdWatch]:
    try:
        watch = await door.client.watch(request)
        try:
            yield watch
        finally:
            watch.stop()
    except WatchBroken as error:
        raise Unavailable(str(error)) from error


async def find_write(door: EtcdDoor, write_id: str, since: int) -> int | None:
    """The index of the write with this id, from `since` on."""
    # A write that is still on its way must not happen after we said that it did not.
    await door.fence()
    look = await door.look()
    epoch = look.epoch
    if not epoch.fence:
        return None
    first = epoch.revision_of(since)
    if first < epoch.since:
        if epoch.number:
            raise Behind(f"the log began epoch {epoch.number} after index {since}")
        first = epoch.since
    head, head_id = look.head, look.head_id
    for _ in range(_STEPS):
        if head < first:
            return None
        if head_id == write_id:
            return epoch.index_of(head)
        head, head_id = await _head_before(door, head, since)
    return await _find_from(door, write_id, since, first=first, last=head, epoch=epoch)


async def _head_before(door: EtcdDoor, revision: int, since: int) -> tuple[int, str]:
    """The revision and id of the newest write before this revision; 0 when there is none."""
    try:
        reply = await door.ask("range", messages.page(door.keys.head, b"", revision=revision - 1))
    except EtcdRefusal as error:
        raise _behind(door, since) from error
    for pair in reply.kvs:
        return int(pair.mod_revision), decode_head(pair.value).id
    return 0, ""


async def _find_from(door: EtcdDoor, write_id: str, since: int, *, first: int, last: int, epoch: Epoch) -> int | None:
    """Read all heads between two revisions."""
    if last < first:
        return None
    try:
        async with watching(door, messages.watch(door.keys.head, b"", revision=first)) as watch:
            while True:
                for event in (await watch.read()).events:
                    if decode_head(event.kv.value).id == write_id:
                        return epoch.index_of(event.kv.mod_revision)
                    if event.kv.mod_revision >= last:
                        return None
    except WatchCompacted as error:
        raise _behind(door, since) from error


def _behind(door: EtcdDoor, since: int) -> Behind:
    return Behind(f"{door.settings.where()} is compacted; it no longer reaches back to index {since}")


async def lease_endings(door: EtcdDoor, epoch: Epoch, *, up_to: int) -> list[Ending]:
    """The records that hung on a lease and are gone at this revision, with the revision at which they went.

    A lease that ends leaves no mark in the state, so the moment is looked up in history, by halving: a watch through
    history would be slower by far, as etcd serves ten thousand revisions of it a second. What was compacted away counts
    as the latest that it can have been; `compact` notes endings before, so that only others' compactions do that.

    Raises `EtcdRefusal` when this revision is compacted itself.
    """
    rows = door.rows_of(epoch)
    reply = await door.ask("range", messages.page(rows.held, rows.held_end, revision=up_to, keys_only=True))
    endings = []
    for pair in reply.kvs:
        row = rows.row_of_held(pair.key)
        if await _is_there(door, row, up_to):
            continue
        there, gone = int(pair.mod_revision), up_to
        while gone - there > 1:
            between = (there + gone) // 2
            try:
                is_there = await _is_there(door, row, between)
            except EtcdRefusal as error:
                if error.reason is not Reason.COMPACTED:
                    raise
                is_there = True
            there, gone = (between, gone) if is_there else (there, between)
        endings.append(Ending(rows.place(row)[0], gone, pair.key, pair.mod_revision))
    return endings


async def _is_there(door: EtcdDoor, key: bytes, revision: int) -> bool:
    reply = await door.ask("range", messages.page(key, b"", revision=revision, keys_only=True))
    return bool(reply.kvs)
