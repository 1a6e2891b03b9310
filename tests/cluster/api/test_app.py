"""The API as an application: statuses, headers, bodies, and what it does about callers."""

import asyncio
import json
import logging
from typing import Any

import msgspec
import pytest

from tests.builders import a_batch_job, a_group, a_job, a_periodic_job, a_task
from tests.kit.cluster import ACluster, OneServer
from tests.kit.exchange import ask
from tests.kit.state import SECRET, a_node
from tests.kit.virtual_time import in_virtual_time, now_s, pass_time, until
from wharf.cluster.api.app import MAX_BODY_BYTES, Api
from wharf.cluster.api.audit import AuditedWrite
from wharf.cluster.api.handler_table import build_action_handlers, build_read_handlers
from wharf.cluster.engines.memory.faults import DelayFault, EngineOperation, RefuseFault
from wharf.cluster.state.tables import ALLOCATIONS, JOBS, NODES
from wharf.contract.client import ClientReply
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.log import Cause, CauseKind, Write
from wharf.contract.model.secrets import hash_secret
from wharf.contract.wire.endpoint_table import ENDPOINTS, EndpointKind
from wharf.world.request_id import get_request_id

NOBODY = "6f1c1d3e-1d0a-4a8e-9f3e-1b2c3d4e5f60"
BY_ID = ("evaluation", "allocation", "node")


def registration(job: Job, **fields: Any) -> bytes:
    return msgspec.json.encode({"Job": job, **fields})


async def put(server: OneServer, path: str, body: bytes = b"", **options: Any) -> ClientReply:
    return await ask(server.api, "PUT", path, body=body, **options)


async def get(server: OneServer, path: str, query: str = "", **options: Any) -> ClientReply:
    return await ask(server.api, "GET", path, query=query, **options)


@in_virtual_time
async def test_every_endpoint_has_its_handler_and_no_handler_is_without_one() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server(leads=False)

        acting = {
            endpoint.name
            for endpoint in ENDPOINTS
            if endpoint.kind is not EndpointKind.READ and not endpoint.unsupported_reason
        }

        reading = {
            endpoint.name
            for endpoint in ENDPOINTS
            if endpoint.kind is EndpointKind.READ and not endpoint.unsupported_reason
        }
        assert set(build_action_handlers(server.server)) == acting
        assert set(build_read_handlers(server.server)) == reading


# -- routes


@in_virtual_time
async def test_an_unknown_path_is_404_with_nothing() -> None:
    async with ACluster() as cluster:
        reply = await get(await cluster.a_server(), "/v1/nowhere")

        assert reply == ClientReply(404, {"content-length": "0", "vary": "Accept-Encoding"}, b"")


@in_virtual_time
async def test_a_wrong_method_is_405_with_two_words() -> None:
    async with ACluster() as cluster:
        reply = await ask((await cluster.a_server()).api, "DELETE", "/v1/jobs")

        assert (reply.status, reply.body) == (405, b"Invalid method")
        assert reply.headers["content-type"] == "text/plain; charset=utf-8"


@in_virtual_time
async def test_a_bad_escape_in_the_path_is_400() -> None:
    async with ACluster() as cluster:
        reply = await get(await cluster.a_server(), "/v1/job/a%zz")

        assert (reply.status, reply.body) == (400, b"400 Bad Request")


# -- reads


@in_virtual_time
async def test_a_read_tells_index_leader_and_contact() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await server.client.jobs.register(a_job())

        reply = await get(server, "/v1/job/shop")

        assert (reply.status, reply.headers["content-type"]) == (200, "application/json")
        assert reply.headers["x-cluster-index"] == str(json.loads(reply.body)["ModifyIndex"])
        assert (reply.headers["x-cluster-knownleader"], reply.headers["x-cluster-lastcontact"]) == ("true", "0")


@in_virtual_time
async def test_what_is_not_there_is_404_with_an_index_and_a_sentence() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()

        replies = {
            path: await get(server, path)
            for path in ("/v1/job/x", "/v1/job/x/summary", *(f"/v1/{kind}/{NOBODY}" for kind in BY_ID))
        }

        assert {path: (reply.status, reply.body) for path, reply in replies.items()} == {
            "/v1/job/x": (404, b"job not found"),
            "/v1/job/x/summary": (404, b"job not found"),
            f"/v1/evaluation/{NOBODY}": (404, b"eval not found"),
            f"/v1/allocation/{NOBODY}": (404, b"alloc not found"),
            f"/v1/node/{NOBODY}": (404, b"node not found"),
        }
        assert all(int(reply.headers["x-cluster-index"]) >= 1 for reply in replies.values())


