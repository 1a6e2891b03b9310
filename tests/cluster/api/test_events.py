"""The event stream as callers see it (conventions 3.4)."""

import json

import msgspec
import pytest

from tests.builders import a_job
from tests.kit.callers import a_token, change_rules, enable_acl
from tests.kit.cluster import ACluster, OneServer
from tests.kit.exchange import send_raw
from tests.kit.state import SECRET, a_node, an_allocation
from tests.kit.streams import AStream, listen
from tests.kit.virtual_time import in_virtual_time, pass_time, until
from wharf.cluster.api.handlers.events import HEARTBEAT_INTERVAL_S, PART_BYTES, WRITE_TIMEOUT_S
from wharf.cluster.server.events import EventFeed
from wharf.cluster.state.tables import ACL_TOKENS, ALLOCATIONS, JOBS, NAMESPACES, NODE_POOLS, NODES, VARIABLES
from wharf.contract.model.acl.tokens import Token, TokenType
from wharf.contract.model.allocations.task_states import TaskEvent, TaskState, TaskStatus
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.log import WRITE_INDEX, Cause, CauseKind, Write
from wharf.contract.model.namespaces import Namespace
from wharf.contract.model.nodes.node import NodeStatus
from wharf.contract.model.secrets import hash_secret
from wharf.contract.model.variables import Variable, VariableLock

READ_JOBS = 'namespace "default" { policy = "read" }'


async def register(server: OneServer, job_id: str = "shop", namespace: str = "default") -> int:
    body = msgspec.json.encode({"Job": a_job(job_id, namespace=namespace)})
    reply = await send_raw(server.api, "PUT", "/v1/jobs", query=f"namespace={namespace}", body=body)
    assert reply.status == 200, reply.body
    return int(reply.headers["x-cluster-index"])


async def commit(server: OneServer, *changes: object, kind: str = "test") -> int:
    outcome = await server.server.writer.commit(Write(kind, Cause(CauseKind.REQUEST, "test"), changes))  # type: ignore[arg-type]
    return outcome.index  # type: ignore[union-attr]  # without conditions there is no conflict


async def read_refusal(server: OneServer, query: str, headers: dict[str, str] | None = None) -> tuple[int, bytes]:
    reply = await send_raw(server.api, "GET", "/v1/event/stream", query=query, headers=headers)
    return reply.status, reply.body


# -- encoding


@in_virtual_time
async def test_the_stream_is_uncached_json_and_begins_with_a_heartbeat() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()

        stream = await listen(cluster, server, "Node")

        assert stream.status == 200
        assert stream.headers["content-type"] == "application/json"
        assert stream.headers["cache-control"] == "no-cache"
        assert "content-length" not in stream.headers
        assert stream.parts[0] == b"{}\n"


@in_virtual_time
async def test_without_events_a_heartbeat_is_sent_every_thirty_seconds() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        stream = await listen(cluster, server, "Node")

        await pass_time(2 * HEARTBEAT_INTERVAL_S)

        assert stream.heartbeats == 3


@in_virtual_time
async def test_a_line_has_the_index_and_each_event_its_topic_type_key_namespace_and_payload() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        index = await register(server)

        stream = await listen(cluster, server, "Job")

        event = await stream.wait_for_event(topic="Job", type="JobRegistered")
        payload = event.pop("Payload")
        assert event == {
            "Topic": "Job", "Type": "JobRegistered", "Key": "shop", "Namespace": "default", "FilterKeys": None,
            "Index": index,
        }  # fmt: skip
        assert (payload["Job"]["ID"], payload["Deleted"]) == ("shop", False)
        assert next(line["Index"] for line in stream.lines if line) == index


@in_virtual_time
async def test_all_events_of_a_commit_have_the_same_type() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        index = await register(server)

        stream = await listen(cluster, server)

        assert {e["Type"] for e in stream.events if e["Index"] == index} == {"JobRegistered"}
        assert {e["Topic"] for e in stream.events if e["Index"] == index} == {"Job", "Evaluation"}


