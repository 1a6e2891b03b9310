"""Preemption: a job of higher priority stops other allocations and is placed after they have ended."""

from typing import Any

from msgspec.structs import replace

from tests.builders import a_group, a_job, a_system_job, a_task, some_resources
from tests.cluster.scheduling.simulated_cluster import SimulatedCluster
from tests.kit.state import SECOND_NS
from wharf.cluster.scheduling.plans.plan import Plan
from wharf.cluster.state.tables import SCHEDULER_CONFIGURATION
from wharf.contract.model.allocations.allocation import Allocation, ClientStatus, DesiredStatus
from wharf.contract.model.jobs.group_policies import MigratePolicy
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.log import WRITE_INDEX
from wharf.contract.model.operator.scheduler_configuration import PreemptionConfig, SchedulerConfiguration


def make_job(job_id: str, priority: int, cpu: int, count: int = 1, **fields: Any) -> Job:
    task = a_task(resources=some_resources(cpu=cpu, memory_mb=10))
    return a_job(job_id, a_group("web", task, count=count, **fields), priority=priority)


def make_cluster(*jobs: Job, nodes: int = 1, allowed: bool = True) -> SimulatedCluster:
    """Return a cluster on which these jobs run. `allowed`: enable preemption."""
    cluster = SimulatedCluster()
    config = PreemptionConfig(service_scheduler_enabled=allowed, system_scheduler_enabled=allowed)
    cluster.put(
        SCHEDULER_CONFIGURATION.build_put(SchedulerConfiguration(preemption_config=config, create_index=WRITE_INDEX))
    )
    for number in range(nodes):
        cluster.with_node(f"n{number}")
    for job in jobs:
        cluster.register(job)
        cluster.settle()
    return cluster


def submit_and_evaluate(cluster: SimulatedCluster, job: Job) -> Plan:
    cluster.register(job)
    plan = cluster.process(cluster.open_evaluations(job.id)[0])
    assert plan is not None
    return plan


def list_evicted(cluster: SimulatedCluster) -> list[Allocation]:
    allocations = [allocation for job in ("low", "lower", "near") for allocation in cluster.list_allocations(job)]
    return [each for each in allocations if each.desired_status is DesiredStatus.EVICT]


def test_victims_stop_first_and_then_the_preemptor_is_placed_under_the_promised_id() -> None:
    cluster = make_cluster(make_job("low", 40, 800))
    plan = submit_and_evaluate(cluster, make_job("shop", 60, 700))
    (victim,) = list_evicted(cluster)
    before = cluster.list_allocations("shop")
    cluster.report(victim, ClientStatus.COMPLETE, successful=False)
    cluster.retry_blocked()
    cluster.process_pending()

    assert (plan.placements, before) == ({}, [])
    assert victim.desired_description == f"Preempted by alloc ID {victim.preempted_by_allocation}"
    (placed,) = cluster.list_active("shop")
    assert (placed.id, placed.preempted_allocations) == (victim.preempted_by_allocation, (victim.id,))


def test_the_evaluation_reports_its_preemptions() -> None:
    cluster = make_cluster(make_job("low", 40, 800))

    plan = submit_and_evaluate(cluster, make_job("shop", 60, 700))

    assert plan.completed_evaluation is not None
    assert plan.completed_evaluation.plan_annotations is not None
    assert (plan.completed_evaluation.plan_annotations.desired_tg_updates or {})["web"].preemptions == 1
    assert [each.job_id for each in plan.completed_evaluation.plan_annotations.preempted_allocs or ()] == ["low"]
    assert (plan.completed_evaluation.failed_tg_allocs or {})["web"].dimension_exhausted == {"cpu": 1}
    assert plan.completed_evaluation.blocked_eval


def test_nothing_is_preempted_if_preemption_is_disabled_or_priorities_are_close() -> None:
    for cluster, job in (
        (make_cluster(make_job("low", 40, 800), allowed=False), make_job("shop", 60, 700)),
        (make_cluster(make_job("near", 51, 800)), make_job("shop", 60, 700)),
    ):
        submit_and_evaluate(cluster, job)
        assert list_evicted(cluster) == []


def test_nothing_is_preempted_if_capacity_is_free() -> None:
    cluster = make_cluster(make_job("low", 40, 800), nodes=2)
    cluster.register(make_job("shop", 60, 700))
    cluster.settle()

    assert (list_evicted(cluster), len(cluster.list_active("shop"))) == ([], 1)


def test_the_lowest_priority_is_preempted_first_and_no_more_than_needed() -> None:
    cluster = make_cluster(make_job("low", 40, 300), make_job("lower", 20, 300, count=2))
    submit_and_evaluate(cluster, make_job("shop", 60, 300))

    assert [each.job_id for each in list_evicted(cluster)] == ["lower"]


def test_victims_that_became_superfluous_are_spared() -> None:
    cluster = make_cluster(make_job("lower", 20, 100), make_job("low", 40, 850))
    submit_and_evaluate(cluster, make_job("shop", 60, 800))

    assert [each.job_id for each in list_evicted(cluster)] == ["low"]


def test_a_job_that_waits_for_its_victims_preempts_nothing_else() -> None:
    cluster = make_cluster(make_job("low", 40, 450, count=2))
    submit_and_evaluate(cluster, make_job("shop", 60, 400))
    first = [each.id for each in list_evicted(cluster)]
    cluster.retry_blocked()
    cluster.process_pending()

    assert [each.id for each in list_evicted(cluster)] == first
    assert len(first) == 1


def test_freed_capacity_is_held_against_less_urgent_jobs_for_a_limited_time() -> None:
    cluster = make_cluster(make_job("low", 40, 450, count=2))
    submit_and_evaluate(cluster, make_job("shop", 60, 1_000))
    both = list_evicted(cluster)
    cluster.report(both[0], ClientStatus.COMPLETE, successful=False)
    cluster.register(make_job("other", 40, 450))
    cluster.process_pending()
    placed_early = cluster.list_active("other")
    cluster.pass_time(61)
    cluster.retry_blocked()
    cluster.process_pending()

    assert (len(both), placed_early, len(cluster.list_active("other"))) == (2, [], 1)


def test_a_job_that_lost_allocations_is_evaluated_when_they_have_ended() -> None:
    cluster = make_cluster(make_job("low", 40, 800))
    submit_and_evaluate(cluster, make_job("shop", 60, 700))
    cluster.settle()
    cluster.with_node("n1")
    cluster.retry_blocked()
    cluster.settle()

    assert [len(cluster.list_active(job)) for job in ("shop", "low")] == [1, 1]


def test_a_system_job_preempts_on_its_node() -> None:
    cluster = make_cluster(make_job("low", 40, 800, count=2), nodes=2)
    group = a_group("web", a_task(resources=some_resources(cpu=500, memory_mb=10)))
    cluster.register(a_system_job("shop", group, priority=90))
    cluster.settle()

    assert sorted(each.node_id for each in cluster.list_active("shop")) == ["n0", "n1"]


def test_a_group_loses_at_most_max_parallel_allocations_if_other_victims_exist() -> None:
    policy = MigratePolicy(max_parallel=1, min_healthy_time=SECOND_NS)
    cluster = make_cluster(
        make_job("low", 40, 300, count=2, migrate=policy), replace(make_job("lower", 40, 300), id="lower")
    )
    submit_and_evaluate(cluster, make_job("shop", 60, 600))

    assert sorted(each.job_id for each in list_evicted(cluster)) == ["low", "lower"]
