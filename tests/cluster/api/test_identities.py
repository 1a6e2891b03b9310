"""Signed identities of tasks, and introductions of nodes (reference 5.3, rule 7; architecture 9)."""

import base64
import json
from typing import Any

import msgspec
import pytest
from joserfc import jwt
from joserfc.jwk import KeySet, OctKey
from msgspec.structs import replace

from tests.builders import a_batch_job, a_group, a_job
from tests.cluster.api.access import ApiCaller, an_operator
from tests.cluster.api.test_admission import limit_to
from tests.kit.cluster import ACluster
from tests.kit.exchange import send_raw
from tests.kit.loop_holds import MeasuredCluster, measure_holds
from tests.kit.requests import get
from tests.kit.state import a_node, an_allocation
from tests.kit.virtual_time import in_virtual_time, pass_time
from wharf.agent.access_control import generate_rsa_key
from wharf.cluster.operations.nodes.introductions import Introduction, NodeAdmission
from wharf.cluster.server.rpc.handlers.nodes import REGISTER_NODE, RegistrationRequest
from wharf.cluster.server.security.identities import WorkloadIdentitySpec
from wharf.cluster.state.tables import ALLOCATIONS, NODE_POOLS, NODES
from wharf.contract.model.allocations.allocation import Allocation, ClientStatus
from wharf.contract.model.jobs.steps import Gate
from wharf.contract.model.log import Cause, CauseKind, Write
from wharf.contract.model.nodes.node import Node
from wharf.contract.model.refusal import Refusal
from wharf.contract.model.times import MINUTE

WEB = an_allocation(a_job("web"), id="11111111-1111-4111-8111-111111111111", task_group="front")


async def running(operator: ApiCaller, allocation: Allocation = WEB) -> None:
    write = Write("test", Cause(CauseKind.REQUEST), [ALLOCATIONS.build_put(allocation)])
    await operator.server.server.writer.commit(write)
    await operator.server.server.writer.catch_up()


def with_identity(operator: ApiCaller, **changed: Any) -> ApiCaller:
    """Return a caller with the identity of a task of the allocation."""
    server = operator.server.server
    submitted = {"namespace": "default", "job_id": "web", "group": "front", "alloc_id": WEB.id, "task": "app"}
    workload = WorkloadIdentitySpec(region="global", **{**submitted, **changed})
    signed = server.access.identity_signer.sign_workload(server.replica, workload, server.writer.read_clock())
    return ApiCaller(operator.server, signed)


@in_virtual_time
async def test_a_task_reads_the_variables_of_its_job_group_and_itself_without_a_policy() -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)
        await running(operator)
        paths = ("nomad/jobs", "nomad/jobs/web", "nomad/jobs/web/front", "nomad/jobs/web/front/app")
        for path in (*paths, "nomad/jobs/other", "nomad/jobs/web/back"):
            assert (await operator.put(f"/v1/var/{path}", {"Items": {"a": "1"}}))[0] == 200
        task = with_identity(operator)

        assert [(await task.get(f"/v1/var/{path}"))[0] for path in paths] == [200] * 4
        assert (await task.get("/v1/var/nomad/jobs/other"))[0] == 403
        assert (await task.get("/v1/var/nomad/jobs/web/back"))[0] == 403
        assert [item["Path"] for item in (await task.get("/v1/vars"))[1]] == list(paths)
        assert (await task.put("/v1/var/nomad/jobs/web", {"Items": {"a": "2"}}))[0] == 403


@in_virtual_time
async def test_a_policy_attached_to_a_job_applies_to_its_tasks() -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)
        await running(operator)
        before = await with_identity(operator).get("/v1/jobs")
        body = {
            "Name": "of-web",
            "Rules": 'namespace "default" { policy = "read" }',
            "JobACL": {"Namespace": "default", "JobID": "web"},
        }

        await operator.put("/v1/acl/policy/of-web", body)

        assert (before[0], await with_identity(operator).get("/v1/jobs")) == (403, (200, []))
        assert [item["Name"] for item in (await with_identity(operator).get("/v1/acl/policy/self"))[1]] == ["of-web"]


