"""Raising the cluster's format once every server can read the next."""

from wharf.model.changes import Cause, CauseKind, Write
from wharf.model.cluster import Format
from wharf.state import Replica
from wharf.state.tables import FORMAT, MEMBERS


def raise_format(snapshot: Replica) -> Write | None:
    """The newest format that all members read, if it is newer than the one in force. Without members nobody can tell."""
    stored = snapshot.get(FORMAT)
    members = list(snapshot.all(MEMBERS))
    if stored is None or not members:
        return None
    readable = min(member.newest_format for member in members)
    if readable <= stored.version:
        return None
    conditions = [snapshot.unchanged(FORMAT, stored), *(snapshot.unchanged(MEMBERS, member) for member in members)]
    raised = Format(version=readable, create_index=stored.create_index)
    return Write("format-raised", Cause(CauseKind.TIMER, "format"), [FORMAT.put(raised)], conditions)
