"""Whether an allocation is healthy, for a deployment or the drain of another node."""

import pytest

from tests.node.core.allocations import SUCCESS, AllocationHarness, failed, make_batch_task, make_spec, make_task
from wharf.node.core import events
from wharf.node.core.allocation import find_next_deadline_s
from wharf.node.core.allocation_spec import AllocationSpec, HealthSpec

HEALTH = HealthSpec(min_healthy_s=10.0, deadline_s=60.0)
WITH_CHECKS = HealthSpec(min_healthy_s=10.0, deadline_s=60.0, should_wait_for_checks=True)


@pytest.mark.parametrize("health", [None, HEALTH])
def test_the_health_is_watched_only_if_something_waits_for_it(health: HealthSpec | None) -> None:
    harness = AllocationHarness(make_spec(health=health))
    assert (harness.record.health_watch_since_s is not None) is (health is not None)
    harness.pass_time(1_000)
    assert harness.record.is_healthy is (None if health is None else True)


def test_without_health_rules_a_failed_allocation_has_no_health() -> None:
    harness = AllocationHarness(make_spec())
    harness.end("web", failed())
    assert harness.record.is_healthy is None


def test_the_health_of_a_record_from_before_the_watch_stays_undecided() -> None:
    harness = AllocationHarness(make_spec(), starts=False)
    # The job changed: the rules that are derived from it now wait for the health, but no watch has begun.
    harness.spec = make_spec(health=HEALTH)
    harness.end("web", failed())
    assert (harness.record.is_healthy, find_next_deadline_s(harness.record, harness.spec)) == (None, None)


def test_an_unhealthy_allocation_stays_unhealthy() -> None:
    harness = AllocationHarness(make_spec(health=HEALTH), starts=False)
    harness.pass_time(60)
    harness.apply(events.TaskStarted("web", 1))
    harness.pass_time(60)
    assert harness.record.is_healthy is False


def test_a_stop_leaves_the_health_undecided() -> None:
    harness = AllocationHarness(make_spec(health=HEALTH))
    harness.stop()
    harness.end("web", failed())
    harness.pass_time(100)
    assert harness.record.is_healthy is None


def test_an_allocation_is_unhealthy_exactly_at_its_deadline() -> None:
    harness = AllocationHarness(make_spec(health=HEALTH), starts=False)
    harness.pass_time(59.9)
    assert harness.record.is_healthy is None
    harness.pass_time(0.1)
    assert harness.record.is_healthy is False


def test_an_allocation_healthy_at_its_deadline_is_healthy() -> None:
    harness = AllocationHarness(make_spec(health=HEALTH), starts=False)
    harness.pass_time(50)
    harness.apply(events.TaskStarted("web", 1))
    harness.pass_time(10)
    assert harness.record.is_healthy is True


def test_the_end_of_a_main_task_makes_the_allocation_unhealthy_even_with_success() -> None:
    harness = AllocationHarness(make_spec(make_batch_task(), make_task(), health=HEALTH))
    harness.end("work", SUCCESS)
    assert harness.record.is_healthy is False


def build_spec_with_hooks(hook: str) -> AllocationSpec:
    return make_spec(make_batch_task("hook", hook=hook), make_task(), health=HEALTH)


def test_a_prestart_task_that_has_ended_does_not_count() -> None:
    harness = AllocationHarness(build_spec_with_hooks("prestart"))
    harness.end("hook")
    harness.pass_time(10)
    assert harness.record.is_healthy is True


def test_a_poststop_task_does_not_count() -> None:
    harness = AllocationHarness(build_spec_with_hooks("poststop"))
    harness.pass_time(10)
    assert harness.record.is_healthy is True


def test_a_poststart_task_that_runs_must_run_for_the_time_too() -> None:
    harness = AllocationHarness(build_spec_with_hooks("poststart"), starts=False)
    harness.apply(events.TaskStarted("web", 1))
    harness.pass_time(5)
    harness.apply(events.TaskStarted("hook", 1))
    harness.pass_time(9.9)
    assert harness.record.is_healthy is None
    harness.pass_time(0.1)
    assert harness.record.is_healthy is True


def test_at_the_deadline_only_tasks_that_neither_run_nor_have_ended_get_the_event() -> None:
    tasks = make_batch_task("ended", hook="prestart"), make_task("a"), make_task("b")
    harness = AllocationHarness(make_spec(*tasks, health=HEALTH), starts=False)
    harness.apply(events.TaskStarted("ended", 1))
    harness.end("ended")
    harness.apply(events.TaskStarted("a", 1))
    harness.pass_time(60)
    assert [name for name in ("ended", "a", "b") if "Alloc Unhealthy" in harness.event_types(name)] == ["b"]
    assert harness.task("b").events[-1].message == "Task not running by healthy_deadline"


@pytest.mark.parametrize(
    ("health", "required_checks", "is_healthy"),
    [(WITH_CHECKS, ("c",), None), (WITH_CHECKS, (), True), (HEALTH, ("c",), True)],
)
def test_checks_count_only_if_the_policy_asks_for_them_and_there_are_some(
    health: HealthSpec, required_checks: tuple[str, ...], is_healthy: bool | None
) -> None:
    harness = AllocationHarness(make_spec(health=health, required_checks=required_checks))
    harness.pass_time(10)
    assert harness.record.is_healthy is is_healthy


def test_min_healthy_time_begins_with_the_later_of_the_start_and_the_checks() -> None:
    harness = AllocationHarness(make_spec(health=WITH_CHECKS, required_checks=("c",)), starts=False)
    harness.apply(events.ChecksChanged(True))
    harness.pass_time(7)
    harness.apply(events.TaskStarted("web", 1))
    harness.apply(events.ChecksChanged(True))  # They pass still: the time since they pass stays.
    harness.pass_time(9.9)
    assert harness.record.is_healthy is None
    harness.pass_time(0.1)
    assert harness.record.is_healthy is True


@pytest.mark.parametrize(
    ("pass_s", "is_stopped", "deadline_s"),
    # The harness begins at 100 s: healthy at 110 s, and then nothing is left to decide.
    [(0, False, 110.0), (0, True, None), (10, False, None)],
)
def test_the_next_deadline_is_the_time_at_which_the_health_can_change(
    pass_s: float, is_stopped: bool, deadline_s: float | None
) -> None:
    harness = AllocationHarness(make_spec(make_task(kill_timeout_s=0.0), health=HEALTH))
    harness.pass_time(pass_s)
    if is_stopped:
        harness.stop()
        harness.end("web")
    assert find_next_deadline_s(harness.record, harness.spec) == deadline_s


def test_without_a_start_the_next_deadline_is_the_healthy_deadline() -> None:
    harness = AllocationHarness(make_spec(health=HEALTH), starts=False)
    assert find_next_deadline_s(harness.record, harness.spec) == 160.0
