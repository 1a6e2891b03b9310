"""Reading what happened in etcd's past: the writes since an index, the ends of leases.

etcd tells history by a watch that begins in the past. Such a watch never says that it has caught up, so each read of
history ends at a mark: an event known to come last.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from wharf.engines import etcd_messages as messages
from wharf.engines.etcd_client import EtcdRefusal, EtcdWatch, ReplyLost, WatchBroken, WatchCompacted
from wharf.engines.etcd_door import EtcdDoor
from wharf.engines.etcd_layout import Epoch, decode_head
from wharf.engines.etcd_messages import Message
from wharf.engines.port import Behind, Unavailable

_STEPS: Final = 64
"""A write whose reply was lost is mostly a few writes back: so many single steps are quicker than a watch."""


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


async def lease_endings(door: EtcdDoor, epoch: Epoch, *, up_to: int) -> dict[str, int]:
    """Of every table, the last revision not after `up_to` at which something was dropped, as far as history reaches.

    A lease that ends drops records and leaves no mark in the state; so it must be looked up in history, and be noted
    (`ended`) before that is compacted away.
    """
    rows = door.rows_of(epoch)
    tick = door.keys.tick(door.world.new_id())
    try:
        await door.client.commit(messages.transaction(success=[messages.put(tick, b"")]))
        last = (await door.client.commit(messages.transaction(success=[messages.delete(tick)]))).header.revision
    except EtcdRefusal:
        return {}  # No space: state can still be read, and members and leaders are about to change anyway.
    except ReplyLost as error:
        raise Unavailable(str(error)) from error
    start = 1
    endings: dict[str, int] = {}
    while True:
        request = messages.watch(door.keys.all, door.keys.all_end, revision=start, drops_only=True)
        try:
            async with watching(door, request) as watch:
                while True:
                    for event in (await watch.read()).events:
                        revision, key = event.kv.mod_revision, event.kv.key
                        if revision <= up_to and key.startswith(rows.rows):
                            endings[rows.place(key)[0]] = revision
                        if revision >= last:
                            return endings
        except WatchCompacted as error:
            start = error.revision
