"""Operator requests about the member list, the records of known servers, and the upgrade of the cluster's record format.

Each server writes its own member record and keeps it alive by a lease; that happens elsewhere.
"""

from typing import Final

import msgspec
from msgspec.structs import replace

from wharf.cluster.operations.decision import Decision, WriteBuilder
from wharf.cluster.state import Replica
from wharf.cluster.state.formats import get_active_format
from wharf.cluster.state.tables import CLUSTER_FORMAT, KNOWN_SERVERS, MEMBERS
from wharf.contract.model.cluster import KnownServer, Member
from wharf.contract.model.log import WRITE_INDEX, Cause, CauseKind, Write
from wharf.contract.model.refusal import Refusal, RefusalCode, not_found
from wharf.contract.model.times import HOUR, has_passed

FAILED_SERVER_RETENTION_NS: Final = 72 * HOUR
"""How long a failed server stays in the list of servers. Limits the list where servers are replaced without a command.

Autopilot's `CleanupDeadServers: false` retains them without limit (decision record 0138).
"""


class MemberRemovalResult(msgspec.Struct, frozen=True):
    """The result of a request to remove a server from the member list."""

    index: int  # The log index of the write.


def remove_member(
    snapshot: Replica, member_id: str, *, not_found_text: str, cause: str = ""
) -> Decision[MemberRemovalResult]:
    """Return the decision that deletes the record of a server that ended without leaving, before its retention expires.

    A server that runs is not removed, because it would write its record again at once: that raises a conflict.
    `not_found_text` is the error text if no such server is known.
    """
    member, known = snapshot.get(MEMBERS, member_id), snapshot.get(KNOWN_SERVERS, member_id)
    if member is None and known is None:
        raise not_found(not_found_text)
    if member is not None:
        raise _refuse_removal(member)
    builder = WriteBuilder(snapshot)
    builder.conditions += [
        snapshot.build_key_condition(MEMBERS, member_id),
        snapshot.build_key_condition(KNOWN_SERVERS, member_id),
    ]
    builder.delete(KNOWN_SERVERS, member_id)
    cause_of_removal = Cause(CauseKind.OPERATOR, cause)
    return Decision(
        Write("member-forgotten", cause_of_removal, builder.changes, builder.conditions), MemberRemovalResult
    )


def _refuse_removal(member: Member) -> Refusal:
    """Return the refusal to remove a server that runs. It applies to the leader too: another server leads when it stops."""
    return Refusal(
        RefusalCode.CONFLICT,
        f"{member.name or member.id} at {member.address} is listed as alive: stop it, which removes it from the list; one that "
        "was killed can be removed after about 10 s, when it is listed as failed",
    )


def list_failed_servers(snapshot: Replica) -> list[KnownServer]:
    """Return the known servers that are not members now, by name: they ended without leaving the cluster."""
    failed = [server for server in snapshot.iter_all(KNOWN_SERVERS) if snapshot.get(MEMBERS, server.id) is None]
    return sorted(failed, key=lambda server: (server.name, server.id))


class KnownServersUpdate(msgspec.Struct, frozen=True):
    """What an update of the records of known servers changed, for the log."""

    failed: tuple[KnownServer, ...]  # Newly found to have ended without leaving.
    removed: tuple[KnownServer, ...]  # Deleted: replaced, or failed for too long.


def update_known_servers(
    snapshot: Replica, *, now_ns: int, max_changes: int, should_expire: bool
) -> Decision[KnownServersUpdate] | None:
    """Return the decision that brings the records of known servers up to date with the members.

    - A member gets a record. The record of a server that is no member gets the time at which that was found.
    - The record of a failed server is deleted if a member with its name and region has replaced it. With
      `should_expire`, it is also deleted after `FAILED_SERVER_RETENTION_NS`.

    Return `None` if nothing has to change, or if a server of the cluster does not know the table yet. A decision has at
    most `max_changes` changes; the next one continues.
    """
    if get_active_format(snapshot) < KNOWN_SERVERS.since_format:
        return None
    members = {member.id: member for member in snapshot.iter_all(MEMBERS)}
    names = {(member.name, member.region) for member in members.values() if member.name}
    builder = WriteBuilder(snapshot)
    failed: list[KnownServer] = []
    removed: list[KnownServer] = []

    def has_capacity() -> bool:
        return len(builder.changes) < max_changes and len(builder.conditions) + 2 <= max_changes

    def require_unchanged(server_id: str) -> None:
        builder.conditions += [
            snapshot.build_key_condition(MEMBERS, server_id),
            snapshot.build_key_condition(KNOWN_SERVERS, server_id),
        ]

    for member in members.values():
        known = snapshot.get(KNOWN_SERVERS, member.id)
        current = _build_known_server(member, known)
        if current != known and has_capacity():
            builder.put(KNOWN_SERVERS, current)
            require_unchanged(member.id)
    for server in list_failed_servers(snapshot):
        is_replaced = (server.name, server.region) in names
        is_old = should_expire and (
            server.failed_at
            and has_passed(server.failed_at + FAILED_SERVER_RETENTION_NS, FAILED_SERVER_RETENTION_NS, now_ns)
        )
        if not has_capacity():
            break
        if is_replaced or is_old:
            builder.delete(KNOWN_SERVERS, server.id)
            require_unchanged(server.id)
            removed.append(server)
        elif not server.failed_at:
            builder.put(KNOWN_SERVERS, replace(server, failed_at=now_ns))
            require_unchanged(server.id)
            failed.append(server)
    if not builder.changes:
        return None
    write = Write("known-servers", Cause(CauseKind.TIMER, "known servers"), builder.changes, builder.conditions)
    update = KnownServersUpdate(tuple(failed), tuple(removed))
    return Decision(write, lambda _index: update)


def _build_known_server(member: Member, known: KnownServer | None) -> KnownServer:
    """Return the record of a running server. It keeps the indexes of the existing record."""
    return KnownServer(
        id=member.id,
        name=member.name,
        region=member.region,
        datacenter=member.datacenter,
        address=member.address,
        build=member.build,
        newest_format=member.newest_format,
        started_at=member.started_at,
        create_index=known.create_index if known else WRITE_INDEX,
        modify_index=known.modify_index if known else 0,
    )


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
    upgraded_format = msgspec.structs.replace(stored, version=readable)
    return Write(
        "format-raised", Cause(CauseKind.TIMER, "format"), [CLUSTER_FORMAT.build_put(upgraded_format)], conditions
    )
