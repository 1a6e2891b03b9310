"""Dry runs: what a job would change, without changing anything (jobs.md 5)."""

import datetime
from typing import Any

import pytest
from msgspec.structs import replace

from tests.builders import a_group, a_job, a_parameterized_job, a_periodic_job, a_task, some_resources
from tests.kit.state import SETTINGS, AState
from wharf.cluster.operations.jobs.plan import DryRun, dry_run_job
from wharf.contract.model.allocations.allocation import DesiredStatus
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.jobs.plan import DesiredUpdates, DiffType
from wharf.contract.model.refusal import Refusal


def plan_job(state: AState, job: Job, *, with_diff: bool = True, **options: Any) -> DryRun:
    """Return the plan of the job, and check that nothing changed."""
    index = state.replica.index
    planned = dry_run_job(
        state.replica, job, state.moment, SETTINGS, should_include_diff=with_diff, **{"max_launches": 1} | options
    )
    assert state.replica.index == index
    return planned


def get_updates(planned: DryRun) -> dict[str, DesiredUpdates]:
    assert planned.annotations is not None
    return planned.annotations.desired_tg_updates or {}


def test_the_plan_of_a_new_job_lists_all_its_placements() -> None:
    state = AState()
    state.with_node()

    planned = plan_job(state, a_job("shop", a_group(count=3)))

    assert (planned.job_modify_index, planned.failed_groups, planned.created_evaluations) == (0, None, None)
    assert get_updates(planned) == {"web": DesiredUpdates(place=3)}
    assert planned.diff is not None
    assert planned.diff.type is DiffType.ADDED
    (group,) = planned.diff.task_groups or ()
    assert (group.type, group.updates) == (DiffType.ADDED, {"create": 3})


def test_a_plan_without_diff_returns_no_difference() -> None:
    assert plan_job(AState(), a_job(), with_diff=False).diff is None


def test_the_plan_of_an_unchanged_job_has_no_changes_and_lists_its_groups() -> None:
    state = AState()
    state.with_node()
    result = state.register(a_job())
    state.with_allocation(state.job())

    planned = plan_job(state, a_job())

    assert planned.job_modify_index == result.job_modify_index
    assert planned.diff is not None
    assert planned.diff.type is DiffType.NONE
    (group,) = planned.diff.task_groups or ()
    assert (group.type, group.updates) == (DiffType.NONE, {"ignore": 1})
    (task,) = group.tasks or ()
    assert (task.type, task.fields, task.objects) == (DiffType.NONE, None, None)


def test_a_higher_count_forces_creations_and_a_lower_count_forces_stops() -> None:
    state = AState()
    state.with_node()
    state.register(a_job("shop", a_group(count=2)))
    for number in range(2):
        state.with_allocation(state.job(), f"a{number}", name=f"shop.web[{number}]")

    more, fewer = plan_job(state, a_job("shop", a_group(count=3))), plan_job(state, a_job("shop", a_group(count=1)))

    assert [get_updates(planned)["web"].place for planned in (more, fewer)] == [1, 0]
    assert [get_updates(planned)["web"].stop for planned in (more, fewer)] == [0, 1]
    assert more.diff is not None
    (group,) = more.diff.task_groups or ()
    (count,) = group.fields or ()
    assert (count.name, count.old, count.new, count.annotations) == ("Count", "2", "3", ("forces create",))


def test_a_removed_group_is_listed_with_its_stopped_allocations() -> None:
    state = AState()
    state.with_node()
    state.register(a_job("shop", a_group("web"), a_group("db")))
    state.with_allocation(state.job(), task_group="db", name="shop.db[0]")

    planned = plan_job(state, a_job("shop", a_group("web")))

    assert get_updates(planned) == {"web": DesiredUpdates(place=1), "db": DesiredUpdates(stop=1)}


def test_unplaced_allocations_are_reported_with_the_blocked_evaluation() -> None:
    state = AState()
    state.with_node()

    planned = plan_job(state, a_job("shop", a_group(count=30)))

    assert planned.failed_groups is not None
    assert planned.failed_groups["web"].nodes_evaluated == 1
    assert get_updates(planned) == {"web": DesiredUpdates(place=30)}
    (waiting,) = planned.created_evaluations or ()
    assert (waiting.status, waiting.triggered_by, waiting.create_index) == ("blocked", "queued-allocs", 0)


def test_the_plan_of_a_stopped_job_stops_its_allocations() -> None:
    state = AState()
    state.with_node()
    state.register(a_job())
    state.with_allocation(state.job())

    planned = plan_job(state, a_job(stop=True))

    assert get_updates(planned) == {"web": DesiredUpdates(stop=1)}
    assert state.allocation("a1").desired_status is DesiredStatus.RUN


def test_a_changed_task_is_reported_with_the_updates_that_it_forces() -> None:
    state = AState()
    state.register(a_job())

    planned = plan_job(state, a_job("shop", a_group("web", a_task(driver="docker", config={"image": "x"}))))

    assert planned.diff is not None
    (group,) = planned.diff.task_groups or ()
    (task,) = group.tasks or ()
    assert (task.type, task.annotations) == (DiffType.EDITED, ("forces create/destroy update",))


@pytest.mark.parametrize("job", [a_periodic_job("x"), a_parameterized_job("x")])
def test_the_plan_of_a_periodic_or_parameterized_job_has_no_placements(job: Job) -> None:
    planned = plan_job(AState(), job)

    assert (planned.annotations, planned.failed_groups) == (None, None)
    assert planned.diff is not None
    assert planned.diff.type is DiffType.ADDED


def test_the_plan_of_a_periodic_job_lists_its_next_launches() -> None:
    state = AState()
    state.now_ns = 1_767_225_600_000_000_000  # New Year of 2026

    planned = plan_job(state, a_periodic_job("nightly"), max_launches=2)

    assert planned.next_launches == (
        datetime.datetime(2026, 1, 1, 3, tzinfo=datetime.UTC),
        datetime.datetime(2026, 1, 2, 3, tzinfo=datetime.UTC),
    )


def test_the_plan_of_a_disabled_periodic_job_lists_no_launch() -> None:
    job = a_periodic_job("nightly")
    assert job.periodic is not None

    planned = plan_job(AState(), replace(job, periodic=replace(job.periodic, enabled=False)))

    assert planned.next_launches == ()


def test_a_plan_is_refused_with_the_same_text_as_a_registration() -> None:
    state = AState()
    invalid = a_job(priority=200)
    with pytest.raises(Refusal) as registered:
        state.register(invalid)

    with pytest.raises(Refusal) as planned:
        plan_job(state, invalid)

    assert (planned.value.code, planned.value.text) == (registered.value.code, registered.value.text)


def test_a_plan_does_not_refuse_a_changed_job_type() -> None:
    state = AState()
    state.register(a_job())

    assert plan_job(state, a_job(type="batch")).diff is not None


def test_each_group_that_a_plan_cannot_place_is_explained_with_the_number_of_missing_allocations() -> None:
    state = AState()
    state.with_node()
    large = a_task(resources=some_resources(memory_mb=10**6))
    groups = (a_group("a", large, count=3), a_group("small", count=2), a_group("z", large))

    explanations = plan_job(state, a_job("shop", *groups)).explanations or {}

    assert {name: (each.wanted, each.unplaced) for name, each in explanations.items()} == {"a": (3, 3), "z": (1, 1)}
