"""The quick look never says that nothing is to be done where reconciling would do something."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.builders import a_group, a_job, a_task
from tests.scheduling.loop import Loop
from wharf.model.allocation import ClientStatus, DesiredStatus, DesiredTransition
from wharf.model.evaluation import EvaluationTrigger
from wharf.model.node import NodeStatus
from wharf.model.policies import UpdatePolicy
from wharf.operations.evaluations import new_evaluation
from wharf.scheduling import schedule
from wharf.scheduling.evaluate import evaluate
from wharf.state.tables import ALLOCATIONS, NODES

CHANGES = st.lists(
    st.sampled_from(["failed", "unknown", "stopped", "marked", "namesake", "down", "version", "count"]), max_size=3
)


@given(CHANGES)
@settings(max_examples=40, deadline=None)
def test_the_quick_look_and_the_whole_of_reconciling_come_to_the_same(changes: list[str]) -> None:
    update = UpdatePolicy(max_parallel=0)
    loop = Loop()
    for number in range(3):
        loop.with_node(f"n{number}")
    loop.register(a_job("shop", a_group("web", count=3, update=update)))
    loop.settle()
    for change in changes:
        some = loop.of()[0]
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
                loop.put(NODES.put(replace(loop.node("n0"), status=NodeStatus.DOWN)))
            case "version":
                loop.register(a_job("shop", a_group("web", a_task(env={"V": "1"}), count=3, update=update)))
            case "count":
                loop.register(a_job("shop", a_group("web", count=4, update=update)))
        if fields:
            loop.put_led(ALLOCATIONS.put(replace(some, **fields)))
    quick = would_do(loop)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schedule, "is_as_wanted", lambda *_given: False)
        whole = would_do(loop)

    assert quick == whole


def would_do(loop: Loop) -> object:
    """What would be done, and told."""
    evaluation = new_evaluation(loop.job(), loop.moment, EvaluationTrigger.JOB_REGISTER)
    plan = evaluate(loop.replica, evaluation, loop.moment)
    assert plan.finished is not None
    placed = sorted(each.name for some in plan.placements.values() for each in some)
    changed = sorted((each.shall.id, each.shall.desired_status, each.shall.client_status) for each in plan.changes)
    return placed, changed, plan.finished.plan_annotations, plan.finished.queued_allocations, plan.finished.status
