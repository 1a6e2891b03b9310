"""Endpoints that a node answers itself: what is judged before it is asked (nodes-allocations.md 0, 2.2, 2.3, 2.4)."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.builders import a_group, a_job, a_task
from tests.kit.callers import a_token, enable_acl
from tests.kit.cluster import ACluster, OneServer
from tests.kit.requests import DENIED, commit, get, put, read, send, told
from tests.kit.state import SECRET, a_node, an_allocation
from tests.kit.streams import AStream
from tests.kit.virtual_time import in_virtual_time
from wharf.cluster.server.node_channels.port import NodeCall, NodeChannel, NodeReply, NodeStream, build_no_node_path
from wharf.cluster.state.tables import ALLOCATIONS, JOB_VERSIONS, JOBS, NODES
from wharf.contract.model.allocations.allocation import ClientStatus, DesiredStatus
from wharf.contract.model.log import WRITE_INDEX
from wharf.contract.model.nodes.node import NodeStatus

NODE = "8a6f0c44-0000-0000-0000-000000000001"
RUNS = "8a6f0c44-0000-0000-0000-000000000011"
ENDED = "8a6f0c44-0000-0000-0000-000000000012"
UNKNOWN = "8a6f0c44-0000-0000-0000-000000000099"
NO_PATH = (404, "No path to node")


class Echo:
    """Plays a node that says back what it was asked."""

    def __init__(self) -> None:
        self.asked: list[NodeCall] = []

    def channel_to(self, node_id: str) -> NodeChannel:
        if node_id != NODE:
            raise build_no_node_path()
        return self

    async def call(self, question: NodeCall) -> NodeReply:
        self.asked.append(question)
        if question.verb == "fs_logs":
            return NodeReply("application/json", parts=_frames())
        return NodeReply("application/json", b'{"Verb": "' + question.verb.encode() + b'"}')

    async def open_stream(self, question: NodeCall) -> NodeStream:
        raise AssertionError(f"{question.verb} is no talk here")


async def _frames() -> AsyncIterator[bytes]:
    for frame in (b'{"Offset": 1}', b"{}"):
        yield frame


async def with_work(cluster: ACluster, *, driver: str = "docker", access: bool = False) -> OneServer:
    server = await cluster.a_server(access=access)
    job = a_job("shop", a_group("web", a_task("server", driver=driver)), create_index=WRITE_INDEX)
    await commit(
        server,
        NODES.build_put(a_node(NODE, status=NodeStatus.READY, create_index=WRITE_INDEX)),
        JOBS.build_put(job),
        JOB_VERSIONS.build_put(job),
        ALLOCATIONS.build_put(an_allocation(job, RUNS, node_id=NODE, client_status=ClientStatus.RUNNING)),
        ALLOCATIONS.build_put(
            an_allocation(
                job, ENDED, node_id=NODE, client_status=ClientStatus.COMPLETE, desired_status=DesiredStatus.STOP
            )
        ),
    )
    return server


OF_NODE: list[tuple[str, str, Any]] = [
    ("GET", "/v1/client/metadata", None),
    ("POST", "/v1/client/metadata", {"Meta": {"rack": "r1", "gone": None}}),
    ("GET", "/v1/client/stats", None),
    ("GET", "/v1/client/gc", None),
    ("PUT", "/v1/client/gc", None),
    ("GET", "/v1/client/identity", None),
    ("PUT", "/v1/client/identity/renew", None),
]

OF_ALLOCATION: list[tuple[str, str, Any]] = [
    ("PUT", "/v1/client/allocation/{}/restart", None),
    ("POST", "/v1/client/allocation/{}/restart", {"TaskName": "server"}),
    ("PUT", "/v1/client/allocation/{}/signal", {"Signal": "SIGHUP"}),
    ("GET", "/v1/client/allocation/{}/pause?task=server", None),
    ("PUT", "/v1/client/allocation/{}/pause", {"Task": "server", "ScheduleState": "pause"}),
    ("GET", "/v1/client/allocation/{}/stats", None),
    ("GET", "/v1/client/allocation/{}/checks", None),
    ("GET", '/v1/client/allocation/{}/exec?task=server&command=["ls"]', None),
    ("GET", "/v1/client/allocation/{}/snapshot", None),
    ("GET", "/v1/client/allocation/{}/gc", None),
    ("PUT", "/v1/client/allocation/{}/gc", None),
    ("GET", "/v1/client/fs/ls/{}", None),
    ("GET", "/v1/client/fs/stat/{}?path=a", None),
    ("GET", "/v1/client/fs/readat/{}?path=a&offset=0&limit=5", None),
    ("GET", "/v1/client/fs/cat/{}?path=a", None),
    ("GET", "/v1/client/fs/stream/{}?path=a&origin=end&offset=5", None),
    ("GET", "/v1/client/fs/logs/{}?task=server&type=stdout&follow=true&plain=true", None),
]


async def ask_for(server: OneServer, method: str, target: str, body: Any, **options: Any) -> tuple[int, str]:
    path, _, query = target.partition("?")
    return told(await send(server, method, path, body, query, **options))


@in_virtual_time
async def test_a_node_without_a_connection_cannot_be_asked_about_itself() -> None:
    async with ACluster() as cluster:
        server = await with_work(cluster)

        for method, path, body in OF_NODE:
            assert await ask_for(server, method, f"{path}?node_id={NODE}", body) == NO_PATH, (method, path)


@in_virtual_time
async def test_an_unknown_node_is_told_and_none_is_refused() -> None:
    async with ACluster() as cluster:
        server = await with_work(cluster)

        for method, path, body in OF_NODE:
            unknown = await ask_for(server, method, f"{path}?node_id={UNKNOWN}", body)
            none = await ask_for(server, method, path, body)
            assert unknown == (404, f"Unknown node {UNKNOWN}"), (method, path)
            assert (none[0], "missing node ID" in none[1]) == (400, True), (method, path)


@in_virtual_time
async def test_an_allocation_whose_node_has_no_connection_cannot_be_asked_about() -> None:
    async with ACluster() as cluster:
        server = await with_work(cluster)

        for method, target, body in OF_ALLOCATION:
            assert await ask_for(server, method, target.format(RUNS), body) == NO_PATH, (method, target)


@in_virtual_time
async def test_an_unknown_allocation_is_told() -> None:
    async with ACluster() as cluster:
        server = await with_work(cluster)

        for method, target, body in OF_ALLOCATION:
            found = await ask_for(server, method, target.format(UNKNOWN), body)
            assert found == (404, f'Unknown allocation "{UNKNOWN}"'), (method, target)


@in_virtual_time
async def test_what_is_asked_goes_to_the_node_with_its_parameters_and_body() -> None:
    async with ACluster() as cluster:
        server = await with_work(cluster)
        echo = server.server.node_channels = Echo()

        answered = await get(server, f"/v1/client/fs/readat/{RUNS}", "path=a&offset=3")
        await put(server, f"/v1/client/allocation/{RUNS}/signal", {"Signal": "SIGHUP"})

        assert told(answered) == (200, '{"Verb": "fs_read_at"}')
        assert answered.headers["content-type"] == "application/json"
        assert echo.asked == [
            NodeCall("fs_read_at", RUNS, {"path": "a", "offset": 3}),
            NodeCall("signal", RUNS, {}, b'{"Signal": "SIGHUP"}'),
        ]


@in_virtual_time
async def test_what_a_node_sends_part_by_part_is_passed_on_so() -> None:
    async with ACluster() as cluster:
        server = await with_work(cluster)
        server.server.node_channels = Echo()

        query = [("task", "server"), ("type", "stdout")]
        stream = AStream(cluster, server, f"/v1/client/fs/logs/{RUNS}", query)
        await stream.ends()

        assert (stream.status, stream.parts) == (200, [b'{"Offset": 1}', b"{}"])


@in_virtual_time
async def test_metadata_are_changed_by_post_alone_and_the_query_names_the_node_before_the_body() -> None:
    async with ACluster() as cluster:
        server = await with_work(cluster)
        body = {"NodeID": UNKNOWN, "Meta": {"a": "b"}}

        assert (await ask_for(server, "PUT", f"/v1/client/metadata?node_id={NODE}", body))[0] == 405
        assert await ask_for(server, "POST", f"/v1/client/metadata?node_id={NODE}", body) == NO_PATH
        assert (await ask_for(server, "POST", "/v1/client/metadata", body))[1] == f"Unknown node {UNKNOWN}"


@in_virtual_time
@pytest.mark.parametrize("meta", [None, {}])
async def test_metadata_without_a_key_are_refused(meta: Any) -> None:
    async with ACluster() as cluster:
        server = await with_work(cluster)

        refused = await ask_for(server, "POST", f"/v1/client/metadata?node_id={NODE}", {"Meta": meta})

        assert refused == (400, "missing required Meta object")


@in_virtual_time
@pytest.mark.parametrize("key", ["", "1a", "a..b", "a.", "a b", "a.1"])
async def test_a_key_of_metadata_is_made_of_names_joined_by_dots(key: str) -> None:
    async with ACluster() as cluster:
        server = await with_work(cluster)

        status, text = await ask_for(server, "POST", f"/v1/client/metadata?node_id={NODE}", {"Meta": {key: "x"}})

        assert (status, "invalid meta key" in text) == (400, True)


@in_virtual_time
@pytest.mark.parametrize(
    ("method", "target", "body", "text"),
    [
        ("PUT", "/v1/client/allocation/{}/restart", {"TaskName": "server", "AllTasks": True}, "cannot both be set"),
        ("PUT", "/v1/client/allocation/{}/restart", {"TaskName": "other"}, 'unknown task name "other"'),
        ("PUT", "/v1/client/allocation/{}/signal", {}, "missing signal"),
        ("PUT", "/v1/client/allocation/{}/signal", {"Signal": "SIGHUP", "Task": "other"}, "unknown task name"),
        ("PUT", "/v1/client/allocation/{}/pause", {"ScheduleState": "sleep"}, "invalid schedule state"),
        ("GET", '/v1/client/allocation/{}/exec?command=["ls"]', None, "must provide task name"),
        ("GET", "/v1/client/allocation/{}/exec?task=server", None, "command is not present"),
        ("GET", "/v1/client/allocation/{}/exec?task=server&command=ls", None, "a list of texts as JSON"),
        ("GET", '/v1/client/allocation/{}/exec?task=other&command=["ls"]', None, "unknown task name"),
        ("GET", "/v1/client/fs/stat/{}", None, "must provide a file name"),
        ("GET", "/v1/client/fs/cat/{}", None, "must provide a file name"),
        ("GET", "/v1/client/fs/readat/{}?path=a", None, "missing offset"),
        ("GET", "/v1/client/fs/readat/{}?path=a&offset=x", None, "invalid syntax"),
        ("GET", "/v1/client/fs/stream/{}?path=a&origin=middle", None, "invalid origin"),
        ("GET", "/v1/client/fs/stream/{}?path=a&follow=perhaps", None, "as a bool"),
        ("GET", "/v1/client/fs/logs/{}?type=stdout", None, "must provide task name"),
        ("GET", "/v1/client/fs/logs/{}?task=server&type=both", None, 'log type must be "stdout" or "stderr"'),
        ("GET", "/v1/client/fs/logs/{}?task=other&type=stdout", None, 'unknown task name "other"'),
        ("GET", "/v1/client/fs/logs/{}?task=server&type=stdout&origin=x", None, "invalid origin"),
    ],
)
async def test_what_is_wrong_with_a_question_is_told_before_the_node_is_asked(
    method: str, target: str, body: Any, text: str
) -> None:
    async with ACluster() as cluster:
        server = await with_work(cluster)
        echo = server.server.node_channels = Echo()

        status, refused = await ask_for(server, method, target.format(RUNS), body)

        assert (status, text in refused, echo.asked) == (400, True, [])


@in_virtual_time
async def test_an_allocation_that_should_not_run_is_not_restarted() -> None:
    async with ACluster() as cluster:
        server = await with_work(cluster)

        assert await ask_for(server, "PUT", f"/v1/client/allocation/{ENDED}/restart", None) == (
            400,
            "restart of an alloc that should not run",
        )


@in_virtual_time
@pytest.mark.parametrize(
    ("capability", "allowed"),
    [
        ("read-job", {"pause_state", "stats", "checks"}),
        ("alloc-lifecycle", {"restart", "signal"}),
        ("pause-allocation", {"pause"}),
        ("gc-allocation", {"gc"}),
        ("alloc-exec", {"exec"}),
        ("read-fs", {"ls", "stat", "readat", "cat", "stream", "logs"}),
        ("read-logs", {"logs"}),
    ],
)
async def test_each_question_needs_its_right_in_the_allocations_namespace(capability: str, allowed: set[str]) -> None:
    async with ACluster() as cluster:
        server = await with_work(cluster, access=True)
        enable_acl(server)
        right = await a_token(server, f'namespace "default" {{ capabilities = ["{capability}"] }}')
        elsewhere = await a_token(server, f'namespace "team" {{ capabilities = ["{capability}"] }}')
        open_to, open_elsewhere = set(), set()
        for method, target, body in OF_ALLOCATION:
            parts = target.partition("?")[0].split("/")
            what = parts[4] if parts[3] == "fs" else parts[5]
            what = "pause_state" if (what, method) == ("pause", "GET") else what
            if await ask_for(server, method, target.format(RUNS), body, headers=right) == NO_PATH:
                open_to.add(what)
            if await ask_for(server, method, target.format(RUNS), body, headers=elsewhere) != DENIED:
                open_elsewhere.add(what)

        assert (open_to, open_elsewhere) == (allowed, set())


@in_virtual_time
async def test_a_command_beside_a_task_that_is_not_kept_apart_needs_the_nodes_right_too() -> None:
    async with ACluster() as cluster:
        server = await with_work(cluster, driver="raw_exec")
        enable_acl(server)
        some = await a_token(server, 'namespace "default" { capabilities = ["alloc-exec"] }')
        both = await a_token(server, 'namespace "default" { capabilities = ["alloc-exec", "alloc-node-exec"] }')
        target = f'/v1/client/allocation/{RUNS}/exec?task=server&command=["ls"]'

        assert await ask_for(server, "GET", target, None, headers=some) == DENIED
        assert await ask_for(server, "GET", target, None, headers=both) == NO_PATH


@in_virtual_time
async def test_of_nodes_figures_need_to_read_them_and_the_rest_to_write_them() -> None:
    async with ACluster() as cluster:
        server = await with_work(cluster)
        enable_acl(server)
        reader = await a_token(server, 'node { policy = "read" }')
        writer = await a_token(server, 'node { policy = "write" }')
        answers = {}
        for method, path, body in OF_NODE:
            by_reader = await ask_for(server, method, f"{path}?node_id={NODE}", body, headers=reader)
            by_writer = await ask_for(server, method, f"{path}?node_id={NODE}", body, headers=writer)
            assert by_writer == NO_PATH
            answers[method, path.rsplit("/", 1)[-1]] = by_reader == NO_PATH

        assert {what for what, is_open in answers.items() if is_open} == {
            ("GET", "metadata"), ("GET", "stats"), ("GET", "identity"),
        }  # fmt: skip


TAKES_PLACE = "8a6f0c44-0000-0000-0000-000000000013"
OTHER_NODE = "8a6f0c44-0000-0000-0000-000000000002"
AS_THE_NODE = {"X-Cluster-Node-Secret": SECRET}


@in_virtual_time
async def test_what_an_allocation_keeps_is_given_to_the_node_on_which_its_place_is_taken_and_to_nobody_else() -> None:
    async with ACluster() as cluster:
        server = await with_work(cluster, access=True)
        enable_acl(server)
        operator = await a_token(server, management=True)
        job = server.server.replica.get(JOBS, "default", "shop")
        assert job is not None
        other = a_node(OTHER_NODE, status=NodeStatus.READY, create_index=WRITE_INDEX)
        taking = an_allocation(job, TAKES_PLACE, node_id=OTHER_NODE, previous_allocation=ENDED)
        await commit(server, NODES.build_put(other), ALLOCATIONS.build_put(taking))
        server.server.node_channels = Echo()
        target = f"/v1/client/allocation/{ENDED}/snapshot"

        told_of = read(await get(server, f"/v1/node/{OTHER_NODE}/former/{ENDED}", headers=AS_THE_NODE))
        by_its_token = {"X-Cluster-Token": told_of["MigrateToken"]}

        assert (NODE, "complete") == (told_of["NodeID"], told_of["ClientStatus"])
        assert (200, '{"Verb": "snapshot"}') == told(await get(server, target, headers=by_its_token))
        assert [DENIED] * 3 == [
            told(await get(server, target)),
            told(await get(server, target, headers=operator)),
            told(await get(server, target.replace(ENDED, RUNS), headers=by_its_token)),
        ]


@in_virtual_time
async def test_a_node_is_told_only_of_allocations_whose_place_one_of_its_own_takes() -> None:
    async with ACluster() as cluster:
        server = await with_work(cluster)

        not_taken = await get(server, f"/v1/node/{NODE}/former/{ENDED}", headers=AS_THE_NODE)
        no_secret = await get(server, f"/v1/node/{NODE}/former/{ENDED}")

        assert [(404, "alloc not found"), DENIED] == [told(not_taken), told(no_secret)]