@in_virtual_time
async def test_a_task_that_answers_a_gate_or_cancels_a_run_is_named_as_the_task_of_its_job() -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)
        await running(operator)
        steps = (a_group("build"), a_group("ship", gate=Gate()))
        await operator.put("/v1/jobs", {"Job": msgspec.to_builtins(a_batch_job("release", *steps))})
        await pass_time(1)
        body = {
            "Name": "of-web",
            "Rules": 'namespace "default" { policy = "write" }',
            "JobACL": {"Namespace": "default", "JobID": "web"},
        }
        await operator.put("/v1/acl/policy/of-web", body)

        answer = {"Step": "ship", "Answer": "approve"}
        assert (await with_identity(operator).put("/v1/job/release/answer", answer))[0] == 200
        assert (await with_identity(operator).put("/v1/job/release/cancel", {}))[0] == 200

        steps_of_run = (await operator.get("/v1/job/release/run"))[1]["Steps"]
        assert {step["Name"]: step["Text"] for step in steps_of_run}["build"] == (
            "canceled by the task app of the job web"
        )
        (ship,) = (step for step in steps_of_run if step["Name"] == "ship")
        assert ship["Cause"]["Actor"] == "the task app of the job web"


@in_virtual_time
async def test_an_identity_is_not_a_token() -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)
        await running(operator)

        assert await with_identity(operator).get("/v1/acl/token/self") == (404, "ACL token not found")
        assert await with_identity(operator).put("/v1/acl/token/onetime") == (403, "Permission denied")


@in_virtual_time
async def test_an_identity_is_valid_until_its_allocation_is_finished() -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)
        await running(operator)
        before = await with_identity(operator).get("/v1/vars")

        await running(operator, replace(WEB, client_status=ClientStatus.COMPLETE))

        assert (before, await with_identity(operator).get("/v1/vars")) == ((200, []), (403, "Permission denied"))


@in_virtual_time
async def test_an_identity_for_another_service_grants_nothing_in_the_cluster() -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)
        await running(operator)
        await operator.put("/v1/var/nomad/jobs/web", {"Items": {"password": "1"}})
        task = with_identity(operator, name="third_party", audience=("https://sts.example",))

        refused = await task.get("/v1/var/nomad/jobs/web")
        explained = await task.get("/v1/agent/self")

        assert refused == (403, "Permission denied")
        assert explained[0] == 403
        assert "the identity is for another audience" in explained[1]


@in_virtual_time
@pytest.mark.parametrize(
    "identity",
    [
        {"name": "default", "audience": ("wharf",)},
        {"name": "default", "audience": ("https://sts.example",)},
        {"name": "other", "audience": ("https://sts.example", "wharf")},
        {"name": "other", "audience": ("nomadproject.io",)},
        {"name": "other"},
    ],
)
async def test_an_identity_that_is_meant_for_the_cluster_is_accepted(identity: dict[str, Any]) -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)
        await running(operator)

        assert await with_identity(operator, **identity).get("/v1/vars") == (200, [])


@in_virtual_time
async def test_an_identity_with_an_expiration_expires() -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)
        await running(operator)
        task = with_identity(operator, ttl_ns=5 * MINUTE)
        before = await task.get("/v1/vars")

        await pass_time(301)

        assert (before[0], (await task.get("/v1/vars"))[0]) == (200, 403)


@in_virtual_time
async def test_anyone_can_verify_an_identity_with_the_published_keys() -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)
        await running(operator)
        _, result = await ApiCaller(operator.server).get("/.well-known/jwks.json")

        token = jwt.decode(with_identity(operator).token, KeySet.import_key_set(result), algorithms=["Ed25519"])

        assert token.claims["sub"] == "global:default:web:front:app:default"
        assert (token.claims["nomad_allocation_id"], token.claims["nomad_job_id"]) == (WEB.id, "web")


@in_virtual_time
async def test_the_published_keys_have_an_index_and_may_be_cached_for_a_minute() -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)
        await running(operator)
        before = await get(operator.server, "/.well-known/jwks.json")

        _, rotated = await operator.put("/v1/operator/keyring/rotate")
        after = await get(operator.server, "/.well-known/jwks.json")

        assert rotated
        assert (before.headers["cache-control"], after.headers["cache-control"]) == ("max-age=60", "max-age=60")
        assert 0 < int(before.headers["x-cluster-index"]) < int(after.headers["x-cluster-index"])


