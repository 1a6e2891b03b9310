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
from wharf.contract.model.nodes.node import DrainStatus, NodeEventSubsystem, SchedulingEligibility
from wharf.contract.model.refusal import Refusal, RefusalCode
from wharf.contract.model.times import to_datetime

MANY = 100
MINUTE_NS = 60 * SECOND_NS
NO_DEADLINE = DrainOptions()


def drain(state: AState, order: DrainOptions | None = NO_DEADLINE, **wish: Any) -> NodeWriteResult:
    asked = DrainRequest(node_id="node-1", order=order, accessor_id="token:acls-disabled", **wish)
    return state.lead(drains.update_drain(state.replica, asked, state.moment, max_evaluations=MANY))


def call_off(state: AState, **wish: Any) -> NodeWriteResult:
    return drain(state, None, **wish)


def with_node() -> AState:
    state = AState()
    state.with_node()
    return state


def now(state: AState) -> datetime.datetime:
    return to_datetime(state.now_ns)


def messages(state: AState) -> list[tuple[str, str]]:
    return [(event.subsystem, event.message) for event in state.node().events or ()]


def test_a_drain_makes_the_node_ineligible_and_records_its_strategy() -> None:
    state = with_node()

    drain(state, DrainOptions(deadline_ns=MINUTE_NS, ignore_system_jobs=True))

    node = state.node()
    assert node.scheduling_eligibility is SchedulingEligibility.INELIGIBLE
    assert node.drain
    assert node.drain_strategy is not None
    assert node.drain_strategy.deadline == MINUTE_NS
    assert node.drain_strategy.ignore_system_jobs
    assert node.drain_strategy.started_at == now(state)
    assert node.drain_strategy.force_deadline == now(state) + datetime.timedelta(minutes=1)


@pytest.mark.parametrize("deadline_ns", [0, -1, 2**63 - 1])
def test_a_drain_without_a_deadline_or_by_force_has_no_moment_at_which_it_is_forced(deadline_ns: int) -> None:
    state = with_node()

    drain(state, DrainOptions(deadline_ns=deadline_ns))

    strategy = state.node().drain_strategy
    assert strategy is not None
    assert (strategy.deadline, strategy.force_deadline) == (deadline_ns, None)


def test_the_last_drain_tells_who_when_and_why_in_whole_seconds() -> None:
    state = with_node()

    drain(state, meta={"why": "disk"})

    last = state.node().last_drain
    whole = now(state).replace(microsecond=0)
    assert last is not None
    assert (last.started_at, last.updated_at, last.status) == (whole, whole, DrainStatus.DRAINING)
    assert (last.accessor_id, last.meta) == ("token:acls-disabled", {"why": "disk"})


def test_a_drain_makes_no_evaluations_and_tells_the_index_of_its_write() -> None:
    state = with_node()
    state.register(a_job())
    state.end_evaluations()
    state.with_allocation(state.job(), client_status=ClientStatus.RUNNING)

    written = drain(state)

    assert written == NodeWriteResult(state.replica.index)
    assert state.open_evaluations() == []


def test_a_change_of_a_running_drain_keeps_its_beginning_and_meta_and_resets_its_deadline() -> None:
    state = with_node()
    drain(state, DrainOptions(deadline_ns=MINUTE_NS), meta={"why": "disk"})
    began = now(state)
    state.now_ns += 30 * SECOND_NS

    drain(state, DrainOptions(deadline_ns=MINUTE_NS))

    strategy, last = state.node().drain_strategy, state.node().last_drain
    assert strategy is not None
    assert last is not None
    assert strategy.started_at == began
    assert strategy.force_deadline == now(state) + datetime.timedelta(minutes=1)
    assert (last.started_at, last.updated_at) == (began.replace(microsecond=0), now(state).replace(microsecond=0))
    assert last.meta == {"why": "disk"}


def test_a_drain_that_is_called_off_leaves_the_node_ineligible() -> None:
    state = with_node()
    drain(state, meta={"why": "disk"})

    written = call_off(state, meta={"why": "no need"})

    node = state.node()
    assert (node.drain, node.drain_strategy) == (False, None)
    assert node.scheduling_eligibility is SchedulingEligibility.INELIGIBLE
    assert node.last_drain is not None
    assert (node.last_drain.status, node.last_drain.meta) == (DrainStatus.CANCELED, {"why": "no need"})
    assert written.eval_ids == ()


def test_a_drain_that_is_called_off_with_a_word_makes_the_node_eligible_and_its_jobs_are_looked_at() -> None:
    state = with_node()
    state.register(a_system_job())
    state.end_evaluations("agent")
    drain(state)

    written = call_off(state, mark_eligible=True)

    assert state.node().scheduling_eligibility is SchedulingEligibility.ELIGIBLE
    (evaluation,) = state.open_evaluations("agent")
    assert written.eval_ids == (evaluation.id,)
    assert (evaluation.triggered_by, evaluation.node_id) == ("node-update", "node-1")


def test_drains_leave_events_of_the_drain() -> None:
    state = with_node()

    drain(state)
    drain(state)
    call_off(state)

    of_drain = NodeEventSubsystem.DRAIN
    assert messages(state)[-3:] == [
        (of_drain, "Node drain strategy set"),
        (of_drain, "Node drain strategy updated"),
        (of_drain, "Node drain disabled"),
    ]


def test_to_call_off_what_is_no_drain_changes_nothing() -> None:
    state = with_node()
    before, index = state.node(), state.replica.index

    written = call_off(state)

    assert (written, state.node(), state.replica.index) == (NodeWriteResult(0), before, index)


def test_a_drain_disturbs_the_plans_that_rest_on_the_node() -> None:
    state = with_node()
    before = state.replica.get_version(NODE_PLACEMENTS, "node-1")

    drain(state)

    assert state.replica.get_version(NODE_PLACEMENTS, "node-1") > before


def test_a_drain_of_a_node_that_nobody_knows_is_refused_and_changes_nothing() -> None:
    state = AState()
    index = state.replica.index

    with pytest.raises(Refusal) as refused:
        drain(state)

    assert (refused.value.code, refused.value.text) == (RefusalCode.NOT_FOUND, "node not found")
    assert (state.replica.index, state.replica.count_records(NODES)) == (index, 0)
