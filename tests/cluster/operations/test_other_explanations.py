"""Explanations of single evaluations and allocations (issue: explain, for any job, evaluation or allocation)."""

import datetime

import pytest
from msgspec.structs import replace

from tests.builders import a_job
from tests.cluster.operations.test_job_explanations import make_fleet, make_sized_job, process_evaluations
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


def explain_pending(state: AState, eval_id: str) -> EvaluationExplanation:
    return explain_evaluation(state.replica, eval_id, lambda: SchedulerCache.from_snapshot(state.replica))


def explain_placed_allocation(state: AState, **fields: object) -> AllocationExplanation:
    """Store an allocation of job `shop` on node-1 with these fields and return its explanation."""
    fields = {"node_id": "node-1", "node_name": "node-1", "name": "shop.web[0]", **fields}
    state.put(ALLOCATIONS.build_put(an_allocation(a_job(), **fields)))  # type: ignore[arg-type]  # Fields of the test's choice.
    return explain_allocation(state.replica, "a1")


# -- evaluations


def test_a_pending_evaluation_is_explained_with_its_queue_position() -> None:
    state = make_fleet(1_000)
    state.register(a_job())
    (evaluation,) = state.evaluations()

    result = explain_pending(state, evaluation.id)

    assert result.text == (
        "shop is evaluated because the job was registered: it waits for its evaluation (job-register): 1 of 1 in the queue"
    )
    assert [WaitReason.QUEUE] == [each.waits_for for each in result.waits]


def test_a_complete_evaluation_is_explained_with_the_number_of_placements() -> None:
    state = make_fleet(1_000)
    state.register(make_sized_job(count=3))
    process_evaluations(state)
    (evaluation,) = state.evaluations()

    result = explain_pending(state, evaluation.id)

    assert result.text == ("shop was evaluated because the job was registered: it placed or last changed 3 allocations")
    assert (3, ()) == (result.placed, result.waits)


def test_an_unplaced_group_is_explained_with_the_metrics_of_its_evaluation_and_the_blocked_one() -> None:
    state = make_fleet(1_000, 1_000)
    state.register(make_sized_job(memory_mb=800, count=5))
    process_evaluations(state)
    checked, blocked = sorted(state.evaluations(), key=lambda each: each.status is EvaluationStatus.BLOCKED)

    result = explain_pending(state, checked.id)

    assert result.text.endswith(
        "but could not place all: web lacked 3 allocations: none of 2 nodes could run one (2 had too little memory)"
    )
    assert (f"{blocked.id} (blocked): evaluated because not all allocations could be placed",) == result.after


def test_a_blocked_evaluation_is_explained_with_a_remedy() -> None:
    state = make_fleet(1_000)
    state.register(make_sized_job(memory_mb=4_096))
    process_evaluations(state)
    (blocked,) = [each for each in state.evaluations() if each.status is EvaluationStatus.BLOCKED]

    result = explain_pending(state, blocked.id)

    assert [WaitReason.CAPACITY] == [each.waits_for for each in result.waits]
    assert (
        "lower MemoryMB of web/server from 4096 to 1000, or add a node with at least 4096 MB of memory" in result.text
    )


def test_an_evaluation_behind_another_of_its_job_is_explained_as_such() -> None:
    state = make_fleet(1_000)
    job = a_job()
    state.register(job)
    second = an_evaluation(job, "e2", status=EvaluationStatus.PENDING, triggered_by=EvaluationTrigger.NODE_UPDATE)
    state.put(EVALUATIONS.build_put(second))

    result = [explain_pending(state, each.id).waits[0].text for each in state.evaluations()]

    assert "waits for another evaluation of the same job: a job's evaluations are processed one at a time" in result


def test_a_paused_scheduler_is_the_reason_for_an_evaluation_too() -> None:
    state = make_fleet(1_000)
    state.register(a_job())
    state.put(SCHEDULER_CONFIGURATION.build_put(SchedulerConfiguration(pause_eval_broker=True)))

    result = explain_pending(state, state.evaluations()[0].id)

    assert WaitReason.PAUSED_SCHEDULER is result.waits[0].waits_for


