"""Every handler under the name of its endpoint: the one place that knows all rooms of the API.

A room is a module with `READS` (handlers that read the replica) and `acts_of` (those that do more). One whose lists
have joined fields says in `JOINS` how each is read, by the type of record: a function from the replica to a function
of the record.
"""

from collections.abc import Callable
from typing import Any, Final

from wharf.api.answers import Act, Reading
from wharf.api.endpoints import (
    acl,
    agent,
    allocations,
    client_agents,
    deployments,
    documents,
    evaluations,
    events,
    explanations,
    host_volumes,
    identities,
    jobs,
    keyring,
    members,
    metrics,
    namespaces,
    node_agents,
    node_identities,
    node_pools,
    nodes,
    operator,
    quotas,
    regions,
    scaling,
    search,
    services,
    status,
    system,
    variables,
)
from wharf.server.server import Server
from wharf.state import Replica

ROOMS: Final = (
    jobs, evaluations, allocations, explanations, deployments, services, scaling, search, nodes, node_agents, node_identities,
    node_pools, namespaces, quotas, host_volumes, client_agents, system, events, acl, identities, variables,
    keyring, agent, members, status, operator, metrics, regions, documents,
)  # fmt: skip

READS: Final[dict[str, Reading]] = {name: reading for room in ROOMS for name, reading in room.READS.items()}


def reads_of(server: Server) -> dict[str, Reading]:
    """The handlers that read the replica. Those of a room's `reads_of` also open what the server's keyring has sealed."""
    found = dict(READS)
    for room in ROOMS:
        if hasattr(room, "reads_of"):
            found |= room.reads_of(server)
    return found


Joins = dict[str, Callable[[Replica], Callable[[Any], Any]]]

JOINS: Final[dict[type, Joins]] = {**allocations.JOINS}


def acts_of(server: Server) -> dict[str, Act]:
    """The handlers that do more than read the replica."""
    return {name: act for room in ROOMS for name, act in room.acts_of(server).items()}