@in_virtual_time
async def test_lists_about_a_job_that_nobody_knows_are_empty() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()

        for path in ("/v1/job/x/allocations", "/v1/job/x/evaluations", "/v1/jobs", "/v1/allocations", "/v1/nodes"):
            assert (await get(server, path)).body == b"[]"


@in_virtual_time
async def test_pretty_is_indented_by_four_and_ends_in_a_new_line() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await server.client.jobs.register(a_job())

        bodies = [(await get(server, "/v1/jobs", query)).body for query in ("", "pretty", "pretty=1", "pretty=0")]

        assert [body.endswith(b"\n") for body in bodies] == [False, True, True, False]
        assert bodies[1].startswith(b'[\n    {\n        "ID": "shop"')


@in_virtual_time
async def test_jobs_are_listed_by_namespace_prefix_and_backwards() -> None:
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
async def test_a_namespace_of_all_is_no_namespace_of_one_job() -> None:
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

        for what in ("allocations", "evaluations"):
            listed = json.loads((await get(server, f"/v1/job/shop/{what}")).body)
            order = [(each["CreateIndex"], each["ID"]) for each in listed]
            assert order == sorted(order)


@in_virtual_time
async def test_a_bad_parameter_of_a_read_is_400_without_an_index() -> None:
    async with ACluster() as cluster:
        reply = await get(await cluster.a_server(), "/v1/jobs", "index=x")

        assert (reply.status, reply.body, "x-cluster-index" in reply.headers) == (400, b"Invalid index", False)


@in_virtual_time
async def test_a_blocking_query_waits_up_to_a_sixteenth_longer() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        index = (await get(server, "/v1/nodes")).headers["x-cluster-index"]
        waits_s = []
        for _ in range(20):
            began_s = now_s()
            await get(server, "/v1/nodes", f"index={index}&wait=16s")
            waits_s.append(now_s() - began_s)

        assert 16.0 <= min(waits_s) < max(waits_s) <= 17.0


@in_virtual_time
async def test_a_caller_that_hangs_up_is_no_longer_waited_for() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        index = (await get(server, "/v1/nodes")).headers["x-cluster-index"]
        gone = asyncio.Event()
        before = server.replica.watches.subscription_count
        asking = cluster.start(get(server, "/v1/nodes", f"index={index}&wait=600s", gone=gone), name="asks")
        await pass_time(1.0)
        assert server.replica.watches.subscription_count == before + 1
        began_s = now_s()

        gone.set()
        await asking

        assert (server.replica.watches.subscription_count, now_s() - began_s) == (before, 0.0)


# -- writes


@in_virtual_time
async def test_registering_answers_with_the_index_of_the_write() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()

        reply = await put(server, "/v1/jobs", registration(a_job()))

        told = json.loads(reply.body)
        assert (reply.status, reply.headers["x-cluster-index"]) == (200, str(told["Index"]))
        assert told["Index"] == told["EvalCreateIndex"] == told["JobModifyIndex"] > 0
        assert (told["KnownLeader"], told["LastContact"], told["Warnings"]) == (False, 0, "")


@in_virtual_time
async def test_fields_that_nobody_knows_come_back_as_warnings() -> None:
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
def test_a_write_that_is_wrong_is_told_and_changes_nothing(path: str, body: bytes, status: int, text: str) -> None:
    @in_virtual_time
    async def story() -> None:
        async with ACluster() as cluster:
            server = await cluster.a_server()
            index = server.replica.get_last_change(JOBS)

            reply = await put(server, path, body)

            assert (reply.status, reply.headers["content-type"]) == (status, "text/plain; charset=utf-8")
            assert text in reply.body.decode()
            assert "x-cluster-index" not in reply.headers
            assert server.replica.get_last_change(JOBS) == index

    story()


