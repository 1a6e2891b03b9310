"""Allocations whose node is lost, disconnected or back: each cell of the tables in scheduling.md 5.3, 5.8, 5.9, 5.11
and 9.2, by name.

Which row of 5.3 applies to an allocation is tested in `test_classes`.
"""

from typing import Any, NamedTuple

import msgspec
import pytest
from msgspec.structs import replace

from tests.builders import a_batch_job, a_group, a_job, a_system_job, a_task
from tests.cluster.scheduling.loop import Loop
from tests.kit.state import SECOND_NS
from wharf.cluster.operations.nodes import reports
from wharf.cluster.operations.nodes.reports import AllocationReport
from wharf.cluster.state.tables import ALLOCATIONS, NODES
from wharf.contract.model.allocations.allocation import Allocation, ClientStatus, DesiredStatus, DesiredTransition
from wharf.contract.model.allocations.metrics import AllocMetric, NodeScore
from wharf.contract.model.allocations.task_states import TaskState, TaskStatus
from wharf.contract.model.evaluations import EvaluationTrigger
from wharf.contract.model.jobs.group_policies import DisconnectPolicy, ReschedulePolicy, UpdatePolicy
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.nodes.node import NodeStatus
from wharf.contract.model.times import to_datetime

DOWN, AWAY, READY = NodeStatus.DOWN, NodeStatus.DISCONNECTED, NodeStatus.READY
PENDING, RUNNING, COMPLETE = ClientStatus.PENDING, ClientStatus.RUNNING, ClientStatus.COMPLETE
FAILED, LOST, UNKNOWN = ClientStatus.FAILED, ClientStatus.LOST, ClientStatus.UNKNOWN
GONE = "gone"

WINDOW_S = 60
AFTER_DELAY_S = 6
RETRY = ReschedulePolicy(unlimited=True, delay=5 * SECOND_NS, delay_function="constant")
NO_RETRY = ReschedulePolicy(unlimited=False, attempts=0)

ALONE = DisconnectPolicy(replace=False)
WINDOW = DisconnectPolicy(lost_after=WINDOW_S * SECOND_NS)
BOTH = DisconnectPolicy(lost_after=WINDOW_S * SECOND_NS, replace=False)
STOPS = DisconnectPolicy(stop_on_client_after=10 * SECOND_NS)


class ObservedState(NamedTuple):
    """The observed state: the original as servers see it, and how many other allocations are active."""

    status: ClientStatus
    is_wanted: bool
    others: int


GIVEN_UP = ObservedState(LOST, False, 1)
GIVEN_UP_ALONE = ObservedState(LOST, False, 0)
WAITED_FOR = ObservedState(UNKNOWN, True, 0)
REPLACED = ObservedState(UNKNOWN, True, 1)


def a_loop(job: Job, *, nodes: int = 3) -> Loop:
    loop = Loop()
    for number in range(nodes):
        loop.with_node(f"n{number}")
    loop.register(job)
    loop.process_pending()
    return loop


def of_kind(kind: str, disconnect: DisconnectPolicy | None, **fields: Any) -> Job:
    group = a_group("web", fields.pop("task", a_task()), disconnect=disconnect, **{"count": 1, **fields})
    match kind:
        case "batch":
            return a_batch_job("shop", group)
        case "system":
            return a_system_job("shop", replace(group, reschedule_policy=None))
        case "sysbatch":
            return replace(a_batch_job("shop", replace(group, reschedule_policy=None)), type="sysbatch")
    return a_job("shop", group)


def lose(loop: Loop, node_id: str, how: NodeStatus | str) -> None:
    if isinstance(how, NodeStatus):
        loop.lose_node(node_id, how)
    else:
        loop.put(NODES.build_delete(node_id))
        loop.evaluate_job(trigger=EvaluationTrigger.NODE_UPDATE)


def observe(loop: Loop, original: Allocation) -> ObservedState:
    now = loop.allocation(original.id)
    others = [each for each in loop.list_active() if each.id != original.id and each.node_id != original.node_id]
    return ObservedState(now.client_status, not now.is_server_terminal, len(others))


