"""The list of the last changes: what its caller may see, the newest first, without the records."""

from tests.builders import a_job
from tests.cluster.api.test_events import commit, register
from tests.kit.callers import a_token, enable_acl
from tests.kit.cluster import ACluster
from tests.kit.requests import get, read
from tests.kit.state import a_node
from tests.kit.virtual_time import in_virtual_time, pass_time
from wharf.cluster.state.tables import JOBS, NODES
from wharf.contract.wire.events import MAX_RECENT_EVENTS


@in_virtual_time
async def test_the_last_changes_are_listed_newest_first_without_the_records() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        for name in ("one", "two"):
            await register(server, name)
        await pass_time(1)  # The scheduler has evaluated both jobs.
        await commit(server, NODES.build_put(a_node("node-1")))

        recent = read(await get(server, "/v1/event/recent", "namespace=*&topic=Job&topic=Node"))

        assert next((event["Topic"], event["Key"]) for event in recent["Events"]) == ("Node", "node-1")
        names = [
            event["Key"] for event in recent["Events"] if event["Topic"] == "Job" and event["Type"] == "JobRegistered"
        ]
        assert names == ["two", "one"]
        assert all("Payload" not in event for event in recent["Events"])
        assert recent["OldestIndex"] <= recent["Events"][-1]["Index"]


@in_virtual_time
async def test_a_change_of_a_record_without_a_time_has_the_time_at_which_the_server_received_it() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await pass_time(90)
        received_ns = server.world.now_ns()
        await commit(server, NODES.build_put(a_node("node-1")))
        await pass_time(90)

        recent = read(await get(server, "/v1/event/recent", "namespace=*&topic=Node"))

        assert [event["Time"] for event in recent["Events"]] == [received_ns]


@in_virtual_time
async def test_a_reply_has_a_limited_number_of_changes() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await commit(server, *(JOBS.build_put(a_job(f"job-{number}")) for number in range(MAX_RECENT_EVENTS + 50)))

        recent = read(await get(server, "/v1/event/recent", "namespace=*&topic=Job"))

        assert len(recent["Events"]) == MAX_RECENT_EVENTS


@in_virtual_time
async def test_changes_that_a_caller_may_not_see_are_left_out() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await register(server, "shop")
        await commit(server, NODES.build_put(a_node("node-1")))
        enable_acl(server)
        reader = await a_token(server, 'namespace "default" { policy = "read" }')

        recent = read(await get(server, "/v1/event/recent", "namespace=*", headers=reader))

        topics = {event["Topic"] for event in recent["Events"]}
        assert "Job" in topics
        assert topics.isdisjoint({"Node", "ACLToken", "ACLPolicy"})
