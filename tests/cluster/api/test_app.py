"""The API as an application: statuses, headers, bodies, limits, audit and node requests."""

import asyncio
import json
import logging
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from tests.builders import a_batch_job, a_group, a_job, a_periodic_job, a_task, some_resources
from tests.kit.callers import a_token
from tests.kit.cluster import ACluster, OneServer
from tests.kit.exchange import send_raw
from tests.kit.state import SECRET, a_node
from tests.kit.virtual_time import in_virtual_time, now_s, pass_time, until
from tests.kit.work import an_id
from wharf.cluster.api.access_control import CallerAuthenticator
from wharf.cluster.api.app import MAX_BODY_BYTES, Api
from wharf.cluster.api.audit import AuditRecord
from wharf.cluster.api.handler_table import build_action_handlers, build_read_handlers
from wharf.cluster.engines.memory.faults import DelayFault, EngineOperation, RefuseFault
from wharf.cluster.state.tables import ALLOCATIONS, JOB_VERSIONS, JOBS, NODES
from wharf.contract.client import ClientReply
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.log import WRITE_INDEX, Cause, CauseKind, Write
from wharf.contract.model.refusal import Refusal
from wharf.contract.model.secrets import hash_secret
from wharf.contract.wire.endpoint_table import ENDPOINTS, EndpointKind
from wharf.contract.wire.nodes.messages import restore_shared_jobs
from wharf.world.request_id import get_request_id

UNKNOWN_ID = "6f1c1d3e-1d0a-4a8e-9f3e-1b2c3d4e5f60"
BY_ID = ("evaluation", "allocation", "node")


def registration(job: Job, **fields: Any) -> bytes:
    return msgspec.json.encode({"Job": job, **fields})


async def put(server: OneServer, path: str, body: bytes = b"", **options: Any) -> ClientReply:
    return await send_raw(server.api, "PUT", path, body=body, **options)


async def get(server: OneServer, path: str, query: str = "", **options: Any) -> ClientReply:
    return await send_raw(server.api, "GET", path, query=query, **options)


@in_virtual_time
async def test_every_endpoint_has_one_handler_and_every_handler_an_endpoint() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server(leads=False)

        handler_call = {
            endpoint.name
            for endpoint in ENDPOINTS
            if endpoint.kind is not EndpointKind.READ and not endpoint.unsupported_reason
        }

        read_call = {
            endpoint.name
            for endpoint in ENDPOINTS
            if endpoint.kind is EndpointKind.READ and not endpoint.unsupported_reason
        }
        assert set(build_action_handlers(server.server)) == handler_call
        assert set(build_read_handlers(server.server)) == read_call


# -- routes


@in_virtual_time
async def test_an_unknown_path_is_404_and_named() -> None:
    async with ACluster() as cluster:
        reply = await get(await cluster.a_server(), "/v1/nowhere")

        assert (reply.status, reply.body) == (404, b"no API endpoint at /v1/nowhere; /v1/docs lists the endpoints")


@in_virtual_time
async def test_a_wrong_method_is_405() -> None:
    async with ACluster() as cluster:
        reply = await send_raw((await cluster.a_server()).api, "DELETE", "/v1/jobs")

        assert (reply.status, reply.body) == (405, b"Invalid method: DELETE is not possible here; use GET, POST, PUT")
        assert reply.headers["allow"] == "GET, POST, PUT"
        assert reply.headers["content-type"] == "text/plain; charset=utf-8"


@in_virtual_time
async def test_a_bad_escape_in_the_path_is_400() -> None:
    async with ACluster() as cluster:
        reply = await get(await cluster.a_server(), "/v1/job/a%zz")

        assert (reply.status, reply.body) == (400, b"400 Bad Request")


# -- reads


