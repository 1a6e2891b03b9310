"""A job that says `AllAtOnce`: all of what is new begins together, or none of it does."""

from tests.builders import a_batch_job, a_group, a_job, a_task, some_resources
from tests.cluster.scheduling.loop import Loop
from wharf.cluster.operations.explanations.jobs import explain_job
from wharf.cluster.scheduling.plans.plan import check_plan
from wharf.cluster.scheduling.scheduler import plan_evaluation_from_state
from wharf.cluster.state.tables import SCHEDULER_CONFIGURATION
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.operator.scheduler_configuration import PreemptionConfig, SchedulerConfiguration


def a_gang() -> Job:
    """Eleven, of which a node has room for four."""
    task = a_task(driver="mock", resources=some_resources(cpu=250, memory_mb=10))
    return a_batch_job("shop", a_group("web", task, count=10), a_group("head", task), all_at_once=True)


def a_loop(*, nodes: int) -> Loop:
    loop = Loop()
    for number in range(nodes):
        loop.with_node(f"n{number}", cpu=1_000)
    loop.register(a_gang())
    loop.settle()
    return loop


def test_where_there_is_not_room_for_all_none_is_placed_and_all_are_waited_for() -> None:
    loop = a_loop(nodes=2)

    (blocked,) = loop.waiting()
    missing = {name: each.coalesced_failures + 1 for name, each in (blocked.failed_tg_allocs or {}).items()}
    assert (loop.live(), missing, loop.summary().summary["web"].queued) == ([], {"web": 10, "head": 1}, 10)


def test_a_group_that_has_room_tells_that_others_have_not() -> None:
    loop = Loop()
    loop.with_node("n0", cpu=1_000)
    task = a_task(driver="mock", resources=some_resources(cpu=250, memory_mb=10))
    loop.register(a_job("shop", a_group("head", task), a_group("web", task, count=10), all_at_once=True))
    loop.settle()

    (blocked,) = loop.waiting()
    assert {name: each.dimension_exhausted for name, each in (blocked.failed_tg_allocs or {}).items()} == {
        "head": {"not room for all at once": 1},
        "web": {"cpu": 1},
    }


def test_when_room_has_come_for_all_they_begin_together() -> None:
    loop = a_loop(nodes=2)
    loop.with_node("n2", cpu=1_000)
    loop.room_came()
    loop.settle()

    assert len(loop.live()) == 11


def test_why_it_waits_says_that_it_is_all_or_nothing() -> None:
    told = explain_job(a_loop(nodes=2).replica, "default", "shop")

    assert told.text == (
        "shop waits for room for all of it at once (AllAtOnce): its groups web and head lack 11 allocations"
    )
    assert told.groups[0].text == (
        "web lacks 10 allocations, of which none begins before there is room for all: "
        "without AllAtOnce 2 of 2 nodes would take one now"
    )


def test_what_is_lost_later_is_replaced_as_there_is_room() -> None:
    loop = a_loop(nodes=3)
    full = next(name for name in ("n0", "n1", "n2") if sum(each.node_id == name for each in loop.live()) == 4)
    loop.lose(full)
    loop.settle()

    assert len(loop.live()) == 8


def test_nobody_goes_for_work_that_finds_no_room_all_the_same() -> None:
    loop = Loop()
    loop.put(
        SCHEDULER_CONFIGURATION.build_put(
            SchedulerConfiguration(preemption_config=PreemptionConfig(batch_scheduler_enabled=True))
        )
    )
    for number in range(2):
        loop.with_node(f"n{number}", cpu=1_000)
    small = a_task(driver="mock", resources=some_resources(cpu=250, memory_mb=10))
    loop.register(a_batch_job("low", a_group("web", small), priority=10))
    loop.settle()
    loop.register(a_gang())
    loop.settle()

    assert (len(loop.live("low")), loop.live()) == (1, [])


def test_what_fits_no_write_of_the_log_is_refused_with_the_bound() -> None:
    loop = Loop()
    for number in range(3):
        loop.with_node(f"n{number}", cpu=1_000)
    loop.register(a_gang())
    plan = plan_evaluation_from_state(loop.replica, loop.open_evaluations()[-1], loop.moment)

    told = check_plan(plan, loop.replica, max_changes=8)

    assert (told.write, told.remaining_plan) == (None, None)
    assert told.rejection == (
        "AllAtOnce asks for 11 allocations in one write, and the log takes 8 changes in one: lower the counts, "
        "make several jobs of it, or leave AllAtOnce out"
    )
