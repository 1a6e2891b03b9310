"""Allocations on lost, disconnected or reconnected nodes, for each cell of the tables in scheduling.md 5.3, 5.8, 5.9,
5.11 and 9.2.

Which row of 5.3 applies to an allocation is tested in `test_classification`.
"""

from typing import Any, NamedTuple

import msgspec
import pytest
from msgspec.structs import replace

from tests.builders import a_batch_job, a_group, a_job, a_system_job, a_task
from tests.cluster.scheduling.simulated_cluster import SimulatedCluster
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

DOWN, DISCONNECTED, READY = NodeStatus.DOWN, NodeStatus.DISCONNECTED, NodeStatus.READY
PENDING, RUNNING, COMPLETE = ClientStatus.PENDING, ClientStatus.RUNNING, ClientStatus.COMPLETE
FAILED, LOST, UNKNOWN = ClientStatus.FAILED, ClientStatus.LOST, ClientStatus.UNKNOWN
DELETED = "deleted"

LOST_AFTER_S = 60
AFTER_DELAY_S = 6
RETRY = ReschedulePolicy(unlimited=True, delay=5 * SECOND_NS, delay_function="constant")
NO_RETRY = ReschedulePolicy(unlimited=False, attempts=0)

NO_REPLACE = DisconnectPolicy(replace=False)
LOST_AFTER = DisconnectPolicy(lost_after=LOST_AFTER_S * SECOND_NS)
LOST_AFTER_NO_REPLACE = DisconnectPolicy(lost_after=LOST_AFTER_S * SECOND_NS, replace=False)
STOP_ON_CLIENT = DisconnectPolicy(stop_on_client_after=10 * SECOND_NS)


class ObservedState(NamedTuple):
    """The observed state: the original as servers see it, and how many other allocations are active."""

    status: ClientStatus
    is_desired_running: bool
    active_others: int


LOST_REPLACED = ObservedState(LOST, False, 1)
LOST_UNREPLACED = ObservedState(LOST, False, 0)
UNKNOWN_UNREPLACED = ObservedState(UNKNOWN, True, 0)
UNKNOWN_REPLACED = ObservedState(UNKNOWN, True, 1)


def make_cluster(job: Job, *, nodes: int = 3) -> SimulatedCluster:
    cluster = SimulatedCluster()
    for number in range(nodes):
        cluster.with_node(f"n{number}")
    cluster.register(job)
    cluster.process_pending()
    return cluster


def make_job(kind: str, disconnect: DisconnectPolicy | None, **fields: Any) -> Job:
    group = a_group("web", fields.pop("task", a_task()), disconnect=disconnect, **{"count": 1, **fields})
    match kind:
        case "batch":
            return a_batch_job("shop", group)
        case "system":
            return a_system_job("shop", replace(group, reschedule_policy=None))
        case "sysbatch":
            return replace(a_batch_job("shop", replace(group, reschedule_policy=None)), type="sysbatch")
    return a_job("shop", group)


def lose_or_delete_node(cluster: SimulatedCluster, node_id: str, node_status: NodeStatus | str) -> None:
    if isinstance(node_status, NodeStatus):
        cluster.lose_node(node_id, node_status)
    else:
        cluster.put(NODES.build_delete(node_id))
        cluster.evaluate_job(trigger=EvaluationTrigger.NODE_UPDATE)


def observe_state(cluster: SimulatedCluster, original: Allocation) -> ObservedState:
    stored_allocation = cluster.allocation(original.id)
    active_others = [
        each for each in cluster.list_active() if each.id != original.id and each.node_id != original.node_id
    ]
    return ObservedState(stored_allocation.client_status, not stored_allocation.is_server_terminal, len(active_others))