@in_virtual_time
async def test_a_large_commit_is_sent_in_several_lines_with_one_index() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        stream = await listen(cluster, server, "Node")

        nodes = [a_node(f"node-{number}", status=NodeStatus.READY, create_index=WRITE_INDEX) for number in range(250)]
        index = await commit(server, *(NODES.build_put(node) for node in nodes))
        await until(lambda: len(stream.events) >= 250, what="all events are received")

        lines = [line for line in stream.lines if line]
        assert [(line["Index"], len(line["Events"])) for line in lines] == [(index, 100), (index, 100), (index, 50)]


# -- retained events


@in_virtual_time
async def test_without_an_index_all_retained_events_are_replayed() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await register(server, "one")
        await register(server, "two")

        for index in (None, 0):
            stream = await listen(cluster, server, "Job", index=index)

            assert [key for _, type, key in stream.event_keys if type == "JobRegistered"] == ["one", "two"]


@in_virtual_time
async def test_a_stream_begins_at_its_index_or_at_the_next_retained_one() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        first = await register(server, "one")
        await until(lambda: server.replica.index > first, what="its status is settled")
        second = await register(server, "two")

        result = {}
        for index in (second - 1, second, second + 1_000):
            stream = await listen(cluster, server, "Job", index=index)
            result[index] = [key for _, type, key in stream.event_keys if type == "JobRegistered"]

        assert result == {second - 1: ["two"], second: ["two"], second + 1_000: []}


@in_virtual_time
async def test_a_negative_index_ends_the_stream_without_a_byte() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()

        stream = await listen(cluster, server, "Job", index=-1)

        assert (stream.status, stream.parts, stream.is_over) == (200, [], True)


@in_virtual_time
async def test_an_invalid_index_is_refused() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()

        for text, reason in (("x", b"invalid syntax"), ("9223372036854775808", b"value out of range")):
            assert await read_refusal(server, f"index={text}") == (
                400,
                b'Unable to parse index: strconv.Atoi: parsing "%s": %s' % (text.encode(), reason),
            )


# -- topics


@in_virtual_time
async def test_a_topic_with_two_colons_is_refused() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()

        assert await read_refusal(server, "topic=a:b:c") == (
            400,
            b"Invalid topic query: error parsing topics: Invalid key value pair for topic, topic: a:b:c",
        )


@in_virtual_time
async def test_topics_and_keys_select_events_by_key_or_filter_key() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await register(server, "one")
        await register(server, "two")

        stream = await listen(cluster, server, "Job:one", "Evaluation:two")

        assert {(topic, key) for topic, _, key in stream.event_keys if topic == "Job"} == {("Job", "one")}
        jobs = {event["FilterKeys"][0] for event in stream.events if event["Topic"] == "Evaluation"}
        assert jobs == {"two"}


@in_virtual_time
async def test_an_evaluation_without_a_deployment_has_an_empty_filter_key() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await register(server)

        stream = await listen(cluster, server, "Evaluation")

        assert (await stream.wait_for_event(topic="Evaluation"))["FilterKeys"] == ["shop", ""]


@in_virtual_time
async def test_an_unknown_topic_is_accepted_and_has_no_events() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await register(server)

        stream = await listen(cluster, server, "Weather")

        assert stream.lines == [{}]


@in_virtual_time
async def test_only_events_of_the_requested_namespace_or_without_a_namespace_are_sent() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await commit(server, NAMESPACES.build_put(Namespace(name="team", create_index=WRITE_INDEX)))
        await register(server, "ours")
        await register(server, "theirs", "team")
        await commit(server, NODES.build_put(a_node("node-9", create_index=WRITE_INDEX)))

        local = await listen(cluster, server)
        remote = await listen(cluster, server, namespace="team")
        everywhere = await listen(cluster, server, namespace="*")

        jobs = {name: {k for t, _, k in s.event_keys if t == "Job"} for name, s in (("here", local), ("there", remote))}
        assert jobs == {"here": {"ours"}, "there": {"theirs"}}
        assert {k for t, _, k in everywhere.event_keys if t == "Job"} == {"ours", "theirs"}
        assert all("node-9" in {key for _, _, key in stream.event_keys} for stream in (local, remote, everywhere))


