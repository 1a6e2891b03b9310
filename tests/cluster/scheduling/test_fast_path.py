"""The fast check finds a group up to date only if the full reconciliation changes nothing."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.builders import a_group, a_job, a_task
from tests.cluster.scheduling.simulated_cluster import SimulatedCluster
from wharf.cluster.operations.evaluations import make_evaluation
from wharf.cluster.scheduling import scheduler
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
def test_a_group_that_passes_the_fast_check_needs_no_change(changes: list[str]) -> None:
    update = UpdatePolicy(max_parallel=0)
    cluster = SimulatedCluster()
    for number in range(3):
        cluster.with_node(f"n{number}")
    cluster.register(a_job("shop", a_group("web", count=3, update=update)))
    cluster.settle()
    for change in changes:
        allocation = cluster.list_allocations()[0]
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
                cluster.put(NODES.build_put(replace(cluster.node("n0"), status=NodeStatus.DOWN)))
            case "version":
                cluster.register(a_job("shop", a_group("web", a_task(env={"V": "1"}), count=3, update=update)))
            case "count":
                cluster.register(a_job("shop", a_group("web", count=4, update=update)))
        if fields:
            cluster.put_led(ALLOCATIONS.build_put(replace(allocation, **fields)))
    fast = list_intended_changes(cluster)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scheduler, "is_up_to_date", lambda *_arguments: False)
        full = list_intended_changes(cluster)

    assert fast == full


def list_intended_changes(cluster: SimulatedCluster) -> object:
    """Return what reconciliation would do and report."""
    evaluation = make_evaluation(cluster.job(), cluster.moment, EvaluationTrigger.JOB_REGISTER)
    plan = cluster.plan(evaluation)
    assert plan.completed_evaluation is not None
    placed = sorted(each.name for placed_on_node in plan.placements.values() for each in placed_on_node)
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