@pytest.mark.parametrize(
    ("kind", "fields", "reported", "node_status", "expected_at_once", "expected_after_delay", "expected_after_lost_after"),
    [
        pytest.param("service", {}, RUNNING, DOWN, LOST_REPLACED, LOST_REPLACED, LOST_REPLACED, id="5.8(1) lost, replaced at once"),
        pytest.param("service", {}, PENDING, DOWN, LOST_REPLACED, LOST_REPLACED, LOST_REPLACED, id="5.8(1) pending, lost"),
        pytest.param("service", {}, RUNNING, DELETED, LOST_REPLACED, LOST_REPLACED, LOST_REPLACED, id="5.3(15) node is deleted"),
        pytest.param("service", {}, RUNNING, DISCONNECTED, LOST_REPLACED, LOST_REPLACED, LOST_REPLACED, id="5.3(10) disconnected without lost_after"),
        pytest.param(
            "service", {"reschedule_policy": NO_RETRY}, RUNNING, DOWN, LOST_REPLACED, LOST_REPLACED, LOST_REPLACED,
            id="5.8(1) lost, whatever the reschedule policy",
        ),
        pytest.param(
            "service", {"disconnect": LOST_AFTER}, RUNNING, DISCONNECTED, UNKNOWN_UNREPLACED, UNKNOWN_REPLACED, LOST_REPLACED,
            id="5.9(1) disconnected, replaced by the reschedule policy",
        ),
        pytest.param("service", {"disconnect": LOST_AFTER}, PENDING, DISCONNECTED, LOST_REPLACED, LOST_REPLACED, LOST_REPLACED, id="5.3(9) pending"),
        pytest.param("service", {"disconnect": LOST_AFTER}, RUNNING, DOWN, LOST_REPLACED, LOST_REPLACED, LOST_REPLACED, id="5.3(18) down"),
        pytest.param("service", {"disconnect": LOST_AFTER}, RUNNING, DELETED, LOST_REPLACED, LOST_REPLACED, LOST_REPLACED, id="5.3(15) node is deleted"),
        pytest.param(
            "service", {"disconnect": LOST_AFTER, "reschedule_policy": NO_RETRY}, RUNNING, DISCONNECTED,
            UNKNOWN_UNREPLACED, UNKNOWN_UNREPLACED, LOST_REPLACED, id="5.9(1) disconnected, never rescheduled, replaced when lost_after ends",
        ),
        pytest.param(
            "service", {"disconnect": LOST_AFTER, "update": UpdatePolicy(min_healthy_time=SECOND_NS)}, RUNNING, DISCONNECTED,
            UNKNOWN_UNREPLACED, UNKNOWN_UNREPLACED, LOST_REPLACED, id="5.9(1) disconnected during its deployment",
        ),
        pytest.param(
            "service", {"disconnect": LOST_AFTER_NO_REPLACE}, RUNNING, DISCONNECTED, UNKNOWN_UNREPLACED, UNKNOWN_UNREPLACED, LOST_REPLACED,
            id="5.9(5) replace=false, disconnected, lost after lost_after",
        ),
        pytest.param(
            "service", {"disconnect": NO_REPLACE}, RUNNING, DOWN, UNKNOWN_UNREPLACED, UNKNOWN_UNREPLACED, UNKNOWN_UNREPLACED,
            id="5.3(17) replace=false, down",
        ),
        pytest.param("service", {"disconnect": NO_REPLACE}, PENDING, DOWN, LOST_REPLACED, LOST_REPLACED, LOST_REPLACED, id="5.3(18) pending"),
        pytest.param("service", {"disconnect": NO_REPLACE}, RUNNING, DISCONNECTED, LOST_REPLACED, LOST_REPLACED, LOST_REPLACED, id="5.3(10) replace=false, disconnected"),
        pytest.param("service", {"disconnect": NO_REPLACE}, RUNNING, DELETED, LOST_REPLACED, LOST_REPLACED, LOST_REPLACED, id="5.3(15) replace=false, node is deleted"),
        pytest.param(
            "service", {"disconnect": STOP_ON_CLIENT}, RUNNING, DOWN, LOST_UNREPLACED, LOST_UNREPLACED, LOST_REPLACED,
            id="5.8(2) node stops its tasks, replaced after that",
        ),
        pytest.param(
            "service", {"disconnect": STOP_ON_CLIENT}, RUNNING, DISCONNECTED, LOST_UNREPLACED, LOST_UNREPLACED, LOST_REPLACED,
            id="5.8(2) disconnected node stops its tasks",
        ),
        pytest.param(
            "service", {"disconnect": STOP_ON_CLIENT, "task": a_task(kill_timeout=120 * SECOND_NS)}, RUNNING, DOWN,
            LOST_UNREPLACED, LOST_UNREPLACED, LOST_UNREPLACED, id="5.8(2) replaced after the longest kill_timeout",
        ),
        pytest.param("batch", {}, RUNNING, DOWN, LOST_REPLACED, LOST_REPLACED, LOST_REPLACED, id="5.8(1) batch"),
        pytest.param("batch", {"disconnect": LOST_AFTER}, RUNNING, DISCONNECTED, UNKNOWN_UNREPLACED, UNKNOWN_REPLACED, LOST_REPLACED, id="5.9(1) batch"),
        pytest.param(
            "batch", {"disconnect": STOP_ON_CLIENT}, RUNNING, DOWN, LOST_UNREPLACED, LOST_UNREPLACED, LOST_REPLACED, id="5.8(2) batch"
        ),
        pytest.param(
            "batch", {}, COMPLETE, DOWN, ObservedState(COMPLETE, True, 0), ObservedState(COMPLETE, True, 0), ObservedState(COMPLETE, True, 0),
            id="5.3(5) completed batch allocation",
        ),
        pytest.param(
            "batch", {"reschedule_policy": NO_RETRY}, FAILED, DOWN,
            ObservedState(FAILED, True, 0), ObservedState(FAILED, True, 0), ObservedState(FAILED, True, 0), id="5.3(5) failed batch allocation",
        ),
    ],
)  # fmt: skip
def test_an_allocation_on_a_lost_node_is_replaced_according_to_its_policies(
    kind: str,
    fields: dict[str, Any],
    reported: ClientStatus,
    node_status: NodeStatus | str,
    expected_at_once: ObservedState,
    expected_after_delay: ObservedState,
    expected_after_lost_after: ObservedState,
) -> None:
    fields = {"disconnect": None, "reschedule_policy": RETRY, **fields}
    cluster = make_cluster(make_job(kind, **fields))
    (original,) = cluster.list_allocations()
    if reported is not PENDING:
        cluster.report(original, reported, healthy=None if "update" in fields else True)
    cluster.process_pending()

    lose_or_delete_node(cluster, original.node_id, node_status)
    cluster.process_pending()
    assert expected_at_once == observe_state(cluster, original)
    cluster.pass_time(AFTER_DELAY_S)
    cluster.process_pending()
    assert expected_after_delay == observe_state(cluster, original)
    cluster.pass_time(LOST_AFTER_S)
    cluster.process_pending()
    assert expected_after_lost_after == observe_state(cluster, original)


