"""Work of a higher priority pushes others aside: they end first, and it has their room then."""

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


def asked(loop: Loop, job: Job) -> Plan:
    loop.register(job)
    plan = loop.process(loop.open_evaluations(job.id)[0])
    assert plan is not None
    return plan


def evicted(loop: Loop) -> list[Allocation]:
    every = [each for job in ("low", "lower", "near") for each in loop.of(job)]
    return [each for each in every if each.desired_status is DesiredStatus.EVICT]


def test_who_is_pushed_aside_goes_first_and_then_the_other_is_placed_under_the_id_that_was_told() -> None:
    loop = a_loop(of("low", 40, 800))
    plan = asked(loop, of("shop", 60, 700))
    (victim,) = evicted(loop)
    before = loop.of("shop")
    loop.tell(victim, ClientStatus.COMPLETE, successful=False)
    loop.room_came()
    loop.think()

    assert (plan.placements, before) == ({}, [])
    assert victim.desired_description == f"Preempted by alloc ID {victim.preempted_by_allocation}"
    (placed,) = loop.live("shop")
    assert (placed.id, placed.preempted_allocations) == (victim.preempted_by_allocation, (victim.id,))


def test_what_is_done_to_others_is_told_by_the_evaluation() -> None:
    loop = a_loop(of("low", 40, 800))

    plan = asked(loop, of("shop", 60, 700))

    assert plan.completed_evaluation is not None
    assert plan.completed_evaluation.plan_annotations is not None
    assert (plan.completed_evaluation.plan_annotations.desired_tg_updates or {})["web"].preemptions == 1
    assert [each.job_id for each in plan.completed_evaluation.plan_annotations.preempted_allocs or ()] == ["low"]
    assert (plan.completed_evaluation.failed_tg_allocs or {})["web"].dimension_exhausted == {"cpu": 1}
    assert plan.completed_evaluation.blocked_eval


def test_nobody_is_pushed_aside_where_that_is_off_or_priorities_are_near() -> None:
    for loop, job in (
        (a_loop(of("low", 40, 800), allowed=False), of("shop", 60, 700)),
        (a_loop(of("near", 51, 800)), of("shop", 60, 700)),
    ):
        asked(loop, job)
        assert evicted(loop) == []


def test_nobody_is_pushed_aside_where_there_is_room() -> None:
    loop = a_loop(of("low", 40, 800), nodes=2)
    loop.register(of("shop", 60, 700))
    loop.settle()

    assert (evicted(loop), len(loop.live("shop"))) == ([], 1)


def test_the_lowest_priority_goes_first_and_no_more_than_must() -> None:
    loop = a_loop(of("low", 40, 300), of("lower", 20, 300, count=2))
    asked(loop, of("shop", 60, 300))

    assert [each.job_id for each in evicted(loop)] == ["lower"]


def test_what_makes_others_superfluous_spares_them() -> None:
    loop = a_loop(of("lower", 20, 100), of("low", 40, 850))
    asked(loop, of("shop", 60, 800))

    assert [each.job_id for each in evicted(loop)] == ["low"]


def test_who_waits_for_those_that_go_pushes_nobody_else_aside() -> None:
    loop = a_loop(of("low", 40, 450, count=2))
    asked(loop, of("shop", 60, 400))
    first = [each.id for each in evicted(loop)]
    loop.room_came()
    loop.think()

    assert [each.id for each in evicted(loop)] == first
    assert len(first) == 1


def test_the_room_is_kept_from_those_that_are_less_urgent_and_not_for_ever() -> None:
    loop = a_loop(of("low", 40, 450, count=2))
    asked(loop, of("shop", 60, 1_000))
    both = evicted(loop)
    loop.tell(both[0], ClientStatus.COMPLETE, successful=False)
    loop.register(of("other", 40, 450))
    loop.think()
    kept = loop.live("other")
    loop.pass_time(61)
    loop.room_came()
    loop.think()

    assert (len(both), kept, len(loop.live("other"))) == (2, [], 1)


def test_a_job_that_lost_work_is_looked_at_when_that_has_ended() -> None:
    loop = a_loop(of("low", 40, 800))
    asked(loop, of("shop", 60, 700))
    loop.settle()
    loop.with_node("n1")
    loop.room_came()
    loop.settle()

    assert [len(loop.live(job)) for job in ("shop", "low")] == [1, 1]


def test_work_of_every_node_pushes_aside_on_its_node() -> None:
    loop = a_loop(of("low", 40, 800, count=2), nodes=2)
    group = a_group("web", a_task(resources=some_resources(cpu=500, memory_mb=10)))
    loop.register(a_system_job("shop", group, priority=90))
    loop.settle()

    assert sorted(each.node_id for each in loop.live("shop")) == ["n0", "n1"]


def test_of_a_group_no_more_are_pushed_aside_than_it_lets_go_where_another_will_do() -> None:
    slow = MigratePolicy(max_parallel=1, min_healthy_time=SECOND_NS)
    loop = a_loop(of("low", 40, 300, count=2, migrate=slow), replace(of("lower", 40, 300), id="lower"))
    asked(loop, of("shop", 60, 600))

    assert sorted(each.job_id for each in evicted(loop)) == ["low", "lower"]
