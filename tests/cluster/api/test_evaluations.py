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
    found,
    get,
    ids_of,
    pause_broker,
    refused,
    store,
    told,
)
from wharf.cluster.state.tables import ALLOCATIONS, EVALUATIONS
from wharf.contract.model.evaluations import EvaluationStatus, EvaluationTrigger
from wharf.contract.model.jobs.job import Job

E1, E2, E3, E4 = (an_id(0xA000 + number) for number in range(1, 5))
NOBODY = an_id(0xFFFF)


async def with_evaluations(cluster: ACluster) -> OneServer:
    """E1 to E3 of the job shop, each made after the other, E4 of another namespace."""
    server = await cluster.a_server()
    job = await a_stored_job(server, a_job())
    await a_namespace(server, "other")
    other = await a_stored_job(server, a_job("depot", namespace="other"))
    for id, owner, fields in (
        (E2, job, {"status": EvaluationStatus.COMPLETE}),
        (E1, job, {"status": EvaluationStatus.BLOCKED, "triggered_by": EvaluationTrigger.QUEUED_ALLOCS}),
        (E3, job, {"status": EvaluationStatus.COMPLETE, "job_id": "elsewhere"}),
        (E4, other, {"status": EvaluationStatus.COMPLETE}),
    ):
        await an_evaluation_of(server, owner, id, **fields)
    return server


async def an_evaluation_of(server: OneServer, job: Job, id: str, **fields: Any) -> None:
    await store(server, EVALUATIONS.build_put(an_evaluation(job, id, **fields)))


# -- list


@in_virtual_time
async def test_evaluations_are_listed_in_order_of_creation_and_back() -> None:
    async with ACluster() as cluster:
        server = await with_evaluations(cluster)

        assert await ids_of(server, "/v1/evaluations") == [E2, E1, E3]
        assert await ids_of(server, "/v1/evaluations", "reverse=true") == [E3, E1, E2]
        assert await ids_of(server, "/v1/evaluations", "namespace=*") == [E2, E1, E3, E4]


@in_virtual_time
async def test_a_prefix_lists_them_by_id() -> None:
    async with ACluster() as cluster:
        server = await with_evaluations(cluster)

        assert await ids_of(server, "/v1/evaluations", "prefix=0000a0") == [E1, E2, E3]


@in_virtual_time
async def test_pages_of_evaluations_name_index_and_id_of_the_next() -> None:
    async with ACluster() as cluster:
        server = await with_evaluations(cluster)
        created = server.replica.get(EVALUATIONS, E1)
        assert created is not None

        first = await get(server, "/v1/evaluations", "per_page=1")
        token = first.headers["x-cluster-nexttoken"]

        assert token == f"{created.create_index}.{E1}"
        assert await ids_of(server, "/v1/evaluations", f"next_token={token}") == [E1, E3]
        by_prefix = await get(server, "/v1/evaluations", "per_page=1&prefix=0000a0")
        assert by_prefix.headers["x-cluster-nexttoken"] == E2


@in_virtual_time
async def test_status_and_job_leave_out_the_others() -> None:
    async with ACluster() as cluster:
        server = await with_evaluations(cluster)

        assert await ids_of(server, "/v1/evaluations", "status=complete") == [E2, E3]
        assert await ids_of(server, "/v1/evaluations", "job=shop") == [E2, E1]
        assert await ids_of(server, "/v1/evaluations", "job=shop&status=blocked") == [E1]


@pytest.mark.parametrize("other", ["status=complete", "job=shop"])
@in_virtual_time
async def test_a_filter_cannot_stand_beside_status_or_job(other: str) -> None:
    async with ACluster() as cluster:
        server = await with_evaluations(cluster)

        reply = await get(server, "/v1/evaluations", f"{other}&filter=Priority==50")

        assert told(reply) == (400, b"Filter expression cannot be used with other filter parameters")


@in_virtual_time
async def test_a_filter_sees_the_fields_of_evaluations() -> None:
    async with ACluster() as cluster:
        server = await with_evaluations(cluster)

        assert await ids_of(server, "/v1/evaluations", "filter=TriggeredBy==%22queued-allocs%22") == [E1]


@in_virtual_time
async def test_empty_fields_of_evaluations_are_left_out() -> None:
    async with ACluster() as cluster:
        server = await with_evaluations(cluster)

        shown = await found(server, f"/v1/evaluation/{E2}")

        assert set(shown) == {
            "ID", "Namespace", "Priority", "Type", "TriggeredBy", "JobID", "Status", "CreateIndex", "ModifyIndex",
        }  # fmt: skip