@in_virtual_time
async def test_a_read_returns_index_leader_and_last_contact() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await server.client.jobs.register(a_job())

        reply = await get(server, "/v1/job/shop")

        assert (reply.status, reply.headers["content-type"]) == (200, "application/json")
        assert reply.headers["x-cluster-index"] == str(json.loads(reply.body)["ModifyIndex"])
        assert (reply.headers["x-cluster-knownleader"], reply.headers["x-cluster-lastcontact"]) == ("true", "0")


@in_virtual_time
async def test_an_unknown_record_is_404_with_an_index_and_a_text() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()

        replies = {
            path: await get(server, path)
            for path in ("/v1/job/x", "/v1/job/x/summary", *(f"/v1/{kind}/{UNKNOWN_ID}" for kind in BY_ID))
        }

        assert {path: (reply.status, reply.body) for path, reply in replies.items()} == {
            "/v1/job/x": (404, b"job not found"),
            "/v1/job/x/summary": (404, b"job not found"),
            f"/v1/evaluation/{UNKNOWN_ID}": (404, b"eval not found"),
            f"/v1/allocation/{UNKNOWN_ID}": (404, b"alloc not found"),
            f"/v1/node/{UNKNOWN_ID}": (404, b"node not found"),
        }
        assert all(int(reply.headers["x-cluster-index"]) >= 1 for reply in replies.values())


@in_virtual_time
async def test_lists_of_an_unknown_job_are_empty_arrays() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()

        for path in ("/v1/job/x/allocations", "/v1/job/x/evaluations", "/v1/jobs", "/v1/allocations", "/v1/nodes"):
            assert (await get(server, path)).body == b"[]"


@in_virtual_time
async def test_pretty_json_is_indented_by_four_and_ends_with_a_line_break() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await server.client.jobs.register(a_job())

        bodies = [(await get(server, "/v1/jobs", query)).body for query in ("", "pretty", "pretty=1", "pretty=0")]

        assert [body.endswith(b"\n") for body in bodies] == [False, True, True, False]
        assert bodies[1].startswith(b'[\n    {\n        "ID": "shop"')


@in_virtual_time
async def test_jobs_are_listed_by_namespace_and_prefix_in_both_directions() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        for name in ("b", "ab", "a"):
            await server.client.jobs.register(a_job(name))

        async def ids(query: str) -> list[str]:
            return [job["ID"] for job in json.loads((await get(server, "/v1/jobs", query)).body)]

        assert await ids("") == ["a", "ab", "b"]
        assert await ids("prefix=a&reverse=true") == ["ab", "a"]
        assert await ids("namespace=*&prefix=b") == ["b"]
        assert await ids("namespace=other") == []


@in_virtual_time
async def test_one_job_cannot_be_read_with_the_wildcard_namespace() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await server.client.jobs.register(a_job())

        assert (await get(server, "/v1/job/shop", "namespace=*")).status == 404


@in_virtual_time
async def test_allocations_and_evaluations_of_a_job_are_listed_by_creation() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await cluster.ready_nodes(server, 2)
        for count in (2, 4, 6):
            group = a_group("web", a_task(driver="mock"), count=count)
            await server.client.jobs.register(a_job("shop", group))
            await until(lambda count=count: server.replica.count_records(ALLOCATIONS) == count, what="placed")  # type: ignore[misc]

        for case in ("allocations", "evaluations"):
            listed = json.loads((await get(server, f"/v1/job/shop/{case}")).body)
            order = [(each["CreateIndex"], each["ID"]) for each in listed]
            assert order == sorted(order)


@in_virtual_time
async def test_an_invalid_read_parameter_is_400_without_an_index() -> None:
    async with ACluster() as cluster:
        reply = await get(await cluster.a_server(), "/v1/jobs", "index=x")

        assert (reply.status, reply.body, "x-cluster-index" in reply.headers) == (400, b"Invalid index", False)


@in_virtual_time
async def test_a_blocking_query_waits_up_to_a_sixteenth_longer() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        index = (await get(server, "/v1/nodes")).headers["x-cluster-index"]
        wait_times_s = []
        for _ in range(20):
            began_s = now_s()
            await get(server, "/v1/nodes", f"index={index}&wait=16s")
            wait_times_s.append(now_s() - began_s)

        assert 16.0 <= min(wait_times_s) < max(wait_times_s) <= 17.0


