"""Endpoints of scaling policies (jobs.md 2.10)."""

from typing import Any

from tests.cluster.api.test_read_limits import send, store_all
from tests.kit.callers import a_token, enable_acl
from tests.kit.cluster import ACluster, OneServer
from tests.kit.loop_holds import MeasuredCluster
from tests.kit.virtual_time import in_virtual_time, pass_time
from tests.kit.work import DENIED, READ, SETTLED_S, a_namespace, an_id, get, list_ids, read_json, status_and_body, store
from wharf.cluster.state.tables import SCALING_POLICIES
from wharf.contract.model.log import WRITE_INDEX
from wharf.contract.model.scaling import ScalingKind, ScalingPolicy

P1, P2, P3, P4 = (an_id(number) for number in range(1, 5))


async def a_policy(server: OneServer, id: str, job: str = "shop", namespace: str = "default", **fields: Any) -> None:
    target = {"Namespace": namespace, "Job": job, "Group": "web"}
    policy = ScalingPolicy(id=id, target=target, **{"min": 1, "max": 5, "create_index": WRITE_INDEX, **fields})
    await store(server, SCALING_POLICIES.build_put(policy))


async def with_policies(cluster: ACluster) -> OneServer:
    server = await cluster.a_server()
    await a_namespace(server, "other")
    await a_policy(server, P2, policy={"cooldown": "1m"})
    await a_policy(server, P1, job="depot")
    await a_policy(server, P3, type=ScalingKind.VERTICAL_CPU)
    await a_policy(server, P4, namespace="other")
    return server


@in_virtual_time
async def test_policies_are_listed_by_id() -> None:
    async with ACluster() as cluster:
        server = await with_policies(cluster)

        assert await list_ids(server, "/v1/scaling/policies") == [P1, P2, P3]
        assert await list_ids(server, "/v1/scaling/policies", "namespace=*") == [P1, P2, P3, P4]
        assert await list_ids(server, "/v1/scaling/policies", "namespace=nowhere") == []


@in_virtual_time
async def test_job_and_type_parameters_select_policies() -> None:
    async with ACluster() as cluster:
        server = await with_policies(cluster)

        assert await list_ids(server, "/v1/scaling/policies", "job=shop") == [P2, P3]
        assert await list_ids(server, "/v1/scaling/policies", "job=shop&namespace=*") == [P2, P3, P4]
        assert await list_ids(server, "/v1/scaling/policies", "type=horizontal") == [P1, P2]
        assert await list_ids(server, "/v1/scaling/policies", "job=shop&type=vertical_cpu") == [P3]


@in_virtual_time
async def test_policies_have_no_pages() -> None:
    async with ACluster() as cluster:
        server = await with_policies(cluster)

        assert await list_ids(server, "/v1/scaling/policies", "per_page=1&reverse=true") == [P1, P2, P3]


@in_virtual_time
async def test_policies_are_stubs_in_lists_and_complete_when_read() -> None:
    async with ACluster() as cluster:
        server = await with_policies(cluster)

        (_, listed, _) = await read_json(server, "/v1/scaling/policies")
        read = await read_json(server, f"/v1/scaling/policy/{P2}")

        assert set(listed) == {"ID", "Enabled", "Type", "Target", "CreateIndex", "ModifyIndex"}
        assert (read["Policy"], read["Min"], read["Max"], read["Enabled"]) == ({"cooldown": "1m"}, 1, 5, True)
        assert read["Target"] == {"Namespace": "default", "Job": "shop", "Group": "web"}


@in_virtual_time
async def test_an_unknown_policy_is_not_found() -> None:
    async with ACluster() as cluster:
        server = await with_policies(cluster)

        assert status_and_body(await get(server, f"/v1/scaling/policy/{an_id(99)}")) == (404, b"policy not found")


@in_virtual_time
async def test_a_blocking_list_of_a_jobs_policies_wakes_for_them_alone() -> None:
    async with ACluster() as cluster:
        server = await with_policies(cluster)
        observed = (await get(server, "/v1/scaling/policies", "job=shop")).headers["x-cluster-index"]
        pending_read = cluster.start(get(server, "/v1/scaling/policies", f"job=shop&index={observed}"), name="query")
        await pass_time(0.1)

        await a_policy(server, P1, job="depot", enabled=False)
        await pass_time(1.0)
        assert not pending_read.done()
        await a_policy(server, P2, enabled=False)

        assert (await pending_read).status == 200


@in_virtual_time
async def test_the_index_of_policies_is_at_least_one() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()

        assert int((await get(server, "/v1/scaling/policies")).headers["x-cluster-index"]) >= 1


@in_virtual_time
async def test_policies_need_their_own_rights_or_the_rights_to_list_and_read_jobs() -> None:
    async with ACluster() as cluster:
        server = await with_policies(cluster)
        enable_acl(server)

        async def allowed(*capabilities: str) -> tuple[int, int]:
            named = ", ".join(f'"{capability}"' for capability in capabilities)
            headers = await a_token(server, f'namespace "default" {{ capabilities = [{named}] }}')
            listed = await get(server, "/v1/scaling/policies", headers=headers)
            read = await get(server, f"/v1/scaling/policy/{P1}", headers=headers)
            return listed.status, read.status

        assert await allowed("list-scaling-policies") == (200, 403)
        assert await allowed("read-scaling-policy") == (403, 200)
        assert await allowed("list-jobs", "read-job") == (200, 200)
        assert await allowed("list-jobs") == (403, 403)


@in_virtual_time
async def test_a_token_sees_the_policies_of_its_namespaces() -> None:
    async with ACluster() as cluster:
        server = await with_policies(cluster)
        enable_acl(server)
        reader = await a_token(server, READ)

        assert await list_ids(server, "/v1/scaling/policies", "namespace=*", reader) == [P1, P2, P3]
        assert status_and_body(await get(server, f"/v1/scaling/policy/{P4}", headers=reader)) == DENIED


@in_virtual_time
async def test_a_list_that_selects_few_of_many_policies_holds_no_loop() -> None:
    async with MeasuredCluster() as cluster:
        server = await cluster.a_server()
        target = {"Namespace": "default", "Job": "big", "Group": "web"}
        policies = [ScalingPolicy(id=an_id(n, 1), target=target, create_index=WRITE_INDEX) for n in range(150_000)]
        await store_all(server, list(map(SCALING_POLICIES.build_put, policies)))
        await pass_time(SETTLED_S)

        reply, holds = await send(server, "/v1/scaling/policies", "type=vertical_cpu")

        assert reply.body == b"[]"
        holds.require_short("/v1/scaling/policies")
