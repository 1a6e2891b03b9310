"""A cluster begins as the configuration of its founder says."""

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

GIVEN = DefaultSchedulerSettings(
    scheduler_algorithm=SchedulerAlgorithm.SPREAD,
    reject_job_registration=True,
    node_limit_for_feasibility_checks=7,
    preemption_config=PreemptionSettings(system_scheduler_enabled=False, sysbatch_scheduler_enabled=True),
)


def test_settings_become_the_record_that_a_cluster_begins_with() -> None:
    assert GIVEN.configuration() == SchedulerConfiguration(
        scheduler_algorithm="spread",
        reject_job_registration=True,
        node_limit_for_feasibility_checks=7,
        preemption_config=PreemptionConfig(sys_batch_scheduler_enabled=True),
    )


def test_an_algorithm_that_only_a_pool_can_have_becomes_the_usual_one() -> None:
    inherited = DefaultSchedulerSettings(scheduler_algorithm=SchedulerAlgorithm.INHERITED)

    assert inherited.configuration().scheduler_algorithm == "binpack"


@in_virtual_time
async def test_scheduling_begins_as_the_founders_configuration_says_and_stays_as_it_is_stored() -> None:
    async with ACluster() as cluster:
        founded = await cluster.a_server(leads=False)
        stored = founded.replica.get(SCHEDULER_CONFIGURATION)
        other = ClusterBootstrap(founded.server.follower, founded.server.writer, scheduler=GIVEN.configuration())

        await other.bootstrap()

        assert founded.replica.get(SCHEDULER_CONFIGURATION) == stored
        assert stored is not None
        assert stored.scheduler_algorithm == "binpack"


@in_virtual_time
async def test_an_empty_log_is_founded_with_what_was_configured() -> None:
    async with ACluster() as cluster:
        server = cluster.servers["m1"] = OneServer(cluster, "m1", heartbeats=None)
        await server.follow()

        await ClusterBootstrap(
            server.server.follower, server.server.writer, scheduler=GIVEN.configuration()
        ).bootstrap()

        stored = server.replica.get(SCHEDULER_CONFIGURATION)
        assert stored is not None
        assert (stored.scheduler_algorithm, stored.reject_job_registration, stored.create_index) == ("spread", True, 1)