@pytest.mark.parametrize(
    ("kind", "fields", "was", "how", "at_once", "after_delay", "after_window"),
    [
        pytest.param("service", {}, RUNNING, DOWN, GIVEN_UP, GIVEN_UP, GIVEN_UP, id="5.8(1) lost, replaced at once"),
        pytest.param("service", {}, PENDING, DOWN, GIVEN_UP, GIVEN_UP, GIVEN_UP, id="5.8(1) never began, lost"),
        pytest.param("service", {}, RUNNING, GONE, GIVEN_UP, GIVEN_UP, GIVEN_UP, id="5.3(15) its node is gone"),
        pytest.param("service", {}, RUNNING, AWAY, GIVEN_UP, GIVEN_UP, GIVEN_UP, id="5.3(10) no lost_after, away"),
        pytest.param(
            "service", {"reschedule_policy": NO_RETRY}, RUNNING, DOWN, GIVEN_UP, GIVEN_UP, GIVEN_UP,
            id="5.8(1) lost, whatever the reschedule policy",
        ),
        pytest.param(
            "service", {"disconnect": WINDOW}, RUNNING, AWAY, WAITED_FOR, REPLACED, GIVEN_UP,
            id="5.9(1) away, replaced when the reschedule policy says",
        ),
        pytest.param("service", {"disconnect": WINDOW}, PENDING, AWAY, GIVEN_UP, GIVEN_UP, GIVEN_UP, id="5.3(9) pending"),
        pytest.param("service", {"disconnect": WINDOW}, RUNNING, DOWN, GIVEN_UP, GIVEN_UP, GIVEN_UP, id="5.3(18) down"),
        pytest.param("service", {"disconnect": WINDOW}, RUNNING, GONE, GIVEN_UP, GIVEN_UP, GIVEN_UP, id="5.3(15) gone"),
        pytest.param(
            "service", {"disconnect": WINDOW, "reschedule_policy": NO_RETRY}, RUNNING, AWAY,
            WAITED_FOR, WAITED_FOR, GIVEN_UP, id="5.9(1) away, never rescheduled, so replaced when it expires",
        ),
        pytest.param(
            "service", {"disconnect": WINDOW, "update": UpdatePolicy(min_healthy_time=SECOND_NS)}, RUNNING, AWAY,
            WAITED_FOR, WAITED_FOR, GIVEN_UP, id="5.9(1) away while its deployment goes on",
        ),
        pytest.param(
            "service", {"disconnect": BOTH}, RUNNING, AWAY, WAITED_FOR, WAITED_FOR, GIVEN_UP,
            id="5.9(5) replace=false, away, expired is lost",
        ),
        pytest.param(
            "service", {"disconnect": ALONE}, RUNNING, DOWN, WAITED_FOR, WAITED_FOR, WAITED_FOR,
            id="5.3(17) replace=false, down",
        ),
        pytest.param("service", {"disconnect": ALONE}, PENDING, DOWN, GIVEN_UP, GIVEN_UP, GIVEN_UP, id="5.3(18) pending"),
        pytest.param("service", {"disconnect": ALONE}, RUNNING, AWAY, GIVEN_UP, GIVEN_UP, GIVEN_UP, id="5.3(10) alone"),
        pytest.param("service", {"disconnect": ALONE}, RUNNING, GONE, GIVEN_UP, GIVEN_UP, GIVEN_UP, id="5.3(15) alone"),
        pytest.param(
            "service", {"disconnect": STOPS}, RUNNING, DOWN, GIVEN_UP_ALONE, GIVEN_UP_ALONE, GIVEN_UP,
            id="5.8(2) stops by itself, placed when it has",
        ),
        pytest.param(
            "service", {"disconnect": STOPS}, RUNNING, AWAY, GIVEN_UP_ALONE, GIVEN_UP_ALONE, GIVEN_UP,
            id="5.8(2) stops by itself, away",
        ),
        pytest.param(
            "service", {"disconnect": STOPS, "task": a_task(kill_timeout=120 * SECOND_NS)}, RUNNING, DOWN,
            GIVEN_UP_ALONE, GIVEN_UP_ALONE, GIVEN_UP_ALONE, id="5.8(2) the longest kill_timeout is waited for too",
        ),
        pytest.param("batch", {}, RUNNING, DOWN, GIVEN_UP, GIVEN_UP, GIVEN_UP, id="5.8(1) batch"),
        pytest.param("batch", {"disconnect": WINDOW}, RUNNING, AWAY, WAITED_FOR, REPLACED, GIVEN_UP, id="5.9(1) batch"),
        pytest.param(
            "batch", {"disconnect": STOPS}, RUNNING, DOWN, GIVEN_UP_ALONE, GIVEN_UP_ALONE, GIVEN_UP, id="5.8(2) batch"
        ),
        pytest.param(
            "batch", {}, COMPLETE, DOWN, ObservedState(COMPLETE, True, 0), ObservedState(COMPLETE, True, 0), ObservedState(COMPLETE, True, 0),
            id="5.3(5) batch work that is done",
        ),
        pytest.param(
            "batch", {"reschedule_policy": NO_RETRY}, FAILED, DOWN,
            ObservedState(FAILED, True, 0), ObservedState(FAILED, True, 0), ObservedState(FAILED, True, 0), id="5.3(5) batch work that failed",
        ),
    ],
)  # fmt: skip
def test_allocations_on_a_lost_node(
    kind: str,
    fields: dict[str, Any],
    was: ClientStatus,
    how: NodeStatus | str,
    at_once: ObservedState,
    after_delay: ObservedState,
    after_window: ObservedState,
) -> None:
    fields = {"disconnect": None, "reschedule_policy": RETRY, **fields}
    loop = a_loop(of_kind(kind, **fields))
    (original,) = loop.list_allocations()
    if was is not PENDING:
        loop.report(original, was, healthy=None if "update" in fields else True)
    loop.process_pending()

    lose(loop, original.node_id, how)
    loop.process_pending()
    assert at_once == observe(loop, original)
    loop.pass_time(AFTER_DELAY_S)
    loop.process_pending()
    assert after_delay == observe(loop, original)
    loop.pass_time(WINDOW_S)
    loop.process_pending()
    assert after_window == observe(loop, original)