@in_virtual_time
async def test_an_identity_is_valid_after_a_rotation_and_invalid_without_its_key() -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)
        await running(operator)
        task = with_identity(operator)
        _, keys = await operator.get("/v1/operator/keyring/keys")

        await operator.put("/v1/operator/keyring/rotate")
        rotated = await task.get("/v1/vars")
        await operator.put("/v1/operator/keyring/rotate", query="full")
        await pass_time(1)
        await operator.delete(f"/v1/operator/keyring/key/{keys[0]['KeyID']}")

        assert (rotated[0], (await task.get("/v1/vars"))[0]) == (200, 403)


@pytest.mark.parametrize("spoil", [lambda t: t[:-6] + "AAAAAA", lambda t: t.rpartition(".")[0] + ".", lambda _: "é"])
def test_a_text_signed_by_an_unknown_key_is_refused(spoil: Any) -> None:
    @in_virtual_time
    async def refuse() -> None:
        async with ACluster() as cluster:
            operator = await an_operator(cluster)
            await running(operator)
            corrupted = ApiCaller(operator.server, spoil(with_identity(operator).token).encode().decode("latin-1"))

            assert await corrupted.get("/v1/vars") == (403, "Permission denied")
            status, text = await corrupted.get("/v1/acl/token/self")
            assert (status, text.startswith("failed to parse signed token: ")) == (403, True)

    refuse()


# -- introductions

NODE_ID = "5f0c8a9e-0000-4000-8000-000000000001"


async def create_introduction(operator: ApiCaller, **body: Any) -> str:
    status, result = await operator.put("/v1/acl/identity/client-introduction-token", body)
    assert status == 200, result
    signed: str = result["JWT"]
    return signed


async def register(operator: ApiCaller, token: str = "", *, secret: str = "s", **fields: Any) -> int:
    node = replace(a_node(NODE_ID), **{"name": "n1", **fields})
    body = msgspec.json.encode({"Node": node, "SecretID": secret})
    headers = {"X-Cluster-Token": token} if token else {}
    reply = await send_raw(operator.server.api, "PUT", f"/v1/node/{node.id}/register", headers=headers, body=body)
    return reply.status


@in_virtual_time
async def test_a_new_node_registers_only_with_an_introduction_and_then_uses_its_secret() -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)

        without = await register(operator)
        with_token = await register(operator, operator.token)
        introduction = await create_introduction(operator)
        with_it = await register(operator, introduction)

        assert (without, with_token, with_it) == (403, 403, 200)
        assert await register(operator) == 200
        assert await register(operator, introduction, secret="another") == 403


@in_virtual_time
async def test_registrations_without_an_introduction_use_no_place_of_those_with_one() -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)
        introduction = await create_introduction(operator)
        limit_to(operator.server, UNPROVED_NODE=0)

        statuses = [await register(operator, token) for token in ("", "made up", introduction)]

        assert statuses == [503, 503, 200]


@in_virtual_time
async def test_a_long_introduction_is_refused_without_being_decoded() -> None:
    async with MeasuredCluster() as cluster:
        operator = await an_operator(cluster)
        header = base64.urlsafe_b64encode(b'{"kid":[' + b"[]," * 250_000 + b"[]]}").decode()

        with measure_holds() as holds:
            status = await cluster.start(register(operator, f"{header}.e30.AA"), name="registers")

        assert status == 403
        holds.require_short("a long introduction")


@in_virtual_time
async def test_an_introduction_is_bound_to_its_pool_and_node() -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)

        assert await register(operator, await create_introduction(operator, NodePool="gpu")) == 403
        assert await register(operator, await create_introduction(operator, NodeName="n2")) == 403
        assert operator.server.replica.count_records(NODES) == 0
        assert await register(operator, await create_introduction(operator, NodeName="n1")) == 200


@in_virtual_time
async def test_a_registered_node_cannot_move_to_another_pool_or_create_one_by_its_secret() -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)
        await register(operator, await create_introduction(operator))

        statuses = [
            await register(operator, node_pool="gpu"),
            await register(operator, name="n2"),
            await register(operator),
        ]

        node = operator.server.replica.get(NODES, NODE_ID)
        assert statuses == [403, 403, 200]
        assert node is not None
        assert (node.name, node.node_pool, operator.server.replica.get(NODE_POOLS, "gpu")) == ("n1", "default", None)
        assert await register(operator, await create_introduction(operator, NodePool="gpu"), node_pool="gpu") == 200
        assert await register(operator, node_pool="gpu") == 200