@pytest.mark.parametrize(
    ("kind", "reported", "node_status", "expected"),
    [
        pytest.param("system", RUNNING, DISCONNECTED, (UNKNOWN, True), id="5.11(4) running, disconnected"),
        pytest.param("system", PENDING, DISCONNECTED, (LOST, False), id="5.11(2) pending, disconnected"),
        pytest.param("system", RUNNING, DOWN, (LOST, False), id="5.11(2) down"),
        pytest.param("system", RUNNING, DELETED, (LOST, False), id="5.11(2) node is deleted"),
        pytest.param("sysbatch", RUNNING, DOWN, (LOST, False), id="5.12 running, down"),
        pytest.param("sysbatch", COMPLETE, DOWN, (COMPLETE, True), id="5.12 succeeded, down"),
    ],
)
def test_system_job_allocations_are_never_replaced_elsewhere(
    kind: str, reported: ClientStatus, node_status: NodeStatus | str, expected: tuple[ClientStatus, bool]
) -> None:
    cluster = make_cluster(make_job(kind, None))
    original = cluster.list_allocations()[0]
    for allocation in cluster.list_allocations():
        if reported is not PENDING or allocation.id != original.id:
            cluster.report(allocation, reported if allocation.id == original.id else RUNNING)

    lose_or_delete_node(cluster, original.node_id, node_status)
    cluster.process_pending()

    assert expected == observe_state(cluster, original)[:2]
    assert len([each for each in cluster.list_active() if each.id != original.id]) == 2