@in_virtual_time
async def test_a_token_sees_the_evaluations_of_its_namespaces() -> None:
    async with ACluster() as cluster:
        server = await with_evaluations(cluster)
        enable_acl(server)
        reader = await a_token(server, READ)
        lister = await a_token(server, 'namespace "default" { capabilities = ["list-jobs"] }')

        assert await ids_of(server, "/v1/evaluations", "namespace=*", reader) == [E2, E1, E3]
        assert told(await get(server, "/v1/evaluations", "namespace=other", headers=reader)) == DENIED
        assert told(await get(server, "/v1/evaluations", headers=lister)) == DENIED
        assert told(await get(server, f"/v1/evaluation/{E4}", headers=reader)) == DENIED
        assert told(await get(server, f"/v1/evaluation/{E4}/allocations", headers=reader)) == DENIED
        assert (await get(server, f"/v1/evaluation/{E1}", headers=reader)).status == 200


# -- count


@in_virtual_time
async def test_evaluations_are_counted() -> None:
    async with ACluster() as cluster:
        server = await with_evaluations(cluster)

        counts = [
            (await found(server, "/v1/evaluations/count", query))["Count"]
            for query in ("", "namespace=*", "prefix=0000a001", "filter=Status==complete", "namespace=nowhere")
        ]

        assert counts == [3, 4, 1, 2, 0]


@in_virtual_time
async def test_a_count_tells_its_index_and_that_a_leader_is_known() -> None:
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
async def test_a_filter_that_cannot_be_read_is_refused_by_the_count() -> None:
    async with ACluster() as cluster:
        server = await with_evaluations(cluster)

        assert (await get(server, "/v1/evaluations/count", "filter=Status")).status == 400
        assert (await get(server, "/v1/evaluations/count", "filter=Nope==1")).status == 400


@in_virtual_time
async def test_a_token_that_may_read_no_namespace_counts_nothing() -> None:
    async with ACluster() as cluster:
        server = await with_evaluations(cluster)
        enable_acl(server)
        reader, nobody = await a_token(server, READ), await a_token(server)

        assert told(await get(server, "/v1/evaluations/count", "namespace=*", headers=nobody)) == DENIED
        assert (await found(server, "/v1/evaluations/count", "namespace=*", reader))["Count"] == 3


# -- read


@in_virtual_time
async def test_an_id_that_is_no_uuid_is_told_so_and_one_that_nobody_has_is_not_found() -> None:
    async with ACluster() as cluster:
        server = await with_evaluations(cluster)
        begins = b"failed to lookup eval: eval lookup failed: index error: "

        assert told(await get(server, "/v1/evaluation/abc")) == (400, begins + b"UUID must be 36 characters")
        assert told(await get(server, f"/v1/evaluation/{'g' * 36}")) == (
            400,
            begins + b"Invalid UUID: encoding/hex: invalid byte: 'g' is no hex digit",
        )
        assert told(await get(server, f"/v1/evaluation/{'a' * 36}")) == (404, b"eval not found")
        assert told(await get(server, f"/v1/evaluation/{NOBODY}")) == (404, b"eval not found")
        assert (await get(server, f"/v1/evaluation/{E1.upper()}")).status == 200


async def with_a_chain(cluster: ACluster) -> OneServer:
    """E1 failed for want of room and left E2, which was followed by E3. E4 stands alone."""
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
async def test_an_evaluation_tells_of_its_whole_chain_where_asked() -> None:
    async with ACluster() as cluster:
        server = await with_a_chain(cluster)

        related = {
            id: [
                each["ID"]
                for each in (await found(server, f"/v1/evaluation/{id}", "related=true")).get("RelatedEvals", ())
            ]
            for id in (E1, E2, E3, E4)
        }

        assert related == {E1: [E2, E3], E2: [E1, E3], E3: [E1, E2], E4: []}
        assert "RelatedEvals" not in await found(server, f"/v1/evaluation/{E1}", "related=1")


@in_virtual_time
async def test_a_relative_is_shown_whole_and_in_short() -> None:
    async with ACluster() as cluster:
        server = await with_a_chain(cluster)

        (first, _) = (await found(server, f"/v1/evaluation/{E1}", "related=true"))["RelatedEvals"]

        assert set(first) == {
            "ID", "Namespace", "Priority", "Type", "TriggeredBy", "JobID", "NodeID", "DeploymentID", "Status",
            "StatusDescription", "WaitUntil", "NextEval", "PreviousEval", "BlockedEval", "CreateIndex", "ModifyIndex",
            "CreateTime", "ModifyTime",
        }  # fmt: skip


@in_virtual_time
async def test_whoever_waits_for_an_evaluation_with_its_relatives_hears_of_them_too() -> None:
    async with ACluster() as cluster:
        server = await with_a_chain(cluster)
        seen = (await get(server, f"/v1/evaluation/{E1}", "related=true")).headers["x-cluster-index"]
        waiting = cluster.start(get(server, f"/v1/evaluation/{E1}", f"related=true&index={seen}&stale"), name="waits")

        job = await a_stored_job(server, a_job())
        await an_evaluation_of(server, job, E3, status=EvaluationStatus.COMPLETE, previous_eval=E2, priority=70)

        related = json.loads((await waiting).body)["RelatedEvals"]
        assert [each["Priority"] for each in related] == [50, 70]


