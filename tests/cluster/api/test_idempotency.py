"""Writes with an idempotency key: executed once, with the same reply for every repetition."""

import hashlib
import json
from typing import Any

import msgspec
import pytest

from tests.builders import a_job
from tests.cluster.api.access import an_operator
from tests.kit.callers import a_token, enable_acl
from tests.kit.cluster import ACluster, OneServer
from tests.kit.exchange import send_raw
from tests.kit.virtual_time import in_virtual_time, pass_time
from wharf.cluster.access import UNCHECKED_CALLER, Caller, CallerKind
from wharf.cluster.access.identities import WorkloadClaims
from wharf.cluster.api import idempotency
from wharf.cluster.api.idempotency import find_scope
from wharf.cluster.engines.memory.faults import EngineOperation, RefuseFault
from wharf.cluster.server.log.preview import PREVIEW_INDEX
from wharf.cluster.server.security.keyring import WrappingKey
from wharf.cluster.state.tables import EVALUATIONS, IDEMPOTENCY_KEYS, JOBS
from wharf.contract.client import ClientReply
from wharf.contract.model.acl.tokens import Token
from wharf.contract.wire.endpoint_table import ENDPOINT_BY_NAME

KEY = {"idempotency-key": "once"}
DIGEST = hashlib.sha256(b"request").hexdigest()


def a_workload(task: str) -> WorkloadClaims:
    return WorkloadClaims(namespace="default", job_id="job", alloc_id="alloc", task=task)


def registration(name: str = "shop", **fields: Any) -> bytes:
    return msgspec.json.encode({"Job": a_job(name, **fields)})


async def put(server: OneServer, body: bytes, path: str = "/v1/jobs", query: str = "", **options: Any) -> ClientReply:
    return await send_raw(server.api, "PUT", path, body=body, query=query, **options)


async def a_server(cluster: ACluster, name: str = "m1", *, leads: bool = True, access: bool = False) -> OneServer:
    server = await cluster.a_server(name, leads=leads, access=access)
    server.server.access.keyring.set_wrapping_keys(WrappingKey(b"k" * 32))
    return server


@in_virtual_time
async def test_a_repeated_write_is_executed_once_and_returns_the_same_reply() -> None:
    async with ACluster() as cluster:
        server = await a_server(cluster)

        first = await put(server, registration(), headers=KEY)
        repeated = await put(server, registration(), headers=KEY)
        without = await put(server, registration())

        assert (repeated.status, repeated.body) == (first.status, first.body) == (200, first.body)
        assert (
            repeated.headers["x-cluster-index"]
            == first.headers["x-cluster-index"]
            == str(json.loads(first.body)["Index"])
        )
        assert without.body != first.body


@in_virtual_time
async def test_a_text_that_looks_like_the_placeholder_of_the_index_stays_in_the_reply() -> None:
    text = f'card "{PREVIEW_INDEX}\\" end'
    async with ACluster() as cluster:
        server = await a_server(cluster)
        body = msgspec.json.encode({"Items": {"a": text}})

        first = await put(server, body, "/v1/var/test/x", headers=KEY)
        repeated = await put(server, body, "/v1/var/test/x", headers=KEY)

        for reply in (first, repeated):
            content = json.loads(reply.body)
            assert content["Items"] == {"a": text}
            assert str(content["ModifyIndex"]) == first.headers["x-cluster-index"]


@in_virtual_time
async def test_the_reply_is_committed_in_the_batch_of_the_write() -> None:
    async with ACluster() as cluster:
        server = await a_server(cluster)

        first = await put(server, registration(), headers=KEY)

        (retained,) = server.replica.iter_all(IDEMPOTENCY_KEYS)
        job = server.replica.get(JOBS, "default", "shop")
        assert job is not None
        assert retained.create_index == job.create_index == int(first.headers["x-cluster-index"])
        assert b"EvalID" not in retained.answer_sealed


@in_virtual_time
async def test_another_server_returns_the_stored_reply() -> None:
    async with ACluster() as cluster:
        server = await a_server(cluster)
        second = await a_server(cluster, "m2", leads=False)

        first = await put(server, registration(), headers=KEY)
        repeated = await put(second, registration(), headers=KEY)

        assert repeated.body == first.body


@in_virtual_time
async def test_the_same_key_with_another_request_is_refused_and_changes_nothing() -> None:
    async with ACluster() as cluster:
        server = await a_server(cluster)
        await put(server, registration(), headers=KEY)
        await pass_time(2.0)
        index = server.replica.get_last_change(JOBS)

        other_replies = [
            await put(server, registration("other"), headers=KEY),
            await put(server, registration(), "/v1/job/shop", headers=KEY),
            await put(server, registration(), query="namespace=default", headers=KEY),
            await send_raw(server.api, "DELETE", "/v1/job/shop", headers=KEY),
        ]

        assert [reply.status for reply in other_replies] == [400] * 4
        assert b"was sent with another request (PUT /v1/jobs)" in other_replies[0].body
        assert server.replica.get_last_change(JOBS) == index


