"""The phases of an allocation in the timeline of its job."""

from typing import Any

from tests.builders import a_job
from tests.kit.state import an_allocation, an_evaluation
from wharf.cluster.operations.explanations.timelines import build_timeline_allocation
from wharf.contract.model.allocations.allocation import Allocation, AllocDeploymentStatus, ClientStatus
from wharf.contract.model.allocations.task_states import TaskEvent, TaskState, TaskStatus
from wharf.contract.model.times import SECOND, to_datetime

BEGIN = 1_000 * SECOND


def at(seconds: float) -> int:
    return BEGIN + int(seconds * SECOND)


def events(*pairs: tuple[str, float]) -> tuple[TaskEvent, ...]:
    return tuple(TaskEvent(type=name, time=at(seconds)) for name, seconds in pairs)


def a_placed(**fields: Any) -> Allocation:
    return an_allocation(a_job(), create_time=at(10), modify_time=at(60), **fields)


def list_phases(allocation: Allocation, **fields: Any) -> list[tuple[str, float]]:
    bar = build_timeline_allocation(allocation, **{"evaluation": None, **fields})
    return [(str(phase.name), (phase.start - BEGIN) / SECOND) for phase in bar.phases]


def test_an_allocation_that_became_healthy_has_all_phases() -> None:
    pull = TaskEvent(type="Driver", time=at(13), details={"driver_message": "Downloading image docker.io/a"})
    state = TaskState(
        state=TaskStatus.RUNNING,
        started_at=to_datetime(at(20)),
        events=(*events(("Received", 11), ("Task Setup", 12)), pull, *events(("Started", 20))),
    )
    allocation = a_placed(
        client_status=ClientStatus.RUNNING,
        task_states={"t": state},
        deployment_id="d1",
        deployment_status=AllocDeploymentStatus(healthy=True, timestamp=to_datetime(at(30))),
    )

    assert list_phases(allocation, evaluation=an_evaluation(a_job(), create_time=at(3))) == [
        ("waiting", 3), ("placed", 10), ("preparing", 11), ("pulling", 13), ("starting", 20), ("healthy", 30),
    ]  # fmt: skip


def test_without_a_rollout_a_started_allocation_runs() -> None:
    state = TaskState(state=TaskStatus.RUNNING, started_at=to_datetime(at(12)))

    assert list_phases(a_placed(client_status=ClientStatus.RUNNING, task_states={"t": state})) == [
        ("placed", 10), ("running", 12),
    ]  # fmt: skip


def test_events_of_a_restart_are_no_second_preparation() -> None:
    state = TaskState(state=TaskStatus.RUNNING, started_at=to_datetime(at(12)), events=events(("Task Setup", 40)))

    assert ("preparing", 40) not in list_phases(a_placed(client_status=ClientStatus.RUNNING, task_states={"t": state}))


def test_a_phase_never_begins_before_the_previous_one_although_clocks_differ() -> None:
    state = TaskState(state=TaskStatus.RUNNING, started_at=to_datetime(at(8)), events=events(("Received", 7)))

    assert list_phases(a_placed(client_status=ClientStatus.RUNNING, task_states={"t": state})) == [
        ("placed", 10), ("preparing", 10), ("running", 10),
    ]  # fmt: skip


def test_an_allocation_ends_with_its_last_task_or_with_its_node() -> None:
    ended = TaskState(
        state=TaskStatus.DEAD, started_at=to_datetime(at(11)), finished_at=to_datetime(at(50)), restarts=2
    )

    failed = build_timeline_allocation(a_placed(client_status=ClientStatus.FAILED, task_states={"t": ended}), None)
    lost = build_timeline_allocation(a_placed(client_status=ClientStatus.LOST), None)

    assert ((failed.ended - BEGIN) // SECOND, failed.restarts, (lost.ended - BEGIN) // SECOND) == (50, 2, 60)
