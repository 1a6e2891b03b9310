"""The bootstrap of a cluster with the configuration of its first server."""

from tests.kit.cluster import ACluster, OneServer
from tests.kit.virtual_time import in_virtual_time
from wharf.cluster.server.log.bootstrap import ClusterBootstrap
from wharf.cluster.server.settings import DefaultSchedulerSettings, PreemptionSettings
from wharf.cluster.state.tables import SCHEDULER_CONFIGURATION
from wharf.contract.model.operator.scheduler_configuration import (
    PreemptionConfig,
    SchedulerAlgorithm,
    SchedulerConfiguration,
)

CONFIGURED = DefaultSchedulerSettings(
    scheduler_algorithm=SchedulerAlgorithm.SPREAD,
    reject_job_registration=True,
    node_limit_for_feasibility_checks=7,
    preemption_config=PreemptionSettings(system_scheduler_enabled=False, sysbatch_scheduler_enabled=True),
)


def test_settings_become_the_first_scheduler_configuration() -> None:
    assert CONFIGURED.configuration() == SchedulerConfiguration(
        scheduler_algorithm="spread",
        reject_job_registration=True,
        node_limit_for_feasibility_checks=7,
        preemption_config=PreemptionConfig(sys_batch_scheduler_enabled=True),
    )


def test_an_empty_algorithm_becomes_the_default() -> None:
    inherited = DefaultSchedulerSettings(scheduler_algorithm=SchedulerAlgorithm.INHERITED)

    assert inherited.configuration().scheduler_algorithm == "binpack"


@in_virtual_time
async def test_scheduling_starts_with_the_configuration_of_the_first_server_and_then_uses_the_stored_one() -> None:
    async with ACluster() as cluster:
        founded = await cluster.a_server(leads=False)
        stored = founded.replica.get(SCHEDULER_CONFIGURATION)
        other_bootstrap = ClusterBootstrap(
            founded.server.follower, founded.server.writer, scheduler=CONFIGURED.configuration()
        )

        await other_bootstrap.bootstrap()

        assert founded.replica.get(SCHEDULER_CONFIGURATION) == stored
        assert stored is not None
        assert stored.scheduler_algorithm == "binpack"


@in_virtual_time
async def test_an_empty_log_is_bootstrapped_with_the_configuration() -> None:
    async with ACluster() as cluster:
        server = cluster.servers["m1"] = OneServer(cluster, "m1")
        await server.follow()

        await ClusterBootstrap(
            server.server.follower, server.server.writer, scheduler=CONFIGURED.configuration()
        ).bootstrap()

        stored = server.replica.get(SCHEDULER_CONFIGURATION)
        assert stored is not None
        assert (stored.scheduler_algorithm, stored.reject_job_registration, stored.create_index) == ("spread", True, 1)
