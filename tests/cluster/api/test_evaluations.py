"""Endpoints of evaluations (jobs.md 1.6 and 3)."""

import json
from typing import Any

import pytest

from tests.builders import a_job
from tests.kit.callers import a_token, enable_acl
from tests.kit.cluster import ACluster, OneServer
from tests.kit.state import an_allocation, an_evaluation
from tests.kit.virtual_time import in_virtual_time, pass_time, until
from tests.kit.work import (
    DENIED,
    READ,
    WRITE,
    a_namespace,
    a_stored_job,
    an_id,
    delete,
    get,
    list_ids,
    pause_broker,
    read_json,
    read_refusal,
    status_and_body,
    store,
)
from wharf.cluster.state.tables import ALLOCATIONS, EVALUATIONS
from wharf.contract.model.evaluations import EvaluationStatus, EvaluationTrigger
from wharf.contract.model.jobs.job import Job

E1, E2, E3, E4 = (an_id(0xA000 + number) for number in range(1, 5))
UNKNOWN_ID = an_id(0xFFFF)


async def with_evaluations(cluster: ACluster) -> OneServer:
    """Start a server with E1 to E3 of the job shop, in order of creation, and E4 of another namespace."""
    server = await cluster.a_server()
    job = await a_stored_job(server, a_job())
    await a_namespace(server, "other")
    second = await a_stored_job(server, a_job("depot", namespace="other"))
    for id, owner, fields in (
        (E2, job, {"status": EvaluationStatus.COMPLETE}),
        (E1, job, {"status": EvaluationStatus.BLOCKED, "triggered_by": EvaluationTrigger.QUEUED_ALLOCS}),
        (E3, job, {"status": EvaluationStatus.COMPLETE, "job_id": "elsewhere"}),
        (E4, second, {"status": EvaluationStatus.COMPLETE}),
    ):
        await an_evaluation_of(server, owner, id, **fields)
    return server


async def an_evaluation_of(server: OneServer, job: Job, id: str, **fields: Any) -> None:
    await store(server, EVALUATIONS.build_put(an_evaluation(job, id, **fields)))


# -- list


@in_virtual_time
async def test_evaluations_are_listed_by_creation_in_both_directions() -> None:
    async with ACluster() as cluster:
        server = await with_evaluations(cluster)

        assert await list_ids(server, "/v1/evaluations") == [E2, E1, E3]
        assert await list_ids(server, "/v1/evaluations", "reverse=true") == [E3, E1, E2]
        assert await list_ids(server, "/v1/evaluations", "namespace=*") == [E2, E1, E3, E4]


@in_virtual_time
async def test_an_id_prefix_lists_evaluations_by_id() -> None:
    async with ACluster() as cluster:
        server = await with_evaluations(cluster)

        assert await list_ids(server, "/v1/evaluations", "prefix=0000a0") == [E1, E2, E3]


@in_virtual_time
async def test_page_tokens_of_evaluations_hold_index_and_id() -> None:
    async with ACluster() as cluster:
        server = await with_evaluations(cluster)
        created = server.replica.get(EVALUATIONS, E1)
        assert created is not None

        first = await get(server, "/v1/evaluations", "per_page=1")
        token = first.headers["x-cluster-nexttoken"]

        assert token == f"{created.create_index}.{E1}"
        assert await list_ids(server, "/v1/evaluations", f"next_token={token}") == [E1, E3]
        by_prefix = await get(server, "/v1/evaluations", "per_page=1&prefix=0000a0")
        assert by_prefix.headers["x-cluster-nexttoken"] == E2


@in_virtual_time
async def test_status_and_job_parameters_select_evaluations() -> None:
    async with ACluster() as cluster:
        server = await with_evaluations(cluster)

        assert await list_ids(server, "/v1/evaluations", "status=complete") == [E2, E3]
        assert await list_ids(server, "/v1/evaluations", "job=shop") == [E2, E1]
        assert await list_ids(server, "/v1/evaluations", "job=shop&status=blocked") == [E1]