@in_virtual_time
async def test_a_blocking_query_ends_when_its_caller_disconnects() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        index = (await get(server, "/v1/nodes")).headers["x-cluster-index"]
        removed = asyncio.Event()
        before = server.replica.watches.subscription_count
        pending = cluster.start(
            get(server, "/v1/nodes", f"index={index}&wait=600s", disconnected=removed), name="query"
        )
        await pass_time(1.0)
        assert server.replica.watches.subscription_count == before + 1
        began_s = now_s()

        removed.set()
        await pending

        assert (server.replica.watches.subscription_count, now_s() - began_s) == (before, 0.0)


# -- writes


@in_virtual_time
async def test_a_registration_returns_the_index_of_the_write() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()

        reply = await put(server, "/v1/jobs", registration(a_job()))

        result = json.loads(reply.body)
        assert (reply.status, reply.headers["x-cluster-index"]) == (200, str(result["Index"]))
        assert result["Index"] == result["EvalCreateIndex"] == result["JobModifyIndex"] > 0
        assert (result["KnownLeader"], result["LastContact"], result["Warnings"]) == (False, 0, "")


@in_virtual_time
async def test_unknown_fields_are_returned_as_warnings() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        body = json.loads(registration(a_job()))
        body["Job"]["Colour"] = "red"

        reply = await put(server, "/v1/jobs", json.dumps(body).encode())

        assert "* Job.Colour is not a known field; it was ignored" in json.loads(reply.body)["Warnings"]


@pytest.mark.parametrize(
    ("path", "body", "status", "text"),
    [
        ("/v1/jobs", b"", 400, "Request body is empty"),
        ("/v1/jobs", b"{}", 400, "Job must be specified"),
        ("/v1/jobs", b"null", 400, "Job must be specified"),
        ("/v1/jobs", b'{"Job": {', 400, "the JSON ends too early (line 1, column 10)"),
        ("/v1/jobs", b'{"Job": {"ID": "a", "KillTimeout": 3, "Priority": "high"}}', 400, "Job.Priority"),
        ("/v1/job/other", registration(a_job()), 400, "Job ID does not match name"),
        ("/v1/jobs", registration(a_job(), EvalPriority=101), 400, "Eval priority must be between 1 and 100"),
        ("/v1/jobs", registration(a_job(priority=1_000)), 400, "1 error occurred:\n\t* job priority must be between"),
        ("/v1/jobs", registration(a_job(), EnforceIndex=True, JobModifyIndex=7), 400, "Enforcing job modify index 7"),
    ],
)
def test_an_invalid_write_is_refused_and_changes_nothing(path: str, body: bytes, status: int, text: str) -> None:
    @in_virtual_time
    async def run() -> None:
        async with ACluster() as cluster:
            server = await cluster.a_server()
            index = server.replica.get_last_change(JOBS)

            reply = await put(server, path, body)

            assert (reply.status, reply.headers["content-type"]) == (status, "text/plain; charset=utf-8")
            assert text in reply.body.decode()
            assert "x-cluster-index" not in reply.headers
            assert server.replica.get_last_change(JOBS) == index

    run()


@in_virtual_time
async def test_the_namespace_of_the_query_overrides_that_of_body_and_job() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        body = registration(a_job(namespace="of-the-job"), Namespace="of-the-body")

        texts = [
            (await put(server, "/v1/jobs", body, query="namespace=of-the-query")).body.decode(),
            (await put(server, "/v1/jobs", body)).body.decode(),
            (await put(server, "/v1/jobs", registration(a_job(namespace="of-the-job")))).body.decode(),
        ]

        assert [text.split('namespace "')[1].split('"')[0] for text in texts] == [
            "of-the-query",
            "of-the-body",
            "of-the-job",
        ]