@pytest.mark.parametrize(
    ("policy", "next_status", "expected"),
    [
        pytest.param(LOST_AFTER, DOWN, LOST_REPLACED, id="5.3(18) unknown, then down"),
        pytest.param(LOST_AFTER_NO_REPLACE, DOWN, UNKNOWN_UNREPLACED, id="5.3(16) replace=false, unknown, then down"),
        pytest.param(LOST_AFTER_NO_REPLACE, DELETED, LOST_REPLACED, id="5.3(15) replace=false, unknown, then deleted"),
    ],
)
def test_an_unknown_allocation_is_lost_when_its_node_goes_down_unless_replace_is_disabled(
    policy: DisconnectPolicy, next_status: NodeStatus | str, expected: ObservedState
) -> None:
    cluster = make_cluster(make_job("service", policy, reschedule_policy=RETRY))
    (original,) = cluster.list_allocations()
    cluster.report(original, RUNNING, healthy=True)
    lose_or_delete_node(cluster, original.node_id, DISCONNECTED)
    cluster.process_pending()

    lose_or_delete_node(cluster, original.node_id, next_status)
    cluster.process_pending()

    assert expected == observe_state(cluster, original)
    assert len(cluster.list_allocations()) == 1 + expected.active_others


# -- reconnects ----------------------------------------------------------------------------------------------------------


class ReconnectCase(msgspec.Struct, frozen=True):
    """A disconnected original and its replacement: what each reports, and since when it runs."""

    status: ClientStatus = RUNNING
    score: float = 0.5
    other_score: float = 0.5
    since_s: int | None = None
    other_since_s: int | None = None
    is_other_running: bool = True


ORIGINAL, REPLACEMENT, NEITHER = "original", "replacement", "neither"


def with_score(allocation: Allocation, score: float) -> Allocation:
    metrics = replace(
        allocation.metrics or AllocMetric(),
        score_meta_data=(NodeScore(node_id=allocation.node_id, norm_score=score),),
    )
    return replace(allocation, metrics=metrics)


def with_start_time(cluster: SimulatedCluster, allocation: Allocation, seconds: int | None) -> Allocation:
    if seconds is None:
        return allocation
    state = TaskState(state=TaskStatus.RUNNING, started_at=to_datetime(cluster.now_ns - seconds * SECOND_NS))
    return replace(allocation, task_states={"server": state})