@pytest.mark.parametrize("other_filter", ["status=complete", "job=shop"])
@in_virtual_time
async def test_a_filter_together_with_status_or_job_is_refused(other_filter: str) -> None:
    async with ACluster() as cluster:
        server = await with_evaluations(cluster)

        reply = await get(server, "/v1/evaluations", f"{other_filter}&filter=Priority==50")

        assert status_and_body(reply) == (400, b"Filter expression cannot be used with other filter parameters")


@in_virtual_time
async def test_a_filter_can_use_the_fields_of_evaluations() -> None:
    async with ACluster() as cluster:
        server = await with_evaluations(cluster)

        assert await list_ids(server, "/v1/evaluations", "filter=TriggeredBy==%22queued-allocs%22") == [E1]


@in_virtual_time
async def test_empty_fields_of_evaluations_are_omitted() -> None:
    async with ACluster() as cluster:
        server = await with_evaluations(cluster)

        views = await read_json(server, f"/v1/evaluation/{E2}")

        assert set(views) == {
            "ID", "Namespace", "Priority", "Type", "TriggeredBy", "JobID", "Status", "CreateIndex", "ModifyIndex",
        }  # fmt: skip


@in_virtual_time
async def test_a_token_sees_the_evaluations_of_its_namespaces() -> None:
    async with ACluster() as cluster:
        server = await with_evaluations(cluster)
        enable_acl(server)
        reader = await a_token(server, READ)
        lister = await a_token(server, 'namespace "default" { capabilities = ["list-jobs"] }')

        assert await list_ids(server, "/v1/evaluations", "namespace=*", reader) == [E2, E1, E3]
        assert status_and_body(await get(server, "/v1/evaluations", "namespace=other", headers=reader)) == DENIED
        assert status_and_body(await get(server, "/v1/evaluations", headers=lister)) == DENIED
        assert status_and_body(await get(server, f"/v1/evaluation/{E4}", headers=reader)) == DENIED
        assert status_and_body(await get(server, f"/v1/evaluation/{E4}/allocations", headers=reader)) == DENIED
        assert (await get(server, f"/v1/evaluation/{E1}", headers=reader)).status == 200


# -- count


@in_virtual_time
async def test_evaluations_are_counted() -> None:
    async with ACluster() as cluster:
        server = await with_evaluations(cluster)

        counts = [
            (await read_json(server, "/v1/evaluations/count", query))["Count"]
            for query in ("", "namespace=*", "prefix=0000a001", "filter=Status==complete", "namespace=nowhere")
        ]

        assert counts == [3, 4, 1, 2, 0]


@in_virtual_time
async def test_a_count_has_its_index_and_reports_a_known_leader() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        job = await a_stored_job(server, a_job())
        await an_evaluation_of(server, job, E1, status=EvaluationStatus.COMPLETE)

        reply = await get(server, "/v1/evaluations/count")

        counted = json.loads(reply.body)
        assert counted == {
            "Count": 1, "Index": int(reply.headers["x-cluster-index"]), "LastContact": 0, "KnownLeader": True,
            "NextToken": "",
        }  # fmt: skip


@in_virtual_time
async def test_a_count_with_an_invalid_filter_is_refused() -> None:
    async with ACluster() as cluster:
        server = await with_evaluations(cluster)

        assert (await get(server, "/v1/evaluations/count", "filter=Status")).status == 400
        assert (await get(server, "/v1/evaluations/count", "filter=Nope==1")).status == 400


@in_virtual_time
async def test_a_token_without_readable_namespaces_counts_no_evaluations() -> None:
    async with ACluster() as cluster:
        server = await with_evaluations(cluster)
        enable_acl(server)
        reader, powerless = await a_token(server, READ), await a_token(server)

        assert status_and_body(await get(server, "/v1/evaluations/count", "namespace=*", headers=powerless)) == DENIED
        assert (await read_json(server, "/v1/evaluations/count", "namespace=*", reader))["Count"] == 3


# -- read


