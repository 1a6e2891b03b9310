"""Which deployments are checked: those that changed, and those with a deadline that passed."""

from collections.abc import Iterable

from msgspec.structs import replace

from tests.kit.state import SECOND_NS
from wharf.cluster.controllers.deployment_tracker import MIN_COMPACTED_ENTRIES, DeploymentTracker
from wharf.contract.model.deployments import Deployment, DeploymentGroup, DeploymentStatus
from wharf.contract.model.times import to_datetime


def make_deployment(deployment_id: str, *, deadline_s: int | None = None) -> Deployment:
    deadline = None if deadline_s is None else to_datetime(deadline_s * SECOND_NS)
    group = DeploymentGroup(desired_total=1, require_progress_by=deadline)
    return Deployment(id=deployment_id, status=DeploymentStatus.RUNNING, task_groups={"web": group})


def make_tracker(deployments: Iterable[Deployment]) -> DeploymentTracker:
    """Return a tracker of these deployments, all of which were checked at the time 0."""
    tracker = DeploymentTracker()
    tracker.reset(deployments)
    tracker.take_due(0)
    return tracker


def test_after_a_reset_every_active_deployment_is_checked_once() -> None:
    tracker = DeploymentTracker()
    ended = replace(make_deployment("c"), status=DeploymentStatus.SUCCESSFUL)
    tracker.reset([make_deployment("a"), make_deployment("b", deadline_s=60), ended])

    assert (tracker.take_due(0), tracker.take_due(0)) == (["a", "b"], [])


def test_only_a_changed_deployment_is_checked() -> None:
    tracker = make_tracker([make_deployment("a"), make_deployment("b")])

    tracker.update("b", make_deployment("b"))

    assert (tracker.take_due(0), tracker.take_due(0)) == (["b"], [])


def test_a_deployment_is_checked_from_its_deadline_on_until_the_deadline_moves() -> None:
    tracker = make_tracker([make_deployment("a", deadline_s=60), make_deployment("b", deadline_s=70)])
    at_s = [tracker.take_due(second * SECOND_NS) for second in (59, 60, 61)]

    tracker.update("a", make_deployment("a", deadline_s=100))

    assert at_s == [[], ["a"], ["a"]]
    assert [tracker.take_due(second * SECOND_NS) for second in (62, 63, 100)] == [["a"], [], ["b", "a"]]


def test_a_deployment_that_ended_or_was_deleted_is_not_checked() -> None:
    tracker = make_tracker([make_deployment(name, deadline_s=60) for name in ("a", "b", "c")])
    tracker.take_due(60 * SECOND_NS)

    tracker.update("a", replace(make_deployment("a", deadline_s=60), status=DeploymentStatus.FAILED))
    tracker.update("b", None)

    assert tracker.take_due(61 * SECOND_NS) == ["c"]


def test_the_next_deadline_is_the_earliest_of_active_deployments() -> None:
    tracker = make_tracker([make_deployment("a", deadline_s=60), make_deployment("b", deadline_s=70)])
    deadlines = [tracker.next_deadline_ns()]

    tracker.update("a", make_deployment("a"))
    deadlines.append(tracker.next_deadline_ns())
    tracker.update("b", None)

    assert [*deadlines, tracker.next_deadline_ns()] == [60 * SECOND_NS, 70 * SECOND_NS, None]


def test_a_deadline_that_passed_remains_the_next_one() -> None:
    tracker = make_tracker([make_deployment("a", deadline_s=60), make_deployment("b", deadline_s=70)])
    tracker.take_due(65 * SECOND_NS)

    assert tracker.next_deadline_ns() == 60 * SECOND_NS


def test_after_the_clock_is_set_back_a_deadline_is_in_the_future_again() -> None:
    tracker = make_tracker([make_deployment("a", deadline_s=60)])
    tracker.take_due(61 * SECOND_NS)

    assert [tracker.take_due(second * SECOND_NS) for second in (50, 60)] == [[], ["a"]]


def test_deadlines_that_move_often_do_not_accumulate() -> None:
    tracker = make_tracker([make_deployment("a", deadline_s=60), make_deployment("b", deadline_s=61)])

    for second in range(10 * MIN_COMPACTED_ENTRIES):
        tracker.update("a", make_deployment("a", deadline_s=100 + second))
    tracker.take_due(0)

    assert len(tracker._heap) <= MIN_COMPACTED_ENTRIES
    assert tracker.next_deadline_ns() == 61 * SECOND_NS


def test_the_next_deadline_is_the_earliest_however_often_deadlines_move() -> None:
    count = MIN_COMPACTED_ENTRIES
    deadlines = {f"d{number}": 10_000 - number for number in range(count)}
    tracker = make_tracker([make_deployment(each, deadline_s=deadline_s) for each, deadline_s in deadlines.items()])

    for _ in range(3):
        for each in list(deadlines)[:-1]:
            deadlines[each] += count
            tracker.update(each, make_deployment(each, deadline_s=deadlines[each]))
            tracker.take_due(0)
            assert tracker.next_deadline_ns() == min(deadlines.values()) * SECOND_NS
