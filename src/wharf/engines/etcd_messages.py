"""The messages that cross to etcd, built from our words.

The only module that knows etcd's generated messages, which carry no types: `Message` is any of them. Never talks.
"""

from collections.abc import Sequence
from typing import Any, Final

# Generated code without types; everything that leaves this module is named and typed here.
from aetcd.rpc import rpc_pb2 as rpc  # type: ignore[import-untyped]

Message = Any
"""A protobuf message. Its fields are those of etcd's own description (`rpc.proto`)."""

NEVER: Final = -1
"""A revision that no key has: a comparison with it never holds."""

_EQUAL = rpc.Compare.EQUAL
_MOD = rpc.Compare.MOD


def end_of(prefix: bytes) -> bytes:
    """The end of the range of all keys that begin so."""
    return prefix[:-1] + bytes([prefix[-1] + 1])


def moved_at(key: bytes, revision: int) -> Message:
    """The comparison: the key was last changed at this revision; 0: it is not there."""
    return rpc.Compare(result=_EQUAL, target=_MOD, key=key, mod_revision=revision)


def put(key: bytes, value: bytes, lease: int = 0) -> Message:
    return rpc.RequestOp(request_put=rpc.PutRequest(key=key, value=value, lease=lease))


def delete(key: bytes) -> Message:
    return rpc.RequestOp(request_delete_range=rpc.DeleteRangeRequest(key=key))


def delete_range(start: bytes, end: bytes) -> Message:
    return rpc.RequestOp(request_delete_range=rpc.DeleteRangeRequest(key=start, range_end=end))


def read(key: bytes) -> Message:
    return rpc.RequestOp(request_range=rpc.RangeRequest(key=key))


def read_revision(key: bytes) -> Message:
    """Read when a key was last changed, without its value."""
    return rpc.RequestOp(request_range=rpc.RangeRequest(key=key, keys_only=True))


def transaction(
    compare: Sequence[Message] = (), success: Sequence[Message] = (), failure: Sequence[Message] = ()
) -> Message:
    return rpc.TxnRequest(compare=compare, success=success, failure=failure)


def page(start: bytes, end: bytes, *, limit: int = 0, revision: int = 0, keys_only: bool = False) -> Message:
    return rpc.RangeRequest(key=start, range_end=end, limit=limit, revision=revision, keys_only=keys_only)


def watch(start: bytes, end: bytes, *, revision: int, drops_only: bool = False) -> Message:
    """Without `fragment`: so one response carries whole revisions, as etcd promises."""
    filters = [rpc.WatchCreateRequest.NOPUT] if drops_only else []
    create = rpc.WatchCreateRequest(key=start, range_end=end, start_revision=revision, filters=filters)
    return rpc.WatchRequest(create_request=create)


def compaction(revision: int) -> Message:
    return rpc.CompactionRequest(revision=revision)


def lease_grant(ttl_s: int) -> Message:
    return rpc.LeaseGrantRequest(TTL=ttl_s)


def lease_renewal(lease: int) -> Message:
    return rpc.LeaseKeepAliveRequest(ID=lease)


def lease_revocation(lease: int) -> Message:
    return rpc.LeaseRevokeRequest(ID=lease)


def status() -> Message:
    return rpc.StatusRequest()


def alarms() -> Message:
    return rpc.AlarmRequest(action=rpc.AlarmRequest.GET)


def is_out_of_space(alarm: Message) -> bool:
    return bool(alarm.alarm == rpc.NOSPACE)


def authentication(user: str, password: str) -> Message:
    return rpc.AuthenticateRequest(name=user, password=password)


def only_pair(response: Message) -> Message | None:
    """The pair of a transaction's read of one key, if the key is there."""
    pairs = response.response_range.kvs
    return pairs[0] if pairs else None


def is_delete(event: Message) -> bool:
    return bool(event.type == 1)  # DELETE, in `kv.proto`.
