"""Endpoints of search (conventions 3.2)."""

import asyncio
import json
from typing import Any

import pytest
from msgspec.structs import replace

from tests.builders import a_group, a_job, a_service, a_task
from tests.kit.callers import a_token, enable_acl
from tests.kit.cluster import ACluster, OneServer
from tests.kit.settings import USUAL_SEARCH_LIMITS
from tests.kit.state import a_node, an_allocation, an_evaluation
from tests.kit.virtual_time import in_virtual_time, pass_time
from tests.kit.work import DENIED, READ, a_namespace, a_stored_job, an_id, put, read_refusal, status_and_body, store
from wharf.cluster.state.tables import ALLOCATIONS, DEPLOYMENTS, EVALUATIONS, NODES
from wharf.contract.model.deployments import Deployment, DeploymentStatus
from wharf.contract.model.evaluations import EvaluationStatus
from wharf.contract.model.log import WRITE_INDEX

EVERY_CONTEXT = (
    "allocs jobs nodes node_pools evals deployment plugins volumes scaling_policy vars namespaces host_volumes quotas"
)
A1, E1, D1, N1 = (an_id(0xAB000 + number) for number in range(1, 5))


async def with_objects(cluster: ACluster) -> OneServer:
    """Start a server with objects of every kind. Most names contain "shop"."""
    server = await cluster.a_server()
    await a_namespace(server, "other")
    task = a_task("serve", driver="docker", config={"image": "shop/web:3"}, services=(a_service("checkout"),))
    job = await a_stored_job(server, a_job("shop", a_group("frontend", task, services=(a_service("shop-web"),))))
    await a_stored_job(server, a_job("Workshop-2", a_group("db", a_task("run", config={"command": "/opt/shop"}))))
    second = await a_stored_job(server, a_job("shop-of-others", namespace="other"))
    ended = an_evaluation(job, E1, status=EvaluationStatus.COMPLETE)
    deployment = Deployment(
        id=D1, namespace="default", job_id="shop", status=DeploymentStatus.SUCCESSFUL, create_index=WRITE_INDEX
    )
    await store(
        server,
        ALLOCATIONS.build_put(an_allocation(job, A1)),
        ALLOCATIONS.build_put(an_allocation(second, an_id(0xAB009))),
        EVALUATIONS.build_put(ended),
        DEPLOYMENTS.build_put(deployment),
        NODES.build_put(a_node(N1, create_index=WRITE_INDEX)),
    )
    return server


async def search(server: OneServer, prefix: str, context: str = "all", query: str = "", **options: Any) -> Any:
    reply = await put(server, "/v1/search", {"Prefix": prefix, "Context": context}, query, **options)
    assert reply.status == 200, reply.body
    return json.loads(reply.body)


async def fuzzy(server: OneServer, text: str, context: str = "all", query: str = "", **options: Any) -> Any:
    reply = await put(server, "/v1/search/fuzzy", {"Text": text, "Context": context}, query, **options)
    assert reply.status == 200, reply.body
    return json.loads(reply.body)


# -- by prefix


@in_virtual_time
async def test_objects_are_found_by_id_prefix() -> None:
    async with ACluster() as cluster:
        server = await with_objects(cluster)

        assert (await search(server, "sho"))["Matches"]["jobs"] == ["shop"]
        assert (await search(server, "0"))["Matches"] == {
            "allocs": [A1], "jobs": None, "nodes": [N1], "node_pools": None, "evals": [E1], "deployment": [D1],
            "plugins": None, "volumes": None, "scaling_policy": None, "vars": None, "namespaces": None,
            "host_volumes": None, "quotas": None,
        }  # fmt: skip


@in_virtual_time
async def test_a_prefix_may_end_anywhere_in_an_id() -> None:
    async with ACluster() as cluster:
        server = await with_objects(cluster)

        matches = [
            (await search(server, A1[:length], "allocs"))["Matches"]["allocs"] for length in (0, 1, 7, 8, 9, 11, 36)
        ]

        assert matches == [[A1]] * 7
        assert (await search(server, A1.upper(), "allocs"))["Matches"]["allocs"] == [A1]