@in_virtual_time
async def test_a_stream_of_all_namespaces_covers_the_namespaces_that_exist_at_its_begin() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        stream = await listen(cluster, server, "Job", namespace="*")

        await commit(server, NAMESPACES.build_put(Namespace(name="late", create_index=WRITE_INDEX)))
        await register(server, "late-one", "late")
        await register(server, "ours")
        await stream.wait_for_event(key="ours")

        assert {key for _, _, key in stream.event_keys} == {"ours"}


# -- events


@in_virtual_time
async def test_drains_purges_and_eligibility_changes_have_their_own_event_types() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await commit(server, NODES.build_put(a_node("node-1", status=NodeStatus.READY, create_index=WRITE_INDEX)))
        stream = await listen(cluster, server, "Node")

        await send_raw(server.api, "PUT", "/v1/node/node-1/drain", body=b'{"DrainSpec": {"Deadline": -1}}')
        await send_raw(server.api, "PUT", "/v1/node/node-1/drain", body=b'{"DrainSpec": null}')
        await send_raw(server.api, "PUT", "/v1/node/node-1/eligibility", body=b'{"Eligibility": "eligible"}')
        await send_raw(server.api, "PUT", "/v1/node/node-1/purge")
        removed = await stream.wait_for_event(type="NodeDeregistration")

        types = [type for _, type, _ in stream.event_keys]
        assert types[-4:] == ["NodeDrain", "NodeDrain", "NodeEligibility", "NodeDeregistration"]
        assert removed["Payload"]["Node"]["ID"] == "node-1"


@in_virtual_time
async def test_writes_and_deletions_of_node_pools_are_events() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        stream = await listen(cluster, server, "NodePool")

        await send_raw(server.api, "PUT", "/v1/node/pools", body=b'{"Name": "gpu"}')
        await send_raw(server.api, "DELETE", "/v1/node/pool/gpu")
        await stream.wait_for_event(type="NodePoolDeleted")

        assert stream.event_keys[-2:] == [
            ("NodePool", "NodePoolUpserted", "gpu"),
            ("NodePool", "NodePoolDeleted", "gpu"),
        ]


@in_virtual_time
async def test_no_event_contains_a_secret() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        stream = await listen(cluster, server)
        lock = VariableLock(id="the-id-of-the-lock")
        await commit(
            server,
            NODES.build_put(a_node("node-1", create_index=WRITE_INDEX)),
            ACL_TOKENS.build_put(
                Token(accessor_id="acc", secret_digest="the-digest", secret_sealed=b"sealed", type=TokenType.MANAGEMENT)
            ),
            VARIABLES.build_put(Variable(namespace="default", path="a/b", data=b"the-items", key_id="k", lock=lock)),
        )

        token = await stream.wait_for_event(topic="ACLToken", type="ACLTokenUpserted", key="acc")
        node = await stream.wait_for_event(topic="Node", key="node-1")
        variable = await stream.wait_for_event(topic="Variable", type="VariableUpdated", key="a/b")

        text = b"".join(stream.parts).decode()
        for secret in (SECRET, hash_secret(SECRET), "the-digest", "c2VhbGVk", "the-items", "the-id-of-the-lock"):
            assert secret not in text
        assert token["Payload"]["ACLToken"]["AccessorID"] == "acc"
        assert (node["Payload"]["Node"]["SecretID"], "SecretDigest" in node["Payload"]["Node"]) == ("", False)
        assert "Data" not in variable["Payload"]["Variable"]


@in_virtual_time
async def test_the_event_of_a_purge_has_the_last_state_of_the_job() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        stream = await listen(cluster, server, "Job")
        await commit(server, JOBS.build_put(a_job("old", create_index=WRITE_INDEX)))
        await commit(server, JOBS.build_delete("default", "old"))

        event = await stream.wait_for_event(type="JobDeregistered", key="old")

        assert (event["Payload"]["Job"]["ID"], event["Payload"]["Deleted"]) == ("old", True)


# -- rights


