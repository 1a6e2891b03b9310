"""Explanations of single evaluations and allocations (issue: explain, for any job, evaluation or allocation)."""

import datetime

import pytest
from msgspec.structs import replace

from tests.builders import a_job
from tests.cluster.operations.test_explaining import a_fleet, process, sized
from tests.kit.state import AState, an_allocation, an_evaluation
from wharf.cluster.operations.explanations.allocations import explain_allocation
from wharf.cluster.operations.explanations.evaluations import explain_evaluation
from wharf.cluster.scheduling.cache import SchedulerCache
from wharf.cluster.state.tables import ALLOCATIONS, EVALUATIONS, NODES, SCHEDULER_CONFIGURATION
from wharf.contract.model.allocations.allocation import ClientStatus, DesiredStatus, RescheduleEvent, RescheduleTracker
from wharf.contract.model.allocations.metrics import AllocMetric, NodeScore
from wharf.contract.model.allocations.task_states import TaskEvent, TaskState, TaskStatus
from wharf.contract.model.evaluations import EvaluationStatus, EvaluationTrigger
from wharf.contract.model.explanations import AllocationExplanation, EvaluationExplanation, WaitReason
from wharf.contract.model.nodes.node import DrainStrategy, NodeStatus, set_drain_strategy
from wharf.contract.model.operator.scheduler_configuration import SchedulerConfiguration
from wharf.contract.model.refusal import Refusal

LATER = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC)


def of_evaluation(state: AState, eval_id: str) -> EvaluationExplanation:
    return explain_evaluation(state.replica, eval_id, lambda: SchedulerCache.from_snapshot(state.replica))


def of_allocation(state: AState, **fields: object) -> AllocationExplanation:
    """Of an allocation of the job `shop`, put on node-1 as the fields say."""
    fields = {"node_id": "node-1", "node_name": "node-1", "name": "shop.web[0]", **fields}
    state.put(ALLOCATIONS.build_put(an_allocation(a_job(), **fields)))  # type: ignore[arg-type]  # Fields of the test's choice.
    return explain_allocation(state.replica, "a1")


# -- evaluations


def test_an_evaluation_that_waits_in_the_queue_tells_its_place() -> None:
    state = a_fleet(1_000)
    state.register(a_job())
    (evaluation,) = state.evaluations()

    told = of_evaluation(state, evaluation.id)

    assert told.text == (
        "shop is evaluated because the job was registered: it waits for its evaluation (job-register): 1 of 1 in the queue"
    )
    assert [WaitReason.QUEUE] == [each.waits_for for each in told.waits]


def test_an_evaluation_that_placed_everything_says_how_many() -> None:
    state = a_fleet(1_000)
    state.register(sized(count=3))
    process(state)
    (evaluation,) = state.evaluations()

    told = of_evaluation(state, evaluation.id)

    assert told.text == ("shop was evaluated because the job was registered: it placed or last changed 3 allocations")
    assert (3, ()) == (told.placed, told.waits)


def test_what_found_no_room_is_told_as_it_was_then_and_leads_to_the_evaluation_that_waits() -> None:
    state = a_fleet(1_000, 1_000)
    state.register(sized(memory_mb=800, count=5))
    process(state)
    looked, blocked = sorted(state.evaluations(), key=lambda each: each.status is EvaluationStatus.BLOCKED)

    told = of_evaluation(state, looked.id)

    assert told.text.endswith(
        "but could not place all: web lacked 3 allocations: none of 2 nodes could run one (2 had too little memory)"
    )
    assert (f"{blocked.id} (blocked): evaluated because not all allocations could be placed",) == told.after


def test_an_evaluation_that_waits_for_room_tells_what_would_place_it() -> None:
    state = a_fleet(1_000)
    state.register(sized(memory_mb=4_096))
    process(state)
    (blocked,) = [each for each in state.evaluations() if each.status is EvaluationStatus.BLOCKED]

    told = of_evaluation(state, blocked.id)

    assert [WaitReason.CAPACITY] == [each.waits_for for each in told.waits]
    assert "lower MemoryMB of web/server from 4096 to 1000, or free 3096 MB on node-1" in told.text


def test_while_another_evaluation_of_the_job_is_first_that_is_said() -> None:
    state = a_fleet(1_000)
    job = a_job()
    state.register(job)
    second = an_evaluation(job, "e2", status=EvaluationStatus.PENDING, triggered_by=EvaluationTrigger.NODE_UPDATE)
    state.put(EVALUATIONS.build_put(second))

    told = [of_evaluation(state, each.id).waits[0].text for each in state.evaluations()]

    assert "waits for another evaluation of the same job: a job's evaluations are processed one at a time" in told


def test_a_paused_scheduler_is_told_of_an_evaluation_too() -> None:
    state = a_fleet(1_000)
    state.register(a_job())
    state.put(SCHEDULER_CONFIGURATION.build_put(SchedulerConfiguration(pause_eval_broker=True)))

    told = of_evaluation(state, state.evaluations()[0].id)

    assert WaitReason.PAUSED_SCHEDULER is told.waits[0].waits_for


@pytest.mark.parametrize(
    ("status", "said", "text"),
    [
        (EvaluationStatus.FAILED, "it broke", "failed (it broke)"),
        (EvaluationStatus.CANCELED, "", "was canceled (another evaluation replaces it)"),
    ],
)
def test_an_evaluation_without_a_result_tells_why(status: EvaluationStatus, said: str, text: str) -> None:
    state = AState()
    state.put(EVALUATIONS.build_put(an_evaluation(a_job(), status=status, status_description=said)))

    assert of_evaluation(state, "e1").text.endswith(text)