@in_virtual_time
async def test_prefix_search_is_case_sensitive() -> None:
    async with ACluster() as cluster:
        server = await with_objects(cluster)

        assert (await search(server, "workshop", "jobs"))["Matches"]["jobs"] is None
        assert (await search(server, "Workshop", "jobs"))["Matches"]["jobs"] == ["Workshop-2"]


@in_virtual_time
async def test_contexts_with_uuids_are_omitted_if_the_prefix_is_not_hex() -> None:
    async with ACluster() as cluster:
        server = await with_objects(cluster)

        results = await search(server, "def")
        assert results["Matches"]["node_pools"] == ["default"]
        assert results["Matches"]["allocs"] is None
        matches = (await search(server, "shop"))["Matches"]
        assert set(matches) == {"jobs", "node_pools", "plugins", "volumes", "vars", "namespaces", "quotas"}


@in_virtual_time
async def test_a_context_has_up_to_twenty_matches_and_reports_truncation() -> None:
    async with ACluster() as cluster:
        server = await with_objects(cluster)
        for number in range(20):
            await a_stored_job(server, a_job(f"web-{number:02}"))

        twenty, more = await search(server, "web", "jobs"), await search(server, "", "jobs")

        assert (len(twenty["Matches"]["jobs"]), twenty["Truncations"]) == (20, {"jobs": False})
        assert (len(more["Matches"]["jobs"]), more["Truncations"]) == (20, {"jobs": True})
        assert more["Matches"]["jobs"][:3] == ["Workshop-2", "shop", "web-00"]


@in_virtual_time
async def test_a_search_is_limited_to_its_namespace() -> None:
    async with ACluster() as cluster:
        server = await with_objects(cluster)

        jobs = [
            (await search(server, "shop", "jobs", f"namespace={name}"))["Matches"]["jobs"] for name in ("other", "*")
        ]
        allocs = (await search(server, "0", "allocs", "namespace=*"))["Matches"]["allocs"]
        body = {"Prefix": "shop", "Context": "jobs", "Namespace": "other"}

        assert jobs == [["shop-of-others"], ["shop", "shop-of-others"]]
        assert allocs == [A1, an_id(0xAB009)]
        assert json.loads((await put(server, "/v1/search", body)).body)["Matches"]["jobs"] == ["shop-of-others"]


@in_virtual_time
async def test_a_search_reply_has_its_index_and_reports_a_known_leader() -> None:
    async with ACluster() as cluster:
        server = await with_objects(cluster)

        reply = await put(server, "/v1/search", {"Prefix": "shop", "Context": "jobs"})

        body = json.loads(reply.body)
        assert set(body) == {"Matches", "Truncations", "Index", "LastContact", "KnownLeader", "NextToken"}
        assert (body["KnownLeader"], str(body["Index"])) == (True, reply.headers["x-cluster-index"])


@pytest.mark.parametrize("context", ["", "job", "groups"])
@in_virtual_time
async def test_an_unknown_context_is_refused_with_the_list_of_contexts(context: str) -> None:
    async with ACluster() as cluster:
        server = await with_objects(cluster)
        text = f"context must be one of [{EVERY_CONTEXT}] or 'all' for all contexts; got \"{context}\""

        for path, body in (("", {"Prefix": "x"}), ("/fuzzy", {"Text": "xx"})):
            submitted = {**body, "Context": context}
            assert await read_refusal(server, put(server, f"/v1/search{path}", submitted)) == (400, text)


@in_virtual_time
async def test_a_search_is_not_a_blocking_query() -> None:
    async with ACluster() as cluster:
        server = await with_objects(cluster)
        await pass_time(2.0)  # Writes of the leader after a registration raise the index too.
        index = (await search(server, "shop"))["Index"]

        async with asyncio.timeout(1.0):
            assert (await search(server, "shop", query=f"index={index}&wait=60s"))["Index"] == index


# -- fuzzy