@in_virtual_time
async def test_deregistering_an_unknown_job_succeeds_without_an_index() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()

        reply = await send_raw(server.api, "DELETE", "/v1/job/nobody")

        result = json.loads(reply.body)
        assert (reply.status, result["EvalID"], result["JobModifyIndex"], result["Index"]) == (200, "", 0, 0)


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("eval_priority=101", 400),
        ("eval_priority=x", 400),
        ("eval_priority=-1", 200),
        ("purge=maybe", 400),
        ("global=x", 400),
        ("no_shutdown_delay=true", 200),
    ],
)
def test_the_parameters_of_a_deregistration_are_validated(query: str, status: int) -> None:
    @in_virtual_time
    async def run() -> None:
        async with ACluster() as cluster:
            server = await cluster.a_server()
            await server.client.jobs.register(a_job())

            reply = await send_raw(server.api, "DELETE", "/v1/job/shop", query=query)

            job = server.replica.get(JOBS, "default", "shop")
            assert (reply.status, job is not None and job.stop) == (status, status == 200)

    run()


@in_virtual_time
async def test_counts_and_resources_can_be_preserved() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await server.client.jobs.register(a_job("shop", a_group("web", count=7)))

        await put(server, "/v1/jobs", registration(a_job("shop", a_group("web", count=1)), PreserveCounts=True))

        assert (await server.client.jobs.read("shop")).value.groups[0].count == 7


@in_virtual_time
async def test_a_periodic_job_is_registered_without_an_evaluation() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()

        result = await server.client.jobs.register(a_periodic_job())

        assert (result.eval_id, result.eval_create_index, result.index > 0) == ("", 0, True)


@in_virtual_time
async def test_a_too_large_body_is_refused_before_it_is_read() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()

        result = await put(server, "/v1/jobs", b"{}", headers={"content-length": str(MAX_BODY_BYTES + 1)})
        growing = await put(server, "/v1/jobs", b"{}", headers={"content-length": "9" * 5_000})
        invalid_body = await put(server, "/v1/jobs", b"{}", headers={"content-length": "x"})

        assert [result.status, growing.status, invalid_body.status] == [413, 413, 400]


