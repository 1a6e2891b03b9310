"""What operators do to the list of servers. A server's record is its own: it writes it, and its lease ends it."""

import msgspec

from wharf.model.changes import Cause, CauseKind, Write
from wharf.model.refusal import Code, Refusal, unknown
from wharf.operations.decision import Decision
from wharf.state import Replica
from wharf.state.tables import LEADER, MEMBERS


class Forgotten(msgspec.Struct, frozen=True):
    index: int


def forget(snapshot: Replica, member_id: str, *, missing: str, cause: str = "") -> Decision[Forgotten]:
    """Remove the record of a server that is gone, sooner than its lease would. `missing`: how the caller called it.

    A server that lives writes its record again. The leader's is needed to find it, so it stays.
    """
    member = snapshot.get(MEMBERS, member_id)
    if member is None:
        raise unknown(missing)
    leader = snapshot.get(LEADER)
    if leader is not None and leader.member_id == member_id:
        raise Refusal(Code.CONFLICT, f"{member.name or member.id} leads: make another server the leader first")
    change = MEMBERS.drop(member_id)
    write = Write(
        "member-forgotten", Cause(CauseKind.OPERATOR, cause), [change], [snapshot.as_seen(MEMBERS, member_id), snapshot.as_seen(LEADER)]
    )  # fmt: skip
    return Decision(write, Forgotten)
