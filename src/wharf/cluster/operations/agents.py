"""Operator requests about the member list, and the upgrade of the cluster's record format.

Each server writes its own member record and keeps it alive by a lease; that happens elsewhere.
"""

import msgspec

from wharf.cluster.operations.decision import Decision
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import CLUSTER_FORMAT, LEADER, MEMBERS
from wharf.contract.model.cluster import RecordFormat
from wharf.contract.model.log import Cause, CauseKind, Write
from wharf.contract.model.refusal import Refusal, RefusalCode, not_found


class MemberRemovalResult(msgspec.Struct, frozen=True):
    """The result of a request to remove a server from the member list."""

    index: int  # The log index of the write.


def remove_member(
    snapshot: Replica, member_id: str, *, not_found_text: str, cause: str = ""
) -> Decision[MemberRemovalResult]:
    """Return the decision that deletes the record of a server that is gone, before its lease expires.

    A server that still runs writes its record again. The record of the leader is needed to reach it, so it cannot be
    removed: that raises a conflict. `not_found_text` is the error text if no such member exists.
    """
    member = snapshot.get(MEMBERS, member_id)
    if member is None:
        raise not_found(not_found_text)
    leader = snapshot.get(LEADER)
    if leader is not None and leader.member_id == member_id:
        raise Refusal(
            RefusalCode.CONFLICT, f"{member.name or member.id} is the leader: make another server the leader first"
        )
    change = MEMBERS.build_delete(member_id)
    write = Write(
        "member-forgotten", Cause(CauseKind.OPERATOR, cause), [change], [snapshot.build_key_condition(MEMBERS, member_id), snapshot.build_key_condition(LEADER)]
    )  # fmt: skip
    return Decision(write, MemberRemovalResult)


def upgrade_record_format(snapshot: Replica) -> Write | None:
    """Return the write that raises the cluster's record format to the newest one that all members can read.

    Return `None` if the format cannot be raised, or if no member is known.
    """
    stored = snapshot.get(CLUSTER_FORMAT)
    members = list(snapshot.iter_all(MEMBERS))
    if stored is None or not members:
        return None
    readable = min(member.newest_format for member in members)
    if readable <= stored.version:
        return None
    conditions = [
        snapshot.build_record_condition(CLUSTER_FORMAT, stored),
        *(snapshot.build_record_condition(MEMBERS, member) for member in members),
    ]
    upgraded_format = RecordFormat(version=readable, create_index=stored.create_index)
    return Write(
        "format-raised", Cause(CauseKind.TIMER, "format"), [CLUSTER_FORMAT.build_put(upgraded_format)], conditions
    )