@pytest.mark.parametrize(
    ("reconcile", "reconnect_case", "expected"),
    [
        pytest.param("best_score", ReconnectCase(), ORIGINAL, id="best_score, equal scores"),
        pytest.param("best_score", ReconnectCase(other_score=0.9), REPLACEMENT, id="best_score, better replacement that runs"),
        pytest.param("best_score", ReconnectCase(score=0.9), ORIGINAL, id="best_score, worse replacement"),
        pytest.param(
            "best_score", ReconnectCase(other_score=0.9, is_other_running=False), ORIGINAL,
            id="best_score, better replacement that does not run yet",
        ),
        pytest.param("keep_original", ReconnectCase(other_score=0.9), ORIGINAL, id="keep_original"),
        pytest.param("keep_replacement", ReconnectCase(score=0.9), REPLACEMENT, id="keep_replacement"),
        pytest.param("longest_running", ReconnectCase(since_s=100, other_since_s=10), ORIGINAL, id="longest_running, original is older"),
        pytest.param("longest_running", ReconnectCase(since_s=5, other_since_s=10), REPLACEMENT, id="longest_running, replacement is older"),
        pytest.param("longest_running", ReconnectCase(other_since_s=10), REPLACEMENT, id="longest_running, original has no start time"),
        pytest.param("longest_running", ReconnectCase(since_s=5), ORIGINAL, id="longest_running, replacement has no start time"),
        pytest.param("longest_running", ReconnectCase(other_score=0.9), REPLACEMENT, id="longest_running, no start times: best_score"),
        pytest.param("keep_original", ReconnectCase(status=FAILED), REPLACEMENT, id="5.3(1) original failed meanwhile"),
        pytest.param("keep_original", ReconnectCase(status=COMPLETE), REPLACEMENT, id="original ended meanwhile"),
    ],
)  # fmt: skip
def test_a_reconnected_allocation_or_its_replacement_continues(
    reconcile: str, reconnect_case: ReconnectCase, expected: str
) -> None:
    policy = DisconnectPolicy(lost_after=600 * SECOND_NS, reconcile=reconcile)
    cluster = make_cluster(make_job("service", policy, reschedule_policy=RETRY))
    (original,) = cluster.list_allocations()
    cluster.report(original, RUNNING, healthy=True)
    cluster.process_pending()
    lose_or_delete_node(cluster, original.node_id, DISCONNECTED)
    cluster.process_pending()
    cluster.pass_time(AFTER_DELAY_S)
    cluster.process_pending()
    (replacement,) = [each for each in cluster.list_active() if each.id != original.id]
    if reconnect_case.is_other_running:
        cluster.report(replacement, RUNNING, healthy=True)
    cluster.put(
        ALLOCATIONS.build_put(
            with_start_time(
                cluster, with_score(cluster.allocation(original.id), reconnect_case.score), reconnect_case.since_s
            )
        ),
        ALLOCATIONS.build_put(
            with_start_time(
                cluster,
                with_score(cluster.allocation(replacement.id), reconnect_case.other_score),
                reconnect_case.other_since_s,
            )
        ),
    )

    cluster.reconnect_node(original.node_id)
    cluster.report(original, reconnect_case.status)
    cluster.evaluate_job(trigger=EvaluationTrigger.RECONNECT)
    cluster.settle()

    active = [ORIGINAL if each.id == original.id else REPLACEMENT for each in cluster.list_active()]
    assert [expected] == active
    stopped = cluster.allocation(original.id if expected == REPLACEMENT else replacement.id)
    texts = {
        RUNNING: "alloc not needed due to disconnected client reconnect",
        FAILED: "alloc was rescheduled because it failed",
    }
    assert texts.get(reconnect_case.status, "") == stopped.desired_description
    stored = cluster.allocation(original.id)
    if expected == ORIGINAL:
        assert ["unknown", "running"] == [each.value for each in stored.alloc_states or ()]


@pytest.mark.parametrize(
    "transition",
    [
        pytest.param(DesiredTransition(migrate=True), id="5.9(3) marked migrate"),
        pytest.param(DesiredTransition(reschedule=True), id="5.9(3) marked reschedule"),
        pytest.param(DesiredTransition(force_reschedule=True), id="5.9(3) marked for forced rescheduling"),
        pytest.param(None, id="5.9(3) of an older version"),
    ],
)
def test_an_obsolete_reconnected_allocation_stops_with_any_strategy(
    transition: DesiredTransition | None,
) -> None:
    policy = DisconnectPolicy(lost_after=600 * SECOND_NS, reconcile="keep_original")
    job = make_job("service", policy, reschedule_policy=RETRY)
    cluster = make_cluster(job)
    (original,) = cluster.list_allocations()
    cluster.report(original, RUNNING, healthy=True)
    lose_or_delete_node(cluster, original.node_id, DISCONNECTED)
    cluster.process_pending()
    if transition is None:
        cluster.register(make_job("service", policy, reschedule_policy=RETRY, task=a_task(env={"VERSION": "2"})))
    else:
        marked = replace(cluster.allocation(original.id), desired_transition=transition)
        cluster.put(ALLOCATIONS.build_put(marked))

    cluster.reconnect_node(original.node_id)
    cluster.report(original, RUNNING)
    cluster.evaluate_job(trigger=EvaluationTrigger.RECONNECT)
    cluster.settle()

    stored_allocation = cluster.allocation(original.id)
    assert (DesiredStatus.STOP, len(cluster.list_active())) == (stored_allocation.desired_status, 1)


