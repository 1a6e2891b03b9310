"""The fast check never claims that nothing is to do when reconciliation would act."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.builders import a_group, a_job, a_task
from tests.cluster.scheduling.loop import Loop
from wharf.cluster.operations.evaluations import make_evaluation
from wharf.cluster.scheduling import scheduler
from wharf.cluster.scheduling.scheduler import plan_evaluation_from_state
from wharf.cluster.state.tables import ALLOCATIONS, NODES
from wharf.contract.model.allocations.allocation import ClientStatus, DesiredStatus, DesiredTransition
from wharf.contract.model.evaluations import EvaluationTrigger
from wharf.contract.model.jobs.group_policies import UpdatePolicy
from wharf.contract.model.nodes.node import NodeStatus

CHANGES = st.lists(
    st.sampled_from(["failed", "unknown", "stopped", "marked", "namesake", "down", "version", "count"]), max_size=3
)


@given(CHANGES)
@settings(max_examples=40, deadline=None)
def test_the_fast_check_never_claims_that_nothing_is_to_do_when_reconciliation_would_act(changes: list[str]) -> None:
    update = UpdatePolicy(max_parallel=0)
    loop = Loop()
    for number in range(3):
        loop.with_node(f"n{number}")
    loop.register(a_job("shop", a_group("web", count=3, update=update)))
    loop.settle()
    for change in changes:
        some = loop.list_allocations()[0]
        fields: dict[str, object] = {}
        match change:
            case "failed":
                fields = {"client_status": ClientStatus.FAILED}
            case "unknown":
                fields = {"client_status": ClientStatus.UNKNOWN}
            case "stopped":
                fields = {"desired_status": DesiredStatus.STOP}
            case "marked":
                fields = {"desired_transition": DesiredTransition(migrate=True)}
            case "namesake":
                fields = {"name": "shop.web[2]"}
            case "down":
                loop.put(NODES.build_put(replace(loop.node("n0"), status=NodeStatus.DOWN)))
            case "version":
                loop.register(a_job("shop", a_group("web", a_task(env={"V": "1"}), count=3, update=update)))
            case "count":
                loop.register(a_job("shop", a_group("web", count=4, update=update)))
        if fields:
            loop.put_led(ALLOCATIONS.build_put(replace(some, **fields)))
    quick = list_intended_changes(loop)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scheduler, "is_up_to_date", lambda *_given: False)
        whole = list_intended_changes(loop)

    assert quick == whole


def list_intended_changes(loop: Loop) -> object:
    """Return what reconciliation would do and report."""
    evaluation = make_evaluation(loop.job(), loop.moment, EvaluationTrigger.JOB_REGISTER)
    plan = plan_evaluation_from_state(loop.replica, evaluation, loop.moment)
    assert plan.completed_evaluation is not None
    placed = sorted(each.name for some in plan.placements.values() for each in some)
    changed = sorted(
        (each.allocation.id, each.allocation.desired_status, each.allocation.client_status) for each in plan.changes
    )
    return (
        placed,
        changed,
        plan.completed_evaluation.plan_annotations,
        plan.completed_evaluation.queued_allocations,
        plan.completed_evaluation.status,
    )
