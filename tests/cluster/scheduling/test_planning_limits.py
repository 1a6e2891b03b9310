"""How often a plan is tried, which evaluations are planned ahead, and which stopping allocations are lost."""

from typing import Any

import pytest
from msgspec.structs import replace

from tests.builders import a_group, a_job
from tests.kit.state import AState, an_allocation, an_evaluation
from wharf.cluster.scheduling.scheduler import can_plan_ahead, get_max_plan_attempts
from wharf.cluster.state.tables import (
    ALLOCATIONS,
    JOBS,
    NAMESPACES,
    NODES,
    QUOTAS,
    SCHEDULER_CONFIGURATION,
)
from wharf.contract.model.allocations.allocation import ClientStatus, DesiredStatus
from wharf.contract.model.evaluations import SchedulerType
from wharf.contract.model.log import WRITE_INDEX
from wharf.contract.model.namespaces import Namespace
from wharf.contract.model.nodes.node import NodeStatus
from wharf.contract.model.operator.scheduler_configuration import PreemptionConfig, SchedulerConfiguration
from wharf.contract.model.quotas import Quota, QuotaLimit, RegionLimit


@pytest.mark.parametrize(
    ("type", "attempts"),
    [
        (SchedulerType.SERVICE, 5),
        (SchedulerType.SYSTEM, 5),
        (SchedulerType.BATCH, 2),
        (SchedulerType.SYSBATCH, 2),
    ],
)
def test_plans_of_finite_jobs_are_tried_twice_and_others_five_times(type: SchedulerType, attempts: int) -> None:
    assert get_max_plan_attempts(an_evaluation(a_job(), type=type)) == attempts


@pytest.mark.parametrize("obstacle", ["", "deleted", "parent", "preemption", "quota"])
def test_an_evaluation_is_planned_ahead_if_only_free_resources_matter(obstacle: str) -> None:
    state = AState()
    job = a_job(parent_id="parent" if obstacle == "parent" else "", create_index=WRITE_INDEX)
    if obstacle != "deleted":
        state.put(JOBS.build_put(job))
    config = PreemptionConfig(service_scheduler_enabled=obstacle == "preemption")
    configuration = SchedulerConfiguration(preemption_config=config, create_index=WRITE_INDEX)
    state.put(SCHEDULER_CONFIGURATION.build_put(configuration))
    if obstacle == "quota":
        limit = QuotaLimit(region=job.region, region_limit=RegionLimit(cpu=1))
        state.put(QUOTAS.build_put(Quota(name="q", limits=(limit,), create_index=WRITE_INDEX)))
        state.put(NAMESPACES.build_put(Namespace(name="default", quota="q")))

    assert can_plan_ahead(state.replica, an_evaluation(job)) == (obstacle == "")


@pytest.mark.parametrize(
    ("status", "fields", "is_lost"),
    [
        (NodeStatus.DOWN, {"desired_status": DesiredStatus.STOP}, True),
        (None, {"desired_status": DesiredStatus.STOP}, True),
        (NodeStatus.DISCONNECTED, {"desired_status": DesiredStatus.STOP}, False),
        (NodeStatus.READY, {"desired_status": DesiredStatus.STOP}, False),
        (NodeStatus.DOWN, {"desired_status": DesiredStatus.STOP, "client_status": ClientStatus.COMPLETE}, False),
    ],
)
def test_a_stopping_allocation_on_a_node_that_is_gone_becomes_lost(
    status: NodeStatus | None, fields: dict[str, Any], *, is_lost: bool
) -> None:
    state = AState()
    job = a_job("shop", a_group("web", count=0), create_index=WRITE_INDEX)
    state.put(JOBS.build_put(job))
    state.with_node("n")
    stopping = an_allocation(state.job(), "a1", node_id="n", **{"client_status": ClientStatus.RUNNING, **fields})
    state.put(ALLOCATIONS.build_put(stopping))
    if status is None:
        state.put(NODES.build_delete("n"))
    else:
        state.put(NODES.build_put(replace(state.node("n"), status=status)))

    plan = state.plan(an_evaluation(state.job()))

    lost = [each.id for each in plan.stops if each.client_status is ClientStatus.LOST]
    assert lost == (["a1"] if is_lost else [])
