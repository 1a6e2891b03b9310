"""Endpoints of scaling policies (jobs.md 2.10)."""

from typing import Any

from tests.kit.callers import a_token, enable_acl
from tests.kit.cluster import ACluster, OneServer
from tests.kit.virtual_time import in_virtual_time, pass_time
from tests.kit.work import DENIED, READ, a_namespace, an_id, found, get, ids_of, store, told
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
async def test_policies_are_listed_in_order_of_id() -> None:
    async with ACluster() as cluster:
        server = await with_policies(cluster)

        assert await ids_of(server, "/v1/scaling/policies") == [P1, P2, P3]
        assert await ids_of(server, "/v1/scaling/policies", "namespace=*") == [P1, P2, P3, P4]
        assert await ids_of(server, "/v1/scaling/policies", "namespace=nowhere") == []


@in_virtual_time
async def test_job_and_type_leave_out_the_others() -> None:
    async with ACluster() as cluster:
        server = await with_policies(cluster)

        assert await ids_of(server, "/v1/scaling/policies", "job=shop") == [P2, P3]
        assert await ids_of(server, "/v1/scaling/policies", "job=shop&namespace=*") == [P2, P3, P4]
        assert await ids_of(server, "/v1/scaling/policies", "type=horizontal") == [P1, P2]
        assert await ids_of(server, "/v1/scaling/policies", "job=shop&type=vertical_cpu") == [P3]


@in_virtual_time
async def test_policies_have_no_pages_and_no_filter() -> None:
    async with ACluster() as cluster:
        server = await with_policies(cluster)

        assert await ids_of(server, "/v1/scaling/policies", "per_page=1&filter=Nope&reverse=true") == [P1, P2, P3]


@in_virtual_time
async def test_a_listed_policy_is_short_and_a_read_one_whole() -> None:
    async with ACluster() as cluster:
        server = await with_policies(cluster)

        (_, listed, _) = await found(server, "/v1/scaling/policies")
        read = await found(server, f"/v1/scaling/policy/{P2}")

        assert set(listed) == {"ID", "Enabled", "Type", "Target", "CreateIndex", "ModifyIndex"}
        assert (read["Policy"], read["Min"], read["Max"], read["Enabled"]) == ({"cooldown": "1m"}, 1, 5, True)
        assert read["Target"] == {"Namespace": "default", "Job": "shop", "Group": "web"}


@in_virtual_time
async def test_a_policy_that_nobody_has_is_not_found() -> None:
    async with ACluster() as cluster:
        server = await with_policies(cluster)

        assert told(await get(server, f"/v1/scaling/policy/{an_id(99)}")) == (404, b"policy not found")


@in_virtual_time
async def test_whoever_waits_for_the_policies_of_a_job_wakes_for_them_alone() -> None:
    async with ACluster() as cluster:
        server = await with_policies(cluster)
        seen = (await get(server, "/v1/scaling/policies", "job=shop")).headers["x-cluster-index"]
        waiting = cluster.start(get(server, "/v1/scaling/policies", f"job=shop&index={seen}"), name="waits")
        await pass_time(0.1)

        await a_policy(server, P1, job="depot", enabled=False)
        await pass_time(1.0)
        assert not waiting.done()
        await a_policy(server, P2, enabled=False)

        assert (await waiting).status == 200


@in_virtual_time
async def test_an_index_of_policies_is_at_least_one() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()

        assert int((await get(server, "/v1/scaling/policies")).headers["x-cluster-index"]) >= 1


@in_virtual_time
async def test_rights_to_policies_are_their_own_or_those_to_list_and_read_jobs() -> None:
    async with ACluster() as cluster:
        server = await with_policies(cluster)
        enable_acl(server)

        async def may(*capabilities: str) -> tuple[int, int]:
            named = ", ".join(f'"{capability}"' for capability in capabilities)
            headers = await a_token(server, f'namespace "default" {{ capabilities = [{named}] }}')
            listed = await get(server, "/v1/scaling/policies", headers=headers)
            read = await get(server, f"/v1/scaling/policy/{P1}", headers=headers)
            return listed.status, read.status

        assert await may("list-scaling-policies") == (200, 403)
        assert await may("read-scaling-policy") == (403, 200)
        assert await may("list-jobs", "read-job") == (200, 200)
        assert await may("list-jobs") == (403, 403)


@in_virtual_time
async def test_a_token_sees_the_policies_of_its_namespaces() -> None:
    async with ACluster() as cluster:
        server = await with_policies(cluster)
        enable_acl(server)
        reader = await a_token(server, READ)

        assert await ids_of(server, "/v1/scaling/policies", "namespace=*", reader) == [P1, P2, P3]
        assert told(await get(server, f"/v1/scaling/policy/{P4}", headers=reader)) == DENIED
