"""The leader's directory of node connections, also after a change of the leader."""

from tests.kit.cluster import ACluster
from tests.kit.virtual_time import in_virtual_time, until_read
from wharf.cluster.server.node_channels.directory import (
    FIND_NODE,
    FindNodeRequest,
    HeldNodesReport,
    HeldNodesReporter,
    NodeDirectory,
    ProcessAddress,
)

HERE, THERE = ProcessAddress("m1", "api-1"), ProcessAddress("m2", "api-1")


async def find_address(whereabouts: NodeDirectory, node: str) -> ProcessAddress | None:
    return (await whereabouts.find_node(FindNodeRequest(node))).place


@in_virtual_time
async def test_the_newest_address_of_a_node_counts() -> None:
    whereabouts = NodeDirectory()
    await whereabouts.update(HeldNodesReport(HERE, ("a", "b")))
    await whereabouts.update(HeldNodesReport(THERE, ("b",)))
    await whereabouts.update(HeldNodesReport(HERE, (), let_go=("b",)))

    assert (HERE, THERE, None) == tuple([await find_address(whereabouts, node) for node in ("a", "b", "c")])


@in_virtual_time
async def test_a_complete_report_of_a_process_replaces_its_earlier_reports() -> None:
    whereabouts = NodeDirectory()
    await whereabouts.update(HeldNodesReport(HERE, ("a", "b")))
    await whereabouts.update(HeldNodesReport(HERE, ("b", "c"), is_whole=True))

    assert (None, HERE, HERE) == tuple([await find_address(whereabouts, node) for node in ("a", "b", "c")])


@in_virtual_time
async def test_the_leader_receives_new_and_closed_connections() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        telling = HeldNodesReporter(cluster.world("m1"), server.server.replica, server.server.leader, HERE)
        cluster.start(telling.run(), name="telling")

        async def known() -> ProcessAddress | None:
            return (await server.server.leader.call(FIND_NODE, FindNodeRequest("n1"))).place

        telling.add_node("n1")
        await until_read(known, lambda address: address == HERE, what="the leader has the connection")
        telling.remove_node("n1")
        await until_read(known, lambda address: address is None, what="the leader has removed the connection")
