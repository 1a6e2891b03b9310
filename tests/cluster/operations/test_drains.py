"""Requests to start, change and cancel drains (scheduling.md 9.3, nodes-allocations.md 1.1 and 3.9)."""

import datetime
from typing import Any

import pytest

from tests.builders import a_job, a_system_job
from tests.kit.state import SECOND_NS, AState
from wharf.cluster.operations.nodes import drains
from wharf.cluster.operations.nodes.drains import DrainOptions, DrainRequest
from wharf.cluster.operations.nodes.writes import NodeWriteResult
from wharf.cluster.state.tables import NODE_PLACEMENTS, NODES
from wharf.contract.model.allocations.allocation import ClientStatus
from wharf.contract.model.log import Cause, CauseKind
from wharf.contract.model.nodes.node import DrainStatus, NodeEventSubsystem, SchedulingEligibility
from wharf.contract.model.refusal import Refusal, RefusalCode
from wharf.contract.model.times import to_datetime

MANY = 100
MINUTE_NS = 60 * SECOND_NS
NO_DEADLINE = DrainOptions()


def drain(state: AState, order: DrainOptions | None = NO_DEADLINE, **options: Any) -> NodeWriteResult:
    requested = DrainRequest(node_id="node-1", order=order, accessor_id="token:acls-disabled", **options)
    return state.lead(drains.update_drain(state.replica, requested, state.moment, max_evaluations=MANY))


def cancel_drain(state: AState, **options: Any) -> NodeWriteResult:
    return drain(state, None, **options)


def make_state() -> AState:
    state = AState()
    state.with_node()
    return state


def get_time(state: AState) -> datetime.datetime:
    return to_datetime(state.now_ns)


def list_event_messages(state: AState) -> list[tuple[str, str]]:
    return [(event.subsystem, event.message) for event in state.node().events or ()]


def test_a_drain_makes_the_node_ineligible_and_records_its_strategy() -> None:
    state = make_state()

    drain(state, DrainOptions(deadline_ns=MINUTE_NS, ignore_system_jobs=True))

    node = state.node()
    assert node.scheduling_eligibility is SchedulingEligibility.INELIGIBLE
    assert node.drain
    assert node.drain_strategy is not None
    assert node.drain_strategy.deadline == MINUTE_NS
    assert node.drain_strategy.ignore_system_jobs
    assert node.drain_strategy.started_at == get_time(state)
    assert node.drain_strategy.force_deadline == get_time(state) + datetime.timedelta(minutes=1)


@pytest.mark.parametrize("deadline_ns", [0, -1, 2**63 - 1])
def test_a_drain_without_deadline_and_a_forced_drain_have_no_force_time(deadline_ns: int) -> None:
    state = make_state()

    drain(state, DrainOptions(deadline_ns=deadline_ns))

    strategy = state.node().drain_strategy
    assert strategy is not None
    assert (strategy.deadline, strategy.force_deadline) == (deadline_ns, None)


def test_the_last_drain_records_accessor_times_and_meta_in_whole_seconds() -> None:
    state = make_state()

    drain(state, meta={"why": "disk"})

    last = state.node().last_drain
    whole = get_time(state).replace(microsecond=0)
    assert last is not None
    assert (last.started_at, last.updated_at, last.status) == (whole, whole, DrainStatus.DRAINING)
    assert (last.accessor_id, last.meta) == ("token:acls-disabled", {"why": "disk"})


def test_a_drain_creates_no_evaluations_and_returns_the_index_of_its_write() -> None:
    state = make_state()
    state.register(a_job())
    state.end_evaluations()
    state.with_allocation(state.job(), client_status=ClientStatus.RUNNING)

    written = drain(state)

    assert written == NodeWriteResult(state.replica.index)
    assert state.open_evaluations() == []


def test_changing_a_running_drain_keeps_its_start_and_meta_and_resets_its_deadline() -> None:
    state = make_state()
    drain(state, DrainOptions(deadline_ns=MINUTE_NS), meta={"why": "disk"})
    began = get_time(state)
    state.now_ns += 30 * SECOND_NS

    drain(state, DrainOptions(deadline_ns=MINUTE_NS))

    strategy, last = state.node().drain_strategy, state.node().last_drain
    assert strategy is not None
    assert last is not None
    assert strategy.started_at == began
    assert strategy.force_deadline == get_time(state) + datetime.timedelta(minutes=1)
    assert (last.started_at, last.updated_at) == (began.replace(microsecond=0), get_time(state).replace(microsecond=0))
    assert last.meta == {"why": "disk"}


def test_a_canceled_drain_leaves_the_node_ineligible() -> None:
    state = make_state()
    drain(state, meta={"why": "disk"})

    written = cancel_drain(state, meta={"why": "no need"})

    node = state.node()
    assert (node.drain, node.drain_strategy) == (False, None)
    assert node.scheduling_eligibility is SchedulingEligibility.INELIGIBLE
    assert node.last_drain is not None
    assert (node.last_drain.status, node.last_drain.meta) == (DrainStatus.CANCELED, {"why": "no need"})
    assert written.eval_ids == ()