@in_virtual_time
async def test_the_namespace_of_the_query_goes_before_the_bodys_and_the_jobs() -> None:
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
async def test_deregistering_what_nobody_knows_is_fine_and_tells_no_index() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()

        reply = await ask(server.api, "DELETE", "/v1/job/nobody")

        told = json.loads(reply.body)
        assert (reply.status, told["EvalID"], told["JobModifyIndex"], told["Index"]) == (200, "", 0, 0)


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
def test_what_is_asked_of_a_deregistration_is_looked_at(query: str, status: int) -> None:
    @in_virtual_time
    async def story() -> None:
        async with ACluster() as cluster:
            server = await cluster.a_server()
            await server.client.jobs.register(a_job())

            reply = await ask(server.api, "DELETE", "/v1/job/shop", query=query)

            job = server.replica.get(JOBS, "default", "shop")
            assert (reply.status, job is not None and job.stop) == (status, status == 200)

    story()


@in_virtual_time
async def test_counts_and_resources_can_be_kept() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await server.client.jobs.register(a_job("shop", a_group("web", count=7)))

        await put(server, "/v1/jobs", registration(a_job("shop", a_group("web", count=1)), PreserveCounts=True))

        assert (await server.client.jobs.read("shop")).value.groups[0].count == 7


@in_virtual_time
async def test_a_periodic_job_is_registered_without_an_evaluation() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()

        told = await server.client.jobs.register(a_periodic_job())

        assert (told.eval_id, told.eval_create_index, told.index > 0) == ("", 0, True)


@in_virtual_time
async def test_a_body_that_is_too_large_is_refused_before_it_is_read() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()

        told = await put(server, "/v1/jobs", b"{}", headers={"content-length": str(MAX_BODY_BYTES + 1)})
        endless = await put(server, "/v1/jobs", b"{}", headers={"content-length": "9" * 5_000})
        nonsense = await put(server, "/v1/jobs", b"{}", headers={"content-length": "x"})

        assert [told.status, endless.status, nonsense.status] == [413, 413, 400]


@in_virtual_time
async def test_a_body_that_grows_too_large_or_breaks_off_is_refused() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()

        async def status_of(messages: list[Any]) -> int:
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
        in_pieces = await status_of([{**part, "body": b"{"}, {"type": "http.request", "body": b"}"}])

        assert [too_much, broken, in_pieces] == [413, 400, 400]


@in_virtual_time
async def test_a_log_that_takes_no_writes_is_503_and_says_why() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        server.faults.choose_fault = lambda asked: (
            RefuseFault("the disk is full") if asked is EngineOperation.COMMIT else None
        )

        reply = await put(server, "/v1/jobs", registration(a_job()))

        assert (reply.status, reply.body) == (503, b"nothing was written: the disk is full")
        assert reply.headers["x-cluster-error"] == "unavailable"


@in_virtual_time
async def test_an_error_of_our_own_is_500_tells_nothing_and_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()

        async def fails(_request: object) -> None:
            raise ZeroDivisionError("a secret detail")

        monkeypatch.setitem(server.api._action_handlers, "job.register", fails)
        with caplog.at_level(logging.ERROR):
            reply = await put(server, "/v1/jobs", b"{}", headers={"x-request-id": "req-1"})

        assert (reply.status, reply.body) == (500, b"internal error: see request req-1 in the server log")
        assert "a secret detail" in caplog.text


@in_virtual_time
async def test_a_request_is_known_by_its_id_in_all_that_it_causes() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        seen: list[str] = []
        server.faults.choose_fault = lambda asked: (
            seen.append(get_request_id()) if asked is EngineOperation.COMMIT else None
        )

        await put(server, "/v1/jobs", registration(a_batch_job("shop")), headers={"x-request-id": "req-7"})

        assert "req-7" in seen


class Kept:
    def __init__(self) -> None:
        self.written: list[AuditedWrite] = []
        self.fails = False

    def record(self, written: AuditedWrite) -> None:
        if self.fails:
            raise OSError("the disk is full")
        self.written.append(written)


@in_virtual_time
async def test_writes_are_audited_whatever_became_of_them_and_reads_are_not(caplog: pytest.LogCaptureFixture) -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        kept = Kept()
        server.api = Api(server.server, audit=kept)

        done = await put(server, "/v1/jobs", registration(a_job()), headers={"x-request-id": "one"})
        await put(server, "/v1/jobs", b"{}", headers={"x-request-id": "two"})
        await get(server, "/v1/jobs")
        kept.fails = True
        unrecorded = await put(server, "/v1/jobs", registration(a_job()))

        index = int(done.headers["x-cluster-index"])
        assert kept.written == [
            AuditedWrite("one", "job.register", "/v1/jobs", "127.0.0.1", 200, index, "PUT", "", "default"),
            AuditedWrite(
                "two", "job.register", "/v1/jobs", "127.0.0.1", 400, 0, "PUT", "Job must be specified", "default"
            ),
        ]
        assert unrecorded.status == 200
        assert "audit record not written" in caplog.text