@in_virtual_time
async def test_an_invalid_evaluation_id_is_refused_and_an_unknown_one_is_not_found() -> None:
    async with ACluster() as cluster:
        server = await with_evaluations(cluster)
        prefix = b"failed to lookup eval: eval lookup failed: index error: "

        assert status_and_body(await get(server, "/v1/evaluation/abc")) == (400, prefix + b"UUID must be 36 characters")
        assert status_and_body(await get(server, f"/v1/evaluation/{'g' * 36}")) == (
            400,
            prefix + b"Invalid UUID: encoding/hex: invalid byte: 'g' is not a hex digit",
        )
        assert status_and_body(await get(server, f"/v1/evaluation/{'a' * 36}")) == (404, b"eval not found")
        assert status_and_body(await get(server, f"/v1/evaluation/{UNKNOWN_ID}")) == (404, b"eval not found")
        assert (await get(server, f"/v1/evaluation/{E1.upper()}")).status == 200


async def with_a_chain(cluster: ACluster) -> OneServer:
    """Start a server where E1 is blocked by E2, which is followed by E3. E4 is unrelated."""
    server = await cluster.a_server()
    job = await a_stored_job(server, a_job())
    for id, fields in (
        (E1, {"blocked_eval": E2}),
        (E2, {"previous_eval": E1, "next_eval": E3}),
        (E3, {"previous_eval": E2}),
        (E4, {}),
    ):
        await an_evaluation_of(server, job, id, status=EvaluationStatus.COMPLETE, **fields)
    return server


@in_virtual_time
async def test_a_read_evaluation_has_its_whole_chain_on_request() -> None:
    async with ACluster() as cluster:
        server = await with_a_chain(cluster)

        related = {
            id: [
                each["ID"]
                for each in (await read_json(server, f"/v1/evaluation/{id}", "related=true")).get("RelatedEvals", ())
            ]
            for id in (E1, E2, E3, E4)
        }

        assert related == {E1: [E2, E3], E2: [E1, E3], E3: [E1, E2], E4: []}
        assert "RelatedEvals" not in await read_json(server, f"/v1/evaluation/{E1}", "related=1")


@in_virtual_time
async def test_a_related_evaluation_can_be_read_and_is_listed_as_a_stub() -> None:
    async with ACluster() as cluster:
        server = await with_a_chain(cluster)

        (first, _) = (await read_json(server, f"/v1/evaluation/{E1}", "related=true"))["RelatedEvals"]

        assert set(first) == {
            "ID", "Namespace", "Priority", "Type", "TriggeredBy", "JobID", "NodeID", "DeploymentID", "Status",
            "StatusDescription", "WaitUntil", "NextEval", "PreviousEval", "BlockedEval", "CreateIndex", "ModifyIndex",
            "CreateTime", "ModifyTime",
        }  # fmt: skip


@in_virtual_time
async def test_a_blocking_read_with_related_evaluations_wakes_when_one_of_them_changes() -> None:
    async with ACluster() as cluster:
        server = await with_a_chain(cluster)
        observed = (await get(server, f"/v1/evaluation/{E1}", "related=true")).headers["x-cluster-index"]
        pending_read = cluster.start(
            get(server, f"/v1/evaluation/{E1}", f"related=true&index={observed}&stale"), name="query"
        )

        job = await a_stored_job(server, a_job())
        await an_evaluation_of(server, job, E3, status=EvaluationStatus.COMPLETE, previous_eval=E2, priority=70)

        related = json.loads((await pending_read).body)["RelatedEvals"]
        assert [each["Priority"] for each in related] == [50, 70]


@in_virtual_time
async def test_the_allocations_of_an_evaluation_are_listed_as_stubs() -> None:
    async with ACluster() as cluster:
        server = await with_evaluations(cluster)
        job = await a_stored_job(server, a_job())
        await store(server, ALLOCATIONS.build_put(an_allocation(job, an_id(1), eval_id=E2)))
        await store(server, ALLOCATIONS.build_put(an_allocation(job, an_id(2), eval_id=E1)))

        assert await list_ids(server, f"/v1/evaluation/{E2}/allocations") == [an_id(1)]
        assert await list_ids(server, f"/v1/evaluation/{UNKNOWN_ID}/allocations") == []


# -- delete


async def with_deletable_evaluations(cluster: ACluster) -> OneServer:
    server = await with_evaluations(cluster)
    await pause_broker(server)
    return server