@pytest.mark.parametrize(
    ("kind", "was", "how", "expected"),
    [
        pytest.param("system", RUNNING, AWAY, (UNKNOWN, True), id="5.11(4) running, away"),
        pytest.param("system", PENDING, AWAY, (LOST, False), id="5.11(2) pending, away"),
        pytest.param("system", RUNNING, DOWN, (LOST, False), id="5.11(2) down"),
        pytest.param("system", RUNNING, GONE, (LOST, False), id="5.11(2) gone"),
        pytest.param("sysbatch", RUNNING, DOWN, (LOST, False), id="5.12 running, down"),
        pytest.param("sysbatch", COMPLETE, DOWN, (COMPLETE, True), id="5.12 ran well, down"),
    ],
)
def test_system_job_allocations_are_never_replaced_elsewhere(
    kind: str, was: ClientStatus, how: NodeStatus | str, expected: tuple[ClientStatus, bool]
) -> None:
    loop = a_loop(of_kind(kind, None))
    original = loop.list_allocations()[0]
    for allocation in loop.list_allocations():
        if was is not PENDING or allocation.id != original.id:
            loop.report(allocation, was if allocation.id == original.id else RUNNING)

    lose(loop, original.node_id, how)
    loop.process_pending()

    assert expected == observe(loop, original)[:2]
    assert len([each for each in loop.list_active() if each.id != original.id]) == 2


@pytest.mark.parametrize(
    ("policy", "next_status", "expected"),
    [
        pytest.param(WINDOW, DOWN, GIVEN_UP, id="5.3(18) unknown, then down"),
        pytest.param(BOTH, DOWN, WAITED_FOR, id="5.3(16) replace=false, unknown, then down"),
        pytest.param(BOTH, GONE, GIVEN_UP, id="5.3(15) replace=false, unknown, then gone"),
    ],
)
def test_unknown_allocations_when_their_node_is_given_up(
    policy: DisconnectPolicy, next_status: NodeStatus | str, expected: ObservedState
) -> None:
    loop = a_loop(of_kind("service", policy, reschedule_policy=RETRY))
    (original,) = loop.list_allocations()
    loop.report(original, RUNNING, healthy=True)
    lose(loop, original.node_id, AWAY)
    loop.process_pending()

    lose(loop, original.node_id, next_status)
    loop.process_pending()

    assert expected == observe(loop, original)
    assert len(loop.list_allocations()) == 1 + expected.others


# -- back ----------------------------------------------------------------------------------------------------------------


class ReconnectCase(msgspec.Struct, frozen=True):
    """A disconnected original and its replacement: what each reports, and since when it runs."""

    status: ClientStatus = RUNNING
    score: float = 0.5
    other_score: float = 0.5
    since_s: int | None = None
    other_since_s: int | None = None
    is_other_running: bool = True


