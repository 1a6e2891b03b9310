"""Committing to etcd: one write, one transaction.

The transaction compares the revision of every conditioned record and of the epoch's key, which fences writes that were
sent before an epoch or a search ended them. When it fails, its other branch reads what was compared, so that a conflict
names what moved on.
"""

from typing import Final

from wharf.engines import etcd_messages as messages
from wharf.engines.etcd_client import EtcdRefusal, Reason, ReplyLost
from wharf.engines.etcd_door import EtcdDoor
from wharf.engines.etcd_layout import FORMAT, Epoch, GenerationKeys, Head, encode, founding_value
from wharf.engines.etcd_messages import Message
from wharf.engines.etcd_settings import EtcdSettings
from wharf.engines.port import Bounds, Committed, Conflict, LogWrite, Outcome, Refused, Unavailable, Unknown, refusal_of

# A transaction's own operations: the head, the epoch at the founding, and one mark for each table that only loses records.
_OWN_OPS: Final = 16
# For keys, conditions and marks beside the records' bytes.
_OWN_BYTES: Final = 172_864
_ATTEMPTS: Final = 10


def bounds_of(settings: EtcdSettings) -> Bounds:
    """What is left of etcd's bounds for a write."""
    return Bounds(
        changes=settings.max_txn_ops - _OWN_OPS,
        conditions=settings.max_txn_ops - 1,
        bytes=max(settings.max_request_bytes - _OWN_BYTES, settings.max_request_bytes // 2),
    )


async def commit_to(door: EtcdDoor, write: LogWrite, bounds: Bounds) -> Outcome:
    why = refusal_of(write, bounds)
    if why is not None:
        return Refused(why)
    for _ in range(_ATTEMPTS):
        outcome = await _attempt(door, write)
        if outcome is not None:
            return outcome
    raise Unavailable(f"{door.settings.where()} was fenced again and again while a write was tried")


async def _attempt(door: EtcdDoor, write: LogWrite) -> Outcome | None:
    """None: the epoch or its fence had moved and nothing else; now it is known, and the write may be tried again."""
    sent = door.sent()
    epoch, rows = door.epoch, door.rows
    request = transaction_of(door, write, epoch, rows)
    why = _too_large(request, door.settings)
    if why is not None:
        return Refused(why)
    try:
        reply = await door.client.commit(request)
    except ReplyLost as error:
        return Unknown(str(error))
    except EtcdRefusal as error:
        return Refused(_sentence(error, door.settings))
    revision = int(reply.header.revision)
    if not reply.succeeded:
        return await _on_failure(door, write, epoch, reply)
    if not door.is_current(sent) or revision <= sent.seen:
        # The write is in a log that was replaced by an older copy; the index would be wrong.
        if door.is_current(sent):
            await door.begin_epoch()
        return Unknown(
            f"{door.settings.where()} was replaced by an older copy of itself while the write was on its way"
        )
    door.saw(revision, sent)
    door.saw_write(revision, write.id)
    if epoch.fence:
        return Committed(epoch.index_of(revision))
    door.adopt(door.epoch_founded_at(revision))
    return Committed(door.epoch.index_of(revision))


def transaction_of(door: EtcdDoor, write: LogWrite, epoch: Epoch, rows: GenerationKeys) -> Message:
    """The write as etcd takes it, fenced by the epoch as it is known."""
    keys = door.keys
    compare = [messages.moved_at(keys.epoch, epoch.fence)]
    otherwise = [messages.read(keys.epoch)]
    for condition in write.conditions:
        key = rows.row(condition.table, condition.key)
        compare.append(messages.moved_at(key, epoch.revision_of_version(condition.version)))
        otherwise.append(messages.read_revision(key))
    puts = drops = 0
    dropped: list[tuple[str, str]] = []
    operations: list[Message] = []
    filled: dict[str, None] = {}
    emptied: dict[str, None] = {}
    for change in write.changes:
        key = rows.row(change.table, change.key)
        if change.data is None:
            drops += 1
            dropped.append((change.table, change.key))
            emptied[change.table] = None
            operations.append(messages.delete(key))
        else:
            puts += 1
            filled[change.table] = None
            operations.append(messages.put(key, change.data, write.lease))
            if write.lease:
                operations.append(messages.put(rows.held_of_row(key), b""))
    head = Head(FORMAT, write.id, write.kind, write.cause, puts, dropped)
    operations.append(messages.put(keys.head, encode(head)))
    # A record put in the same batch carries the revision of the batch: only a table that loses records needs a mark.
    operations.extend(messages.put(rows.last_of(table), b"") for table in emptied if table not in filled)
    if not epoch.fence:
        operations.append(messages.put(keys.epoch, encode(founding_value())))
    return messages.transaction(compare, operations, otherwise)


def _too_large(request: Message, settings: EtcdSettings) -> str | None:
    if len(request.success) > settings.max_txn_ops:
        return (
            f"the write needs {len(request.success)} operations of etcd, which takes {settings.max_txn_ops}: "
            "it drops records from very many tables, or puts very many on a lease"
        )
    size = request.ByteSize()
    if size > settings.max_request_bytes:
        return f"the write has {size} bytes with its keys and conditions; etcd takes {settings.max_request_bytes}"
    return None


def _sentence(error: EtcdRefusal, settings: EtcdSettings) -> str:
    match error.reason:
        case Reason.NO_SPACE:
            return (
                f"{settings.where()} has used up its quota and takes no writes (alarm NOSPACE); reads go on. "
                "Compact and defragment it or raise --quota-backend-bytes, then disarm the alarm: etcdctl alarm disarm"
            )
        case Reason.LEASE_ENDED:
            return "the lease of this write has ended"
        case _:
            return str(error)


async def _on_failure(door: EtcdDoor, write: LogWrite, epoch: Epoch, reply: Message) -> Conflict | None:
    found = door.epoch_of(messages.only_pair(reply.responses[0]))
    counts_alike = (found.number, found.generation, found.base) == (epoch.number, epoch.generation, epoch.base)
    if not counts_alike or found.fence < epoch.fence:
        await door.look()  # Adopts the epoch, and notices if it is that of an older copy.
        return None
    door.adopt(found)
    moved = [
        (condition.table, condition.key)
        for condition, response in zip(write.conditions, reply.responses[1:], strict=True)
        if _revision(response) != epoch.revision_of_version(condition.version)
    ]
    return Conflict(moved) if moved else None


def _revision(response: Message) -> int:
    pair = messages.only_pair(response)
    return 0 if pair is None else int(pair.mod_revision)
