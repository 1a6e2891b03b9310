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

FIRST_SERVER, OTHER_SERVER = ProcessAddress("m1", "api-1"), ProcessAddress("m2", "api-1")


async def find_address(directory: NodeDirectory, node: str) -> ProcessAddress | None:
    return (await directory.find_node(FindNodeRequest(node))).place


@in_virtual_time
async def test_the_newest_address_of_a_node_counts() -> None:
    directory = NodeDirectory()
    await directory.update(HeldNodesReport(FIRST_SERVER, ("a", "b")))
    await directory.update(HeldNodesReport(OTHER_SERVER, ("b",)))
    await directory.update(HeldNodesReport(FIRST_SERVER, (), let_go=("b",)))

    assert (FIRST_SERVER, OTHER_SERVER, None) == tuple(
        [await find_address(directory, node) for node in ("a", "b", "c")]
    )


@in_virtual_time
async def test_a_complete_report_of_a_process_replaces_its_earlier_reports() -> None:
    directory = NodeDirectory()
    await directory.update(HeldNodesReport(FIRST_SERVER, ("a", "b")))
    await directory.update(HeldNodesReport(FIRST_SERVER, ("b", "c"), is_whole=True))

    assert (None, FIRST_SERVER, FIRST_SERVER) == tuple(
        [await find_address(directory, node) for node in ("a", "b", "c")]
    )


@in_virtual_time
async def test_the_leader_receives_new_and_closed_connections() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        reporter = HeldNodesReporter(cluster.world("m1"), server.server.replica, server.server.leader, FIRST_SERVER)
        cluster.start(reporter.run(), name="reporter")

        async def find_known_address() -> ProcessAddress | None:
            return (await server.server.leader.call(FIND_NODE, FindNodeRequest("n1"))).place

        reporter.add_node("n1")
        await until_read(
            find_known_address, lambda address: address == FIRST_SERVER, what="the leader has the connection"
        )
        reporter.remove_node("n1")
        await until_read(
            find_known_address, lambda address: address is None, what="the leader has removed the connection"
        )