@in_virtual_time
async def test_parts_of_jobs_are_found_with_their_scope() -> None:
    async with ACluster() as cluster:
        server = await with_objects(cluster)

        matches = (await fuzzy(server, "SHOP"))["Matches"]

        assert matches["jobs"] == [
            {"ID": "shop", "Scope": ["default", "shop"]},
            {"ID": "Workshop-2", "Scope": ["default", "Workshop-2"]},
        ]
        assert matches["services"] == [{"ID": "shop-web", "Scope": ["default", "shop", "frontend"]}]
        assert matches["images"] == [{"ID": "shop/web:3", "Scope": ["default", "shop", "frontend", "serve"]}]
        assert matches["commands"] == [{"ID": "/opt/shop", "Scope": ["default", "Workshop-2", "db", "run"]}]
        assert matches["allocs"] == [{"ID": "shop.frontend[0]", "Scope": ["default", A1]}]


@in_virtual_time
async def test_groups_tasks_and_their_services_are_found_with_their_parents() -> None:
    async with ACluster() as cluster:
        server = await with_objects(cluster)

        matches = {text: (await fuzzy(server, text, "jobs"))["Matches"] for text in ("front", "serve", "check")}

        assert matches == {
            "front": {"groups": [{"ID": "frontend", "Scope": ["default", "shop"]}]},
            "serve": {"tasks": [{"ID": "serve", "Scope": ["default", "shop", "frontend"]}]},
            "check": {"services": [{"ID": "checkout", "Scope": ["default", "shop", "frontend", "serve"]}]},
        }


@in_virtual_time
async def test_nodes_namespaces_and_pools_are_found_by_name() -> None:
    async with ACluster() as cluster:
        server = await with_objects(cluster)

        assert (await fuzzy(server, "ab004", "nodes"))["Matches"] == {"nodes": [{"ID": N1, "Scope": [N1]}]}
        assert (await fuzzy(server, "THE", "namespaces"))["Matches"] == {"namespaces": [{"ID": "other", "Scope": None}]}
        assert (await fuzzy(server, "fault", "node_pools"))["Matches"] == {
            "node_pools": [{"ID": "default", "Scope": None}]
        }


@in_virtual_time
async def test_objects_without_a_name_are_found_by_id_prefix() -> None:
    async with ACluster() as cluster:
        server = await with_objects(cluster)

        assert (await fuzzy(server, "000ab"))["Matches"]["evals"] == [{"ID": E1, "Scope": None}]
        assert (await fuzzy(server, "ab00", "evals"))["Matches"] == {"evals": []}
        assert (await fuzzy(server, "no hex", "deployment"))["Matches"] == {"deployment": []}


@in_virtual_time
async def test_contexts_without_matches_are_omitted_and_all_contexts_report_truncation() -> None:
    async with ACluster() as cluster:
        server = await with_objects(cluster)

        matches = await fuzzy(server, "nowhere to be found")

        assert matches["Matches"] == {
            "evals": [], "deployment": [], "scaling_policy": [], "host_volumes": [],
        }  # fmt: skip
        assert matches["Truncations"] == dict.fromkeys(
            [*EVERY_CONTEXT.split(), "groups", "services", "tasks", "images", "commands", "classes"], False
        )


@pytest.mark.parametrize(("text", "length"), [("", 0), ("x", 1)])
@in_virtual_time
async def test_a_too_short_text_is_refused_before_its_context(text: str, length: int) -> None:
    async with ACluster() as cluster:
        server = await with_objects(cluster)

        assert await read_refusal(server, put(server, "/v1/search/fuzzy", {"Text": text, "Context": "nonsense"})) == (
            400,
            f"fuzzy search query must be at least 2 characters, got {length}",
        )


@in_virtual_time
async def test_two_bytes_are_enough_for_a_fuzzy_search() -> None:
    async with ACluster() as cluster:
        server = await with_objects(cluster)

        assert (await put(server, "/v1/search/fuzzy", {"Text": "ü", "Context": "jobs"})).status == 200


