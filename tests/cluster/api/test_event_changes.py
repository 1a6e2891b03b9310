"""The stream of changed keys: what its caller may see, collected for a second."""

from typing import Any

from tests.builders import a_job
from tests.cluster.api.test_events import commit, register
from tests.kit.callers import a_token, enable_acl
from tests.kit.cluster import ACluster, OneServer
from tests.kit.state import a_node, an_allocation
from tests.kit.streams import AStream
from tests.kit.virtual_time import in_virtual_time, pass_time, until
from wharf.cluster.api.handlers.events import MAX_CHANGED_KEYS
from wharf.cluster.state.tables import ACL_TOKENS, ALLOCATIONS, NAMESPACES, NODES
from wharf.contract.model.log import WRITE_INDEX
from wharf.contract.model.namespaces import Namespace
from wharf.contract.model.nodes.node import NodeStatus


async def follow(
    cluster: ACluster, server: OneServer, *topics: str, headers: dict[str, str] | None = None, namespace: str = "*"
) -> AStream:
    """Open a stream of changes."""
    query = [("namespace", namespace), *(("topic", topic) for topic in topics)]
    stream = AStream(cluster, server, "/v1/event/changes", query, headers)
    await stream.wait_begin()
    return stream


def list_changes(stream: AStream) -> list[dict[str, Any]]:
    return [change for line in stream.lines for change in line.get("Changes", ())]


@in_virtual_time
async def test_a_change_names_the_record_and_what_it_belongs_to_but_not_its_content() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        stream = await follow(cluster, server, "Allocation")

        allocation = an_allocation(a_job("shop"))
        index = await commit(server, ALLOCATIONS.build_put(allocation))
        await until(lambda: list_changes(stream), what="the change is received")

        (change,) = list_changes(stream)
        assert (change["Topic"], change["All"]) == ("Allocation", False)
        assert {allocation.id, allocation.job_id} <= set(change["Keys"])
        assert [line["Index"] for line in stream.lines if line.get("Changes")] == [index]
        assert b"Payload" not in b"".join(stream.parts)


@in_virtual_time
async def test_changes_of_a_second_are_one_line() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        stream = await follow(cluster, server, "Job")

        for name in ("one", "two", "three"):
            await register(server, name)
        await pass_time(5.0)

        lines = [line for line in stream.lines if line.get("Changes")]
        assert {key for change in list_changes(stream) for key in change["Keys"]} >= {"one", "two", "three"}
        assert len(lines) <= 2


@in_virtual_time
async def test_too_many_changed_records_are_not_named() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        stream = await follow(cluster, server, "Node")

        nodes = [
            a_node(f"n{number}", status=NodeStatus.READY, create_index=WRITE_INDEX)
            for number in range(MAX_CHANGED_KEYS + 1)
        ]
        await commit(server, *(NODES.build_put(node) for node in nodes))
        await until(lambda: list_changes(stream), what="the change is received")

        assert list_changes(stream) == [{"Topic": "Node", "Keys": [], "All": True}]


@in_virtual_time
async def test_changes_in_namespaces_that_the_caller_may_not_read_are_left_out() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await commit(server, NAMESPACES.build_put(Namespace(name="other", create_index=WRITE_INDEX)))
        token = await a_token(server, 'namespace "default" { policy = "read" }')
        enable_acl(server)
        operator = await a_token(server, management=True)
        stream = await follow(cluster, server, "Job", headers=token)
        whole = await follow(cluster, server, "Job", headers=operator)

        server.api = server.build_api()  # The registrations themselves need no token.
        await register(server, "secret", "other")
        await register(server, "open")
        await until(lambda: "open" in str(list_changes(whole)), what="the changes are received")
        await pass_time(3.0)

        assert "secret" in str(list_changes(whole))
        assert {key for change in list_changes(stream) for key in change["Keys"]} == {"open"}


@in_virtual_time
async def test_the_stream_ends_with_the_token_of_its_caller() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        token = await a_token(server, 'namespace "default" { policy = "read" }')
        enable_acl(server)
        stream = await follow(cluster, server, "Job", headers=token)

        (stored,) = list(server.replica.iter_all(ACL_TOKENS))
        await commit(server, ACL_TOKENS.build_delete(stored.accessor_id))

        await until(lambda: stream.is_over, what="the stream ends")


@in_virtual_time
async def test_without_changes_a_heartbeat_is_sent() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        stream = await follow(cluster, server, "Volume")

        await pass_time(35.0)

        assert 3 <= len(stream.lines) <= 5
        assert list_changes(stream) == []