@pytest.mark.parametrize(
    ("status", "description", "text"),
    [
        (EvaluationStatus.FAILED, "it broke", "failed (it broke)"),
        (EvaluationStatus.CANCELED, "", "was canceled (another evaluation replaces it)"),
    ],
)
def test_an_evaluation_without_a_result_is_explained_with_the_reason(
    status: EvaluationStatus, description: str, text: str
) -> None:
    state = AState()
    state.put(EVALUATIONS.build_put(an_evaluation(a_job(), status=status, status_description=description)))

    assert explain_pending(state, "e1").text.endswith(text)


def test_an_evaluation_of_a_deleted_job_waits_for_nothing() -> None:
    state = AState()
    state.put(EVALUATIONS.build_put(an_evaluation(a_job(), status=EvaluationStatus.PENDING)))

    result = explain_pending(state, "e1")

    assert (None, True) == (result.job, "its job no longer exists" in result.text)


def test_unknown_records_cannot_be_explained() -> None:
    state = AState()

    with pytest.raises(Refusal, match="eval not found"):
        explain_pending(state, "e1")
    with pytest.raises(Refusal, match="alloc not found"):
        explain_allocation(state.replica, "a1")


def test_every_open_evaluation_waits_for_something() -> None:
    state = make_fleet(1_000, 1_000)
    for number in range(6):
        state.register(
            replace(make_sized_job(memory_mb=100 + 300 * number, count=2), id=f"job-{number}", name=f"job-{number}")
        )
    process_evaluations(state, "job-1")
    process_evaluations(state, "job-4")
    process_evaluations(state, "job-5")

    for evaluation in state.replica.iter_all(EVALUATIONS):
        result = explain_pending(state, evaluation.id)
        assert evaluation.status.is_terminal == (result.waits == ()), result.text


# -- allocations


def test_a_running_allocation_is_explained_with_the_choice_of_its_node() -> None:
    state = make_fleet(1_000, 1_000, 1_000)
    state.register(make_sized_job())
    process_evaluations(state)
    (placed,) = state.replica.iter_all(ALLOCATIONS)
    state.with_client_status(placed.id, ClientStatus.RUNNING)

    result = explain_allocation(state.replica, placed.id)

    assert result.text == f"shop.web[0] runs on {placed.node_name}, the best of 3 nodes that could run it"
    assert result.placement.scores
    assert result.story[0].startswith("version 0 of shop; last evaluated because the job was registered")


def test_filtered_nodes_are_counted() -> None:
    metric = AllocMetric(nodes_evaluated=8, nodes_filtered=7, score_meta_data=(NodeScore(node_id="node-1"),))

    result = explain_placed_allocation(make_fleet(1_000), metrics=metric, client_status=ClientStatus.RUNNING)

    assert "shop.web[0] runs on node-1, the only node that could run it (8 were evaluated)" == result.text


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
        ({"client_status": ClientStatus.LOST}, "was lost on node-1 (its node is down); it was not replaced"),
        ({"client_status": ClientStatus.UNKNOWN}, "is on node-1, which is out of contact"),
        ({"client_status": ClientStatus.PENDING}, "is placed on node-1 and has not started yet"),
        (
            {"client_status": ClientStatus.RUNNING, "desired_status": DesiredStatus.EVICT},
            "is stopping, and node-1 has not ended it yet",
        ),
    ],
)  # fmt: skip
def test_the_summary_of_an_allocation_describes_its_state(fields: dict[str, object], text: str) -> None:
    assert f"shop.web[0] {text}" in explain_placed_allocation(make_fleet(1_000), **fields).text


def test_the_replacement_of_an_allocation_is_named() -> None:
    state = make_fleet(1_000)
    state.put(ALLOCATIONS.build_put(an_allocation(a_job(), "a2", node_id="node-1")))

    result = explain_placed_allocation(state, client_status=ClientStatus.FAILED, next_allocation="a2")

    assert "shop.web[0] failed on node-1; a2 replaced it" == result.text


