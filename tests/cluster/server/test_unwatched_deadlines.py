"""Deadlines that no leader could watch: after a restore of an older state, and after all servers were away."""

from typing import Any

import pytest

from tests.builders import a_group, a_job, a_task, some_resources
from tests.kit.cluster import ACluster, OneServer
from tests.kit.requests import put
from tests.kit.virtual_time import in_virtual_time, pass_time, until
from wharf.cluster.engines.memory.faults import EngineOperation, Fault, RefuseFault
from wharf.cluster.engines.port import WriteLimits
from wharf.cluster.state.tables import ALLOCATIONS_OF_JOB, CLUSTER_FORMAT, DEPLOYMENTS, NODES
from wharf.contract.model.allocations.allocation import Allocation
from wharf.contract.model.deployments import Deployment
from wharf.contract.model.jobs.group_policies import UpdatePolicy
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.times import SECOND, to_ns

DEADLINE_S = 60
COUNT = 4


def make_shop(version: str) -> Job:
    update = UpdatePolicy(
        max_parallel=1,
        min_healthy_time=5 * SECOND,
        healthy_deadline=30 * SECOND,
        progress_deadline=DEADLINE_S * SECOND,
    )
    task = a_task(driver="mock", env={"VERSION": version}, resources=some_resources(cpu=10, memory_mb=10))
    return a_job("shop", a_group("web", task, count=COUNT, update=update))


def list_running(server: OneServer, version: int) -> list[Allocation]:
    allocations = server.replica.list_by_index(ALLOCATIONS_OF_JOB, "default", "shop")
    return [
        each
        for each in allocations
        if each.client_status == "running" and each.desired_status == "run" and each.job_version == version
    ]


def get_newest_deployment(server: OneServer) -> Deployment:
    return max(server.replica.iter_all(DEPLOYMENTS), key=lambda each: each.create_index)


def is_rolled_out(server: OneServer, version: int) -> bool:
    return any(
        each.status == "successful" and each.job_version == version for each in server.replica.iter_all(DEPLOYMENTS)
    )


def end_term(server: OneServer) -> None:
    assert server.election.term is not None
    server.election.term.lose()


async def begin_rollout(server: OneServer) -> None:
    """Start a second version of the job, and wait until one of its allocations runs."""
    await server.client.jobs.register(make_shop("first"))
    await until(lambda: is_rolled_out(server, version=0), what="the first version is healthy")
    await server.client.jobs.register(make_shop("second"))
    await until(lambda: len(list_running(server, version=1)) == 1, what="one allocation is replaced")


async def restore_copy_later(cluster: ACluster, server: OneServer, copy: Any, *, seconds: float) -> None:
    """Restore the copy when this time has passed on every clock, and let the server lead again."""
    cluster.advance_clocks(seconds)
    cluster.log.restore_copy(copy)
    epoch = cluster.log.epoch
    await until(lambda: server.replica.epoch == epoch, what="the replica has the restored state")
    server.election.allow_campaign()
    await until(lambda: server.brain.is_leading, what="the server leads again")


@in_virtual_time
async def test_a_rollout_that_is_restored_after_its_progress_deadline_goes_on() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await cluster.ready_nodes(server, 2)
        await begin_rollout(server)
        copy = cluster.log.make_copy()
        await until(lambda: is_rolled_out(server, version=1), what="the rollout ends")

        await restore_copy_later(cluster, server, copy, seconds=3_600)

        await until(lambda: get_newest_deployment(server).is_active is False, what="the restored rollout ends")
        assert get_newest_deployment(server).status == "successful"
        assert len(list_running(server, version=1)) == COUNT


@in_virtual_time
async def test_a_restored_deployment_has_its_whole_progress_deadline_although_little_of_it_was_left() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        nodes = await cluster.ready_nodes(server, 2)
        await begin_rollout(server)
        copy = cluster.log.make_copy()
        for node in nodes:
            await node.die()

        await restore_copy_later(cluster, server, copy, seconds=DEADLINE_S - 1)

        [group] = (get_newest_deployment(server).task_groups or {}).values()
        assert group.require_progress_by is not None
        assert to_ns(group.require_progress_by) - server.world.now_ns() > (DEADLINE_S - 5) * SECOND


@in_virtual_time
async def test_a_service_whose_restored_deployment_fails_has_its_count_of_allocations() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await cluster.ready_nodes(server, 2)
        await begin_rollout(server)
        rollout = get_newest_deployment(server)
        copy = cluster.log.make_copy()
        await until(lambda: is_rolled_out(server, version=1), what="the rollout ends")

        await restore_copy_later(cluster, server, copy, seconds=3_600)
        await server.client.deployments.fail(rollout.id)

        await until(lambda: len(list_running(server, version=1)) == COUNT, what="all allocations run")
        assert [each.status for each in server.replica.iter_all(DEPLOYMENTS) if each.id == rollout.id] == ["failed"]


