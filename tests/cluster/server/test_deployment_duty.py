"""The duty that continues deployments: after a restore of the log, and with settings unlike the defaults."""

import pytest

from tests.builders import a_group, a_job, a_task, some_job_settings, some_resources
from tests.kit.cluster import ACluster
from tests.kit.virtual_time import in_virtual_time, until
from wharf.cluster.operations.jobs.versions import list_versions
from wharf.cluster.state.tables import ALLOCATIONS, DEPLOYMENTS
from wharf.contract.model.jobs.group_policies import ReschedulePolicy, RestartPolicy, UpdatePolicy

SECOND_NS = 1_000_000_000
NO_RESTARTS = RestartPolicy(attempts=0, mode="fail")


@in_virtual_time
async def test_a_deployment_of_a_first_version_completes_after_a_restore() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await cluster.ready_nodes(server, 2)
        update = UpdatePolicy(min_healthy_time=20 * SECOND_NS)
        task = a_task(driver="mock", resources=some_resources(cpu=10, memory_mb=10))
        job = a_job("shop", a_group("web", task, count=2, update=update))
        await server.client.jobs.register(job)
        await until(
            lambda: [each.client_status for each in server.replica.iter_all(ALLOCATIONS)] == ["running"] * 2,
            what="the allocation runs",
        )

        cluster.log.restore_copy(cluster.log.make_copy())
        server.election.allow_campaign()

        await until(
            lambda: [each.status for each in server.replica.iter_all(DEPLOYMENTS)] == ["successful"],
            what="its deployment ends",
        )


@pytest.mark.parametrize("versions_kept", [2, 20])
@in_virtual_time
async def test_an_automatic_rollback_retains_as_many_versions_as_configured(versions_kept: int) -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server(job_settings=some_job_settings(versions_kept=versions_kept))
        await cluster.ready_nodes(server, 1)
        task = a_task(driver="mock", resources=some_resources(cpu=10, memory_mb=10))
        update = UpdatePolicy(
            min_healthy_time=SECOND_NS,
            healthy_deadline=20 * SECOND_NS,
            progress_deadline=60 * SECOND_NS,
            auto_revert=True,
        )
        for priority in range(40, 48):
            await server.client.jobs.register(a_job("shop", a_group("web", task, update=update), priority=priority))
        await until(
            lambda: (
                [each.status for each in server.replica.iter_all(DEPLOYMENTS) if each.status != "cancelled"]
                == ["successful"]
            ),
            what="the last version is stable",
        )

        broken = a_task(driver="mock", config={"run_for": "1s", "exit_code": 1}, resources=task.resources)
        never = ReschedulePolicy(attempts=0, unlimited=False)
        await server.client.jobs.register(
            a_job("shop", a_group("web", broken, update=update, reschedule_policy=never, restart_policy=NO_RESTARTS))
        )
        await until(
            lambda: "failed" in [each.status for each in server.replica.iter_all(DEPLOYMENTS)],
            what="the deployment fails",
        )

        assert len(list_versions(server.replica, "default", "shop")) == min(versions_kept, 10)