@in_virtual_time
async def test_an_invalid_key_is_refused() -> None:
    async with ACluster() as cluster:
        server = await a_server(cluster)

        replies = [await put(server, registration(), headers={"idempotency-key": key}) for key in ("", "x" * 256)]

        assert [(reply.status, server.replica.count_records(JOBS)) for reply in replies] == [(400, 0)] * 2


@in_virtual_time
async def test_a_refused_write_does_not_use_up_its_key() -> None:
    async with ACluster() as cluster:
        server = await a_server(cluster)
        server.faults.choose_fault = lambda requests: (
            RefuseFault("the disk is full") if requests is EngineOperation.COMMIT else None
        )
        first = await put(server, registration(), headers=KEY)
        server.faults.choose_fault = lambda _operation: None

        repeated = await put(server, registration(), headers=KEY)

        assert (first.status, repeated.status) == (503, 200)


@in_virtual_time
async def test_a_key_can_be_reused_after_a_day() -> None:
    async with ACluster() as cluster:
        server = await a_server(cluster)
        await put(server, registration(), headers=KEY)

        cluster.advance_clocks(24 * 3_600 + 1)

        assert (await put(server, registration("other"), headers=KEY)).status == 200


@in_virtual_time
async def test_concurrent_requests_with_one_key_make_one_write() -> None:
    async with ACluster() as cluster:
        server = await a_server(cluster)
        await put(server, registration("before"), headers={"idempotency-key": "makes the ring"})
        pending = [cluster.start(put(server, registration(), headers=KEY), name=f"asks {n}") for n in range(5)]

        replies = [await each for each in pending]

        assert {(reply.status, reply.body) for reply in replies} == {(200, replies[0].body)}
        registered = [e for e in server.replica.iter_all(EVALUATIONS) if e.triggered_by == "job-register"]
        assert [e.job_id for e in registered] == ["before", "shop"]


@in_virtual_time
async def test_replies_of_leader_writes_are_stored() -> None:
    async with ACluster() as cluster:
        server = await a_server(cluster)
        (node,) = await cluster.ready_nodes(server, 1)
        body, path = b'{"Eligibility": "ineligible"}', f"/v1/node/{node.id}/eligibility"

        first = await put(server, body, path, headers=KEY)
        repeated = await put(server, body, path, headers=KEY)
        without = await put(server, body, path)

        assert (first.status, repeated.body) == (200, first.body)
        assert without.body != first.body


@in_virtual_time
async def test_a_refused_leader_write_does_not_use_up_its_key() -> None:
    async with ACluster() as cluster:
        server = await a_server(cluster)
        (node,) = await cluster.ready_nodes(server, 1)
        path = f"/v1/node/{node.id}/eligibility"
        refusal = await put(server, b'{"Eligibility": "maybe"}', path, headers=KEY)
        free = await put(server, b'{"Eligibility": "ineligible"}', path, headers=KEY)

        assert (refusal.status, free.status) == (400, 200)


@in_virtual_time
async def test_a_key_belongs_to_its_token() -> None:
    async with ACluster() as cluster:
        server = await a_server(cluster)
        enable_acl(server)
        item, another = await a_token(server, management=True), await a_token(server, management=True)

        first = await put(server, registration(), headers={**KEY, **item})
        second = await put(server, registration("other"), headers={**KEY, **another})

        assert (first.status, second.status, server.replica.count_records(JOBS)) == (200, 200, 2)


@in_virtual_time
async def test_a_read_ignores_the_key() -> None:
    async with ACluster() as cluster:
        server = await a_server(cluster)

        assert (await send_raw(server.api, "GET", "/v1/jobs", headers=KEY)).status == 200
        assert server.replica.count_records(IDEMPOTENCY_KEYS) == 0


# -- callers without a token ---------------------------------------------------------------------------------------


@in_virtual_time
async def test_the_reply_of_the_bootstrap_is_not_given_to_a_caller_with_the_same_key() -> None:
    async with ACluster() as cluster:
        server = await a_server(cluster, access=True)

        first = await put(server, b"", "/v1/acl/bootstrap", headers=KEY)
        second = await put(server, b"", "/v1/acl/bootstrap", headers=KEY)

        assert (first.status, second.status) == (200, 400)
        assert json.loads(first.body)["SecretID"].encode() not in second.body