@in_virtual_time
async def test_a_deployment_does_not_fail_because_all_servers_were_away_at_its_deadline() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await cluster.ready_nodes(server, 2)
        await begin_rollout(server)

        end_term(server)
        cluster.advance_clocks(3_600)
        server.election.allow_campaign()

        await until(lambda: get_newest_deployment(server).is_active is False, what="the rollout ends")
        assert get_newest_deployment(server).status == "successful"


@in_virtual_time
async def test_a_change_of_the_leader_extends_no_deadline_that_is_far_away() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        nodes = await cluster.ready_nodes(server, 2)
        update = UpdatePolicy(progress_deadline=3_600 * SECOND)
        await server.client.jobs.register(a_job("shop", a_group("web", a_task(driver="mock"), update=update)))
        await until(lambda: len(list_running(server, version=0)) == 1, what="the allocation runs")
        for node in nodes:
            await node.die()
        before = get_newest_deployment(server)

        end_term(server)
        server.election.allow_campaign()
        await until(lambda: server.brain.is_leading, what="the server leads again")
        await pass_time(5)

        assert before.task_groups == get_newest_deployment(server).task_groups


@in_virtual_time
async def test_a_leader_that_ends_during_the_restart_of_deadlines_leaves_the_rest_to_its_successor() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await cluster.ready_nodes(server, 2)
        await begin_rollout(server)
        copy = cluster.log.make_copy()
        has_failed = False

        def refuse_the_first_restart(requested: EngineOperation) -> Fault | None:
            nonlocal has_failed
            if requested is not EngineOperation.COMMIT or has_failed or not server.brain.is_leading:
                return None
            has_failed = True
            end_term(server)
            return RefuseFault("full")

        cluster.advance_clocks(3_600)
        cluster.log.restore_copy(copy)
        await until(lambda: server.replica.epoch == 1, what="the replica has the restored state")
        server.faults.choose_fault = refuse_the_first_restart
        server.election.allow_campaign()
        await until(lambda: has_failed, what="the first leader cannot write")
        server.election.allow_campaign()

        await until(lambda: get_newest_deployment(server).is_active is False, what="the restored rollout ends")
        assert get_newest_deployment(server).status == "successful"


@in_virtual_time
async def test_a_leader_records_for_which_restore_it_restarted_deadlines() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()

        await restore_copy_later(cluster, server, cluster.log.make_copy(), seconds=0)

        def read_recorded_epoch() -> int:
            stored = server.replica.get(CLUSTER_FORMAT)
            return stored.deadlines_epoch if stored is not None else 0

        await until(lambda: read_recorded_epoch() == 1, what="the restore is recorded")


@in_virtual_time
async def test_a_restored_drain_gets_its_whole_deadline_again() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        [node] = await cluster.ready_nodes(server, 1)
        await server.client.jobs.register(make_shop("first"))
        await until(lambda: len(list_running(server, version=0)) == COUNT, what="the job runs")
        reply = await put(server, f"/v1/node/{node.id}/drain", {"DrainSpec": {"Deadline": 600 * SECOND}})
        assert reply.status == 200, reply.body
        copy = cluster.log.make_copy()

        await restore_copy_later(cluster, server, copy, seconds=3_600)
        await pass_time(5)

        restored = server.replica.get(NODES, node.id)
        assert restored is not None
        assert restored.drain_strategy is not None
        assert restored.drain_strategy.force_deadline is not None
        left_ns = to_ns(restored.drain_strategy.force_deadline) - server.world.now_ns()
        assert 590 * SECOND < left_ns <= 600 * SECOND


def make_large_job(number: int) -> Job:
    """Return a job that no node can run, whose deployment has 40 groups: about 8 kB."""
    groups = [a_group(f"web-{index}", a_task(driver="mock"), update=UpdatePolicy()) for index in range(40)]
    return a_job(f"large-{number}", *groups, datacenters=("none",))


@in_virtual_time
@pytest.mark.parametrize("max_bytes", [15_000, 7_000])
async def test_a_leader_schedules_although_restored_deployments_do_not_fit_in_one_write(max_bytes: int) -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        for number in range(3):
            await server.client.jobs.register(make_large_job(number))
        await until(lambda: server.replica.count_records(DEPLOYMENTS) == 3, what="each job has a deployment")
        copy = cluster.log.make_copy()
        server.server.engine.limits = WriteLimits(bytes=max_bytes)

        await restore_copy_later(cluster, server, copy, seconds=3_600)
        await cluster.ready_nodes(server, 1)
        await server.client.jobs.register(a_job("shop", a_group("web", a_task(driver="mock"), update=None)))

        await until(lambda: len(list_running(server, version=0)) == 1, what="the leader places an allocation")