@in_virtual_time
async def test_the_allocations_of_an_evaluation_are_listed_in_short() -> None:
    async with ACluster() as cluster:
        server = await with_evaluations(cluster)
        job = await a_stored_job(server, a_job())
        await store(server, ALLOCATIONS.build_put(an_allocation(job, an_id(1), eval_id=E2)))
        await store(server, ALLOCATIONS.build_put(an_allocation(job, an_id(2), eval_id=E1)))

        assert await ids_of(server, f"/v1/evaluation/{E2}/allocations") == [an_id(1)]
        assert await ids_of(server, f"/v1/evaluation/{NOBODY}/allocations") == []


# -- delete


async def to_delete(cluster: ACluster) -> OneServer:
    server = await with_evaluations(cluster)
    await pause_broker(server)
    return server


@in_virtual_time
async def test_evaluations_are_deleted_by_id() -> None:
    async with ACluster() as cluster:
        server = await to_delete(cluster)

        reply = await delete(server, "/v1/evaluations", {"EvalIDs": [E1, E4]})

        assert json.loads(reply.body) == {"Count": 2, "Index": int(reply.headers["x-cluster-index"])}
        assert await ids_of(server, "/v1/evaluations", "namespace=*") == [E2, E3]


@in_virtual_time
async def test_evaluations_are_deleted_by_filter_within_the_namespace() -> None:
    async with ACluster() as cluster:
        server = await to_delete(cluster)

        first = await delete(server, "/v1/evaluations", {"Filter": "Status == complete"})
        second = await delete(server, "/v1/evaluations", {"Filter": "Status == complete"}, "namespace=*")

        assert [json.loads(reply.body)["Count"] for reply in (first, second)] == [2, 1]
        assert await ids_of(server, "/v1/evaluations", "namespace=*") == [E1]


@in_virtual_time
async def test_a_filter_that_nothing_matches_deletes_nothing() -> None:
    async with ACluster() as cluster:
        server = await to_delete(cluster)

        reply = await delete(server, "/v1/evaluations", {"Filter": "JobID == nothing"})

        assert told(reply) == (200, b'{"Count":0,"Index":0}')


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        ({"EvalIDs": [E1], "Filter": "Priority == 50"}, 400, "evals cannot be deleted by both ID and filter"),
        ({}, 400, "evals must be deleted by either ID or filter"),
        ({"EvalIDs": [NOBODY]}, 404, "eval not found"),
        ({"EvalIDs": ["x"]}, 400, "failed to lookup eval: eval lookup failed: index error: UUID must be 36 characters"),
        ({"EvalIDs": [E1] * 7282}, 400, "request includes 7282 evaluation IDs, must be 7281 or fewer"),
    ],
)
@in_virtual_time
async def test_what_cannot_be_deleted_is_refused_whole(body: dict[str, Any], status: int, text: str) -> None:
    async with ACluster() as cluster:
        server = await to_delete(cluster)

        assert await refused(server, delete(server, "/v1/evaluations", body)) == (status, text)


@in_virtual_time
async def test_a_filter_that_cannot_be_read_deletes_nothing() -> None:
    async with ACluster() as cluster:
        server = await to_delete(cluster)

        for expression in ("Status", "Nope == 1", "Priority == x"):
            status, text = await refused(server, delete(server, "/v1/evaluations", {"Filter": expression}))
            assert (status, text.startswith("failed to read filter expression: ")) == (400, True)


@in_virtual_time
async def test_while_the_broker_works_nothing_is_deleted() -> None:
    async with ACluster() as cluster:
        server = await with_evaluations(cluster)

        for body in ({"EvalIDs": [E2]}, {"Filter": "Status == complete"}, {"Filter": "JobID == nothing"}):
            assert told(await delete(server, "/v1/evaluations", body)) == (
                400,
                b"eval broker is enabled; eval broker must be paused to delete evals",
            )


@in_virtual_time
async def test_only_management_deletes_evaluations() -> None:
    async with ACluster() as cluster:
        server = await to_delete(cluster)
        enable_acl(server)
        writer, manager = await a_token(server, WRITE), await a_token(server, management=True)

        assert told(await delete(server, "/v1/evaluations", {"EvalIDs": [E1]}, headers=writer)) == DENIED
        assert (await delete(server, "/v1/evaluations", {"EvalIDs": [E1]}, headers=manager)).status == 200


# -- the broker's rest


@in_virtual_time
async def test_while_the_broker_rests_evaluations_are_kept_and_afterwards_all_are_processed() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await cluster.ready_nodes(server, 1)
        await pause_broker(server)
        await server.client.jobs.register(a_job())

        await pass_time(60.0)
        assert [each["Status"] for each in await found(server, "/v1/evaluations")] == ["pending"]
        await pause_broker(server, rests=False)

        await until(lambda: server.replica.count_records(ALLOCATIONS), what="the job is placed")
