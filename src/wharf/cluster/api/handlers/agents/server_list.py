"""The servers of this region as replies list them: the members, and the servers that ended without leaving."""

from wharf.cluster.operations.agents import list_failed_servers
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import MEMBERS
from wharf.contract.model.cluster import KnownServer, Member, MemberStatus
from wharf.contract.wire.times import format_time

LAST_CONTACT_TAG = "last_contact"
"""The tag of a failed server with the time at which the leader found that it had ended (RFC 3339)."""


def list_known_members(replica: Replica) -> list[Member]:
    """Return the members and the failed servers, by name. A failed server has the status `failed`."""
    servers = [*replica.iter_all(MEMBERS), *(_build_failed_member(server) for server in list_failed_servers(replica))]
    return sorted(servers, key=lambda member: (member.name, member.id))


def _build_failed_member(server: KnownServer) -> Member:
    """Return a failed server in the form of a member."""
    return Member(
        id=server.id,
        name=server.name,
        region=server.region,
        datacenter=server.datacenter,
        address=server.address,
        build=server.build,
        status=MemberStatus.FAILED,
        newest_format=server.newest_format,
        started_at=server.started_at,
        tags={LAST_CONTACT_TAG: format_time(server.failed_at)} if server.failed_at else None,
    )
