"""Builds the protobuf messages for etcd. Sends nothing.

Only this module uses etcd's generated classes. They have no types: `ProtobufMessage` stands for any of them.
"""

from collections.abc import Sequence
from typing import Any, Final

# Generated code without types; everything that leaves this module is named and typed here.
from aetcd.rpc import rpc_pb2 as rpc  # type: ignore[import-untyped]

ProtobufMessage = Any
"""A protobuf message with the fields of etcd's `rpc.proto`."""

IMPOSSIBLE_REVISION: Final = -1
"""A revision that no key has, so a comparison with it never holds."""

_EQUAL = rpc.Compare.EQUAL
_LESS = rpc.Compare.LESS
_MOD = rpc.Compare.MOD


def find_prefix_end(prefix: bytes) -> bytes:
    """Return the end of the range of all keys with this prefix."""
    return prefix[:-1] + bytes([prefix[-1] + 1])


def compare_revision(key: bytes, revision: int) -> ProtobufMessage:
    """Build the comparison "the key was last changed at this revision"; 0: the key does not exist."""
    return rpc.Compare(result=_EQUAL, target=_MOD, key=key, mod_revision=revision)


def compare_range_not_after(start: bytes, end: bytes, revision: int) -> ProtobufMessage:
    """Build the comparison "no key of the range was put after this revision". Deleted keys do not count."""
    return rpc.Compare(result=_LESS, target=_MOD, key=start, range_end=end, mod_revision=revision + 1)


def build_put(key: bytes, value: bytes, lease: int = 0) -> ProtobufMessage:
    return rpc.RequestOp(request_put=rpc.PutRequest(key=key, value=value, lease=lease))


def build_delete(key: bytes) -> ProtobufMessage:
    return rpc.RequestOp(request_delete_range=rpc.DeleteRangeRequest(key=key))


def build_delete_range(start: bytes, end: bytes) -> ProtobufMessage:
    return rpc.RequestOp(request_delete_range=rpc.DeleteRangeRequest(key=start, range_end=end))


def build_read(key: bytes) -> ProtobufMessage:
    return rpc.RequestOp(request_range=rpc.RangeRequest(key=key))


def build_revision_read(key: bytes) -> ProtobufMessage:
    """Build a read of the revision of a key, without its value."""
    return rpc.RequestOp(request_range=rpc.RangeRequest(key=key, keys_only=True))


def build_later_revision_read(start: bytes, end: bytes, revision: int) -> ProtobufMessage:
    """Build a read of one key of the range that was put after this revision, without its value."""
    request = rpc.RangeRequest(key=start, range_end=end, keys_only=True, limit=1, min_mod_revision=revision + 1)
    return rpc.RequestOp(request_range=request)


def build_transaction(
    compare: Sequence[ProtobufMessage] = (),
    success: Sequence[ProtobufMessage] = (),
    failure: Sequence[ProtobufMessage] = (),
) -> ProtobufMessage:
    return rpc.TxnRequest(compare=compare, success=success, failure=failure)


def build_range(
    start: bytes, end: bytes, *, limit: int = 0, revision: int = 0, keys_only: bool = False
) -> ProtobufMessage:
    return rpc.RangeRequest(key=start, range_end=end, limit=limit, revision=revision, keys_only=keys_only)


def build_watch(start: bytes, end: bytes, *, revision: int) -> ProtobufMessage:
    """Build a watch of a range from a revision on. Without `fragment`, one response contains whole revisions."""
    create = rpc.WatchCreateRequest(key=start, range_end=end, start_revision=revision)
    return rpc.WatchRequest(create_request=create)


def build_compaction(revision: int) -> ProtobufMessage:
    return rpc.CompactionRequest(revision=revision)


def build_lease_grant(ttl_s: int) -> ProtobufMessage:
    return rpc.LeaseGrantRequest(TTL=ttl_s)


def build_lease_renewal(lease: int) -> ProtobufMessage:
    return rpc.LeaseKeepAliveRequest(ID=lease)


def build_lease_revocation(lease: int) -> ProtobufMessage:
    return rpc.LeaseRevokeRequest(ID=lease)


def build_status() -> ProtobufMessage:
    return rpc.StatusRequest()


def build_alarm_list() -> ProtobufMessage:
    return rpc.AlarmRequest(action=rpc.AlarmRequest.GET)


def is_out_of_space(alarm: ProtobufMessage) -> bool:
    return bool(alarm.alarm == rpc.NOSPACE)


def build_authentication(user: str, password: str) -> ProtobufMessage:
    return rpc.AuthenticateRequest(name=user, password=password)


def get_only_pair(response: ProtobufMessage) -> ProtobufMessage | None:
    """Return the key-value pair of a transaction's read of one key; None if the key does not exist."""
    pairs = response.response_range.kvs
    return pairs[0] if pairs else None


def is_delete(event: ProtobufMessage) -> bool:
    return bool(event.type == 1)  # DELETE, in `kv.proto`.