@in_virtual_time
async def test_a_caller_without_a_token_cannot_take_the_key_of_another_one() -> None:
    async with ACluster() as cluster:
        server = await a_server(cluster, access=True)
        await a_token(server, 'namespace "default" { policy = "write" }', name="anonymous")

        first = await put(server, registration("first"), headers=KEY)
        second = await put(server, registration("second"), headers=KEY)
        repeated = await put(server, registration("first"), headers=KEY)

        assert (first.status, second.status) == (200, 200)
        assert repeated.body == first.body


@in_virtual_time
async def test_a_refused_exchange_of_a_one_time_token_stores_no_key() -> None:
    async with ACluster() as cluster:
        server = await a_server(cluster, access=True)
        unknown = {"x-cluster-token": server.world.new_id()}
        body = b'{"OneTimeSecretID": "%s"}' % server.world.new_id().encode()

        reply = await put(server, body, "/v1/acl/token/onetime/exchange", headers={**KEY, **unknown})

        assert (reply.status, server.replica.count_records(IDEMPOTENCY_KEYS)) == (403, 0)


@in_virtual_time
async def test_requests_of_nodes_without_a_secret_write_no_key() -> None:
    async with ACluster() as cluster:
        server = await a_server(cluster, access=True)
        await pass_time(2.0)
        index = server.replica.index
        path = f"/v1/node/{server.world.new_id()}"

        replies = [
            await put(server, b"{}", f"{path}/{action}", headers=KEY)
            for action in ("heartbeat", "leave", "report", "register")
        ]

        assert all(reply.status >= 400 for reply in replies)
        assert server.replica.index == index


@pytest.mark.parametrize(
    ("caller", "scope"),
    [
        (UNCHECKED_CALLER, ""),
        (Caller(kind=CallerKind.CLIENT, token=Token(accessor_id="accessor")), "accessor"),
        (Caller(kind=CallerKind.WORKLOAD, claims=a_workload("web")), "alloc/web"),
        (Caller(kind=CallerKind.WORKLOAD, claims=a_workload("db")), "alloc/db"),
        (Caller(kind=CallerKind.EXPIRED, token=Token(accessor_id="accessor")), f"anonymous {DIGEST}"),
        (Caller(kind=CallerKind.ANONYMOUS), f"anonymous {DIGEST}"),
    ],
)
def test_keys_belong_to_the_caller_as_it_was_identified(caller: Caller, scope: str) -> None:
    assert find_scope(caller, ENDPOINT_BY_NAME["job.register"], "request") == scope


def test_keys_of_endpoints_without_a_token_belong_to_the_request() -> None:
    assert find_scope(UNCHECKED_CALLER, ENDPOINT_BY_NAME["acl.login"], "request") == f"anonymous {DIGEST}"


@in_virtual_time
async def test_two_exchanges_of_one_time_tokens_may_have_the_same_key_and_neither_is_repeated() -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)
        created = [(await operator.put("/v1/acl/token/onetime"))[1]["OneTimeToken"] for _ in range(2)]
        bodies = [msgspec.json.encode({"OneTimeSecretID": token["OneTimeSecretID"]}) for token in created]

        first, second, repeated = [
            await put(operator.server, body, "/v1/acl/token/onetime/exchange", headers=KEY)
            for body in (*bodies, bodies[0])
        ]

        assert (first.status, second.status) == (200, 200)
        assert (repeated.status, repeated.body) == (403, b"Permission denied")


# -- limits ----------------------------------------------------------------------------------------------------------


@in_virtual_time
async def test_a_long_query_is_stored_as_a_digest() -> None:
    async with ACluster() as cluster:
        server = await a_server(cluster)
        query = "x=" + "y" * 100_000

        first = await put(server, registration(), query=query, headers=KEY)
        repeated = await put(server, registration(), query=query, headers=KEY)
        other = await put(server, registration(), query=f"{query}z", headers=KEY)

        (stored,) = server.replica.iter_all(IDEMPOTENCY_KEYS)
        assert len(stored.path) < 1_200
        assert (repeated.body, other.status) == (first.body, 400)


@in_virtual_time
async def test_a_reply_that_is_too_large_is_not_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idempotency, "MAX_STORED_BODY_BYTES", 10)
    async with ACluster() as cluster:
        server = await a_server(cluster)

        first = await put(server, registration(), headers=KEY)
        repeated = await put(server, registration(), headers=KEY)

        index = first.headers["x-cluster-index"]
        assert (first.status, repeated.status) == (200, 409)
        assert f"has taken effect by index {index}, but its reply has more than 10 bytes" in repeated.body.decode()
        (job,) = server.replica.iter_all(JOBS)
        assert job.version == 0