ORIGINAL, REPLACEMENT, NEITHER = "original", "replacement", "neither"


def scored(allocation: Allocation, score: float) -> Allocation:
    metrics = replace(
        allocation.metrics or AllocMetric(),
        score_meta_data=(NodeScore(node_id=allocation.node_id, norm_score=score),),
    )
    return replace(allocation, metrics=metrics)


def since(loop: Loop, allocation: Allocation, seconds: int | None) -> Allocation:
    if seconds is None:
        return allocation
    state = TaskState(state=TaskStatus.RUNNING, started_at=to_datetime(loop.now_ns - seconds * SECOND_NS))
    return replace(allocation, task_states={"server": state})


@pytest.mark.parametrize(
    ("reconcile", "pair", "expected"),
    [
        pytest.param("best_score", ReconnectCase(), ORIGINAL, id="best_score, alike"),
        pytest.param("best_score", ReconnectCase(other_score=0.9), REPLACEMENT, id="best_score, the other is better and runs"),
        pytest.param("best_score", ReconnectCase(score=0.9), ORIGINAL, id="best_score, the other is worse"),
        pytest.param(
            "best_score", ReconnectCase(other_score=0.9, is_other_running=False), ORIGINAL,
            id="best_score, the other is better and does not run yet",
        ),
        pytest.param("keep_original", ReconnectCase(other_score=0.9), ORIGINAL, id="keep_original"),
        pytest.param("keep_replacement", ReconnectCase(score=0.9), REPLACEMENT, id="keep_replacement"),
        pytest.param("longest_running", ReconnectCase(since_s=100, other_since_s=10), ORIGINAL, id="longest_running, the original"),
        pytest.param("longest_running", ReconnectCase(since_s=5, other_since_s=10), REPLACEMENT, id="longest_running, the other"),
        pytest.param("longest_running", ReconnectCase(other_since_s=10), REPLACEMENT, id="longest_running, no start loses"),
        pytest.param("longest_running", ReconnectCase(since_s=5), ORIGINAL, id="longest_running, the other has no start"),
        pytest.param("longest_running", ReconnectCase(other_score=0.9), REPLACEMENT, id="longest_running, no starts: best_score"),
        pytest.param("keep_original", ReconnectCase(status=FAILED), REPLACEMENT, id="5.3(1) it failed meanwhile"),
        pytest.param("keep_original", ReconnectCase(status=COMPLETE), REPLACEMENT, id="it ended meanwhile"),
    ],
)  # fmt: skip
def test_a_reconnected_allocation_or_its_replacement_continues(
    reconcile: str, pair: ReconnectCase, expected: str
) -> None:
    policy = DisconnectPolicy(lost_after=600 * SECOND_NS, reconcile=reconcile)
    loop = a_loop(of_kind("service", policy, reschedule_policy=RETRY))
    (original,) = loop.list_allocations()
    loop.report(original, RUNNING, healthy=True)
    loop.process_pending()
    lose(loop, original.node_id, AWAY)
    loop.process_pending()
    loop.pass_time(AFTER_DELAY_S)
    loop.process_pending()
    (other,) = [each for each in loop.list_active() if each.id != original.id]
    if pair.is_other_running:
        loop.report(other, RUNNING, healthy=True)
    loop.put(
        ALLOCATIONS.build_put(since(loop, scored(loop.allocation(original.id), pair.score), pair.since_s)),
        ALLOCATIONS.build_put(since(loop, scored(loop.allocation(other.id), pair.other_score), pair.other_since_s)),
    )

    loop.reconnect_node(original.node_id)
    loop.report(original, pair.status)
    loop.evaluate_job(trigger=EvaluationTrigger.RECONNECT)
    loop.settle()

    going_on = [ORIGINAL if each.id == original.id else REPLACEMENT for each in loop.list_active()]
    assert [expected] == going_on
    gone = loop.allocation(original.id if expected == REPLACEMENT else other.id)
    texts = {
        RUNNING: "alloc not needed due to disconnected client reconnect",
        FAILED: "alloc was rescheduled because it failed",
    }
    assert texts.get(pair.status, "") == gone.desired_description
    kept = loop.allocation(original.id)
    if expected == ORIGINAL:
        assert ["unknown", "running"] == [each.value for each in kept.alloc_states or ()]


