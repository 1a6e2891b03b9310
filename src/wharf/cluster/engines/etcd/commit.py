"""Committing to etcd: one write, one transaction.

The transaction compares the revision of every conditioned record and of the epoch's key, which fences writes that were
sent before an epoch or a search ended them. When it fails, its other branch reads what was compared, so that a conflict
names what moved on.
"""

from typing import Final

from wharf.cluster.engines.etcd import messages
from wharf.cluster.engines.etcd.client import EtcdRefusal, EtcdRefusalReason, ReplyLost
from wharf.cluster.engines.etcd.layout import (
    LAYOUT_FORMAT,
    Epoch,
    GenerationKeys,
    HeadValue,
    encode_value,
    make_first_epoch_value,
)
from wharf.cluster.engines.etcd.messages import ProtobufMessage
from wharf.cluster.engines.etcd.session import EtcdSession
from wharf.cluster.engines.etcd.settings import EtcdSettings
from wharf.cluster.engines.port import (
    Committed,
    EncodedWrite,
    LogUnavailable,
    WriteConflict,
    WriteLimits,
    WriteOutcome,
    WriteOutcomeUnknown,
    WriteRejected,
    check_write_limits,
)

# A transaction's own operations: the head, the epoch at the founding, and one mark for each table that only loses records.
_OWN_OPS: Final = 16
# For keys, conditions and marks beside the records' bytes.
_OWN_BYTES: Final = 172_864
_ATTEMPTS: Final = 10


def compute_write_limits(settings: EtcdSettings) -> WriteLimits:
    """What is left of etcd's bounds for a write."""
    return WriteLimits(
        changes=settings.max_txn_ops - _OWN_OPS,
        conditions=settings.max_txn_ops - 1,
        bytes=max(settings.max_request_bytes - _OWN_BYTES, settings.max_request_bytes // 2),
    )


async def commit_write(session: EtcdSession, write: EncodedWrite, limits: WriteLimits) -> WriteOutcome:
    why = check_write_limits(write, limits)
    if why is not None:
        return WriteRejected(why)
    for _ in range(_ATTEMPTS):
        outcome = await _attempt(session, write)
        if outcome is not None:
            return outcome
    raise LogUnavailable(f"{session.settings.describe()} was fenced again and again while a write was tried")


async def _attempt(door: EtcdSession, write: EncodedWrite) -> WriteOutcome | None:
    """None: the epoch or its fence had moved and nothing else; now it is known, and the write may be tried again."""
    sent = door.begin_request()
    epoch, rows = door.epoch, door.generation_keys
    request = build_write_transaction(door, write, epoch, rows)
    why = _too_large(request, door.settings)
    if why is not None:
        return WriteRejected(why)
    try:
        reply = await door.client.commit_transaction(request)
    except ReplyLost as error:
        return WriteOutcomeUnknown(str(error))
    except EtcdRefusal as error:
        return WriteRejected(_sentence(error, door.settings))
    revision = int(reply.header.revision)
    if not reply.succeeded:
        return await _on_failure(door, write, epoch, reply)
    if not door.is_current(sent) or revision <= sent.seen_revision:
        # The write is in a log that was replaced by an older copy; the index would be wrong.
        if door.is_current(sent):
            await door.begin_epoch()
        return WriteOutcomeUnknown(
            f"{door.settings.describe()} was replaced by an older copy of itself while the write was on its way"
        )
    door.record_revision(revision, sent)
    door.record_write(revision, write.id)
    if epoch.fence:
        return Committed(epoch.to_index(revision))
    door.adopt_epoch(door.make_first_epoch(revision))
    return Committed(door.epoch.to_index(revision))


def build_write_transaction(
    session: EtcdSession, write: EncodedWrite, epoch: Epoch, generation_keys: GenerationKeys
) -> ProtobufMessage:
    """The write as etcd takes it, fenced by the epoch as it is known."""
    keys = session.keys
    compare = [messages.compare_revision(keys.epoch, epoch.fence)]
    otherwise = [messages.build_read(keys.epoch)]
    for condition in write.conditions:
        key = generation_keys.build_record_key(condition.table, condition.key)
        compare.append(messages.compare_revision(key, epoch.version_to_revision(condition.version)))
        otherwise.append(messages.build_revision_read(key))
    puts = drops = 0
    dropped: list[tuple[str, str]] = []
    operations: list[ProtobufMessage] = []
    filled: dict[str, None] = {}
    emptied: dict[str, None] = {}
    for change in write.changes:
        key = generation_keys.build_record_key(change.table, change.key)
        if change.data is None:
            drops += 1
            dropped.append((change.table, change.key))
            emptied[change.table] = None
            operations.append(messages.build_delete(key))
        else:
            puts += 1
            filled[change.table] = None
            operations.append(messages.build_put(key, change.data, write.lease))
            if write.lease:
                operations.append(messages.build_put(generation_keys.build_held_key(key), b""))
    head = HeadValue(LAYOUT_FORMAT, write.id, write.kind, write.cause, puts, dropped)
    operations.append(messages.build_put(keys.head, encode_value(head)))
    # A record put in the same batch carries the revision of the batch: only a table that loses records needs a mark.
    operations.extend(
        messages.build_put(generation_keys.build_last_key(table), b"") for table in emptied if table not in filled
    )
    if not epoch.fence:
        operations.append(messages.build_put(keys.epoch, encode_value(make_first_epoch_value())))
    return messages.build_transaction(compare, operations, otherwise)


def _too_large(request: ProtobufMessage, settings: EtcdSettings) -> str | None:
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
        case EtcdRefusalReason.NO_SPACE:
            return (
                f"{settings.describe()} has used up its quota and takes no writes (alarm NOSPACE); reads go on. "
                "Compact and defragment it or raise --quota-backend-bytes, then disarm the alarm: etcdctl alarm disarm"
            )
        case EtcdRefusalReason.LEASE_ENDED:
            return "the lease of this write has ended"
        case _:
            return str(error)


async def _on_failure(
    door: EtcdSession, write: EncodedWrite, epoch: Epoch, reply: ProtobufMessage
) -> WriteConflict | None:
    found = door.decode_epoch_pair(messages.get_only_pair(reply.responses[0]))
    counts_alike = (found.number, found.generation, found.base) == (epoch.number, epoch.generation, epoch.base)
    if not counts_alike or found.fence < epoch.fence:
        await door.read_status()  # Adopts the epoch, and notices if it is that of an older copy.
        return None
    door.adopt_epoch(found)
    moved = [
        (condition.table, condition.key)
        for condition, response in zip(write.conditions, reply.responses[1:], strict=True)
        if _revision(response) != epoch.version_to_revision(condition.version)
    ]
    return WriteConflict(moved) if moved else None


def _revision(response: ProtobufMessage) -> int:
    pair = messages.get_only_pair(response)
    return 0 if pair is None else int(pair.mod_revision)