# -- nodes


async def with_node(server: OneServer) -> None:
    await server.client.node_agents.register(a_node(), SECRET)
    await server.client.node_agents.send_heartbeat("node-1", SECRET)


@in_virtual_time
async def test_whoever_speaks_as_a_node_must_show_its_secret() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await with_node(server)

        asked = [
            ("PUT", "/v1/node/node-1/heartbeat", b""),
            ("GET", "/v1/node/node-1/desired", b""),
            ("POST", "/v1/node/node-1/desired", b'{"IDs": []}'),
            ("PUT", "/v1/node/node-1/report", b"{}"),
        ]
        for headers in ({}, {"x-cluster-node-secret": "another"}, {"x-cluster-node-secret": hash_secret(SECRET)}):
            replies = [await ask(server.api, m, path, body=body, headers=headers) for m, path, body in asked]
            assert [(reply.status, reply.body) for reply in replies] == [(403, b"Permission denied")] * 4


@in_virtual_time
async def test_no_reply_holds_a_nodes_secret() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await with_node(server)
        nodes = await cluster.ready_nodes(server, 1)
        await server.client.jobs.register(a_job("shop", a_group("web", a_task(driver="mock"))))
        await until(lambda: server.replica.count_records(ALLOCATIONS) == 1, what="placed")
        secrets = [SECRET, hash_secret(SECRET), nodes[0].secret_id, hash_secret(nodes[0].secret_id)]

        paths = ["/v1/nodes", "/v1/node/node-1", f"/v1/node/{nodes[0].id}", f"/v1/node/{nodes[0].id}/allocations"]
        paths += ["/v1/agent/members", "/v1/operator/state", "/v1/allocations"]
        bodies = [(await get(server, path)).body for path in paths]
        bodies += [reply.body for reply in (*server.exchange.replies, *nodes[0].exchange.replies)]

        assert [secret for secret in secrets for body in bodies if secret.encode() in body] == []


@in_virtual_time
async def test_a_node_that_registered_at_one_server_is_known_at_the_others() -> None:
    async with ACluster() as cluster:
        first = await cluster.a_server("m1")
        second = await cluster.a_server("m2", leads=False)

        second.faults.choose_fault = lambda asked: DelayFault(reply_s=2.0) if asked is EngineOperation.FEED else None
        await first.client.node_agents.register(a_node(), SECRET)

        told = await second.client.node_agents.send_heartbeat("node-1", SECRET)

        assert told.heartbeat_ttl > 0


@in_virtual_time
async def test_a_heartbeat_of_an_unknown_node_is_404() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()

        reply = await put(server, "/v1/node/nobody/heartbeat", headers={"x-cluster-node-secret": SECRET})

        assert (reply.status, reply.body) == (404, b"node not found")


@in_virtual_time
async def test_a_node_registers_under_its_own_path() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        body = msgspec.json.encode({"Node": a_node(), "SecretID": SECRET})

        assert (await put(server, "/v1/node/other/register", body)).status == 400
        assert server.replica.count_records(NODES) == 0


@in_virtual_time
async def test_eligibility_tells_its_evaluations_and_no_node_index() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await cluster.ready_nodes(server, 1)
        (node,) = server.replica.iter_all(NODES)
        await server.client.jobs.register(a_job("shop", a_group("web", a_task(driver="mock"))))
        await until(lambda: server.replica.count_records(ALLOCATIONS) == 1, what="placed")

        off = await server.client.nodes.set_eligibility(node.id, eligible=False)
        again = await server.client.nodes.set_eligibility(node.id, eligible=False)
        on = await server.client.nodes.set_eligibility(node.id, eligible=True)

        assert (off.eval_ids, off.eval_create_index, off.node_modify_index, off.index > 0) == (None, 0, 0, True)
        assert (again.eval_ids, again.index) == (None, 0)
        assert (len(on.eval_ids or ()), on.eval_create_index) == (1, on.index)