@in_virtual_time
@pytest.mark.parametrize(
    ("topics", "rules", "status"),
    [
        ("topic=Job", READ_JOBS, 200),
        ("topic=Job", "", 403),
        ("topic=Job&namespace=team", READ_JOBS, 403),
        ("topic=Job&namespace=*", READ_JOBS, 200),
        ("topic=Node", READ_JOBS, 403),
        ("topic=Node", 'node { policy = "read" }', 200),
        ("topic=Job&topic=Node", READ_JOBS, 403),
        ("topic=NodePool", 'node_pool "*" { policy = "write" }', 403),
        ("topic=ACLToken", READ_JOBS, 403),
        ("topic=*", READ_JOBS, 403),
        ("", READ_JOBS, 403),
        ("topic=HostVolume", READ_JOBS, 200),
        ("topic=Variable", READ_JOBS, 403),
        ("topic=Variable", 'namespace "default" { variables { path "a/*" { capabilities = ["list"] } } }', 200),
    ],
)
async def test_each_topic_needs_its_right_before_the_first_byte(topics: str, rules: str, status: int) -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        enable_acl(server)
        headers = await a_token(server, rules)
        query = [tuple(pair.split("=")) for pair in topics.split("&") if pair]

        stream = AStream(cluster, server, "/v1/event/stream", query, headers)  # type: ignore[arg-type]
        await stream.wait_begin()

        assert stream.status == status
        assert (stream.parts == [b"Permission denied"]) == (status == 403)


@in_virtual_time
async def test_an_unknown_token_is_refused() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        enable_acl(server)

        result = await read_refusal(server, "topic=Job", {"x-cluster-token": "00000000-0000-0000-0000-000000000000"})

        assert result == (403, b"Permission denied")


@in_virtual_time
async def test_a_stream_of_all_namespaces_has_events_of_readable_ones_only() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await commit(server, NAMESPACES.build_put(Namespace(name="team", create_index=WRITE_INDEX)))
        await register(server, "ours")
        await register(server, "theirs", "team")
        enable_acl(server)
        headers = await a_token(server, READ_JOBS)

        stream = await listen(cluster, server, "Job", namespace="*", headers=headers)

        assert {key for _, _, key in stream.event_keys} == {"ours"}


@in_virtual_time
async def test_events_of_variables_are_selected_by_path() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        enable_acl(server)
        rules = 'namespace "default" { variables { path "a/*" { capabilities = ["list"] } } }'
        headers = await a_token(server, rules)
        for path in ("a/mine", "b/other"):
            await commit(server, VARIABLES.build_put(Variable(namespace="default", path=path, data=b"x", key_id="k")))

        stream = await listen(cluster, server, "Variable", headers=headers)

        assert {key for _, _, key in stream.event_keys} == {"a/mine"}


@in_virtual_time
async def test_a_stream_ends_when_its_caller_loses_the_right() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        enable_acl(server)
        headers = await a_token(server, READ_JOBS)
        stream = await listen(cluster, server, "Job", headers=headers)

        await change_rules(server, headers, 'namespace "other" { policy = "read" }')
        await stream.wait_end()

        assert stream.event_keys == []


@in_virtual_time
async def test_after_the_loss_of_rights_no_event_is_sent() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        enable_acl(server)
        headers = await a_token(server, READ_JOBS)
        stream = await listen(cluster, server, "Job", headers=headers)

        await change_rules(server, headers, 'namespace "other" { policy = "read" }')
        await commit(server, JOBS.build_put(a_job("late", create_index=WRITE_INDEX)))
        await stream.wait_end()

        assert stream.event_keys == []


# -- ends


@in_virtual_time
async def test_a_stream_ends_when_the_server_stops() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        stream = await listen(cluster, server, "Job")

        server.server.reader.close()
        await stream.wait_end()

        assert stream.is_over


@in_virtual_time
async def test_the_subscription_ends_when_the_caller_disconnects() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        assert server.server.events is not None
        stream = await listen(cluster, server, "Job")
        before = server.server.events.subscription_count

        await stream.disconnect()

        assert (before, server.server.events.subscription_count) == (1, 0)