def test_the_end_of_a_task_is_explained_with_its_reason_and_retry_time() -> None:
    state = make_fleet(1_000)
    ended = TaskState(
        state=TaskStatus.DEAD, failed=True, events=(TaskEvent(type="Terminated", time=1, details={"exit_code": "3"}),)
    )
    follow_up = an_evaluation(a_job(), "e2", status=EvaluationStatus.PENDING, wait_until=LATER)
    state.put(EVALUATIONS.build_put(follow_up))

    result = explain_placed_allocation(
        state, client_status=ClientStatus.FAILED, task_states={"server": ended}, followup_eval_id="e2"
    )

    assert (
        result.text == "shop.web[0] failed on node-1 (server: Exit Code: 3); it is rescheduled at 2026-01-01 12:00:00Z"
    )


def test_allocations_on_a_drained_or_disconnected_node_wait_for_the_node() -> None:
    state = make_fleet(1_000)
    drained = replace(set_drain_strategy(state.node(), DrainStrategy()), status=NodeStatus.DOWN)
    state.put(NODES.build_put(drained))

    result = explain_placed_allocation(state, client_status=ClientStatus.RUNNING)

    assert [WaitReason.NODE, WaitReason.DRAIN] == [each.waits_for for each in result.waits]


def test_the_history_lists_what_led_to_an_allocation() -> None:
    state = make_fleet(1_000)
    former = an_allocation(
        a_job(), "a0", node_id="node-1", node_name="node-1", client_status=ClientStatus.FAILED,
        desired_status=DesiredStatus.STOP, desired_description="alloc was rescheduled because it failed",
    )  # fmt: skip
    state.put(ALLOCATIONS.build_put(former))
    tracker = RescheduleTracker(events=(RescheduleEvent(prev_alloc_id="a0", prev_node_id="node-1"),))

    result = explain_placed_allocation(
        state, client_status=ClientStatus.RUNNING, previous_allocation="a0", reschedule_tracker=tracker,
        preempted_allocations=("a9",),
    )  # fmt: skip

    assert result.story == (
        "a0 failed on node-1 and was rescheduled",
        "replaces a0 on node-1 (alloc was rescheduled because it failed)",
        "preempted a9 to get its resources",
    )


@pytest.mark.parametrize(
    ("node_name", "expected"), [("db-1", "db-1"), ("", "node 3f61b810")], ids=["known", "deleted with its allocation"]
)
def test_the_history_names_the_node_of_an_earlier_run_if_its_name_is_known(node_name: str, expected: str) -> None:
    state = make_fleet(1_000)
    if node_name:
        state.put(NODES.build_put(replace(state.node(), id="3f61b810-aaaa", name=node_name)))
    event = RescheduleEvent(prev_alloc_id="gone", prev_node_id="3f61b810-aaaa")

    result = explain_placed_allocation(
        state, client_status=ClientStatus.RUNNING, reschedule_tracker=RescheduleTracker(events=(event,))
    )

    assert result.story[0] == f"gone failed on {expected} and was rescheduled"


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"desired_description": "alloc is being updated"}, "alloc is being updated"),
        ({"client_status": ClientStatus.LOST}, "its node is down"),
        (
            {"client_status": ClientStatus.LOST, "desired_status": DesiredStatus.STOP, "desired_description": "gone"},
            "gone",
        ),
    ],
)
def test_the_history_of_a_replacement_names_its_predecessor_with_the_reason(
    fields: dict[str, object], reason: str
) -> None:
    state = make_fleet(1_000)
    predecessor = an_allocation(a_job(), "a0", node_name="", **fields)
    state.put(ALLOCATIONS.build_put(predecessor))

    result = explain_placed_allocation(state, previous_allocation="a0")

    assert f"replaces a0 on node-1 ({reason})" in result.story


def test_a_node_without_a_name_is_named_by_its_id() -> None:
    result = explain_placed_allocation(AState(), node_name="", node_id="node-9", client_status=ClientStatus.RUNNING)

    assert [wait.text for wait in result.waits] == ["is on node-9, which is out of contact"]