@pytest.mark.parametrize(
    ("kind", "policy", "node_status"),
    [
        pytest.param("service", LOST_AFTER, DISCONNECTED, id="5.9(4) before lost_after"),
        pytest.param("service", LOST_AFTER_NO_REPLACE, DISCONNECTED, id="5.9(4) replace=false"),
        pytest.param("service", NO_REPLACE, DOWN, id="5.9(5) replace=false, node was down"),
        pytest.param("batch", LOST_AFTER, DISCONNECTED, id="5.9(4) batch"),
        pytest.param("system", None, DISCONNECTED, id="5.11(2) system"),
    ],
)
def test_an_allocation_that_reconnects_before_its_replacement_continues(
    kind: str, policy: DisconnectPolicy | None, node_status: NodeStatus
) -> None:
    cluster = make_cluster(make_job(kind, policy), nodes=1)
    (original,) = cluster.list_allocations()
    cluster.report(original, RUNNING, healthy=True)
    cluster.process_pending()
    lose_or_delete_node(cluster, original.node_id, node_status)
    cluster.process_pending()
    assert cluster.allocation(original.id).client_status is UNKNOWN

    cluster.reconnect_node(original.node_id)
    cluster.report(original, RUNNING)
    cluster.evaluate_job(trigger=EvaluationTrigger.RECONNECT)
    cluster.settle()

    (stored_allocation,) = cluster.list_allocations()
    assert (original.id, RUNNING, DesiredStatus.RUN) == (
        stored_allocation.id,
        stored_allocation.client_status,
        stored_allocation.desired_status,
    )
    assert ["unknown", "running"] == [each.value for each in stored_allocation.alloc_states or ()]


@pytest.mark.parametrize(
    ("kind", "expected_active_count"),
    [
        pytest.param("service", 1, id="5.8(1) service"),
        pytest.param("batch", 1, id="5.8(1) batch"),
        pytest.param("system", 3, id="5.11(4) system: the same node gets a new one"),
    ],
)
def test_a_lost_allocation_is_stopped_by_its_returning_node_and_stays_replaced(
    kind: str, expected_active_count: int
) -> None:
    cluster = make_cluster(make_job(kind, None))
    original = cluster.list_allocations()[0]
    for allocation in cluster.list_allocations():
        cluster.report(allocation, RUNNING, healthy=True)
    lose_or_delete_node(cluster, original.node_id, DOWN)
    cluster.settle()
    lost = cluster.allocation(original.id)

    cluster.reconnect_node(original.node_id)
    ended = [AllocationReport(id=original.id, client_status=COMPLETE)]
    cluster.lead(
        reports.apply_reports(
            cluster.replica, original.node_id, ended, cluster.moment, is_complete=False, max_evaluations=20
        )
    )
    cluster.evaluate_job(trigger=EvaluationTrigger.NODE_UPDATE)
    cluster.settle()

    stored_allocation = cluster.allocation(original.id)
    assert (COMPLETE, lost.desired_description) == (
        stored_allocation.client_status,
        stored_allocation.desired_description,
    )
    assert lost.next_allocation == stored_allocation.next_allocation
    assert expected_active_count == len(cluster.list_active())