def test_an_evaluation_of_a_job_that_is_gone_waits_for_nothing() -> None:
    state = AState()
    state.put(EVALUATIONS.build_put(an_evaluation(a_job(), status=EvaluationStatus.PENDING)))

    told = of_evaluation(state, "e1")

    assert (None, True) == (told.job, "its job no longer exists" in told.text)


def test_what_nobody_knows_cannot_be_explained() -> None:
    state = AState()

    with pytest.raises(Refusal, match="eval not found"):
        of_evaluation(state, "e1")
    with pytest.raises(Refusal, match="alloc not found"):
        explain_allocation(state.replica, "a1")


def test_every_evaluation_that_is_not_over_waits_for_something() -> None:
    state = a_fleet(1_000, 1_000)
    for number in range(6):
        state.register(replace(sized(memory_mb=100 + 300 * number, count=2), id=f"job-{number}", name=f"job-{number}"))
    process(state, "job-1")
    process(state, "job-4")
    process(state, "job-5")

    for evaluation in state.replica.iter_all(EVALUATIONS):
        told = of_evaluation(state, evaluation.id)
        assert evaluation.status.is_terminal == (told.waits == ()), told.text


# -- allocations


def test_an_allocation_that_runs_tells_why_on_this_node() -> None:
    state = a_fleet(1_000, 1_000, 1_000)
    state.register(sized())
    process(state)
    (placed,) = state.replica.iter_all(ALLOCATIONS)
    state.with_client_status(placed.id, ClientStatus.RUNNING)

    told = explain_allocation(state.replica, placed.id)

    assert told.text == f"shop.web[0] runs on {placed.node_name}, the best of 3 nodes that could run it"
    assert told.placement.scores
    assert told.story[0].startswith("version 0 of shop; last evaluated because the job was registered")


def test_what_was_left_out_before_is_counted() -> None:
    metric = AllocMetric(nodes_evaluated=8, nodes_filtered=7, score_meta_data=(NodeScore(node_id="node-1"),))

    told = of_allocation(a_fleet(1_000), metrics=metric, client_status=ClientStatus.RUNNING)

    assert "shop.web[0] runs on node-1, the only node that could run it (8 were evaluated)" == told.text


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"client_status": ClientStatus.COMPLETE}, "completed on node-1"),
        (
            {"client_status": ClientStatus.COMPLETE, "desired_status": DesiredStatus.STOP, "desired_description": "alloc not needed"},
            "was stopped on node-1 (alloc not needed)",
        ),
        (
            {"client_status": ClientStatus.FAILED, "next_allocation": "a2"},
            "failed on node-1; its replacement a2 was not placed, or was garbage-collected",
        ),
        ({"client_status": ClientStatus.LOST}, "was lost on node-1; it was not replaced"),
        ({"client_status": ClientStatus.UNKNOWN}, "is on node-1, which is out of contact"),
        ({"client_status": ClientStatus.PENDING}, "is placed on node-1 and has not started yet"),
        (
            {"client_status": ClientStatus.RUNNING, "desired_status": DesiredStatus.EVICT},
            "is stopping, and node-1 has not ended it yet",
        ),
    ],
)  # fmt: skip
def test_the_sentence_of_an_allocation_says_how_it_stands(fields: dict[str, object], text: str) -> None:
    assert f"shop.web[0] {text}" in of_allocation(a_fleet(1_000), **fields).text


def test_who_took_the_place_of_an_allocation_is_told() -> None:
    state = a_fleet(1_000)
    state.put(ALLOCATIONS.build_put(an_allocation(a_job(), "a2", node_id="node-1")))

    told = of_allocation(state, client_status=ClientStatus.FAILED, next_allocation="a2")

    assert "shop.web[0] failed on node-1; a2 replaced it" == told.text


def test_what_ended_a_task_and_when_it_is_tried_again_is_told() -> None:
    state = a_fleet(1_000)
    ended = TaskState(
        state=TaskStatus.DEAD, failed=True, events=(TaskEvent(type="Terminated", time=1, details={"exit_code": "3"}),)
    )
    follow_up = an_evaluation(a_job(), "e2", status=EvaluationStatus.PENDING, wait_until=LATER)
    state.put(EVALUATIONS.build_put(follow_up))

    told = of_allocation(state, client_status=ClientStatus.FAILED, task_states={"server": ended}, followup_eval_id="e2")

    assert told.text == "shop.web[0] failed on node-1 (server: Exit Code: 3); it is rescheduled at 2026-01-01 12:00:00Z"


def test_a_node_that_is_drained_or_away_is_what_its_allocations_wait_for() -> None:
    state = a_fleet(1_000)
    drained = replace(set_drain_strategy(state.node(), DrainStrategy()), status=NodeStatus.DOWN)
    state.put(NODES.build_put(drained))

    told = of_allocation(state, client_status=ClientStatus.RUNNING)

    assert [WaitReason.NODE, WaitReason.DRAIN] == [each.waits_for for each in told.waits]


def test_the_story_tells_what_led_to_an_allocation() -> None:
    state = a_fleet(1_000)
    former = an_allocation(
        a_job(), "a0", node_id="node-1", node_name="node-1", client_status=ClientStatus.FAILED,
        desired_status=DesiredStatus.STOP, desired_description="alloc was rescheduled because it failed",
    )  # fmt: skip
    state.put(ALLOCATIONS.build_put(former))
    tracker = RescheduleTracker(events=(RescheduleEvent(prev_alloc_id="a0", prev_node_id="node-1"),))

    told = of_allocation(
        state, client_status=ClientStatus.RUNNING, previous_allocation="a0", reschedule_tracker=tracker,
        preempted_allocations=("a9",),
    )  # fmt: skip

    assert told.story == (
        "a0 failed on node node-1 and was rescheduled",
        "replaces a0 on node-1 (alloc was rescheduled because it failed)",
        "preempted a9 to get its resources",
    )
