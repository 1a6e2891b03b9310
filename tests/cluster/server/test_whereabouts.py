"""Who holds the connection of which node: told to whoever leads, also to the next one."""

from tests.kit.cluster import ACluster
from tests.kit.virtual_time import in_virtual_time, seen
from wharf.cluster.server.node_channels.directory import (
    FIND_NODE,
    FindNodeRequest,
    HeldNodesReport,
    HeldNodesReporter,
    NodeDirectory,
    ProcessAddress,
)

HERE, THERE = ProcessAddress("m1", "api-1"), ProcessAddress("m2", "api-1")


async def place_of(whereabouts: NodeDirectory, node: str) -> ProcessAddress | None:
    return (await whereabouts.find_node(FindNodeRequest(node))).place


@in_virtual_time
async def test_the_newest_place_of_a_node_counts() -> None:
    whereabouts = NodeDirectory()
    await whereabouts.update(HeldNodesReport(HERE, ("a", "b")))
    await whereabouts.update(HeldNodesReport(THERE, ("b",)))
    await whereabouts.update(HeldNodesReport(HERE, (), let_go=("b",)))

    assert (HERE, THERE, None) == tuple([await place_of(whereabouts, node) for node in ("a", "b", "c")])


@in_virtual_time
async def test_what_a_process_tells_as_all_of_it_takes_the_place_of_what_it_told_before() -> None:
    whereabouts = NodeDirectory()
    await whereabouts.update(HeldNodesReport(HERE, ("a", "b")))
    await whereabouts.update(HeldNodesReport(HERE, ("b", "c"), is_whole=True))

    assert (None, HERE, HERE) == tuple([await place_of(whereabouts, node) for node in ("a", "b", "c")])


@in_virtual_time
async def test_a_leader_hears_of_connections_that_come_and_go() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        telling = HeldNodesReporter(cluster.world("m1"), server.server.replica, server.server.leader, HERE)
        cluster.start(telling.run(), name="telling")

        async def known() -> ProcessAddress | None:
            return (await server.server.leader.call(FIND_NODE, FindNodeRequest("n1"))).place

        telling.add_node("n1")
        await seen(known, lambda place: place == HERE, what="the leader knows of the connection")
        telling.remove_node("n1")
        await seen(known, lambda place: place is None, what="the leader knows that it is gone")