@in_virtual_time
async def test_fuzzy_search_can_be_disabled() -> None:
    async with ACluster() as cluster:
        server = await with_objects(cluster)
        server.server.search_limits = replace(USUAL_SEARCH_LIMITS, is_fuzzy_enabled=False)

        assert await read_refusal(server, put(server, "/v1/search/fuzzy", {"Text": "shop", "Context": "jobs"})) == (
            400,
            "fuzzy search is not enabled",
        )
        assert (await search(server, "shop"))["Matches"]["jobs"] == ["shop"]


@in_virtual_time
async def test_other_requests_are_answered_during_a_long_search() -> None:
    async with ACluster() as cluster:
        server = await with_objects(cluster)
        for number in range(700):
            await a_stored_job(server, a_job(f"web-{number:03}"))
        other_replies = 0

        async def other_requests() -> None:
            nonlocal other_replies
            while True:
                other_replies += 1
                await asyncio.sleep(0)

        counting = cluster.start(other_requests(), name="others")
        matches = await fuzzy(server, "web", "jobs", "stale")
        counting.cancel()

        assert (len(matches["Matches"]["jobs"]), matches["Truncations"]["jobs"]) == (100, True)
        assert other_replies >= 700 // 200


# -- rights


@in_virtual_time
async def test_a_search_of_all_contexts_covers_the_contexts_that_the_caller_may_see() -> None:
    async with ACluster() as cluster:
        server = await with_objects(cluster)
        enable_acl(server)
        reader, powerless = await a_token(server, READ), await a_token(server)
        nodes = await a_token(server, 'node { policy = "read" }')

        assert (await search(server, "0", headers=powerless)) | {"Index": 0} == {
            "Matches": {}, "Truncations": {}, "Index": 0, "LastContact": 0, "KnownLeader": True, "NextToken": "",
        }  # fmt: skip
        assert (await search(server, "0", headers=nodes))["Matches"] == {"nodes": [N1]}
        assert set((await search(server, "0", headers=reader))["Matches"]) >= {"allocs", "jobs", "evals", "deployment"}
        assert "nodes" not in (await search(server, "0", headers=reader))["Matches"]
        assert (await fuzzy(server, "shop", headers=powerless))["Matches"] == {}


@pytest.mark.parametrize("path", ["/v1/search", "/v1/search/fuzzy"])
@in_virtual_time
async def test_a_named_context_needs_a_right_to_it(path: str) -> None:
    async with ACluster() as cluster:
        server = await with_objects(cluster)
        enable_acl(server)
        reader = await a_token(server, READ)

        async def search_context(context: str, query: str = "") -> tuple[int, bytes]:
            body = {"Prefix": "shop", "Text": "shop", "Context": context}
            reply = await put(server, path, body, query, headers=reader)
            return (reply.status, b"") if reply.status == 200 else status_and_body(reply)

        assert await search_context("nodes") == DENIED
        assert await search_context("jobs", "namespace=other") == DENIED
        assert await search_context("jobs") == (200, b"")
        assert await search_context("jobs", "namespace=*") == (200, b"")


@in_virtual_time
async def test_a_search_of_all_namespaces_covers_the_namespaces_that_the_caller_may_see() -> None:
    async with ACluster() as cluster:
        server = await with_objects(cluster)
        enable_acl(server)
        reader = await a_token(server, READ)

        assert (await search(server, "shop", "jobs", "namespace=*", headers=reader))["Matches"]["jobs"] == ["shop"]
        assert (await search(server, "", "namespaces", headers=reader))["Matches"]["namespaces"] == ["default"]
        matches = (await fuzzy(server, "shop", "allocs", "namespace=*", headers=reader))["Matches"]
        assert matches["allocs"] == [{"ID": "shop.frontend[0]", "Scope": ["default", A1]}]


@in_virtual_time
async def test_an_unknown_token_finds_nothing() -> None:
    async with ACluster() as cluster:
        server = await with_objects(cluster)
        enable_acl(server)
        headers = {"x-cluster-token": an_id(1)}

        assert (
            status_and_body(await put(server, "/v1/search", {"Prefix": "", "Context": "all"}, headers=headers))
            == DENIED
        )
