"""What operators do to the list of servers. A server's record is its own: it writes it, and its lease ends it.

Raising the cluster's format once every server can read the next.
"""

import msgspec

from wharf.cluster.operations.decision import Decision
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import CLUSTER_FORMAT, LEADER, MEMBERS
from wharf.contract.model.cluster import RecordFormat
from wharf.contract.model.log import Cause, CauseKind, Write
from wharf.contract.model.refusal import Refusal, RefusalCode, not_found


class MemberRemovalResult(msgspec.Struct, frozen=True):
    index: int


def remove_member(
    snapshot: Replica, member_id: str, *, not_found_text: str, cause: str = ""
) -> Decision[MemberRemovalResult]:
    """Remove the record of a server that is gone, sooner than its lease would. `missing`: how the caller called it.

    A server that lives writes its record again. The leader's is needed to find it, so it stays.
    """
    member = snapshot.get(MEMBERS, member_id)
    if member is None:
        raise not_found(not_found_text)
    leader = snapshot.get(LEADER)
    if leader is not None and leader.member_id == member_id:
        raise Refusal(RefusalCode.CONFLICT, f"{member.name or member.id} leads: make another server the leader first")
    change = MEMBERS.build_delete(member_id)
    write = Write(
        "member-forgotten", Cause(CauseKind.OPERATOR, cause), [change], [snapshot.build_key_condition(MEMBERS, member_id), snapshot.build_key_condition(LEADER)]
    )  # fmt: skip
    return Decision(write, MemberRemovalResult)


def upgrade_record_format(snapshot: Replica) -> Write | None:
    """The newest format that all members read, if it is newer than the one in force. Without members nobody can tell."""
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
    raised = RecordFormat(version=readable, create_index=stored.create_index)
    return Write("format-raised", Cause(CauseKind.TIMER, "format"), [CLUSTER_FORMAT.build_put(raised)], conditions)