@in_virtual_time
async def test_a_registration_that_is_under_way_while_its_node_is_purged_does_not_bring_the_node_back() -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)
        monitor = operator.server.brain.node_monitor
        await register(operator, await create_introduction(operator))
        node = operator.server.replica.get(NODES, NODE_ID)
        assert node is not None
        await operator.put(f"/v1/node/{NODE_ID}/purge")

        with pytest.raises(Refusal, match="a new node needs an introduction token"):
            await monitor.register_node(node, NodeAdmission(introduction=None))

        assert operator.server.replica.get(NODES, NODE_ID) is None


def test_leaders_of_an_older_version_can_read_a_registration() -> None:
    node = a_node(NODE_ID, name="n1")
    request = RegistrationRequest(
        **msgspec.structs.asdict(node), admission=NodeAdmission(Introduction(node_pool="gpu"))
    )
    encoded = msgspec.msgpack.encode(request)

    assert msgspec.msgpack.decode(encoded, type=Node) == node
    assert REGISTER_NODE.decode_request(encoded) == request
    assert REGISTER_NODE.decode_request(msgspec.msgpack.encode(node)).to_node() == node


@in_virtual_time
async def test_an_introduction_expires() -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)
        introduction = await create_introduction(operator, TTL="1m")

        await pass_time(61)

        assert await register(operator, introduction) == 403
        assert (await operator.put("/v1/acl/identity/client-introduction-token", {"TTL": "1h"}))[0] == 400


@in_virtual_time
async def test_introductions_and_identities_are_not_interchangeable() -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)
        await running(operator)

        assert (await ApiCaller(operator.server, await create_introduction(operator)).get("/v1/vars"))[0] == 403
        assert await register(operator, with_identity(operator).token) == 403


@in_virtual_time
async def test_creating_an_introduction_needs_the_right_to_write_nodes() -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)
        await operator.policy("nodes", 'node { policy = "read" }')
        guest = await operator.a_token("nodes")

        response = await guest.put("/v1/acl/identity/client-introduction-token", {})

        assert response == (403, "Permission denied")


@in_virtual_time
async def test_without_access_control_nodes_need_no_introduction() -> None:
    async with ACluster() as cluster:
        assert await register(ApiCaller(await cluster.a_server())) == 200


@in_virtual_time
async def test_new_keys_sign_with_rs256_and_both_kinds_are_published_and_valid_during_rotation() -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)
        await running(operator)
        await operator.put("/v1/var/nomad/jobs/web", {"Items": {"a": "1"}})
        older = with_identity(operator)
        created = generate_rsa_key()
        operator.server.server.access.keyring.make_rsa_key = lambda: _return_key(created)

        await operator.put("/v1/operator/keyring/rotate", {})

        newer = with_identity(operator)
        views = (await operator.get("/.well-known/jwks.json"))[1]
        kinds = sorted((key["kty"], key["alg"], key["use"]) for key in views["keys"])
        read = jwt.decode(newer.token, KeySet.import_key_set(views), algorithms=["RS256"])
        assert kinds == [("OKP", "Ed25519", "sig"), ("RSA", "RS256", "sig")]
        assert {"d", "p", "q"} & {name for key in views["keys"] for name in key} == set()
        assert read.claims["nomad_job_id"] == "web"
        assert [(await callers.get("/v1/var/nomad/jobs/web"))[0] for callers in (older, newer)] == [200, 200]


@in_virtual_time
async def test_an_identity_with_another_algorithm_than_its_key_is_refused() -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)
        await running(operator)
        created = generate_rsa_key()
        operator.server.server.access.keyring.make_rsa_key = lambda: _return_key(created)
        await operator.put("/v1/operator/keyring/rotate", {})
        await operator.put("/v1/var/nomad/jobs/web", {"Items": {"a": "1"}})
        true = with_identity(operator).token
        public = (await operator.get("/.well-known/jwks.json"))[1]["keys"][-1]["n"]
        head, claims, _ = true.split(".")
        key_id = json.loads(base64.urlsafe_b64decode(head + "=="))["kid"]
        forged = jwt.encode(
            {"alg": "HS256", "kid": key_id},
            json.loads(base64.urlsafe_b64decode(claims + "==")),
            OctKey.import_key(public),
            algorithms=["HS256"],
        )

        statuses = [
            (await ApiCaller(operator.server, text).get("/v1/var/nomad/jobs/web"))[0] for text in (true, forged)
        ]

        assert statuses == [200, 403]


async def _return_key(key: bytes) -> bytes:
    return key
