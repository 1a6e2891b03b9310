"""Commits to etcd: one write is one transaction.

The transaction compares the revision of every record with a condition, and of the epoch key. The epoch key is the
fence: it rejects writes that were sent before a new epoch or a `find_write`. If a comparison fails, the transaction
reads the compared keys, so that a conflict can name the records that changed.
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
from wharf.contract.model.log import Condition

# Operations of the transaction besides the changes: the head, the first epoch, and one mark for each table that only
# loses records.
_OWN_OPS: Final = 16
# Space for keys, conditions and marks besides the records' bytes.
_OWN_BYTES: Final = 172_864
NO_SPACE_TEXT: Final = "has used up its quota and accepts no writes (alarm NOSPACE)"
NO_SPACE_REMEDY: Final = (
    "Compact and defragment it or raise --quota-backend-bytes, then disarm the alarm: etcdctl alarm disarm"
)
_MAX_ATTEMPTS: Final = 10


def compute_write_limits(settings: EtcdSettings) -> WriteLimits:
    """Return etcd's limits, less what the engine itself adds to a transaction."""
    return WriteLimits(
        changes=settings.max_txn_ops - _OWN_OPS,
        conditions=settings.max_txn_ops - 1,
        bytes=max(settings.max_request_bytes - _OWN_BYTES, settings.max_request_bytes // 2),
    )


async def commit_write(session: EtcdSession, write: EncodedWrite, limits: WriteLimits) -> WriteOutcome:
    """Commit a write and return its outcome.

    Repeats it if another process only moved the fence (rewrote the epoch key). Raises `LogUnavailable` after ten attempts.
    """
    rejection_reason = check_write_limits(write, limits)
    if rejection_reason is not None:
        return WriteRejected(rejection_reason)
    for _ in range(_MAX_ATTEMPTS):
        outcome = await _try_commit(session, write)
        if outcome is not None:
            return outcome
    raise LogUnavailable(f"{session.settings.describe()} moved its fence during every attempt to write")


async def _try_commit(session: EtcdSession, write: EncodedWrite) -> WriteOutcome | None:
    """Try the transaction once. Returns None if only the epoch or its fence had moved; it is known now, so the write
    may be repeated."""
    sent = session.begin_request()
    epoch, generation_keys = session.epoch, session.generation_keys
    request = build_write_transaction(session, write, epoch, generation_keys)
    rejection_reason = _find_size_problem(request, session.settings)
    if rejection_reason is not None:
        return WriteRejected(rejection_reason)
    try:
        reply = await session.client.commit_transaction(request)
    except ReplyLost as error:
        return WriteOutcomeUnknown(str(error))
    except EtcdRefusal as error:
        return WriteRejected(_describe_refusal(error, session.settings))
    revision = int(reply.header.revision)
    if not reply.succeeded:
        return await _find_conflict(session, write, epoch, reply)
    if not session.is_current(sent) or revision <= sent.seen_revision:
        # The log was replaced by an older copy, so the index would be wrong.
        if session.is_current(sent):
            await session.begin_epoch()
        return WriteOutcomeUnknown(
            f"{session.settings.describe()} was replaced by an older copy of itself while the write was in flight"
        )
    session.record_revision(revision, sent)
    session.record_write(revision, write.id)
    if epoch.fence:
        return Committed(epoch.to_index(revision))
    session.adopt_epoch(session.make_first_epoch(revision))
    return Committed(session.epoch.to_index(revision))


def build_write_transaction(
    session: EtcdSession, write: EncodedWrite, epoch: Epoch, generation_keys: GenerationKeys
) -> ProtobufMessage:
    """Build the transaction of a write, fenced by the epoch that this process knows."""
    keys = session.keys
    compare = [messages.compare_revision(keys.epoch, epoch.fence)]
    otherwise = [messages.build_read(keys.epoch)]
    for condition in write.conditions:
        if condition.is_prefix:
            key_range = generation_keys.build_prefix_range(condition.table, condition.key)
            last_revision = epoch.find_last_revision(condition.version)
            compare.append(messages.compare_range_not_after(*key_range, last_revision))
            otherwise.append(messages.build_later_revision_read(*key_range, last_revision))
            continue
        key = generation_keys.build_record_key(condition.table, condition.key)
        compare.append(messages.compare_revision(key, epoch.version_to_revision(condition.version)))
        otherwise.append(messages.build_revision_read(key))
    puts = deletes = 0
    deleted_records: list[tuple[str, str]] = []
    operations: list[ProtobufMessage] = []
    written_tables: dict[str, None] = {}
    tables_with_deletes: dict[str, None] = {}
    for change in write.changes:
        key = generation_keys.build_record_key(change.table, change.key)
        if change.data is None:
            deletes += 1
            deleted_records.append((change.table, change.key))
            tables_with_deletes[change.table] = None
            operations.append(messages.build_delete(key))
        else:
            puts += 1
            written_tables[change.table] = None
            operations.append(messages.build_put(key, change.data, write.lease))
            if write.lease:
                operations.append(messages.build_put(generation_keys.build_held_key(key), b""))
    head = HeadValue(LAYOUT_FORMAT, write.id, write.kind, write.cause, puts, deleted_records)
    operations.append(messages.build_put(keys.head, encode_value(head)))
    # A record written in the batch has the revision of the batch: only a table that merely loses records needs a
    # mark.
    operations.extend(
        messages.build_put(generation_keys.build_last_key(table), b"")
        for table in tables_with_deletes
        if table not in written_tables
    )
    if not epoch.fence:
        operations.append(messages.build_put(keys.epoch, encode_value(make_first_epoch_value())))
    return messages.build_transaction(compare, operations, otherwise)


def _find_size_problem(request: ProtobufMessage, settings: EtcdSettings) -> str | None:
    """Return why the transaction exceeds etcd's limits; None if it fits."""
    if len(request.success) > settings.max_txn_ops:
        return (
            f"the write needs {len(request.success)} operations of etcd, which takes {settings.max_txn_ops}: "
            "it deletes records from very many tables, or writes very many with a lease"
        )
    size = request.ByteSize()
    if size > settings.max_request_bytes:
        return f"the write has {size} bytes with its keys and conditions; etcd takes {settings.max_request_bytes}"
    return None


def _describe_refusal(error: EtcdRefusal, settings: EtcdSettings) -> str:
    """Return the refusal as a sentence for operators."""
    match error.reason:
        case EtcdRefusalReason.NO_SPACE:
            return f"{settings.describe()} {NO_SPACE_TEXT}; reads still work. {NO_SPACE_REMEDY}"
        case EtcdRefusalReason.LEASE_ENDED:
            return "the lease of this write has ended"
        case _:
            return str(error)


async def _find_conflict(
    session: EtcdSession, write: EncodedWrite, epoch: Epoch, reply: ProtobufMessage
) -> WriteConflict | None:
    """Adopt the epoch in a failed transaction's reply, and return the conflict; None if only the epoch moved."""
    epoch_found = session.decode_epoch_pair(messages.get_only_pair(reply.responses[0]))
    has_same_numbering = (epoch_found.number, epoch_found.generation, epoch_found.base) == (
        epoch.number,
        epoch.generation,
        epoch.base,
    )
    if not has_same_numbering or epoch_found.fence < epoch.fence:
        await session.read_status()  # Adopts the epoch, or detects an older copy.
        return None
    session.adopt_epoch(epoch_found)
    conflicts = [
        (condition.table, condition.key)
        for condition, response in zip(write.conditions, reply.responses[1:], strict=True)
        if not _is_met(condition, response, epoch)
    ]
    return WriteConflict(conflicts) if conflicts else None


def _is_met(condition: Condition, response: ProtobufMessage, epoch: Epoch) -> bool:
    """Return whether the condition held when a failed transaction read its key or its later keys."""
    if condition.is_prefix:
        return not response.response_range.kvs
    return _get_revision(response) == epoch.version_to_revision(condition.version)


def _get_revision(response: ProtobufMessage) -> int:
    pair = messages.get_only_pair(response)
    return 0 if pair is None else int(pair.mod_revision)