def test_a_canceled_drain_keeps_its_start_and_records_who_canceled_it_and_when() -> None:
    state = make_state()
    drain(state, meta={"why": "disk"})
    began = get_time(state).replace(microsecond=0)
    state.now_ns += 30 * SECOND_NS

    request = DrainRequest(node_id="node-1", accessor_id="token:other")
    state.lead(drains.update_drain(state.replica, request, state.moment, max_evaluations=MANY))

    last = state.node().last_drain
    assert last is not None
    assert (last.started_at, last.updated_at) == (began, get_time(state).replace(microsecond=0))
    assert (last.accessor_id, last.meta) == ("token:other", {"why": "disk"})


@pytest.mark.parametrize("is_draining", [True, False])
@pytest.mark.parametrize("mark_eligible", [True, False])
def test_a_cancellation_makes_the_node_eligible_only_on_request(is_draining: bool, mark_eligible: bool) -> None:
    state = make_state()
    drain(state)
    if not is_draining:
        cancel_drain(state)

    cancel_drain(state, mark_eligible=mark_eligible)

    expected = SchedulingEligibility.ELIGIBLE if mark_eligible else SchedulingEligibility.INELIGIBLE
    assert (state.node().scheduling_eligibility, state.node().drain_strategy) == (expected, None)
    last_message = list_event_messages(state)[-1][1]
    assert last_message == (
        "Node marked as eligible for scheduling" if mark_eligible and not is_draining else "Node drain disabled"
    )


def test_a_node_that_is_eligible_already_is_not_changed_by_a_cancellation() -> None:
    state = make_state()
    before, index = state.node(), state.replica.index

    written = cancel_drain(state, mark_eligible=True)

    assert (written, state.node(), state.replica.index) == (NodeWriteResult(0), before, index)


def test_canceling_a_drain_can_make_the_node_eligible_and_evaluate_its_jobs() -> None:
    state = make_state()
    state.register(a_system_job())
    state.end_evaluations("agent")
    drain(state)

    written = cancel_drain(state, mark_eligible=True)

    assert state.node().scheduling_eligibility is SchedulingEligibility.ELIGIBLE
    (evaluation,) = state.open_evaluations("agent")
    assert written.eval_ids == (evaluation.id,)
    assert (evaluation.triggered_by, evaluation.node_id) == ("node-update", "node-1")


def test_drains_add_node_events() -> None:
    state = make_state()

    drain(state)
    drain(state)
    cancel_drain(state)

    of_drain = NodeEventSubsystem.DRAIN
    assert list_event_messages(state)[-3:] == [
        (of_drain, "Node drain strategy set"),
        (of_drain, "Node drain strategy updated"),
        (of_drain, "Node drain disabled"),
    ]


def test_canceling_a_missing_drain_changes_nothing() -> None:
    state = make_state()
    before, index = state.node(), state.replica.index

    written = cancel_drain(state)

    assert (written, state.node(), state.replica.index) == (NodeWriteResult(0), before, index)


def test_a_drain_invalidates_plans_based_on_the_node() -> None:
    state = make_state()
    before = state.replica.get_version(NODE_PLACEMENTS, "node-1")

    drain(state)

    assert state.replica.get_version(NODE_PLACEMENTS, "node-1") > before


def test_draining_an_unknown_node_is_refused() -> None:
    state = AState()
    index = state.replica.index

    with pytest.raises(Refusal) as caught:
        drain(state)

    assert (caught.value.code, caught.value.text) == (RefusalCode.NOT_FOUND, "node not found")
    assert (state.replica.index, state.replica.count_records(NODES)) == (index, 0)


def test_a_complete_drain_keeps_its_start_its_accessor_and_its_meta() -> None:
    state = make_state()
    drain(state, meta={"why": "disk"})
    began = get_time(state).replace(microsecond=0)
    state.now_ns += 30 * SECOND_NS

    state.lead(drains.complete_drain(state.replica, state.node(), state.moment, is_deadline_reached=False))

    last = state.node().last_drain
    assert last is not None
    assert (last.started_at, last.updated_at) == (began, get_time(state).replace(microsecond=0))
    assert (last.status, last.accessor_id, last.meta) == (DrainStatus.COMPLETE, "token:acls-disabled", {"why": "disk"})


def test_the_cause_of_a_drain_is_the_request_and_that_of_its_end_is_the_timer() -> None:
    state = make_state()
    request = DrainRequest(node_id="node-1", order=NO_DEADLINE, cause="request-7")

    started = drains.update_drain(state.replica, request, state.moment, max_evaluations=MANY)
    ended = drains.complete_drain(state.replica, state.node(), state.moment, is_deadline_reached=False)

    assert started.write is not None
    assert ended.write is not None
    assert started.write.cause == Cause(CauseKind.REQUEST, "request-7")
    assert ended.write.cause == Cause(CauseKind.TIMER, "drain")
