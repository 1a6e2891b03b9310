"""The duty that continues deployments, after a restore of the log."""

from tests.builders import a_group, a_job, a_task, some_resources
from tests.kit.cluster import ACluster
from tests.kit.virtual_time import in_virtual_time, until
from wharf.cluster.state.tables import ALLOCATIONS, DEPLOYMENTS
from wharf.contract.model.jobs.group_policies import UpdatePolicy

SECOND_NS = 1_000_000_000


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
            what="it runs",
        )

        cluster.log.restore_copy(cluster.log.make_copy())
        server.election.allow_campaign()

        await until(
            lambda: [each.status for each in server.replica.iter_all(DEPLOYMENTS)] == ["successful"],
            what="its deployment ends",
        )