@pytest.mark.parametrize(
    "mark",
    [
        pytest.param(DesiredTransition(migrate=True), id="5.9(3) marked migrate"),
        pytest.param(DesiredTransition(reschedule=True), id="5.9(3) marked reschedule"),
        pytest.param(DesiredTransition(force_reschedule=True), id="5.9(3) marked for forced rescheduling"),
        pytest.param(None, id="5.9(3) of an older version"),
    ],
)
def test_an_obsolete_reconnected_allocation_stops_with_any_strategy(
    mark: DesiredTransition | None,
) -> None:
    policy = DisconnectPolicy(lost_after=600 * SECOND_NS, reconcile="keep_original")
    job = of_kind("service", policy, reschedule_policy=RETRY)
    loop = a_loop(job)
    (original,) = loop.list_allocations()
    loop.report(original, RUNNING, healthy=True)
    lose(loop, original.node_id, AWAY)
    loop.process_pending()
    if mark is None:
        loop.register(of_kind("service", policy, reschedule_policy=RETRY, task=a_task(env={"VERSION": "2"})))
    else:
        marked = replace(loop.allocation(original.id), desired_transition=mark)
        loop.put(ALLOCATIONS.build_put(marked))

    loop.reconnect_node(original.node_id)
    loop.report(original, RUNNING)
    loop.evaluate_job(trigger=EvaluationTrigger.RECONNECT)
    loop.settle()

    now = loop.allocation(original.id)
    assert (DesiredStatus.STOP, len(loop.list_active())) == (now.desired_status, 1)


@pytest.mark.parametrize(
    ("kind", "policy", "how"),
    [
        pytest.param("service", WINDOW, AWAY, id="5.9(4) within its window"),
        pytest.param("service", BOTH, AWAY, id="5.9(4) replace=false"),
        pytest.param("service", ALONE, DOWN, id="5.9(5) replace=false, node was down"),
        pytest.param("batch", WINDOW, AWAY, id="5.9(4) batch"),
        pytest.param("system", None, AWAY, id="5.11(2) system"),
    ],
)
def test_an_allocation_that_reconnects_before_its_replacement_continues(
    kind: str, policy: DisconnectPolicy | None, how: NodeStatus
) -> None:
    loop = a_loop(of_kind(kind, policy), nodes=1)
    (original,) = loop.list_allocations()
    loop.report(original, RUNNING, healthy=True)
    loop.process_pending()
    lose(loop, original.node_id, how)
    loop.process_pending()
    assert loop.allocation(original.id).client_status is UNKNOWN

    loop.reconnect_node(original.node_id)
    loop.report(original, RUNNING)
    loop.evaluate_job(trigger=EvaluationTrigger.RECONNECT)
    loop.settle()

    (now,) = loop.list_allocations()
    assert (original.id, RUNNING, DesiredStatus.RUN) == (now.id, now.client_status, now.desired_status)
    assert ["unknown", "running"] == [each.value for each in now.alloc_states or ()]


@pytest.mark.parametrize(
    ("kind", "expected_live"),
    [
        pytest.param("service", 1, id="5.8(1) service"),
        pytest.param("batch", 1, id="5.8(1) batch"),
        pytest.param("system", 3, id="5.11(4) system: a fresh one comes to the same node"),
    ],
)
def test_a_lost_allocation_is_stopped_by_its_returning_node_and_stays_replaced(kind: str, expected_live: int) -> None:
    loop = a_loop(of_kind(kind, None))
    original = loop.list_allocations()[0]
    for allocation in loop.list_allocations():
        loop.report(allocation, RUNNING, healthy=True)
    lose(loop, original.node_id, DOWN)
    loop.settle()
    given_up = loop.allocation(original.id)

    loop.reconnect_node(original.node_id)
    ended = [AllocationReport(id=original.id, client_status=COMPLETE)]
    loop.lead(
        reports.apply_reports(loop.replica, original.node_id, ended, loop.moment, is_complete=False, max_evaluations=20)
    )
    loop.evaluate_job(trigger=EvaluationTrigger.NODE_UPDATE)
    loop.settle()

    now = loop.allocation(original.id)
    assert (COMPLETE, given_up.desired_description) == (now.client_status, now.desired_description)
    assert given_up.next_allocation == now.next_allocation
    assert expected_live == len(loop.list_active())