@in_virtual_time
async def test_a_body_that_grows_too_large_or_breaks_off_is_refused() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()

        async def status_of(messages: list[Any]) -> int:
            """Send a write with a body in these ASGI messages. Return the status of the reply."""
            sent: list[Any] = []

            async def receive() -> Any:
                return messages.pop(0)

            async def send(message: Any) -> None:
                sent.append(message)

            scope = {"type": "http", "method": "PUT", "path": "/v1/jobs", "query_string": b"", "headers": []}
            await server.api(scope, receive, send)
            return int(sent[0]["status"])

        part = {"type": "http.request", "body": b" " * (MAX_BODY_BYTES // 2), "more_body": True}
        too_much = await status_of([part, part, part])
        broken = await status_of([{**part, "body": b"{"}, {"type": "http.disconnect"}])
        in_parts = await status_of([{**part, "body": b"{"}, {"type": "http.request", "body": b"}"}])

        assert [too_much, broken, in_parts] == [413, 400, 400]


@in_virtual_time
async def test_an_unwritable_log_is_503_with_the_reason() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        server.faults.choose_fault = lambda requests: (
            RefuseFault("the disk is full") if requests is EngineOperation.COMMIT else None
        )

        reply = await put(server, "/v1/jobs", registration(a_job()))

        assert (reply.status, reply.body) == (503, b"nothing was written: the disk is full")
        assert reply.headers["x-cluster-error"] == "unavailable"


@in_virtual_time
async def test_an_internal_error_is_500_without_details_and_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()

        async def fails(_request: object) -> None:
            raise ZeroDivisionError("a secret detail")

        monkeypatch.setitem(server.api.actions.handlers, "job.register", fails)
        with caplog.at_level(logging.ERROR):
            reply = await put(server, "/v1/jobs", b"{}", headers={"x-request-id": "req-1"})

        assert (reply.status, reply.body) == (500, b"internal error: see request req-1 in the server log")
        assert "a secret detail" in caplog.text


@in_virtual_time
async def test_the_log_commit_has_the_id_of_its_request() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        observed: list[str] = []
        server.faults.choose_fault = lambda requests: (
            observed.append(get_request_id()) if requests is EngineOperation.COMMIT else None
        )

        await put(server, "/v1/jobs", registration(a_batch_job("shop")), headers={"x-request-id": "req-7"})

        assert "req-7" in observed


class FakeAudit:
    """Collects audit records, or fails."""

    def __init__(self) -> None:
        self.written: list[AuditRecord] = []
        self.fails = False

    def record(self, written: AuditRecord) -> None:
        if self.fails:
            raise OSError("the disk is full")
        self.written.append(written)


@in_virtual_time
async def test_all_writes_are_audited_and_reads_are_not(caplog: pytest.LogCaptureFixture) -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        retained = FakeAudit()
        server.api = Api(server.server, audit=retained)

        done = await put(server, "/v1/jobs", registration(a_job()), headers={"x-request-id": "one"})
        await put(server, "/v1/jobs", b"{}", headers={"x-request-id": "two"})
        await get(server, "/v1/jobs")
        retained.fails = True
        unrecorded_write = await put(server, "/v1/jobs", registration(a_job()))
        await put(server, "/v1/jobs", registration(a_job()))

        index = int(done.headers["x-cluster-index"])
        common = {"endpoint": "job.register", "path": "/v1/jobs", "source": "127.0.0.1", "method": "PUT"}
        assert [msgspec.to_builtins(record) for record in retained.written] == [
            {**common, "at_ns": retained.written[0].at_ns, "request_id": "one", "status": 200, "index": index}
            | {"namespace": "default"},
            {**common, "at_ns": retained.written[1].at_ns, "request_id": "two", "status": 400}
            | {"namespace": "default", "error": "Job must be specified"},
        ]
        assert unrecorded_write.status == 200
        failures = [each for each in caplog.records if "audit record not written" in each.getMessage()]
        assert [(len(failures), failures[0].exc_info)] == [(1, None)]


@in_virtual_time
async def test_reads_of_a_variable_are_audited_with_the_token_of_the_caller() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await server.client.variables.put("app/database", {"password": "secret"})
        retained = FakeAudit()
        authenticator = CallerAuthenticator(server.world, is_enabled=True)
        server.api = Api(server.server, audit=retained, authenticator=authenticator)
        operator = await a_token(server, management=True)

        await get(server, "/v1/var/app/database", headers=operator)
        await get(server, "/v1/vars", headers=operator)

        records = [(record.endpoint, record.path, record.status) for record in retained.written]
        assert records == [("variable.read", "/v1/var/app/database", 200)]
        assert retained.written[0].accessor_id
        assert "secret" not in str(retained.written)


# -- nodes


async def with_node(server: OneServer) -> None:
    await server.client.node_agents.register(a_node(), SECRET)
    await server.client.node_agents.send_heartbeat("node-1", SECRET)


@in_virtual_time
async def test_requests_of_a_node_need_its_secret() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await with_node(server)

        requests = [
            ("PUT", "/v1/node/node-1/heartbeat", b""),
            ("GET", "/v1/node/node-1/desired", b""),
            ("POST", "/v1/node/node-1/desired", b'{"IDs": []}'),
            ("PUT", "/v1/node/node-1/report", b"{}"),
        ]
        for headers in ({}, {"x-cluster-node-secret": "another"}, {"x-cluster-node-secret": hash_secret(SECRET)}):
            replies = [await send_raw(server.api, m, path, body=body, headers=headers) for m, path, body in requests]
            assert [(reply.status, reply.body) for reply in replies] == [(403, b"Permission denied")] * 4


@in_virtual_time
async def test_no_reply_contains_the_secret_of_a_node() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await with_node(server)
        nodes = await cluster.ready_nodes(server, 1)
        await server.client.jobs.register(a_job("shop", a_group("web", a_task(driver="mock"))))
        await until(lambda: server.replica.count_records(ALLOCATIONS) == 1, what="the allocation is placed")
        secrets = [SECRET, hash_secret(SECRET), nodes[0].secret_id, hash_secret(nodes[0].secret_id)]

        paths = ["/v1/nodes", "/v1/node/node-1", f"/v1/node/{nodes[0].id}", f"/v1/node/{nodes[0].id}/allocations"]
        paths += ["/v1/agent/members", "/v1/operator/state", "/v1/allocations"]
        bodies = [(await get(server, path)).body for path in paths]
        bodies += [reply.body for reply in (*server.exchange.replies, *nodes[0].exchange.replies)]

        assert [secret for secret in secrets for body in bodies if secret.encode() in body] == []


@in_virtual_time
async def test_a_node_that_registered_at_one_server_is_known_to_the_others() -> None:
    async with ACluster() as cluster:
        first = await cluster.a_server("m1")
        second = await cluster.a_server("m2", leads=False)

        second.faults.choose_fault = lambda requests: (
            DelayFault(reply_s=2.0) if requests is EngineOperation.FEED else None
        )
        await first.client.node_agents.register(a_node(), SECRET)

        result = await second.client.node_agents.send_heartbeat("node-1", SECRET)

        assert result.heartbeat_ttl > 0


@in_virtual_time
async def test_a_heartbeat_of_an_unknown_node_is_404() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()

        reply = await put(server, "/v1/node/nobody/heartbeat", headers={"x-cluster-node-secret": SECRET})

        assert (reply.status, reply.body) == (404, b"node not found")


@in_virtual_time
async def test_a_node_must_register_under_its_own_path() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        body = msgspec.json.encode({"Node": a_node(), "SecretID": SECRET})

        assert (await put(server, "/v1/node/other/register", body)).status == 400
        assert server.replica.count_records(NODES) == 0


@in_virtual_time
async def test_an_eligibility_change_returns_its_evaluations_and_no_node_index() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await cluster.ready_nodes(server, 1)
        (node,) = server.replica.iter_all(NODES)
        await server.client.jobs.register(a_job("shop", a_group("web", a_task(driver="mock"))))
        await until(lambda: server.replica.count_records(ALLOCATIONS) == 1, what="the allocation is placed")

        disabled = await server.client.nodes.set_eligibility(node.id, eligible=False)
        repeated = await server.client.nodes.set_eligibility(node.id, eligible=False)
        enabled = await server.client.nodes.set_eligibility(node.id, eligible=True)

        assert (disabled.eval_ids, disabled.eval_create_index, disabled.node_modify_index, disabled.index > 0) == (
            None,
            0,
            0,
            True,
        )
        assert (repeated.eval_ids, repeated.index) == (None, 0)
        assert (len(enabled.eval_ids or ()), enabled.eval_create_index) == (1, enabled.index)


@pytest.mark.parametrize(("word", "status"), [("maybe", 400), ("", 400), ("eligible", 404)])
def test_an_invalid_eligibility_is_refused(word: str, status: int) -> None:
    @in_virtual_time
    async def run() -> None:
        async with ACluster() as cluster:
            server = await cluster.a_server()
            body = msgspec.json.encode({"Eligibility": word})

            assert (await put(server, "/v1/node/nobody/eligibility", body)).status == status

    run()


@in_virtual_time
async def test_the_assignment_indexes_of_a_node_never_decrease() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        (node,) = await cluster.ready_nodes(server, 1)
        await server.client.jobs.register(a_job("shop", a_group("web", a_task(driver="mock"))))
        await until(lambda: server.replica.count_records(ALLOCATIONS) == 1, what="the allocation is placed")
        secret = node.secret_id
        before = await server.client.node_agents.list_assignments(node.id, secret)

        (allocation,) = server.replica.iter_all(ALLOCATIONS)
        await server.server.writer.commit(
            Write("collected", Cause(CauseKind.TIMER), [ALLOCATIONS.build_delete(allocation.id)])
        )

        after = await server.client.node_agents.list_assignments(node.id, secret, index=before.index, wait_s=1.0)

        assert (after.value, after.index >= before.index) == ({}, True)


@in_virtual_time
async def test_after_a_restore_every_assignment_is_newer_than_all_that_the_node_received() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        (node,) = await cluster.ready_nodes(server, 1)
        await server.client.jobs.register(a_job("shop", a_group("web", a_task(driver="mock"))))
        await until(
            lambda: [a.client_status for a in server.replica.iter_all(ALLOCATIONS)] == ["running"], what="the job runs"
        )
        secret = node.secret_id
        before = await server.client.node_agents.list_assignments(node.id, secret)

        cluster.log.restore_copy(cluster.log.make_copy())
        after = await server.client.node_agents.list_assignments(node.id, secret, index=before.index, wait_s=1.0)
        (fetched,) = await server.client.node_agents.fetch_assignments(node.id, secret, list(after.value))

        (allocation_id,) = before.value
        assert after.value[allocation_id] > before.index
        assert after.index == after.value[allocation_id] == fetched.allocation.alloc_modify_index


@in_virtual_time
async def test_assignments_of_one_job_contain_it_once_for_nodes_that_support_it() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        (node,) = await cluster.ready_nodes(server, 1)
        small = some_resources(cpu=10, memory_mb=10)
        for name in ("shop", "blog"):
            await server.client.jobs.register(
                a_job(name, a_group("web", a_task(driver="mock", resources=small), count=3))
            )
        await until(lambda: server.replica.count_records(ALLOCATIONS) == 6, what="six allocations")
        ids = [allocation.id for allocation in server.replica.iter_all(ALLOCATIONS)]

        whole = await server.client.node_agents.fetch_assignments(node.id, node.secret_id, ids)
        shared = await server.client.node_agents.fetch_assignments(node.id, node.secret_id, ids, shares_jobs=True)

        assert ([each.job_of for each in whole], sum(each.job is not None for each in whole)) == ([""] * 6, 6)
        assert sum(each.job is not None for each in shared) == 2
        assert [restored.job for restored in restore_shared_jobs(shared)] == [each.job for each in whole]
        assert len({id(restored.job) for restored in restore_shared_jobs(shared)}) == 2


@in_virtual_time
async def test_an_allocation_that_a_node_requests_many_times_is_returned_once() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        (node,) = await cluster.ready_nodes(server, 1)
        await server.client.jobs.register(a_job("shop", a_group("web", a_task(driver="mock"))))
        await until(lambda: server.replica.count_records(ALLOCATIONS) == 1, what="an allocation")
        (allocation,) = server.replica.iter_all(ALLOCATIONS)

        for shares_jobs in (False, True):
            fetched = await server.client.node_agents.fetch_assignments(
                node.id, node.secret_id, [allocation.id] * 1_000, shares_jobs=shares_jobs
            )

            assert [each.allocation.id for each in fetched] == [allocation.id]


@in_virtual_time
async def test_a_node_that_does_not_share_jobs_may_request_few_allocations_at_a_time() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        (node,) = await cluster.ready_nodes(server, 1)
        ids = [an_id(number) for number in range(51)]

        with pytest.raises(Refusal) as refusal:
            await server.client.node_agents.fetch_assignments(node.id, node.secret_id, ids)

        assert refusal.value.text == "too many ids: 51; request up to 50 at a time, or set SharesJobs"
        assert await server.client.node_agents.fetch_assignments(node.id, node.secret_id, ids, shares_jobs=True) == []


@in_virtual_time
async def test_an_allocation_of_a_purged_job_does_not_get_the_tasks_of_a_later_job_with_its_name() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        (node,) = await cluster.ready_nodes(server, 1)
        await server.client.jobs.register(a_job("shop", a_group("web", a_task(driver="mock"))))
        await until(lambda: server.replica.count_records(ALLOCATIONS) == 1, what="the allocation is placed")
        (allocation,) = server.replica.iter_all(ALLOCATIONS)
        first = await server.client.node_agents.fetch_assignments(node.id, node.secret_id, [allocation.id])

        (version,) = server.replica.iter_all(JOB_VERSIONS)
        later = JOB_VERSIONS.build_put(replace(version, create_index=WRITE_INDEX))
        await server.server.writer.commit(Write("job-registered", Cause(CauseKind.REQUEST), [later]))
        await server.server.writer.catch_up()
        second = await server.client.node_agents.fetch_assignments(node.id, node.secret_id, [allocation.id])

        assert [assignment.job is not None for assignment in (*first, *second)] == [True, False]


# -- this process


@in_virtual_time
async def test_unhealthy_servers_return_an_error_status() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        healthy = await get(server, "/v1/agent/health")
        server.faults.disconnect()
        disconnected = await get(server, "/v1/agent/health")

        assert (healthy.status, json.loads(healthy.body)) == (200, {"server": {"ok": True, "message": "ok"}})
        assert (disconnected.status, json.loads(disconnected.body)["server"]["ok"]) == (500, False)


@in_virtual_time
async def test_health_is_reported_within_seconds_while_the_log_hangs() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        server.faults.choose_fault = lambda requests: (
            DelayFault(request_s=600.0) if requests is EngineOperation.HEALTH else None
        )
        began_s = now_s()
        hanging = await get(server, "/v1/agent/health")

        assert now_s() - began_s < 3.0
        assert (hanging.status, json.loads(hanging.body)) == (
            500,
            {"server": {"ok": False, "message": "the log did not answer a health check within 2 s"}},
        )


@in_virtual_time
async def test_health_reports_since_when_and_why_the_log_is_away() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        server.faults.disconnect()
        await pass_time(60.0)
        outage = server.server.reader.describe_outage()
        reply = await get(server, "/v1/agent/health")

        assert "has not replied since" in outage
        assert (reply.status, json.loads(reply.body)) == (500, {"server": {"ok": False, "message": outage}})


@in_virtual_time
async def test_the_leader_endpoint_answers_also_without_a_leader() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server(leads=False)
        before = await get(server, "/v1/status/leader")

        await server.lead()
        after = await get(server, "/v1/status/leader")

        assert (before.body, after.body) == (b'""', b'"m1:4646"')
        assert "x-cluster-index" not in after.headers


@in_virtual_time
async def test_calls_of_other_members_need_the_server_secret() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()

        replies = [
            await put(server, "/v1/server/ask/heartbeat", b"", headers=headers)
            for headers in ({}, {"x-cluster-door-secret": ""}, {"x-cluster-door-secret": "geheim\u00e9"})
        ]

        assert [reply.status for reply in replies] == [403, 403, 403]


@in_virtual_time
async def test_configured_headers_are_sent_with_every_reply() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server("m1")
        api = Api(server.server, extra_headers={"X-Team": "harbour"})

        replies = [await send_raw(api, "GET", path) for path in ("/v1/jobs", "/v1/nowhere")]

        assert [reply.headers.get("x-team") for reply in replies] == ["harbour", "harbour"]


@in_virtual_time
async def test_a_body_above_the_configured_limit_is_refused() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server("m1")

        reply = await send_raw(Api(server.server, max_body_bytes=100), "PUT", "/v1/jobs", body=b" " * 101)

        assert (reply.status, reply.body) == (
            413,
            b"the request's body is larger than 100 bytes, the limit of `api.max_body_size` on this server",
        )


@in_virtual_time
async def test_a_body_above_the_limit_of_its_endpoint_is_refused() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server("m1")

        reply = await send_raw(Api(server.server), "PUT", "/v1/acl/login", body=b" " * 65_537)

        assert (reply.status, reply.body) == (
            413,
            b"the request's body is larger than 65536 bytes, the limit of this endpoint",
        )