@in_virtual_time
async def test_evaluations_are_deleted_by_id() -> None:
    async with ACluster() as cluster:
        server = await with_deletable_evaluations(cluster)

        reply = await delete(server, "/v1/evaluations", {"EvalIDs": [E1, E4]})

        assert json.loads(reply.body) == {"Count": 2, "Index": int(reply.headers["x-cluster-index"])}
        assert await list_ids(server, "/v1/evaluations", "namespace=*") == [E2, E3]


@in_virtual_time
async def test_evaluations_are_deleted_by_filter_within_the_namespace() -> None:
    async with ACluster() as cluster:
        server = await with_deletable_evaluations(cluster)

        first = await delete(server, "/v1/evaluations", {"Filter": "Status == complete"})
        second = await delete(server, "/v1/evaluations", {"Filter": "Status == complete"}, "namespace=*")

        assert [json.loads(reply.body)["Count"] for reply in (first, second)] == [2, 1]
        assert await list_ids(server, "/v1/evaluations", "namespace=*") == [E1]


@in_virtual_time
async def test_a_filter_that_matches_nothing_deletes_nothing() -> None:
    async with ACluster() as cluster:
        server = await with_deletable_evaluations(cluster)

        reply = await delete(server, "/v1/evaluations", {"Filter": "JobID == nothing"})

        assert status_and_body(reply) == (200, b'{"Count":0,"Index":0}')


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        ({"EvalIDs": [E1], "Filter": "Priority == 50"}, 400, "evals cannot be deleted by both ID and filter"),
        ({}, 400, "evals must be deleted by either ID or filter"),
        ({"EvalIDs": [UNKNOWN_ID]}, 404, "eval not found"),
        ({"EvalIDs": ["x"]}, 400, "failed to lookup eval: eval lookup failed: index error: UUID must be 36 characters"),
        ({"EvalIDs": [E1] * 7282}, 400, "request includes 7282 evaluation IDs, must be 7281 or fewer"),
    ],
)
@in_virtual_time
async def test_a_deletion_with_one_undeletable_evaluation_deletes_none(
    body: dict[str, Any], status: int, text: str
) -> None:
    async with ACluster() as cluster:
        server = await with_deletable_evaluations(cluster)

        assert await read_refusal(server, delete(server, "/v1/evaluations", body)) == (status, text)


@in_virtual_time
async def test_a_deletion_with_an_invalid_filter_deletes_nothing() -> None:
    async with ACluster() as cluster:
        server = await with_deletable_evaluations(cluster)

        for expression in ("Status", "Nope == 1", "Priority == x"):
            status, text = await read_refusal(server, delete(server, "/v1/evaluations", {"Filter": expression}))
            assert (status, text.startswith("failed to read filter expression: ")) == (400, True)


@in_virtual_time
async def test_evaluations_cannot_be_deleted_while_the_broker_is_active() -> None:
    async with ACluster() as cluster:
        server = await with_evaluations(cluster)

        for body in ({"EvalIDs": [E2]}, {"Filter": "Status == complete"}, {"Filter": "JobID == nothing"}):
            assert status_and_body(await delete(server, "/v1/evaluations", body)) == (
                400,
                b"eval broker is enabled; eval broker must be paused to delete evals",
            )


@in_virtual_time
async def test_only_management_tokens_delete_evaluations() -> None:
    async with ACluster() as cluster:
        server = await with_deletable_evaluations(cluster)
        enable_acl(server)
        writer, manager = await a_token(server, WRITE), await a_token(server, management=True)

        assert status_and_body(await delete(server, "/v1/evaluations", {"EvalIDs": [E1]}, headers=writer)) == DENIED
        assert (await delete(server, "/v1/evaluations", {"EvalIDs": [E1]}, headers=manager)).status == 200


# -- while the broker is paused


@in_virtual_time
async def test_evaluations_wait_while_the_broker_is_paused_and_all_are_processed_afterwards() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await cluster.ready_nodes(server, 1)
        await pause_broker(server)
        await server.client.jobs.register(a_job())

        await pass_time(60.0)
        assert [each["Status"] for each in await read_json(server, "/v1/evaluations")] == ["pending"]
        await pause_broker(server, is_paused=False)

        await until(lambda: server.replica.count_records(ALLOCATIONS), what="the job is placed")
