"""Preemption: jobs of higher priority stop others, and are placed when those have ended."""

from typing import Any

from msgspec.structs import replace

from tests.builders import a_group, a_job, a_system_job, a_task, some_resources
from tests.cluster.scheduling.loop import Loop
from tests.kit.state import SECOND_NS
from wharf.cluster.scheduling.plans.plan import Plan
from wharf.cluster.state.tables import SCHEDULER_CONFIGURATION
from wharf.contract.model.allocations.allocation import Allocation, ClientStatus, DesiredStatus
from wharf.contract.model.jobs.group_policies import MigratePolicy
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.log import WRITE_INDEX
from wharf.contract.model.operator.scheduler_configuration import PreemptionConfig, SchedulerConfiguration


def of(job_id: str, priority: int, cpu: int, count: int = 1, **fields: Any) -> Job:
    task = a_task(resources=some_resources(cpu=cpu, memory_mb=10))
    return a_job(job_id, a_group("web", task, count=count, **fields), priority=priority)


def a_loop(*jobs: Job, nodes: int = 1, allowed: bool = True) -> Loop:
    loop = Loop()
    config = PreemptionConfig(service_scheduler_enabled=allowed, system_scheduler_enabled=allowed)
    loop.put(
        SCHEDULER_CONFIGURATION.build_put(SchedulerConfiguration(preemption_config=config, create_index=WRITE_INDEX))
    )
    for number in range(nodes):
        loop.with_node(f"n{number}")
    for job in jobs:
        loop.register(job)
        loop.settle()
    return loop


def submit_and_evaluate(loop: Loop, job: Job) -> Plan:
    loop.register(job)
    plan = loop.process(loop.open_evaluations(job.id)[0])
    assert plan is not None
    return plan


def evicted(loop: Loop) -> list[Allocation]:
    every = [allocation for job in ("low", "lower", "near") for allocation in loop.list_allocations(job)]
    return [each for each in every if each.desired_status is DesiredStatus.EVICT]


def test_victims_stop_first_and_then_the_preemptor_is_placed_under_the_promised_id() -> None:
    loop = a_loop(of("low", 40, 800))
    plan = submit_and_evaluate(loop, of("shop", 60, 700))
    (victim,) = evicted(loop)
    before = loop.list_allocations("shop")
    loop.report(victim, ClientStatus.COMPLETE, successful=False)
    loop.retry_blocked()
    loop.process_pending()

    assert (plan.placements, before) == ({}, [])
    assert victim.desired_description == f"Preempted by alloc ID {victim.preempted_by_allocation}"
    (placed,) = loop.list_active("shop")
    assert (placed.id, placed.preempted_allocations) == (victim.preempted_by_allocation, (victim.id,))


def test_the_evaluation_reports_its_preemptions() -> None:
    loop = a_loop(of("low", 40, 800))

    plan = submit_and_evaluate(loop, of("shop", 60, 700))

    assert plan.completed_evaluation is not None
    assert plan.completed_evaluation.plan_annotations is not None
    assert (plan.completed_evaluation.plan_annotations.desired_tg_updates or {})["web"].preemptions == 1
    assert [each.job_id for each in plan.completed_evaluation.plan_annotations.preempted_allocs or ()] == ["low"]
    assert (plan.completed_evaluation.failed_tg_allocs or {})["web"].dimension_exhausted == {"cpu": 1}
    assert plan.completed_evaluation.blocked_eval


def test_nothing_is_preempted_if_preemption_is_disabled_or_priorities_are_close() -> None:
    for loop, job in (
        (a_loop(of("low", 40, 800), allowed=False), of("shop", 60, 700)),
        (a_loop(of("near", 51, 800)), of("shop", 60, 700)),
    ):
        submit_and_evaluate(loop, job)
        assert evicted(loop) == []


def test_nothing_is_preempted_if_capacity_is_free() -> None:
    loop = a_loop(of("low", 40, 800), nodes=2)
    loop.register(of("shop", 60, 700))
    loop.settle()

    assert (evicted(loop), len(loop.list_active("shop"))) == ([], 1)


def test_the_lowest_priority_is_preempted_first_and_no_more_than_needed() -> None:
    loop = a_loop(of("low", 40, 300), of("lower", 20, 300, count=2))
    submit_and_evaluate(loop, of("shop", 60, 300))

    assert [each.job_id for each in evicted(loop)] == ["lower"]


def test_victims_that_became_superfluous_are_spared() -> None:
    loop = a_loop(of("lower", 20, 100), of("low", 40, 850))
    submit_and_evaluate(loop, of("shop", 60, 800))

    assert [each.job_id for each in evicted(loop)] == ["low"]


def test_a_job_that_waits_for_its_victims_preempts_nothing_else() -> None:
    loop = a_loop(of("low", 40, 450, count=2))
    submit_and_evaluate(loop, of("shop", 60, 400))
    first = [each.id for each in evicted(loop)]
    loop.retry_blocked()
    loop.process_pending()

    assert [each.id for each in evicted(loop)] == first
    assert len(first) == 1


def test_freed_capacity_is_held_against_less_urgent_jobs_for_a_limited_time() -> None:
    loop = a_loop(of("low", 40, 450, count=2))
    submit_and_evaluate(loop, of("shop", 60, 1_000))
    both = evicted(loop)
    loop.report(both[0], ClientStatus.COMPLETE, successful=False)
    loop.register(of("other", 40, 450))
    loop.process_pending()
    kept = loop.list_active("other")
    loop.pass_time(61)
    loop.retry_blocked()
    loop.process_pending()

    assert (len(both), kept, len(loop.list_active("other"))) == (2, [], 1)


def test_a_job_that_lost_allocations_is_evaluated_when_they_have_ended() -> None:
    loop = a_loop(of("low", 40, 800))
    submit_and_evaluate(loop, of("shop", 60, 700))
    loop.settle()
    loop.with_node("n1")
    loop.retry_blocked()
    loop.settle()

    assert [len(loop.list_active(job)) for job in ("shop", "low")] == [1, 1]


def test_a_system_job_preempts_on_its_node() -> None:
    loop = a_loop(of("low", 40, 800, count=2), nodes=2)
    group = a_group("web", a_task(resources=some_resources(cpu=500, memory_mb=10)))
    loop.register(a_system_job("shop", group, priority=90))
    loop.settle()

    assert sorted(each.node_id for each in loop.list_active("shop")) == ["n0", "n1"]


def test_a_group_loses_at_most_max_parallel_allocations_if_other_victims_exist() -> None:
    slow = MigratePolicy(max_parallel=1, min_healthy_time=SECOND_NS)
    loop = a_loop(of("low", 40, 300, count=2, migrate=slow), replace(of("lower", 40, 300), id="lower"))
    submit_and_evaluate(loop, of("shop", 60, 600))

    assert sorted(each.job_id for each in evicted(loop)) == ["low", "lower"]
