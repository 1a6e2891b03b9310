"""A server that freezes in a simulated cluster: its connections stay open, and nothing is answered."""

from collections.abc import Awaitable, Callable

import pytest

from simulation.cluster import SimulatedServer
from simulation.contact_invariants import LOST_NODE_STATES
from simulation.run import SeedRun
from tests.kit.virtual_time import pass_time
from wharf.cluster.state.tables import LEADER, NODES

FROZEN_S = 60.0
"""Longer than the TTL and the grace of a heartbeat in the simulation, and than the lease of a leader."""


def run_cluster(scenario: Callable[[SeedRun], Awaitable[None]]) -> None:
    """Run a scenario in a cluster whose nodes are ready, without other faults."""
    run = SeedRun(7)

    async def start() -> None:
        run.cluster.start()
        await pass_time(10.0)
        await scenario(run)

    try:
        run.loop.run_until_complete(start())
    finally:
        run.loop.abandon()


def choose_member(run: SeedRun, *, is_leader: bool) -> SimulatedServer:
    leader = run.record_history.replica.get(LEADER)
    assert leader is not None
    return next(member for member in run.cluster.members if (member.name == leader.member_id) is is_leader)


def list_lost_nodes(run: SeedRun) -> list[str]:
    """Return the names of the nodes that know all servers and that were ever out of contact."""
    names = {node.name for node in run.cluster.nodes if node.knows_all_servers}
    history = run.record_history
    versions = [version for key in history.list_keys(NODES) for _, version in history.list_versions(NODES, key)]
    return sorted({node.name for node in versions if node is not None and node.status in LOST_NODE_STATES} & names)


@pytest.mark.parametrize("is_leader", [False, True])
def test_no_node_with_several_servers_is_lost_while_one_server_is_frozen(is_leader: bool) -> None:
    async def freeze(run: SeedRun) -> None:
        frozen = choose_member(run, is_leader=is_leader)
        run.chaos.freeze(frozen, (FROZEN_S, FROZEN_S))
        await pass_time(FROZEN_S + 10.0)

        assert list_lost_nodes(run) == []
        leader = run.record_history.replica.get(LEADER)
        assert leader is not None
        assert leader.member_id != frozen.name

    run_cluster(freeze)