@in_virtual_time
async def test_a_caller_that_reads_nothing_is_disconnected() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        assert server.server.events is not None
        stream = await listen(cluster, server, "Job")
        stream.reads.clear()

        await pass_time(HEARTBEAT_INTERVAL_S + WRITE_TIMEOUT_S)
        await until(lambda: stream.is_over, what="the stream is closed")

        assert server.server.events.subscription_count == 0


@in_virtual_time
async def test_a_disabled_event_stream_is_refused_with_the_reason() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        server.server.events = None

        status, text = await read_refusal(server, "topic=Job")

        assert (status, b"enable_event_broker" in text) == (501, True)


@in_virtual_time
async def test_a_caller_that_reads_too_slowly_is_disconnected_and_others_continue() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        server.server.events = EventFeed(server.world, server.server.follower, max_lag_commits=150)
        slow = await listen(cluster, server, "NodePool")
        quick = await listen(cluster, server, "NodePool")
        slow.reads.clear()

        for number in range(300):
            pool = server.replica.get(NODE_POOLS, "default")
            assert pool is not None
            await commit(server, NODE_POOLS.build_put(msgspec.structs.replace(pool, description=str(number))))
        await until(lambda: len(quick.events) >= 300, what="the fast caller received all events")
        slow.reads.set()
        await slow.wait_end()

        assert not quick.is_over
        assert len(slow.events) < 300
        assert json.loads(quick.parts[-1])["Events"][0]["Payload"]["NodePool"]["Description"] == "299"


# -- large records


def a_large_job(id: str = "large") -> Job:
    """Return a job of about a megabyte."""
    return a_job(id, meta={f"key{number}": "x" * 200 for number in range(5_000)}, create_index=WRITE_INDEX)


async def stop_in_a_line(cluster: ACluster, server: OneServer, headers: dict[str, str] | None = None) -> AStream:
    """Return a stream whose caller stopped reading within the line of a large record."""
    stream = await listen(cluster, server, "Job", headers=headers)
    stream.stop_after_parts = len(stream.parts) + 2
    await commit(server, JOBS.build_put(a_large_job()))
    await until(lambda: len(stream.parts) == stream.stop_after_parts, what="a part of the line arrived")
    assert not stream.parts[-1].endswith(b"\n")
    return stream


@in_virtual_time
async def test_a_line_with_large_records_is_sent_in_small_parts() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        event = TaskEvent(type="Started", time=0, details={"text": '"\n' * 100})
        states = {f"task{number}": TaskState(state=TaskStatus.RUNNING, events=(event,) * 10) for number in range(200)}
        job = a_large_job()
        allocation = an_allocation(job, id="large", task_states=states)
        stream = await listen(cluster, server)

        await commit(server, JOBS.build_put(job), ALLOCATIONS.build_put(allocation))
        job_event = await stream.wait_for_event(topic="Job", key="large")
        allocation_event = await stream.wait_for_event(topic="Allocation", key="large")

        assert job_event["Payload"]["Job"]["Meta"] == job.meta
        found = allocation_event["Payload"]["Allocation"]["TaskStates"]
        assert (len(found), found["task0"]["Events"][0]["Details"]) == (200, {"text": '"\n' * 100})
        assert max(map(len, stream.parts)) < 4 * PART_BYTES


@in_virtual_time
async def test_a_stream_is_cut_off_if_its_caller_loses_the_right_within_a_line() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        enable_acl(server)
        headers = await a_token(server, READ_JOBS)
        stream = await stop_in_a_line(cluster, server, headers)
        received = len(stream.parts)

        await change_rules(server, headers, 'namespace "other" { policy = "read" }')
        stream.reads.set()
        await stream.wait_end()

        assert (len(stream.parts) <= received + 1, stream.has_proper_end) == (True, False)


@in_virtual_time
async def test_a_stream_that_a_stopping_server_ends_within_a_line_is_cut_off() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        between_lines = await listen(cluster, server, "Node")
        within_a_line = await stop_in_a_line(cluster, server)

        server.api.close()
        await between_lines.wait_end()
        await within_a_line.wait_end()

        assert (between_lines.has_proper_end, within_a_line.has_proper_end) == (True, False)
