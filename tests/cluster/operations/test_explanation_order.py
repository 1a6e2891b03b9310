"""Explanations do not depend on the order in which a server has indexed the allocations of a job."""

from msgspec.structs import replace

from tests.builders import a_group, a_job
from tests.kit.state import AState, an_allocation
from wharf.cluster.operations.explanations.jobs import MAX_PLACEMENTS, explain_job
from wharf.cluster.state.tables import ALLOCATIONS, JOBS
from wharf.contract.model.allocations.allocation import Allocation, ClientStatus, DesiredStatus
from wharf.contract.model.allocations.task_states import TaskEvent, TaskEventType, TaskState, TaskStatus
from wharf.contract.model.explanations import JobExplanation
from wharf.contract.model.log import WRITE_INDEX

STATUSES = (ClientStatus.RUNNING, ClientStatus.PENDING, ClientStatus.FAILED, ClientStatus.COMPLETE, ClientStatus.LOST)
STATES = tuple(
    {
        "t": TaskState(
            state=TaskStatus.PENDING,
            failed=True,
            events=(TaskEvent(type=TaskEventType.DRIVER_FAILURE, details={"driver_error": text}),),
        )
    }
    for text in ("no image", "no command", "no memory")
)


def build_allocations(count: int) -> list[Allocation]:
    """Return allocations in all states, several with the same name."""
    job = a_job("shop", a_group("web", count=count))
    return [
        replace(
            an_allocation(job, f"a{number:03}"),
            name=f"shop.web[{number % 70}]",
            node_id=f"node-{number % 9}",
            client_status=STATUSES[number % len(STATUSES)],
            desired_status=DesiredStatus.STOP if number % 11 == 0 else DesiredStatus.RUN,
            task_states=STATES[number % len(STATES)] if number % 2 else None,
        )
        for number in range(count)
    ]


def explain(allocations: list[Allocation]) -> JobExplanation:
    state = AState()
    state.with_node("node-1")
    state.put(JOBS.build_put(replace(a_job("shop", a_group("web", count=200)), create_index=WRITE_INDEX)))
    job = state.job()
    state.put(*(ALLOCATIONS.build_put(replace(each, job_create_index=job.create_index)) for each in allocations))
    return explain_job(state.replica, job.namespace, job.id)


def test_the_order_of_allocations_in_an_index_changes_no_explanation() -> None:
    allocations = build_allocations(200)

    explained = explain(allocations)

    assert explain(allocations[::-1]) == explained
    assert len(explained.placements) == MAX_PLACEMENTS
    assert explained.failures
