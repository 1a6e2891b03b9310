"""Dry runs: what a job would change, without changing anything (jobs.md 5)."""

import datetime
from typing import Any

import pytest
from msgspec.structs import replace

from tests.builders import a_group, a_job, a_parameterized_job, a_periodic_job, a_task
from tests.kit.state import SETTINGS, AState
from wharf.cluster.operations.jobs.plan import DryRun, dry_run_job
from wharf.contract.model.allocations.allocation import DesiredStatus
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.jobs.plan import DesiredUpdates, DiffType
from wharf.contract.model.refusal import Refusal


def plan(state: AState, job: Job, *, with_diff: bool = True, **options: Any) -> DryRun:
    """The plan; and nothing has changed."""
    index = state.replica.index
    planned = dry_run_job(state.replica, job, state.moment, SETTINGS, should_include_diff=with_diff, **options)
    assert state.replica.index == index
    return planned


def updates(planned: DryRun) -> dict[str, DesiredUpdates]:
    assert planned.annotations is not None
    return planned.annotations.desired_tg_updates or {}


def test_a_new_job_is_added_with_all_that_would_be_placed() -> None:
    state = AState()
    state.with_node()

    planned = plan(state, a_job("shop", a_group(count=3)))

    assert (planned.job_modify_index, planned.failed_groups, planned.created_evaluations) == (0, None, None)
    assert updates(planned) == {"web": DesiredUpdates(place=3)}
    assert planned.diff is not None
    assert planned.diff.type is DiffType.ADDED
    (group,) = planned.diff.task_groups or ()
    assert (group.type, group.updates) == (DiffType.ADDED, {"create": 3})


def test_without_being_asked_no_difference_is_told() -> None:
    assert plan(AState(), a_job(), with_diff=False).diff is None


def test_the_same_job_differs_in_nothing_and_its_groups_are_listed_all_the_same() -> None:
    state = AState()
    state.with_node()
    done = state.register(a_job())
    state.with_allocation(state.job())

    planned = plan(state, a_job())

    assert planned.job_modify_index == done.job_modify_index
    assert planned.diff is not None
    assert planned.diff.type is DiffType.NONE
    (group,) = planned.diff.task_groups or ()
    assert (group.type, group.updates) == (DiffType.NONE, {"ignore": 1})
    (task,) = group.tasks or ()
    assert (task.type, task.fields, task.objects) == (DiffType.NONE, None, None)


def test_a_greater_count_forces_creations_and_a_lesser_one_stops() -> None:
    state = AState()
    state.with_node()
    state.register(a_job("shop", a_group(count=2)))
    for number in range(2):
        state.with_allocation(state.job(), f"a{number}", name=f"shop.web[{number}]")

    more, fewer = plan(state, a_job("shop", a_group(count=3))), plan(state, a_job("shop", a_group(count=1)))

    assert [updates(planned)["web"].place for planned in (more, fewer)] == [1, 0]
    assert [updates(planned)["web"].stop for planned in (more, fewer)] == [0, 1]
    assert more.diff is not None
    (group,) = more.diff.task_groups or ()
    (count,) = group.fields or ()
    assert (count.name, count.old, count.new, count.annotations) == ("Count", "2", "3", ("forces create",))


def test_a_group_that_goes_is_told_with_what_stops() -> None:
    state = AState()
    state.with_node()
    state.register(a_job("shop", a_group("web"), a_group("db")))
    state.with_allocation(state.job(), task_group="db", name="shop.db[0]")

    planned = plan(state, a_job("shop", a_group("web")))

    assert updates(planned) == {"web": DesiredUpdates(place=1), "db": DesiredUpdates(stop=1)}


def test_what_would_find_no_room_is_told_with_the_evaluation_that_would_wait() -> None:
    state = AState()
    state.with_node()

    planned = plan(state, a_job("shop", a_group(count=30)))

    assert planned.failed_groups is not None
    assert planned.failed_groups["web"].nodes_evaluated == 1
    assert updates(planned) == {"web": DesiredUpdates(place=30)}
    (waiting,) = planned.created_evaluations or ()
    assert (waiting.status, waiting.triggered_by, waiting.create_index) == ("blocked", "queued-allocs", 0)


def test_a_job_that_would_be_stopped_stops_what_runs() -> None:
    state = AState()
    state.with_node()
    state.register(a_job())
    state.with_allocation(state.job())

    planned = plan(state, a_job(stop=True))

    assert updates(planned) == {"web": DesiredUpdates(stop=1)}
    assert state.allocation("a1").desired_status is DesiredStatus.RUN


def test_a_changed_task_is_told_with_what_it_forces() -> None:
    state = AState()
    state.register(a_job())

    planned = plan(state, a_job("shop", a_group("web", a_task(driver="docker"))))

    assert planned.diff is not None
    (group,) = planned.diff.task_groups or ()
    (task,) = group.tasks or ()
    assert (task.type, task.annotations) == (DiffType.EDITED, ("forces create/destroy update",))


@pytest.mark.parametrize("job", [a_periodic_job("x"), a_parameterized_job("x")])
def test_a_job_that_waits_for_its_time_or_a_dispatch_is_planned_without_placements(job: Job) -> None:
    planned = plan(AState(), job)

    assert (planned.annotations, planned.failed_groups) == (None, None)
    assert planned.diff is not None
    assert planned.diff.type is DiffType.ADDED


def test_a_periodic_job_tells_its_next_launches() -> None:
    state = AState()
    state.now_ns = 1_767_225_600_000_000_000  # New Year of 2026

    planned = plan(state, a_periodic_job("nightly"), max_launches=2)

    assert planned.next_launches == (
        datetime.datetime(2026, 1, 1, 3, tzinfo=datetime.UTC),
        datetime.datetime(2026, 1, 2, 3, tzinfo=datetime.UTC),
    )


def test_a_disabled_periodic_job_tells_no_launch() -> None:
    job = a_periodic_job("nightly")
    assert job.periodic is not None

    planned = plan(AState(), replace(job, periodic=replace(job.periodic, enabled=False)))

    assert planned.next_launches == ()


def test_a_plan_is_refused_with_the_words_of_a_registration() -> None:
    state = AState()
    wrong = a_job(priority=200)
    with pytest.raises(Refusal) as registered:
        state.register(wrong)

    with pytest.raises(Refusal) as planned:
        plan(state, wrong)

    assert (planned.value.code, planned.value.text) == (registered.value.code, registered.value.text)


def test_a_change_of_type_is_not_found_by_a_plan() -> None:
    state = AState()
    state.register(a_job())

    assert plan(state, a_job(type="batch")).diff is not None
