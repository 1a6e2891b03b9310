"""All-at-once jobs: all new allocations are placed together, or none is."""

from tests.builders import a_batch_job, a_group, a_job, a_task, some_resources
from tests.cluster.scheduling.simulated_cluster import SimulatedCluster
from wharf.cluster.operations.explanations.jobs import explain_job
from wharf.cluster.scheduling.plans.check import check_plan
from wharf.cluster.state.tables import SCHEDULER_CONFIGURATION
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.operator.scheduler_configuration import PreemptionConfig, SchedulerConfiguration


def make_all_at_once_job() -> Job:
    """Return a job with eleven allocations, of which four fit on a node."""
    task = a_task(driver="mock", resources=some_resources(cpu=250, memory_mb=10))
    return a_batch_job("shop", a_group("web", task, count=10), a_group("head", task), all_at_once=True)


def make_cluster(*, nodes: int) -> SimulatedCluster:
    cluster = SimulatedCluster()
    for number in range(nodes):
        cluster.with_node(f"n{number}", cpu=1_000)
    cluster.register(make_all_at_once_job())
    cluster.settle()
    return cluster


def test_without_capacity_for_all_nothing_is_placed_and_all_wait() -> None:
    cluster = make_cluster(nodes=2)

    (blocked,) = cluster.list_blocked()
    missing = {name: each.coalesced_failures + 1 for name, each in (blocked.failed_tg_allocs or {}).items()}
    assert (cluster.list_active(), missing, cluster.summary().summary["web"].queued) == ([], {"web": 10, "head": 1}, 10)


def test_a_group_with_capacity_reports_that_others_have_none() -> None:
    cluster = SimulatedCluster()
    cluster.with_node("n0", cpu=1_000)
    task = a_task(driver="mock", resources=some_resources(cpu=250, memory_mb=10))
    cluster.register(a_job("shop", a_group("head", task), a_group("web", task, count=10), all_at_once=True))
    cluster.settle()

    (blocked,) = cluster.list_blocked()
    assert {name: each.dimension_exhausted for name, each in (blocked.failed_tg_allocs or {}).items()} == {
        "head": {"not room for all at once": 1},
        "web": {"cpu": 1},
    }


def test_when_capacity_is_freed_for_all_they_start_together() -> None:
    cluster = make_cluster(nodes=2)
    cluster.with_node("n2", cpu=1_000)
    cluster.retry_blocked()
    cluster.settle()

    assert len(cluster.list_active()) == 11


def test_the_metrics_report_that_the_job_is_all_at_once() -> None:
    result = explain_job(make_cluster(nodes=2).replica, "default", "shop")

    assert result.text == (
        "shop waits for resources to place all allocations at once (AllAtOnce): its groups web and head lack 11 allocations"
    )
    assert result.groups[0].text == (
        "web lacks 10 allocations, none of which starts until all can be placed: "
        "without AllAtOnce 2 of 2 nodes could run one now"
    )


def test_an_allocation_that_is_lost_later_is_replaced_alone() -> None:
    cluster = make_cluster(nodes=3)
    full_node_id = next(
        name for name in ("n0", "n1", "n2") if sum(each.node_id == name for each in cluster.list_active()) == 4
    )
    cluster.lose_node(full_node_id)
    cluster.settle()

    assert len(cluster.list_active()) == 8


def test_nothing_is_preempted_if_the_job_still_does_not_fit() -> None:
    cluster = SimulatedCluster()
    cluster.put(
        SCHEDULER_CONFIGURATION.build_put(
            SchedulerConfiguration(preemption_config=PreemptionConfig(batch_scheduler_enabled=True))
        )
    )
    for number in range(2):
        cluster.with_node(f"n{number}", cpu=1_000)
    small = a_task(driver="mock", resources=some_resources(cpu=250, memory_mb=10))
    cluster.register(a_batch_job("low", a_group("web", small), priority=10))
    cluster.settle()
    cluster.register(make_all_at_once_job())
    cluster.settle()

    assert (len(cluster.list_active("low")), cluster.list_active()) == (1, [])


def test_a_job_that_exceeds_one_write_is_rejected_with_the_limit() -> None:
    cluster = SimulatedCluster()
    for number in range(3):
        cluster.with_node(f"n{number}", cpu=1_000)
    cluster.register(make_all_at_once_job())
    plan = cluster.plan(cluster.open_evaluations()[-1])

    result = check_plan(plan, cluster.replica, max_changes=8)

    assert (result.write, result.remaining_plan) == (None, None)
    assert result.rejection == (
        "AllAtOnce requires 11 allocations in one write: the log accepts at most 8 changes. Lower the counts, "
        "split the job, or remove AllAtOnce"
    )