@pytest.mark.parametrize(("word", "status"), [("maybe", 400), ("", 400), ("eligible", 404)])
def test_an_eligibility_that_makes_no_sense_is_refused(word: str, status: int) -> None:
    @in_virtual_time
    async def story() -> None:
        async with ACluster() as cluster:
            server = await cluster.a_server()
            body = msgspec.json.encode({"Eligibility": word})

            assert (await put(server, "/v1/node/nobody/eligibility", body)).status == status

    story()


@in_virtual_time
async def test_the_orders_of_a_node_never_fall_back() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        (node,) = await cluster.ready_nodes(server, 1)
        await server.client.jobs.register(a_job("shop", a_group("web", a_task(driver="mock"))))
        await until(lambda: server.replica.count_records(ALLOCATIONS) == 1, what="placed")
        secret = node.secret_id
        before = await server.client.node_agents.list_assignments(node.id, secret)

        (allocation,) = server.replica.iter_all(ALLOCATIONS)
        await server.server.writer.commit(
            Write("collected", Cause(CauseKind.TIMER), [ALLOCATIONS.build_delete(allocation.id)])
        )

        after = await server.client.node_agents.list_assignments(node.id, secret, index=before.index, wait_s=1.0)

        assert (after.value, after.index >= before.index) == ({}, True)


@in_virtual_time
async def test_after_a_restore_every_order_counts_as_newer_than_all_that_a_node_was_told() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        (node,) = await cluster.ready_nodes(server, 1)
        await server.client.jobs.register(a_job("shop", a_group("web", a_task(driver="mock"))))
        await until(
            lambda: [a.client_status for a in server.replica.iter_all(ALLOCATIONS)] == ["running"], what="it runs"
        )
        secret = node.secret_id
        before = await server.client.node_agents.list_assignments(node.id, secret)

        cluster.log.restore_copy(cluster.log.make_copy())
        after = await server.client.node_agents.list_assignments(node.id, secret, index=before.index, wait_s=1.0)
        (fetched,) = await server.client.node_agents.fetch_assignments(node.id, secret, list(after.value))

        (allocation_id,) = before.value
        assert after.value[allocation_id] > before.index
        assert after.index == after.value[allocation_id] == fetched.allocation.alloc_modify_index


# -- this process


@in_virtual_time
async def test_health_is_told_by_status_too() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        well = await get(server, "/v1/agent/health")
        server.faults.disconnect()
        cut = await get(server, "/v1/agent/health")

        assert (well.status, json.loads(well.body)) == (200, {"server": {"ok": True, "message": "ok"}})
        assert (cut.status, json.loads(cut.body)["server"]["ok"]) == (500, False)


@in_virtual_time
async def test_health_is_told_within_seconds_while_the_log_hangs() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        server.faults.choose_fault = lambda asked: (
            DelayFault(request_s=600.0) if asked is EngineOperation.HEALTH else None
        )
        began_s = now_s()
        hangs = await get(server, "/v1/agent/health")

        assert now_s() - began_s < 5.0
        assert (hangs.status, json.loads(hangs.body)) == (
            500,
            {"server": {"ok": False, "message": "the log has not answered for 3 s"}},
        )


@in_virtual_time
async def test_who_leads_is_told_without_a_leader_too() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server(leads=False)
        before = await get(server, "/v1/status/leader")

        await server.lead()
        after = await get(server, "/v1/status/leader")

        assert (before.body, after.body) == (b'""', b'"m1:4646"')
        assert "x-cluster-index" not in after.headers


@in_virtual_time
async def test_a_question_of_another_member_needs_the_door_secret() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()

        replies = [
            await put(server, "/v1/server/ask/heartbeat", b"", headers=headers)
            for headers in ({}, {"x-cluster-door-secret": ""}, {"x-cluster-door-secret": "geheim\u00e9"})
        ]

        assert [reply.status for reply in replies] == [403, 403, 403]


@in_virtual_time
async def test_headers_of_the_configuration_go_out_with_every_reply() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server("m1")
        api = Api(server.server, extra_headers={"X-Team": "harbour"})

        replies = [await ask(api, "GET", path) for path in ("/v1/jobs", "/v1/nowhere")]

        assert [reply.headers.get("x-team") for reply in replies] == ["harbour", "harbour"]


@in_virtual_time
async def test_a_body_over_the_configured_bound_is_refused() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server("m1")

        reply = await ask(Api(server.server, max_body_bytes=100), "PUT", "/v1/jobs", body=b" " * 101)

        assert (reply.status, reply.body) == (413, b"the request's body is larger than 100 bytes")
